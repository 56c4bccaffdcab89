//! Machines that are processes on this computer: for rehearsals, for tests, and for a computer that is its own fleet.
//!
//! ```text
//!  rent ──▶ intent in FOLDER/TAG.json ──▶ spawn ──▶ pid and start time added to it
//!  list ──▶ the records, each compared with /proc: running, stopped, or never started
//!  return ──▶ SIGTERM ──stop_grace──▶ SIGKILL ──▶ gone: the record is removed
//! ```
//!
//! Pods outlive the plane that started them, as with any provider. The intent is written before the process starts, and
//! every process has its mark in `REMUDA_POD`, so a plane that is killed in between finds its pods again.
//!
//! A pod is a separate process group without a terminal. That protects it from a Ctrl-C or hang-up meant for the plane,
//! and processes that leave the group still have the mark.

mod identity;
mod records;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, ProviderError, ProviderErrorClass};
use tokio::process::{Child, Command};
use tracing::{info, warn};

use crate::provider::{Provider, RentOrder};
use identity::ProcessIdentity;
use records::{Record, Records};

/// The only offer.
pub const OFFER: &str = "any";

/// Environment variable with a pod's mark: the tag and a random part, because tags in other folders may be the same.
const MARK: &str = "REMUDA_POD";

/// A worker returns what it holds and exits; if it does not, it is killed.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What a pod inherits of the plane's environment. Nothing else, because it may contain keys.
const INHERITED: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "NO_COLOR",
];
const INHERITED_PREFIXES: [&str; 4] = ["LC_", "XDG_", "CUDA_", "NVIDIA_"];

/// Settings of a fleet of processes.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Folder for records and logs. It belongs to one fleet and must persist across restarts.
    pub folder: PathBuf,
    /// A nominal price per hour, to rehearse budgets.
    pub price: Option<Money>,
    /// How long a pod may take to exit by itself.
    pub stop_grace: Duration,
}

impl ProcessSettings {
    pub fn new(command: Vec<String>, folder: PathBuf) -> ProcessSettings {
        ProcessSettings { command, folder, price: None, stop_grace: STOP_GRACE }
    }
}

#[derive(Debug)]
pub struct ProcessProvider(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: ProcessSettings,
    records: Records,
    /// Held while records are read and acted on, so that no other task sees a pod between its intent and its start.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Pods that a task is already stopping.
    stopping: BTreeSet<PodId>,
}

impl ProcessProvider {
    /// Creates the folder if it does not exist.
    pub fn open(settings: ProcessSettings) -> io::Result<ProcessProvider> {
        if settings.command.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a fleet of processes needs a command; set `command`",
            ));
        }
        let records = Records::open(settings.folder.clone())?;
        Ok(ProcessProvider(Arc::new(Shared { settings, records, state: Mutex::default() })))
    }
}

