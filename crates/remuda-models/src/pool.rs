//! The pool: models by name, each with one queue that its copies take from.
//!
//! The rules stand in [`supervisor`](crate::supervisor). Here is what carries them out: a lock around the supervisor, a thread or a
//! child process for each copy, a supervisor that reads beacons and sees off who has ended, and the tickets of those who
//! wait. Nothing here asks a copy anything in order to learn whether it lives.

mod copy_handle;
mod liveness;
mod model_runtime;
mod pending_answer;
mod ping;
mod process;
mod shared;
#[cfg(test)]
mod tests;
mod thread;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc};

use self::model_runtime::{ModelRuntime, fingerprint};
pub use self::pending_answer::{CallOptions, PendingAnswer};
pub use self::process::ChildCommand;
use self::shared::PoolShared;
pub(crate) use self::thread::message;
use crate::backend::{Batching, Engines, ModelInfo};
use crate::failure::{LoadError, ModelError};
use crate::request::ModelRequest;
use crate::spec::{Device, ModelSpec};
use crate::supervisor::{PoolEvent, PoolSnapshot, ServingConfig, Supervisor, SupervisorLimits};
use crate::sync;

#[derive(Clone, Debug)]
pub struct ModelPoolSettings {
    /// What all copies together may take.
    pub memory_bytes: u64,
    /// How much may wait for one model.
    pub queue_tokens_max: usize,
    pub queue_bytes_max: usize,
    /// How many tokens a copy takes at once, where its engine has no wish.
    pub batch_tokens_max: usize,
    /// For how long the beacon of a copy may stand still while it has something to do, where its engine does not say.
    pub stall_max: Duration,
    /// The same while it is loaded, which may be one long read.
    pub load_stall_max: Duration,
    /// Deaths in a row without an answer in between before a copy is given up for now, and the owner told.
    pub deaths_max: u32,
    /// After how long a copy that was given up is tried again, however often: a disk comes back, a file is mended, and
    /// nobody has to say so.
    pub crash_loop_pause: Duration,
    /// How long a request waits for a model that has no copy and is about to have one; then it is told so.
    pub copy_wait_max: Duration,
    /// How often idle copies are asked what they have to know.
    pub maintenance_every: Duration,
    /// A model that nobody has used for so long makes room, and is loaded again when somebody asks. Never by default:
    /// it makes room anyway when another needs it.
    pub idle_max: Option<Duration>,
    /// Where the answers are kept by which copies are known; only as long as the pool lives if there is no such folder.
    pub golden_folder: Option<PathBuf>,
    /// How a child process is started.
    pub child: ChildCommand,
}

impl Default for ModelPoolSettings {
    fn default() -> Self {
        ModelPoolSettings {
            memory_bytes: 8 << 30,
            queue_tokens_max: 1 << 20,
            queue_bytes_max: 256 << 20,
            batch_tokens_max: 512,
            stall_max: Duration::from_secs(30),
            load_stall_max: Duration::from_secs(120),
            deaths_max: 5,
            crash_loop_pause: Duration::from_secs(60),
            copy_wait_max: Duration::from_secs(1),
            maintenance_every: Duration::from_secs(60),
            idle_max: None,
            golden_folder: None,
            child: ChildCommand::default(),
        }
    }
}

/// A model that this pool cannot keep alive by itself: somebody above has to do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escalation {
    pub model: String,
    pub why: String,
}

/// Copies share what they hold; when the last is dropped, nobody can ask any more and everything ends.
#[derive(Clone, Debug)]
pub struct ModelPool(Arc<Handle>);

struct Handle {
    settings: ModelPoolSettings,
    engines: Engines,
    shared: Arc<PoolShared>,
    supervisor: sync::Mutex<Option<sync::thread::JoinHandle<()>>>,
}

impl ModelPool {
    pub fn start(settings: ModelPoolSettings, engines: Engines) -> Self {
        let supervisor = Supervisor::new(SupervisorLimits {
            memory_bytes: settings.memory_bytes,
            queue_tokens_max: settings.queue_tokens_max,
            queue_bytes_max: settings.queue_bytes_max,
            deaths_max: settings.deaths_max.max(1),
            crash_loop_pause: settings.crash_loop_pause,
            copy_wait_max: settings.copy_wait_max,
            maintenance_every: settings.maintenance_every,
            idle_max: settings.idle_max,
        });
        let shared = Arc::new(PoolShared::new(supervisor));
        let watched = Arc::clone(&shared);
        let supervisor = sync::thread::Builder::new()
            .name("pool-supervisor".to_owned())
            .spawn(move || while watched.supervise_once() {})
            .expect("a process that cannot have one more thread cannot serve models");
        ModelPool(Arc::new(Handle {
            settings,
            engines,
            shared,
            supervisor: sync::Mutex::new(Some(supervisor)),
        }))
    }

