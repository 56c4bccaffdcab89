//! Machines that are processes of this one: for rehearsals, for tests, and for a computer that is a fleet of its own.
//!
//! ```text
//!  rent ──▶ intent in FOLDER/TAG.json ──▶ spawn ──▶ pid and start time into it
//!  list ──▶ the records, each held against /proc: running, stopped, or never started
//!  give back ──▶ SIGTERM ──stop_grace──▶ SIGKILL ──▶ gone: the record is removed
//! ```
//!
//! Pods outlive the plane that started them, like those of any provider. The intent is written before anything starts,
//! and every process carries its mark in `REMUDA_POD`: a plane that was killed in the middle finds its pods again.
//!
//! A pod is a process group of its own, without a terminal. That is enough to be spared the Ctrl-C and the hang-up meant
//! for the plane, and what leaves the group is still known by its mark.

mod alive;
mod ending;
mod records;
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

use super::{Provider, RentOrder};
use alive::Life;
use records::{Record, Records};

/// The only thing there is to rent.
pub const OFFER: &str = "any";

/// Where a process carries its mark: the tag, and something drawn, because tags of other folders may be the same.
const MARK: &str = "REMUDA_POD";

/// A worker hands back what it holds, and goes; one that does not is killed.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What a pod may know of the plane's environment. Only this, because the rest may hold keys.
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

/// What the owner of a fleet of processes says.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where pods are recorded and write their logs. One fleet has it, and keeps it over restarts.
    pub folder: PathBuf,
    /// What an hour is said to cost, to rehearse budgets.
    pub price: Option<Money>,
    /// How long a pod may take to end by itself.
    pub stop_grace: Duration,
}

impl ProcessSettings {
    pub fn new(command: Vec<String>, folder: PathBuf) -> ProcessSettings {
        ProcessSettings { command, folder, price: None, stop_grace: STOP_GRACE }
    }
}

#[derive(Debug)]
pub struct Process(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: ProcessSettings,
    records: Records,
    /// Whoever looks at the records and acts on it holds this: nobody sees a pod between its intent and its start.
    turn: Mutex<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    /// Those somebody sees to the end of.
    ending: BTreeSet<PodId>,
}

impl Process {
    /// Makes the folder where there is none.
    pub fn open(settings: ProcessSettings) -> io::Result<Process> {
        if settings.command.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a fleet of processes needs a command"));
        }
        let records = Records::open(settings.folder.clone())?;
        Ok(Process(Arc::new(Shared { settings, records, turn: Mutex::default() })))
    }
}

impl Provider for Process {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        Box::pin(blocking(&self.0, move |shared| shared.rent(&order)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        Box::pin(blocking(&self.0, |shared| shared.list()))
    }

    fn give_back(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(blocking(&self.0, move |shared| ending::begin(shared, pod)))
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        let price = self.0.settings.price.map(|price| (OFFER.to_owned(), price));
        Box::pin(async move { Ok(price.into_iter().collect()) })
    }
}

/// Files and processes are waited for where nobody else waits.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Arc<Shared>) -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ProviderError> {
    let shared = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || work(&shared)).await;
    // It panicked, or the runtime is about to end: what it did before that is in the records.
    done.unwrap_or_else(|error| {
        Err(ProviderError::new(ProviderErrorClass::Ambiguous, format!("cut short: {error}")))
    })
}

impl Shared {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rent(&self, order: &RentOrder) -> Result<Pod, ProviderError> {
        let id: PodId = order.tag.parse().map_err(|error| {
            ProviderError::new(
                ProviderErrorClass::Invalid,
                format!("the tag cannot be the name of a file: {error}"),
            )
        })?;
        let _turn = self.turn();
        let mut record = Record::intent(id);
        self.records.begin(&record).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => ProviderError::new(
                ProviderErrorClass::Conflict,
                format!("there is a pod {} already", order.tag),
            ),
            _ => self.failed(&error),
        })?;
        let mut child = match self.spawn(order, &record.mark) {
            Ok(child) => child,
            Err(error) => {
                // Nothing was started; a record that stays is shown as failed, and given back like any other.
                self.records.remove(&record.id).ok();
                let program = &self.settings.command[0];
                return Err(ProviderError::new(class_of(&error), format!("cannot start {program}: {error}")));
            }
        };
        // Nobody has waited for it yet: even if it has ended, its number is still its own.
        let life = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Life::of);
        tokio::spawn(async move { drop(child.wait().await) });
        let recorded = life.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).and_then(|life| {
            info!(pod = %record.id, pid = life.pid, "started a pod as a process");
            record.life = Some(life);
            self.records.write(&record)
        });
        match recorded {
            Ok(()) => Ok(self.pod(&record, PodStatus::Running)),
            // It runs, and will be found by its mark.
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
        let _turn = self.turn();
        let records = self.records.read_all().map_err(|error| self.failed(&error))?;
        records
            .into_iter()
            .map(|mut record| {
                let status = self.look(&mut record).map_err(|error| self.failed(&error))?;
                Ok(self.pod(&record, status))
            })
            .collect()
    }

    /// What became of a pod. One whose number was not recorded is looked for by its mark.
    fn look(&self, record: &mut Record) -> io::Result<PodStatus> {
        if record.life.is_none()
            && let Some(found) = alive::oldest_marked(MARK, &record.mark)?
        {
            info!(pod = %record.id, pid = found.pid, "found a pod again by its mark");
            record.life = Some(found);
            if let Err(error) = self.records.write(record) {
                warn!(%error, pod = %record.id, "cannot record a pod that was found again; the next look finds it too");
            }
        }
        Ok(match &record.life {
            Some(life) if life.is_alive() => PodStatus::Running,
            Some(_) => PodStatus::Stopped,
            None => PodStatus::Failed,
        })
    }

    fn pod(&self, record: &Record, status: PodStatus) -> Pod {
        let started = record.life.as_ref().map(|life| format!("{}/{}", life.pid, life.started));
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

/// What a person has to mend, and what passes.
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
