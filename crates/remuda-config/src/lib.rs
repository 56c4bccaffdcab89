//! Configuration: `remuda.toml`, the environment and flags, read once and resolved into plain values.
//!
//! ```text
//!  defaults ──▶ remuda.toml ──▶ environment ──▶ flags ──▶ cross checks ──▶ ResolvedConfig
//!               later sources win; each value records its origin
//! ```
//!
//! One table (`table.rs`) defines every setting; reading, showing, checking and `docs/configuration.md` follow it. `load`
//! has no side effects, so a reload that fails leaves the running configuration in place. No other crate reads settings
//! from the environment.

mod access;
mod check;
#[cfg(test)]
mod document;
mod environment;
mod file;
mod fleet;
mod fleet_section;
mod key;
mod model;
mod model_section;
mod show;
mod store;
mod suggest;
mod table;
mod tenant;
mod tenant_section;
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
use remuda_net::private_target::PrivateTarget;

pub use self::access::AccessSettings;
pub use self::environment::{process_environment, unknown_variables};
pub use self::file::ConfigFile;
pub use self::fleet::{FleetConfig, MachineSource, ProviderKind, RunpodConfig, SshConfig, WorkerStart};
pub use self::model::{ModelConfig, ModelsSettings};
pub use self::show::show;
pub use self::store::StoreUrl;
pub use self::suggest::closest_name;
pub use self::tenant::TenantConfig;
pub use self::value::{parse_bytes, parse_duration, parse_duration_or_seconds};

use self::environment::Environment;
use self::key::Entry;
use self::value::{RawSetting, Unit};

/// File name that is searched for if none is given.
const FILE_NAME: &str = "remuda.toml";

/// The complete configuration: every value is valid, and the rules between settings hold.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedConfig {
    /// Settings of the core.
    pub settings: Settings,
    pub serve: ServeSettings,
    pub agent: AgentConfig,
    pub models: ModelsSettings,
    /// Each `[[fleet]]`. `settings.fleets` holds the part of it that the core uses.
    pub fleets: Vec<FleetConfig>,
    /// Each `[[tenant]]`. `settings.tenant_quotas` holds their quotas.
    pub tenants: Vec<TenantConfig>,
    /// Origin of each setting that differs from its default.
    pub origins: BTreeMap<&'static str, ValueOrigin>,
}

/// Settings of the server around the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeSettings {
    /// Folder for the store, blobs and logs.
    pub data: PathBuf,
    pub listen: SocketAddr,
    pub store: StoreUrl,
    /// Allows addresses other than loopback without TLS.
    pub insecure: bool,
    /// How long finished jobs and their results are stored.
    pub retention: Duration,
    pub log_json: bool,
    pub body_bytes_max: usize,
    /// Highest priority that a client may request.
    pub client_priority_max: u8,
    /// Deepest nesting of JSON.
    pub depth_max: usize,
    /// Nodes in one workflow.
    pub nodes_max: usize,
    /// Connections of clients.
    pub connections_max: usize,
    /// Connections of workers, which clients cannot take.
    pub worker_connections_max: usize,
    /// Event streams open at once; each holds a connection.
    pub streams_max: usize,
    /// Largest blob.
    pub blob_bytes_max: u64,
    /// Longest pause between two chunks of a blob upload.
    pub blob_upload_idle_timeout: Duration,
    /// Loopback and private addresses that webhooks may go to.
    pub webhooks_private_targets: Vec<PrivateTarget>,
    /// ComfyUI's `/queue` lists one running prompt at most.
    pub comfyui_one_running: bool,
    pub access: AccessSettings,
    /// Starts workers over SSH on machines of fleets with `start = "ssh"`.
    pub start_worker: bool,
    /// Folder of ComfyUI's web interface to serve. Set by the command line only.
    pub ui: Option<PathBuf>,
    /// ComfyUI servers to which the plane forwards requests. Set by the command line only.
    pub forward_to: Vec<remuda_comfyui::ComfyuiTarget>,
}

