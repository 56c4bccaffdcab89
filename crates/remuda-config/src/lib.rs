//! What the program runs with: `remuda.toml`, the environment and flags, read once and resolved into plain values.
//!
//! ```text
//!  defaults ──▶ remuda.toml ──▶ environment ──▶ flags ──▶ cross checks ──▶ Resolved
//!               later wins; each value remembers where it came from
//! ```
//!
//! One table (`table.rs`) names every key; reading, showing, checking and `docs/configuration.md` all follow it.
//! `load` changes nothing, so whoever reloads keeps what it has when the new configuration is refused. Nobody else
//! looks at the environment.

mod access;
mod check;
#[cfg(test)]
mod document;
mod environment;
mod file;
mod fleet;
mod key;
mod model;
mod nearest;
mod show;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::settings::Settings;

pub use self::access::AccessSettings;
pub use self::environment::current as environment;
pub use self::file::File;
pub use self::fleet::{Fleet, ProviderKind, Runpod, Source, Ssh, Start};
pub use self::model::{Model, ModelsSettings};
pub use self::nearest::nearest;
pub use self::show::show;
pub use self::store::StoreUrl;
pub use self::value::{read_bytes, written_duration, written_seconds};

use self::environment::Environment;
use self::key::{Entry, Key};
use self::value::{Unit, Written};

/// Where `remuda serve` looks when nobody names a file.
const FILE_NAME: &str = "remuda.toml";

/// Everything the program runs with, all of it legal and fitting together.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// What the core decides by.
    pub settings: Settings,
    pub serve: ServeSettings,
    pub agent: AgentSettings,
    pub models: ModelsSettings,
    /// Each `[[fleet]]`; what the core has to know of them is in `settings`, too.
    pub fleets: Vec<Fleet>,
    /// Where the value of each key came from; a key that is not in here has its default.
    pub origins: BTreeMap<&'static str, Origin>,
}

/// What the plane's shell needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// Store, blobs and logs.
    pub data: PathBuf,
    pub listen: SocketAddr,
    pub store: StoreUrl,
    /// Other addresses than loopback may be served without TLS.
    pub insecure: bool,
    /// How long finished jobs and their results are kept.
    pub retention: Duration,
    pub log_json: bool,
    pub body_bytes_max: usize,
    /// The highest priority that a client may ask for.
    pub client_priority_max: u8,
    /// How deep JSON may be nested.
    pub depth_max: usize,
    /// How many nodes a workflow may have.
    pub nodes_max: usize,
    pub connections_max: usize,
    /// Event streams open at the same time; each holds a connection.
    pub streams_max: usize,
    /// The largest blob.
    pub blob_bytes_max: u64,
    /// How long the next piece of a blob may take to come.
    pub blob_upload_idle_timeout: Duration,
    pub webhooks_allow_private: AllowPrivate,
    pub access: AccessSettings,
    /// The worker is started, over SSH, on machines of fleets that want it so.
    pub start_worker: bool,
    /// The folder with the stock web interface, if it is to be served; only the command line says so.
    pub ui: Option<PathBuf>,
    /// ComfyUI servers that the plane itself may ask; only the command line says so.
    pub forward_to: Vec<remuda_comfyui::Target>,
}

/// Whether something may go to loopback and private addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowPrivate {
    /// Only while the plane itself listens on loopback: then whoever submits is on this machine anyway.
    Auto,
    Yes,
    No,
}

impl ServeSettings {
    /// Whether webhooks may go to loopback and private addresses.
    pub fn webhooks_may_be_private(&self) -> bool {
        match self.webhooks_allow_private {
            AllowPrivate::Auto => self.listen.ip().is_loopback(),
            AllowPrivate::Yes => true,
            AllowPrivate::No => false,
        }
    }
}

/// What the agent's shell needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// How often a service that was given up is asked whether it works again.
    pub probe_every: Duration,
    /// A service that says nothing about a running attempt for this long is asked about it.
    pub inactivity: Duration,
    /// Between the first time a service does not know an attempt and the second, which counts.
    pub unknown_recheck: Duration,
    /// Whoever goes on for longer with what it was told to stop is sick.
    pub cancel_timeout: Duration,
    /// So long one thing may run at a service while our work waits behind it.
    pub queue_stall_max: Duration,
    /// How long a service may take for the smallest of workflows.
    pub self_test_timeout: Duration,
}

impl Resolved {
    /// What holds when nothing is written anywhere but the data folder.
    pub fn defaults(data: PathBuf) -> Resolved {
        let store = StoreUrl::Sqlite(data.join("remuda.sqlite"));
        Resolved {
            settings: Settings::default(),
            serve: ServeSettings {
                data,
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8288)),
                store,
                insecure: false,
                retention: Duration::from_secs(7 * 24 * 60 * 60),
                log_json: false,
                // A large graph is some hundred KiB; images come as blobs.
                body_bytes_max: 8 << 20,
                // As much as "in front" is at the ComfyUI door; what is above is left to whoever runs the fleet.
                client_priority_max: 10,
                depth_max: 64,
                nodes_max: 10_000,
                connections_max: 1024,
                // A quarter of the connections: watchers must not keep submitters out.
                streams_max: 256,
                // A minute of video as it leaves a model, some minutes once it is encoded.
                blob_bytes_max: 2 << 30,
                // As for any other body: whoever takes longer has gone without a word.
                blob_upload_idle_timeout: Duration::from_secs(15),
                webhooks_allow_private: AllowPrivate::Auto,
                access: AccessSettings::default(),
                start_worker: true,
                ui: None,
                forward_to: Vec::new(),
            },
            agent: AgentSettings {
                probe_every: Duration::from_secs(30),
                inactivity: Duration::from_secs(30),
                // Whatever was on its way to the service has arrived by then.
                unknown_recheck: Duration::from_secs(5),
                // An interrupt is heard between two steps of a sampler, and a step may be long.
                cancel_timeout: Duration::from_secs(30),
                queue_stall_max: Duration::from_secs(3600),
                // A service that has just started may load for a while first.
                self_test_timeout: Duration::from_secs(60),
            },
            models: ModelsSettings::default(),
            fleets: Vec::new(),
            origins: BTreeMap::new(),
        }
    }

    /// Where the value of a key came from.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }
}

