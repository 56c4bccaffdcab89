//! Models in this process, as a component that is useful alone: it knows nothing of jobs or of HTTP.
//!
//! ```text
//!  call ──▶ Prepare (caller's thread: tokens, checks) ──▶ one bounded queue per model ──▶ a copy takes a batch
//!                                                              ▲                            │  Model::answer, stepping its Beacon
//!                                  parts of a dead copy return │                            ▼
//!  PendingAnswer ◀── answer, or why there is none ◀───────────────────┴──────────── supervisor: exit, progress, correctness
//! ```
//!
//! A *copy* is one loaded model with somebody who runs it: a thread, or a child process with the same code. A busy copy is
//! not a dead copy: nothing is ever asked of the one that computes. What tells of its life is that it has not exited, that
//! its [`Beacon`] advances, and that it still answers a question whose answer is known.
//!
//! An engine stands behind [`Backend`]: it says what a path holds, loads it, and prepares requests for it.

pub mod backend;
pub mod beacon;
pub mod child;
pub mod engine;
pub mod failure;
pub mod fake;
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
pub use self::engine::engines;
pub use self::failure::{InferenceError, LoadError, ModelError};
pub use self::model::LoadedModel;
pub use self::pool::{CallOptions, ChildCommand, Escalation, ModelPool, ModelPoolSettings, PendingAnswer};
pub use self::request::{AnswerUpdate, ModelAnswer, ModelRequest, PartAnswer, RequestPart};
pub use self::spec::{Capability, Device, Isolation, ModelSpec, Precision};
pub use self::supervisor::{CardSnapshot, CopySnapshot, ExitReason, ModelSnapshot, PoolSnapshot};
