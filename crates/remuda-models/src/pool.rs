//! The pool: models by name, each with one queue that its copies take batches from.
//!
//! The rules are in [`supervisor`](crate::supervisor). This module executes them: a lock around the supervisor's state,
//! a thread or child process per copy, a supervisor thread that reads beacons and reaps ended copies, and the pending
//! answers of callers. Nothing here queries a copy to learn whether it is alive.

mod answer_handle;
mod copy_handle;
mod liveness;
mod model_runtime;
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

pub use self::answer_handle::{AnswerHandle, CallOptions};
use self::model_runtime::{ModelRuntime, fingerprint};
use self::shared::PoolShared;
use crate::backend::{Batching, Engines, ModelInfo};
use crate::child_command::ChildCommand;
use crate::failure::{LoadError, ModelError};
use crate::request::ModelRequest;
use crate::spec::{Device, ModelSpec};
use crate::supervisor::{PoolSnapshot, ServingConfig, Supervisor, SupervisorEvent, SupervisorLimits};
use crate::sync;

#[derive(Clone, Debug)]
pub struct ModelPoolSettings {
    /// The memory limit of all copies together.
    pub memory_bytes: u64,
    /// The limits of one model's queue.
    pub queue_tokens_max: usize,
    pub queue_bytes_max: usize,
    /// Tokens per batch, unless the engine chooses another number.
    pub batch_tokens_max: usize,
    /// How long the beacon of a working copy may stand still, unless the engine chooses another time.
    pub stall_max: Duration,
    /// The same limit while loading, which may be one long read.
    pub load_stall_max: Duration,
    /// Deaths in a row without an answer before a copy is given up for now and an escalation is sent.
    pub deaths_max: u32,
    /// The pause before a given-up copy is started again, without limit on the number of attempts: a disk comes back or
    /// a file is repaired without anyone notifying the pool.
    pub crash_loop_pause: Duration,
    /// How long a request waits for a model that has no copy but is about to start one, before it fails.
    pub copy_wait_max: Duration,
    /// How often idle copies are tested with the golden request.
    pub maintenance_every: Duration,
    /// A model unused for this long is unloaded and loaded again on the next request. Off by default: models are
    /// evicted anyway when another model needs the memory.
    pub idle_max: Option<Duration>,
    /// Where golden answers are stored between starts; without a folder they are kept in memory only.
    pub golden_folder: Option<PathBuf>,
    /// The command that starts child processes.
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

/// A model this pool cannot keep alive without help from its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escalation {
    pub model: String,
    pub why: String,
}

/// Clones share one pool; dropping the last clone closes it.
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

    /// Inspects the model and starts its copies without waiting for them.
    pub fn add(&self, spec: ModelSpec) -> Result<ModelInfo, LoadError> {
        let settings = &self.0.settings;
        let (backend, found) = self.0.engines.find(&spec)?;
        // All copies use the first copy's device: a card that disappears is reported, not silently replaced by the CPU.
        let spec = ModelSpec { device: Some(found.device), ..spec };
        let memory_bytes = spec.memory_bytes.unwrap_or(found.memory_bytes);
        let free_bytes = found.device_bytes.unwrap_or(settings.memory_bytes);
        if memory_bytes > free_bytes {
            let hint = match found.device {
                Device::Cpu => format!("raise the pool's memory limit, or lower that of {}", spec.name),
                device => {
                    format!("{device} has no more; lower the limit of {}, or use device=cpu", spec.name)
                }
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
        self.0.shared.apply(SupervisorEvent::AddModel(terms));
        Ok(found)
    }

    /// The served models.
    pub fn models(&self) -> Vec<(ModelSpec, ModelInfo)> {
        let state = self.0.shared.state();
        state.served.values().map(|runtime| (runtime.spec.clone(), runtime.found.clone())).collect()
    }

    /// Submits a request. Prepares it on this thread and does not block.
    pub fn call(
        &self,
        model: &str,
        mut request: ModelRequest,
        terms: CallOptions,
    ) -> Result<AnswerHandle, ModelError> {
        let runtime = self.runtime(model)?;
        let (can, asked) = (runtime.found.capability, request.capability());
        if can != asked {
            return Err(ModelError::WrongCapability { model: model.to_owned(), can, asked });
        }
        request.fix_seed();
        let parts = runtime.prepare.prepare(request)?;
        let shared = &self.0.shared;
        let deadline = terms.deadline.map(|deadline| shared.at(deadline));
        let (sender, updates) = mpsc::unbounded_channel();
        let (request, answer) = shared.submit(Arc::from(model), parts, deadline, sender)?;
        Ok(AnswerHandle::new(model.to_owned(), answer, updates, Arc::clone(shared), request))
    }

    fn runtime(&self, model: &str) -> Result<Arc<ModelRuntime>, ModelError> {
        let state = self.0.shared.state();
        state.served.get(model).cloned().ok_or_else(|| ModelError::UnknownModel {
            model: model.to_owned(),
            known: state.served.keys().map(|name| &**name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The current state of models, copies and memory.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.0.shared.state().snapshot()
    }

    /// Escalations from now on.
    pub fn escalations(&self) -> broadcast::Receiver<Escalation> {
        self.0.shared.escalations.subscribe()
    }

    /// Refuses new requests, finishes what it can within that time, answers the rest with [`ModelError::Closing`], and
    /// returns when every copy has joined or was reaped. Hung threads are left behind after the same time again.
    pub fn close(&self, within: Duration) {
        let shared = &self.0.shared;
        shared.apply(SupervisorEvent::Close { until: shared.now() + within });
        shared.wait_until_closed(within * 2 + CLOSING);
        if shared.state().is_closed()
            && let Some(supervisor) = sync::lock(&self.0.supervisor).take()
        {
            drop(supervisor.join());
        }
    }
}

/// Time a copy has to end after it was asked to, however short the deadline.
const CLOSING: Duration = Duration::from_secs(2);

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.apply(SupervisorEvent::Close { until: self.shared.now() });
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelPool").field("settings", &self.settings).finish_non_exhaustive()
    }
}
