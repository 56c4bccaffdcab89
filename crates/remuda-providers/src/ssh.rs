//! Brings up a worker over SSH, on a machine whose image does not start one. Each stage has its own deadline and its
//! own name, so that a reason says how far it came:
//!
//! ```text
//!  port ▶ host key ▶ login ▶ marker ▶ mount ▶ gpu ▶ dependencies ▶ upload ▶ start ▶ started
//!  └──── may still come ───┘ └───────────────── the machine is no good, or the settings ──┘
//! ```
//!
//! One call is one visit: whether and when to come again is decided by the core, which also reads the address anew.
//! A second visit finds the worker of the first and starts no other.
//!
//! ```no_run
//! # use std::{collections::BTreeMap, path::Path, sync::Arc};
//! # use remuda_providers::ssh::{self, HostKey, HostKeys, Key, PodKey, Preparation};
//! # async fn example(data: &Path, pod: &remuda_core::provider::Pod) -> Result<(), Box<dyn std::error::Error>> {
//! // Once, at the start. `key.public()` is what a pod gets as PUBLIC_KEY.
//! let key = Key::open(&data.join("ssh/id_ed25519"))?;
//! let hosts = Arc::new(HostKeys::open(&data.join("ssh/hosts.json"))?);
//! // Once per fleet.
//! let settings = Preparation::new(key, HostKey::Pinned(hosts), "remuda worker");
//! // For each `Call::Prepare { pod, .. }`; the environment is that of the machine's `RentOrder`.
//! if let Some(address) = &pod.ssh {
//!     let environment = BTreeMap::from([("REMUDA_URL".to_owned(), "http://plane:7777".to_owned())]);
//!     let result = ssh::prepare(address, &PodKey::of(pod), &settings, &environment).await;
//!     // News::Prepared { machine, result }
//! }
//! # Ok(()) }
//! ```

mod check;
mod connection;
mod hosts;
mod key;
mod preparation;
mod remote;
mod stage;
mod start;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::BTreeMap;

use remuda_core::id::PodId;
use remuda_core::provider::{BootstrapError, Pod, SshAddress};

use self::connection::Connection;
use self::start::Launch;

pub use self::hosts::{HostKey, HostKeys, HostKeysError};
pub use self::key::{Key, KeyError};
pub use self::preparation::{GpuCheck, Limits, Preparation, Storage, Upload};

/// Whose host key it is: a pod that was started anew has a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodKey {
    pub pod: PodId,
    pub started: String,
}

impl PodKey {
    pub fn of(pod: &Pod) -> PodKey {
        PodKey { pod: pod.id.clone(), started: pod.started.clone() }
    }
}

/// One visit. Dropping it closes the connection at once and leaves nothing behind in this process.
pub async fn prepare(
    address: &SshAddress,
    pod: &PodKey,
    settings: &Preparation,
    environment: &BTreeMap<String, String>,
) -> Result<(), BootstrapError> {
    // The machine's own come last: no setting of a fleet takes its name or its token away.
    let environment: BTreeMap<_, _> = settings.environment.iter().chain(environment).collect();
    let launch = Launch::new(settings, &environment)?;
    let connection = Connection::open(address, pod, settings).await?;
    let result = visit(&connection, pod, settings, &launch).await;
    connection.leave().await;
    result.map_err(|error| BootstrapError { message: without_values(error.message, &environment), ..error })
}

async fn visit(
    connection: &Connection,
    pod: &PodKey,
    settings: &Preparation,
    launch: &Launch,
) -> Result<(), BootstrapError> {
    let limits = &settings.limits;
    check::marker(connection, limits).await?;
    // Not before: a stale address may lead to somebody else's machine, and that one does not let us in.
    settings.host_key.remember(pod, connection.host_key()).await?;
    if let Some(storage) = &settings.storage {
        check::storage(connection, limits, storage).await?;
    }
    check::gpu(connection, limits, &settings.gpu).await?;
    check::dependencies(connection, limits, &settings.dependencies).await?;
    if let Some(upload) = &settings.upload {
        upload::upload(connection, limits, upload).await?;
    }
    start::start(connection, settings, launch).await?;
    start::started(connection, settings).await
}

/// Shorter ones are numbers, names and `true`: to blot them out would blot out the reason.
const SECRET_CHARS_MIN: usize = 12;

/// What a machine says goes into reasons and logs; what we told it in confidence does not.
fn without_values(text: String, environment: &BTreeMap<&String, &String>) -> String {
    let secrets = environment.values().filter(|value| value.len() >= SECRET_CHARS_MIN);
    secrets.fold(text, |text, secret| text.replace(secret.as_str(), "…"))
}