    /// Looks at the model, and has its copies loaded; they are not waited for.
    pub fn add(&self, spec: ModelSpec) -> Result<ModelInfo, LoadError> {
        let settings = &self.0.settings;
        let (backend, found) = self.0.engines.find(&spec)?;
        // All its copies compute where the first does: a card that goes away is told of, and not made good by a CPU.
        let spec = ModelSpec { device: Some(found.device), ..spec };
        let memory_bytes = spec.memory_bytes.unwrap_or(found.memory_bytes);
        let free_bytes = found.device_bytes.unwrap_or(settings.memory_bytes);
        if memory_bytes > free_bytes {
            let hint = match found.device {
                Device::Cpu => format!("allow the pool more, or {} less", spec.name),
                device => format!("that is all {device} has; allow {} less, or device=cpu", spec.name),
            };
            return Err(LoadError::Memory { need_bytes: memory_bytes, free_bytes, hint });
        }
        let prepare = backend.prepare(&spec)?;
        let golden = settings.golden_folder.as_ref().map(|folder| folder.join(fingerprint(&spec, &found)));
        let runtime = ModelRuntime {
            child: settings.child.clone(),
            golden,
            spec,
            found: found.clone(),
            backend,
            prepare,
        };
        let model: Arc<str> = Arc::from(runtime.spec.name.as_str());
        let terms = ServingConfig {
            model: Arc::clone(&model),
            copies: runtime.spec.copies,
            device: found.device,
            device_bytes: found.device_bytes,
            memory_bytes,
            batching: runtime
                .backend
                .batching(&runtime.spec)
                .unwrap_or(Batching::packed(settings.batch_tokens_max)),
            stall_max: runtime.backend.stall_max(&runtime.spec).unwrap_or(settings.stall_max),
            load_stall_max: settings.load_stall_max,
            golden: runtime.prepare.golden(),
            reference: runtime.load_reference(),
        };
        let mut state = self.0.shared.state();
        if state.served.contains_key(&model) {
            let what = format!("a second model called {model}");
            let hint = "; give it another name".to_owned();
            return Err(LoadError::Unsupported { path: runtime.spec.path, what, hint });
        }
        state.served.insert(model, Arc::new(runtime));
        drop(state);
        self.0.shared.apply(PoolEvent::AddModel(terms));
        Ok(found)
    }

    /// What is served, by name.
    pub fn models(&self) -> Vec<(ModelSpec, ModelInfo)> {
        let state = self.0.shared.state();
        state.served.values().map(|runtime| (runtime.spec.clone(), runtime.found.clone())).collect()
    }

    /// Asks a model something. Prepares it on this thread, and waits for nobody.
    pub fn call(
        &self,
        model: &str,
        mut request: ModelRequest,
        terms: CallOptions,
    ) -> Result<PendingAnswer, ModelError> {
        let runtime = self.runtime(model)?;
        let (can, asked) = (runtime.found.capability, request.capability());
        if can != asked {
            return Err(ModelError::WrongCapability { model: model.to_owned(), can, asked });
        }
        request.fix_seed();
        let parts = runtime.prepare.prepare(request)?;
        let shared = &self.0.shared;
        let deadline = terms.deadline.map(|deadline| shared.at(deadline));
        let (said, pieces) = mpsc::unbounded_channel();
        let (request, answer) = shared.submit(Arc::from(model), parts, deadline, said)?;
        Ok(PendingAnswer::new(model.to_owned(), answer, pieces, Arc::clone(shared), request))
    }

    fn runtime(&self, model: &str) -> Result<Arc<ModelRuntime>, ModelError> {
        let state = self.0.shared.state();
        state.served.get(model).cloned().ok_or_else(|| ModelError::UnknownModel {
            model: model.to_owned(),
            known: state.served.keys().map(|name| &**name).collect::<Vec<_>>().join(", "),
        })
    }

    /// How things stand.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.0.shared.state().snapshot()
    }

    /// What this pool cannot mend by itself, from now on.
    pub fn escalations(&self) -> broadcast::Receiver<Escalation> {
        self.0.shared.escalations.subscribe()
    }

    /// Takes nothing new, finishes what it can in that time, answers the rest with [`ModelError::Closing`], and returns
    /// when every copy has joined or was reaped; threads that hang are left behind after as much time again.
    pub fn close(&self, within: Duration) {
        let shared = &self.0.shared;
        shared.apply(PoolEvent::Close { until: shared.now() + within });
        shared.wait_until_closed(within * 2 + CLOSING);
        if shared.state().is_closed()
            && let Some(supervisor) = sync::lock(&self.0.supervisor).take()
        {
            drop(supervisor.join());
        }
    }
}

/// What a copy that was told to end is given to do so, however short the deadline.
const CLOSING: Duration = Duration::from_secs(2);

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.apply(PoolEvent::Close { until: self.shared.now() });
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelPool").field("settings", &self.settings).finish_non_exhaustive()
    }
}