/// Settings of the worker's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Interval between health checks of a service that was given up.
    pub given_up_recheck: Duration,
    /// The service is queried about a running attempt after this long without a message about it.
    pub inactivity: Duration,
    /// Delay between the first and the second time that a service does not know an attempt; the second one decides.
    pub unknown_recheck: Duration,
    /// A service that still runs a cancelled attempt after this long is sick.
    pub cancel_timeout: Duration,
    /// Longest time for one prompt to run while our job waits behind it.
    pub queue_stall_max: Duration,
    /// Longest time for the minimal workflow of the self-test.
    pub self_test_timeout: Duration,
    /// Output files stay on a ComfyUI server whose output folder the worker could clean.
    pub keep_server_copies: bool,
    /// Environment variables that processes of jobs get in addition to the usual ones.
    pub pass_environment: Vec<String>,
}

impl ResolvedConfig {
    /// The defaults, given the data folder.
    pub fn defaults(data: PathBuf) -> ResolvedConfig {
        let store = StoreUrl::Sqlite(data.join("remuda.sqlite"));
        ResolvedConfig {
            settings: Settings::default(),
            serve: ServeSettings {
                data,
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8288)),
                store,
                insecure: false,
                retention: Duration::from_secs(7 * 24 * 60 * 60),
                log_json: false,
                // A large graph has some hundred KiB; images are uploaded as blobs.
                body_bytes_max: 8 << 20,
                // The priority of `front` in the ComfyUI API; higher ones are reserved for admins.
                client_priority_max: 10,
                depth_max: 64,
                nodes_max: 10_000,
                connections_max: 4096,
                // 5,000 workers, each with a beat and a report or a transfer at once, and some that reconnect.
                worker_connections_max: 12_000,
                // A sixteenth of the connections: streams must leave room for submissions.
                streams_max: 256,
                // A minute of uncompressed video, or several minutes of encoded video.
                blob_bytes_max: 2 << 30,
                // The same as for other request bodies: a client that pauses longer is gone.
                blob_upload_idle_timeout: Duration::from_secs(15),
                webhooks_private_targets: Vec::new(),
                comfyui_one_running: false,
                access: AccessSettings::default(),
                start_worker: true,
                ui: None,
                forward_to: Vec::new(),
            },
            agent: AgentConfig {
                given_up_recheck: Duration::from_secs(30),
                inactivity: Duration::from_secs(30),
                // Any request that was in flight has reached the service by then.
                unknown_recheck: Duration::from_secs(5),
                // ComfyUI handles an interrupt between two sampler steps, and a step may be long.
                cancel_timeout: Duration::from_secs(30),
                queue_stall_max: Duration::from_secs(3600),
                // A service that has just started may load models first.
                self_test_timeout: Duration::from_secs(60),
                keep_server_copies: false,
                pass_environment: Vec::new(),
            },
            models: ModelsSettings::default(),
            fleets: Vec::new(),
            tenants: Vec::new(),
            origins: BTreeMap::new(),
        }
    }

    /// Where the value of a setting came from.
    pub fn origin(&self, key: &str) -> ValueOrigin {
        self.origins.get(key).cloned().unwrap_or(ValueOrigin::Default)
    }
}

