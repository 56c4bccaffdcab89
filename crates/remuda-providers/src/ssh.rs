//! Starts a worker over SSH, on a machine whose image does not start one. Each stage has its own deadline and name, so
//! an error says how far the bootstrap came:
//!
//! ```text
//!  port ▶ host key ▶ login ▶ marker ▶ mount ▶ gpu ▶ dependencies ▶ upload ▶ start ▶ started
//!  └─── not ready yet ─────┘ └────────────── the machine or the settings are bad ─────────┘
//! ```
//!
//! One call is one bootstrap. The core decides whether and when to retry, and looks up the address again. A second
//! bootstrap finds the worker of the first and starts no other.
//!
//! ```no_run
//! # use std::{collections::BTreeMap, path::Path, sync::Arc};
//! # use remuda_providers::ssh::{self, BootstrapSettings, HostKeyPolicy, KnownHosts, PodInstance, SshKey};
//! # async fn example(data: &Path, pod: &remuda_core::provider::Pod) -> Result<(), Box<dyn std::error::Error>> {
//! // Once, at the start. `key.public()` is what a pod gets as PUBLIC_KEY.
//! let key = SshKey::open(&data.join("ssh/id_ed25519"))?;
//! let host_keys = Arc::new(KnownHosts::open(&data.join("ssh/host_keys.json"))?);
//! // Once per fleet.
//! let settings = BootstrapSettings::new(key, HostKeyPolicy::Pinned(host_keys), "remuda worker");
//! // For each `ProviderCall::Prepare { pod, .. }`; the environment is that of the machine's `RentOrder`.
//! if let Some(address) = &pod.ssh {
//!     let environment = BTreeMap::from([("REMUDA_URL".to_owned(), "http://plane:7777".to_owned())]);
//!     let result = ssh::bootstrap(address, &PodInstance::from(pod), &settings, &environment).await;
//!     // ProviderEvent::Prepared { machine, result }
//! }
//! # Ok(()) }
//! ```

mod check;
mod connection;
mod host_keys;
mod key;
mod remote;
mod settings;
mod stage;
mod start;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::BTreeMap;

use remuda_core::id::PodId;
use remuda_core::provider::{BootstrapError, Pod, SshAddress};

use self::connection::Connection;
use self::start::LaunchScript;

pub use self::host_keys::{HostKeyPolicy, KnownHosts, KnownHostsError};
pub use self::key::{SshKey, SshKeyError};
pub use self::settings::{BootstrapSettings, GpuCheck, ProgramUpload, StageTimeouts, StorageCheck};

/// One start of a pod; every start creates a new host key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInstance {
    pub pod: PodId,
    pub started: String,
}

impl From<&Pod> for PodInstance {
    fn from(pod: &Pod) -> PodInstance {
        PodInstance { pod: pod.id.clone(), started: pod.started.clone() }
    }
}

/// Bootstraps a worker. Dropping the future closes the connection at once and leaves nothing behind in this process.
pub async fn bootstrap(
    address: &SshAddress,
    pod: &PodInstance,
    settings: &BootstrapSettings,
    environment: &BTreeMap<String, String>,
) -> Result<(), BootstrapError> {
    // The machine's variables come last: a fleet setting cannot override its name or token.
    let environment: BTreeMap<_, _> = settings.environment.iter().chain(environment).collect();
    let launch = LaunchScript::new(settings, &environment)?;
    let connection = Connection::open(address, pod, settings).await?;
    let result = run_stages(&connection, pod, settings, &launch).await;
    connection.close().await;
    result.map_err(|error| BootstrapError { message: redact(error.message, &environment), ..error })
}

async fn run_stages(
    connection: &Connection,
    pod: &PodInstance,
    settings: &BootstrapSettings,
    launch: &LaunchScript,
) -> Result<(), BootstrapError> {
    let timeouts = &settings.timeouts;
    check::marker(connection, timeouts).await?;
    // Only after the login: a stale address may lead to a foreign machine, which does not accept our key.
    settings.host_key.remember(pod, connection.host_key()).await?;
    if let Some(storage) = &settings.storage {
        check::storage(connection, timeouts, storage).await?;
    }
    check::gpu(connection, timeouts, &settings.gpu).await?;
    check::dependencies(connection, timeouts, &settings.dependencies).await?;
    if let Some(upload) = &settings.upload {
        upload::upload(connection, timeouts, upload).await?;
    }
    start::start(connection, settings, launch).await?;
    start::started(connection, settings).await
}

/// Shorter values are numbers, names and `true`: redacting them would hide the reason.
const SECRET_CHARS_MIN: usize = 12;

/// Output of the machine goes into errors and logs; the secrets in its environment must not.
fn redact(text: String, environment: &BTreeMap<&String, &String>) -> String {
    let secrets = environment.values().filter(|value| value.len() >= SECRET_CHARS_MIN);
    secrets.fold(text, |text, secret| text.replace(secret.as_str(), "…"))
}