impl Provider for ProcessProvider {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        Box::pin(blocking(&self.0, move |shared| shared.rent(&order)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        Box::pin(blocking(&self.0, |shared| shared.list()))
    }

    fn return_pod(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(blocking(&self.0, move |shared| stop::begin(shared, pod)))
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        let price = self.0.settings.price.map(|price| (OFFER.to_owned(), price));
        Box::pin(async move { Ok(price.into_iter().collect()) })
    }
}

/// Runs file and process operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Arc<Shared>) -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ProviderError> {
    let shared = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || work(&shared)).await;
    // It panicked or the runtime is shutting down: what it did is in the records.
    done.unwrap_or_else(|error| {
        Err(ProviderError::new(ProviderErrorClass::Ambiguous, format!("interrupted: {error}")))
    })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rent(&self, order: &RentOrder) -> Result<Pod, ProviderError> {
        let id: PodId = order.tag.parse().map_err(|error| {
            ProviderError::new(
                ProviderErrorClass::Invalid,
                format!("the tag is not a valid file name: {error}"),
            )
        })?;
        let _guard = self.lock();
        let mut record = Record::intent(id);
        self.records.begin(&record).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                ProviderError::new(ProviderErrorClass::Conflict, format!("pod {} already exists", order.tag))
            }
            _ => self.failed(&error),
        })?;
        let mut child = match self.spawn(order, &record.mark) {
            Ok(child) => child,
            Err(error) => {
                // No process was started. If the record cannot be removed, the pod is listed as failed and can be
                // returned.
                self.records.remove(&record.id).ok();
                let program = &self.settings.command[0];
                return Err(ProviderError::new(class_of(&error), format!("cannot start {program}: {error}")));
            }
        };
        // The child is not reaped yet: even if it has exited, the pid is not reused.
        let identity = child.id().and_then(|pid| i32::try_from(pid).ok()).map(ProcessIdentity::for_pid);
        tokio::spawn(async move { drop(child.wait().await) });
        let recorded = identity.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).and_then(|identity| {
            info!(pod = %record.id, pid = identity.pid, "pod process started");
            record.process = Some(identity);
            self.records.write(&record)
        });
        match recorded {
            Ok(()) => Ok(self.pod(&record, PodStatus::Running)),
            // It runs, and can be found by its mark.
            Err(error) => {
                let why = format!("{} was started, but could not be recorded: {error}", record.id);
                Err(ProviderError::new(ProviderErrorClass::Ambiguous, why))
            }
        }
    }

    fn spawn(&self, order: &RentOrder, mark: &str) -> io::Result<Child> {
        let (program, arguments) = self.settings.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let log = self.records.log(&order.tag)?;
        Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_inherited)))
            .envs(&order.environment)
            .env(MARK, mark)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
    }

    fn list(&self) -> Result<Vec<Pod>, ProviderError> {
        let _guard = self.lock();
        let records = self.records.read_all().map_err(|error| self.failed(&error))?;
        records
            .into_iter()
            .map(|mut record| {
                let status = self.status(&mut record).map_err(|error| self.failed(&error))?;
                Ok(self.pod(&record, status))
            })
            .collect()
    }

    /// The status of a pod. If its pid was not recorded, the pod is searched by its mark.
    fn status(&self, record: &mut Record) -> io::Result<PodStatus> {
        if record.process.is_none()
            && let Some(found) = identity::oldest_marked(MARK, &record.mark)?
        {
            info!(pod = %record.id, pid = found.pid, "pod process found by its mark");
            record.process = Some(found);
            if let Err(error) = self.records.write(record) {
                warn!(%error, pod = %record.id, "recording a pod found by its mark failed; the next list will find it again");
            }
        }
        Ok(match &record.process {
            Some(identity) if identity.is_alive() => PodStatus::Running,
            Some(_) => PodStatus::Stopped,
            None => PodStatus::Failed,
        })
    }

    fn pod(&self, record: &Record, status: PodStatus) -> Pod {
        let started =
            record.process.as_ref().map(|identity| format!("{}/{}", identity.pid, identity.started));
        Pod {
            id: record.id.clone(),
            tag: record.id.to_string(),
            status,
            kind: String::new(),
            place: String::new(),
            host: None,
            price: self.settings.price,
            ssh: None,
            started: started.unwrap_or_default(),
        }
    }

    fn failed(&self, error: &io::Error) -> ProviderError {
        let class = if error.kind() == io::ErrorKind::InvalidData {
            ProviderErrorClass::Invalid
        } else {
            ProviderErrorClass::Transient
        };
        ProviderError::new(class, format!("{}: {error}", self.settings.folder.display()))
    }
}

/// Errors that an operator has to fix, and errors that pass.
fn class_of(error: &io::Error) -> ProviderErrorClass {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
            ProviderErrorClass::Invalid
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => ProviderErrorClass::Capacity,
        _ => ProviderErrorClass::Transient,
    }
}

fn is_inherited(name: &str) -> bool {
    INHERITED.contains(&name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