/// A value given on the command line: `Flag { key: "listen", value: "0.0.0.0:8288", name: "--listen" }`.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    pub key: &'a str,
    pub value: &'a str,
    pub name: &'a str,
}

/// Who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Why there is nothing to run with. Each says what, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}, line {line} is not TOML: {message}", path.display())]
    NotToml { path: PathBuf, line: usize, message: String },
    #[error("unknown key `{name}` in {}, line {line}: {hint}", path.display())]
    UnknownKey { name: String, path: PathBuf, line: usize, hint: String },
    #[error("unknown variable {name} in the environment: {hint}")]
    UnknownVariable { name: String, hint: String },
    #[error("unknown key `{name}` given with {flag}: {hint}")]
    UnknownFlag { name: String, flag: String, hint: String },
    /// The value is what was written, without its secrets.
    #[error("`{key}` cannot be `{value}` ({origin}): {why}")]
    Illegal { key: String, value: String, origin: Origin, why: String },
    /// Two values, legal each, that do not fit together.
    #[error("{0}")]
    Conflict(String),
    #[error("there is no folder for the data: HOME is not set; name one with --data or REMUDA_DATA")]
    NoDataFolder,
}

/// Reads everything there is to read. `file` is what `--config` names; without it `REMUDA_CONFIG`, then `remuda.toml`
/// here, then in the data folder, if there is one. `environment` is what `environment()` gives, or a test's own.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &[Flag<'_>],
) -> Result<Resolved, ConfigError> {
    load_from(Path::new(""), file, &Environment::new(environment), flags)
}

/// As `load`, with the current folder handed in.
fn load_from(
    here: &Path,
    file: Option<&Path>,
    environment: &Environment,
    flags: &[Flag<'_>],
) -> Result<Resolved, ConfigError> {
    let mut later = environment.entries()?;
    for flag in flags {
        later.push(flag.entry()?);
    }
    let file = find_file(here, file, environment, &later).map(|path| File::read(&path)).transpose()?;
    let mut entries = match &file {
        Some(file) => file.entries()?,
        None => Vec::new(),
    };
    entries.append(&mut later);

    let data =
        data_folder(&entries).or_else(|| environment.data_folder()).ok_or(ConfigError::NoDataFolder)?;
    let mut resolved = Resolved::defaults(data);
    resolved.serve.access.admin_token = environment.admin_token();
    for entry in entries {
        entry.key.write(&mut resolved, entry.value);
        resolved.origins.insert(entry.key.name, entry.origin);
    }
    check::check(&resolved)?;
    let api_key = environment.runpod_key();
    for section in file.iter().flat_map(File::fleets) {
        let fleet = Fleet::read(section, &resolved, api_key.as_ref())?;
        resolved.fleets.push(fleet);
    }
    fleet::check_names(&resolved.fleets)?;
    for section in file.iter().flat_map(File::models) {
        resolved.models.own.push(Model::read(section)?);
    }
    model::check_names(&resolved.models.own)?;
    resolved.settings.fleets = resolved.fleets.iter().map(|fleet| fleet.settings.clone()).collect();
    Ok(resolved)
}

/// A file that was named must be there; one that was not may be. The data folder is looked into as far as it is known
/// without the file.
fn find_file(
    here: &Path,
    named: Option<&Path>,
    environment: &Environment,
    later: &[Entry],
) -> Option<PathBuf> {
    if let Some(path) = named.map(PathBuf::from).or_else(|| environment.config_file()) {
        return Some(path);
    }
    let data = data_folder(later).or_else(|| environment.data_folder());
    [Some(here.to_path_buf()), data]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(FILE_NAME))
        .find(|path| path.is_file())
}

/// The data folder that was asked for; the last word counts.
fn data_folder(entries: &[Entry]) -> Option<PathBuf> {
    let last = entries.iter().rfind(|entry| entry.key.name == "data")?;
    last.value.as_folder().map(Path::to_path_buf)
}

impl Flag<'_> {
    fn entry(&self) -> Result<Entry, ConfigError> {
        let key = Key::named(self.key).ok_or_else(|| ConfigError::UnknownFlag {
            name: self.key.to_owned(),
            flag: self.name.to_owned(),
            hint: nearest::hint(self.key, Key::all().map(|key| key.name)),
        })?;
        let written = Written::Text(self.value.to_owned());
        key.entry(&written, Unit::Written, Origin::Flag(self.name.to_owned()))
    }
}