/// A setting from the command line: `ConfigFlag { key: "listen", value: "0.0.0.0:8288", name: "--listen" }`.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFlag<'a> {
    pub key: &'a str,
    pub value: &'a str,
    pub name: &'a str,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(String),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::File { path, line } => write!(f, "file {}:{line}", path.display()),
            ValueOrigin::Environment(name) => write!(f, "environment {name}"),
            ValueOrigin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Why a configuration was refused: what is wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}, line {line} is not TOML: {message}", path.display())]
    NotToml { path: PathBuf, line: usize, message: String },
    #[error("unknown key `{name}` in {}, line {line}: {hint}", path.display())]
    UnknownKey { name: String, path: PathBuf, line: usize, hint: String },
    #[error("unknown key `{name}` given with {flag}: {hint}")]
    UnknownFlag { name: String, flag: String, hint: String },
    /// `value` is the text from the source with secrets masked.
    #[error("`{key}` cannot be `{value}` ({origin}): {why}")]
    Invalid { key: String, value: String, origin: ValueOrigin, why: String },
    /// Two values that are valid separately and contradict each other.
    #[error("{0}")]
    Conflict(String),
    #[error("no data folder: HOME is not set; name one with --data or REMUDA_DATA")]
    NoDataFolder,
}

/// Reads and resolves the configuration. `file` is the value of `--config`; without it `REMUDA_CONFIG` names the file, or
/// else `remuda.toml` is searched for in the current folder and in the data folder. Pass [`process_environment`] as
/// `environment`, or a fixed list in tests.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: &[ConfigFlag<'_>],
) -> Result<ResolvedConfig, ConfigError> {
    load_from(Path::new(""), file, &Environment::new(environment), flags)
}

/// As `load`, with the current folder as a parameter.
fn load_from(
    here: &Path,
    file: Option<&Path>,
    environment: &Environment,
    flags: &[ConfigFlag<'_>],
) -> Result<ResolvedConfig, ConfigError> {
    let mut later = environment.entries()?;
    for flag in flags {
        later.push(flag.entry()?);
    }
    let file = find_file(here, file, environment, &later).map(|path| ConfigFile::read(&path)).transpose()?;
    let mut entries = match &file {
        Some(file) => file.entries()?,
        None => Vec::new(),
    };
    entries.append(&mut later);

    let data =
        data_folder(&entries).or_else(|| environment.data_folder()).ok_or(ConfigError::NoDataFolder)?;
    let mut resolved = ResolvedConfig::defaults(data);
    resolved.serve.access.admin_token = environment.admin_token();
    for entry in entries {
        entry.key.write(&mut resolved, entry.value);
        resolved.origins.insert(entry.key.name, entry.origin);
    }
    check::check(&resolved)?;
    let api_key = environment.runpod_key();
    for section in file.iter().flat_map(ConfigFile::fleets) {
        let fleet = FleetConfig::read(section, &resolved, api_key.as_ref())?;
        resolved.fleets.push(fleet);
    }
    fleet_section::check_names(&resolved.fleets)?;
    for section in file.iter().flat_map(ConfigFile::models) {
        resolved.models.own.push(ModelConfig::read(section)?);
    }
    model_section::check_names(&resolved.models.own)?;
    for section in file.iter().flat_map(ConfigFile::tenants) {
        resolved.tenants.push(TenantConfig::read(section, &resolved.settings.quota)?);
    }
    resolved.settings.tenant_quotas = tenant_section::quotas(&resolved.tenants)?;
    resolved.settings.fleets = resolved.fleets.iter().map(|fleet| fleet.settings.clone()).collect();
    Ok(resolved)
}

/// The path of the configuration file. A named file must exist, so its path is returned unchecked. The data folder counts
/// only as far as it is known without the file.
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

/// The data folder from the entries; the last one wins.
fn data_folder(entries: &[Entry]) -> Option<PathBuf> {
    let last = entries.iter().rfind(|entry| entry.key.name == "data")?;
    last.value.as_folder().map(Path::to_path_buf)
}

impl ConfigFlag<'_> {
    fn entry(&self) -> Result<Entry, ConfigError> {
        let key = table::find(self.key).ok_or_else(|| ConfigError::UnknownFlag {
            name: self.key.to_owned(),
            flag: self.name.to_owned(),
            hint: suggest::hint(self.key, table::all().map(|key| key.name)),
        })?;
        let written = RawSetting::Text(self.value.to_owned());
        key.entry(&written, Unit::Required, ValueOrigin::Flag(self.name.to_owned()))
    }
}
