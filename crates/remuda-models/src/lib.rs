//! Serves models in this process. Usable alone: this crate does not know jobs or HTTP.
//!
//! ```text
//!  call ──▶ Prepare (caller's thread: tokens, checks) ──▶ one bounded queue per model ──▶ a copy takes a batch
//!                                                              ▲                            │  LoadedModel::answer, advancing its Beacon
//!                                  parts of a dead copy return │                            ▼
//!  AnswerHandle ◀── answer or error ◀──────────────────┴──────────── supervisor: exit, progress, correctness
//! ```
//!
//! A *copy* is one loaded model with the thread or child process that runs it. A busy copy is not a dead copy, so the
//! computing thread is never queried. The supervisor judges a copy by three signals: it has not exited, its [`Beacon`]
//! advances, and it still gives the stored answer to a golden request.
//!
//! An engine implements [`Backend`]: it inspects a path, loads the model there, and prepares requests for it.

pub mod backend;
pub mod beacon;
#[cfg(feature = "gguf")]
mod chat_template;
pub mod child;
pub mod child_command;
pub mod engine;
pub mod failure;
pub mod fake;
#[cfg(feature = "fetch")]
pub mod fetch;
mod frame;
mod golden;
pub mod model;
pub mod pool;
pub mod request;
pub mod result;
pub mod spec;
pub mod status;
mod supervisor;
mod sync;

pub use self::backend::{Backend, Batching, Engines, ModelInfo, Prepare};
pub use self::beacon::{Beacon, Stopped};
pub use self::child_command::ChildCommand;
pub use self::engine::engines;
pub use self::failure::{InferenceError, LoadError, ModelError};
pub use self::model::LoadedModel;
pub use self::pool::{AnswerHandle, CallOptions, Escalation, ModelPool, ModelPoolSettings};
pub use self::request::{AnswerUpdate, ModelAnswer, ModelRequest, PartAnswer, RequestPart};
pub use self::spec::{Capability, Device, Isolation, ModelSpec, Precision};
pub use self::supervisor::{CardSnapshot, CopySnapshot, ExitReason, ModelSnapshot, PoolSnapshot};
