//! Remuda inside another Rust program: [`WorkflowPool`] runs the control plane and its ComfyUI workers in your process.
//!
//! Everything else in this crate belongs to the `remuda` command line and is private; `cli::main` is public only because
//! the binary next to this library calls it.

#[doc(hidden)]
pub mod cli;
mod workflow_pool;

pub use self::workflow_pool::{
    AttachmentContent, ComfyuiServer, EnqueueOptions, EventFilter, JobError, JobHandle, JobOutcome,
    JobOutput, JobOutputError, NodeValue, PoolEvent, ShutdownError, WorkerStatus, WorkflowBlock,
    WorkflowPool, WorkflowPoolBuildError, WorkflowPoolBuilder, WorkflowPoolError, WorkflowPoolStats,
    WorkflowSource,
};
// What the pool's methods take and return.
pub use remuda_core::affinity::Affinity;
pub use remuda_core::id::{JobId, Shape, Tenant, WorkerId};
pub use remuda_core::strategy::{FailoverStrategy, StrategyJob, StrategyVerdict, StrategyWorker};
pub use remuda_core::worker::Availability;
