//! Settings from environment variables. Every setting has a `REMUDA_…` name; the names of the predecessor programs (the
//! seeds) still work, in their own units. An empty variable counts as not set; an unknown `REMUDA_…` name is ignored with a
//! warning, because others set variables too: a chart, an image, a wrapper.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::key::{Entry, Key};
use super::value::{RawSetting, Unit};
use super::{ConfigError, ValueOrigin, suggest, table};
use remuda_net::hidden_environment::{HIDDEN_VARIABLE, process_variables};
use remuda_net::secret::Secret;

/// Known variables that are not settings: the clients' address, token and certificate authority, the configuration file,
/// the log filter, a secret that must not appear among the settings, the model index, and what this program tells itself.
const NON_SETTINGS: [&str; 9] = [
    "REMUDA_URL",
    "REMUDA_TOKEN",
    "REMUDA_CA",
    "REMUDA_CONFIG",
    "REMUDA_LOG",
    "REMUDA_ADMIN_TOKEN",
    "REMUDA_MODEL_INDEX",
    "REMUDA_TOKEN_FILE",
    HIDDEN_VARIABLE,
];
/// Variables that replace flags of `remuda worker`; the plane sets them on rented machines.
const WORKER_VARIABLES: [&str; 14] = [
    "REMUDA_WORKER",
    "REMUDA_MACHINE",
    "REMUDA_FLEET",
    "REMUDA_LABELS",
    "REMUDA_POD",
    "REMUDA_STALE_AFTER",
    "REMUDA_CONTACT_TIMEOUT",
    "REMUDA_CONTACT_TIMEOUT_COMMAND",
    "REMUDA_NOTICE",
    "REMUDA_PREEMPT_FILE",
    "REMUDA_CHECK",
    "REMUDA_CHECK_TIMEOUT",
    "REMUDA_DISK_MIN",
    "REMUDA_COMFYUI_HEADER",
];
/// Variables that a worker sets for its commands, which may call this program.
const COMMAND_VARIABLES: [&str; 3] = ["REMUDA_JOB", "REMUDA_ATTEMPT", "REMUDA_SERVICE_JOB_ID"];
/// More than these are counted, not named.
const UNKNOWN_NAMED_MAX: usize = 10;

/// A warning for each variable whose name begins with `REMUDA_` and means nothing, with the most similar name.
pub fn unknown_variables(environment: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let keys: Vec<String> = table::all().map(Key::variable).collect();
    let names = || {
        let others = NON_SETTINGS.into_iter().chain(WORKER_VARIABLES).chain(COMMAND_VARIABLES);
        keys.iter().map(String::as_str).chain(others)
    };
    let environment = Environment::new(environment);
    let is_unknown = |(name, value): &(&String, &String)| {
        name.starts_with("REMUDA_") && !names().any(|known| known == *name) && !is_service_link(name, value)
    };
    let unknown: Vec<&String> = environment.0.iter().filter(is_unknown).map(|(name, _)| name).collect();
    let named = unknown.iter().take(UNKNOWN_NAMED_MAX).map(|name| {
        format!("unknown variable {name} in the environment is ignored: {}", suggest::hint(name, names()))
    });
    let others = unknown.len().saturating_sub(UNKNOWN_NAMED_MAX);
    let others = (others > 0).then(|| format!("{others} more unknown variables begin with REMUDA_"));
    named.chain(others).collect()
}

/// The environment that this process was started with; variables that are not UTF-8 are skipped.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    process_variables()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

pub(super) struct Environment(BTreeMap<String, String>);

impl Environment {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        Environment(variables.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// All settings in the environment. Where both names of a setting are set, the `REMUDA_` name comes last and wins.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        // Ignoring what was meant to forbid something would permit it.
        if let Some(name) = self.0.keys().find(|name| name.starts_with("REMUDA_TENANTS_")) {
            let message = format!("variable {name} is no setting: {}", table::tenants::RULES_MOVED);
            return Err(ConfigError::Conflict(message));
        }
        let mut entries = Vec::new();
        for key in table::all() {
            let names = key.seed.map(|(name, unit)| (name.to_owned(), unit));
            for (name, unit) in names.into_iter().chain([(key.variable(), Unit::Required)]) {
                if let Some(text) = self.0.get(&name) {
                    let written = RawSetting::Text(text.clone());
                    entries.push(key.entry(&written, unit, ValueOrigin::Environment(name))?);
                }
            }
        }
        Ok(entries)
    }

    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.0.get("REMUDA_CONFIG").map(PathBuf::from)
    }

    pub(super) fn admin_token(&self) -> Option<Secret> {
        self.0.get("REMUDA_ADMIN_TOKEN").map(|text| Secret::new(text.trim()))
    }

    pub(super) fn runpod_key(&self) -> Option<Secret> {
        self.0.get("RUNPOD_API_KEY").map(|text| Secret::new(text.trim()))
    }

    /// The platform's folder for application data.
    pub(super) fn data_folder(&self) -> Option<PathBuf> {
        let home = self.0.get("HOME").map(PathBuf::from);
        if cfg!(target_os = "macos") {
            return Some(home?.join("Library/Application Support/remuda"));
        }
        // The XDG specification says to ignore a relative path.
        let shared = self.0.get("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(shared.or_else(|| Some(home?.join(".local/share")))?.join("remuda"))
    }
}

/// Kubernetes sets such variables in every container for a service called `remuda`. `REMUDA_PORT=8288` is not one of them:
/// it was probably meant as `listen`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = name.ends_with("_PORT") && value.contains("://");
    is_address || ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"].iter().any(|part| name.contains(part))
}
