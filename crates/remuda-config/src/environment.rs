//! The environment, looked at once. Every key has a `REMUDA_…` name; names from before this program keep working, in
//! their own units. A variable that is empty counts as not set. A `REMUDA_…` name nobody knows is refused.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use super::key::{Entry, Key};
use super::value::{Unit, Written};
use super::{ConfigError, Origin, nearest};
use remuda_net::secret::Secret;

/// Known, but not keys: where clients find the plane, who they are and whom they trust, where this file is, what is
/// logged, a secret that no setting shows, and where models are fetched from.
const OTHERS: [&str; 7] = [
    "REMUDA_URL",
    "REMUDA_TOKEN",
    "REMUDA_CA",
    "REMUDA_CONFIG",
    "REMUDA_LOG",
    "REMUDA_ADMIN_TOKEN",
    "REMUDA_MODEL_INDEX",
];
/// What a worker is told about itself instead of by flags; a rented machine gets them from its plane.
const WORKERS: [&str; 14] = [
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

/// The environment of this process, as far as it is text.
pub fn current() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

pub(super) struct Environment(BTreeMap<String, String>);

impl Environment {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        Environment(variables.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// What it says, key by key; where a key is given under both names, our own comes last and wins.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        self.refuse_unknown()?;
        let mut entries = Vec::new();
        for key in Key::all() {
            let names = key.seed.map(|(name, unit)| (name.to_owned(), unit));
            for (name, unit) in names.into_iter().chain([(key.variable(), Unit::Written)]) {
                if let Some(text) = self.0.get(&name) {
                    let written = Written::Text(text.clone());
                    entries.push(key.entry(&written, unit, Origin::Environment(name))?);
                }
            }
        }
        Ok(entries)
    }

    fn refuse_unknown(&self) -> Result<(), ConfigError> {
        let keys: Vec<String> = Key::all().map(Key::variable).collect();
        let names = || keys.iter().map(String::as_str).chain(OTHERS).chain(WORKERS);
        let is_unknown = |name: &str, value: &str| {
            name.starts_with("REMUDA_")
                && !names().any(|known| known == name)
                && !is_service_link(name, value)
        };
        match self.0.iter().find(|(name, value)| is_unknown(name, value)) {
            Some((name, _)) => {
                let hint = nearest::hint(name, names());
                Err(ConfigError::UnknownVariable { name: name.clone(), hint })
            }
            None => Ok(()),
        }
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

    /// Where the platform wants programs to keep their data.
    pub(super) fn data_folder(&self) -> Option<PathBuf> {
        let home = self.0.get("HOME").map(PathBuf::from);
        if cfg!(target_os = "macos") {
            return Some(home?.join("Library/Application Support/remuda"));
        }
        // As the XDG specification asks, a relative path there is as good as none.
        let shared = self.0.get("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(shared.or_else(|| Some(home?.join(".local/share")))?.join("remuda"))
    }
}

/// Kubernetes tells every container about a service called `remuda` in variables of its own making. `REMUDA_PORT=8288`
/// is none of them: someone wanted `listen`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = name.ends_with("_PORT") && value.contains("://");
    is_address || ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"].iter().any(|part| name.contains(part))
}
