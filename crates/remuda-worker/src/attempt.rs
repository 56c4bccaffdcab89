//! What services get from the agent's shell: an attempt to run, the outputs it should return, and where events go.

use std::collections::BTreeSet;
use std::sync::Arc;

use remuda_core::agent::AgentEvent;
use remuda_core::id::{Attempt, JobId};
use remuda_core::workflow::JobKeys;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

/// Where services report what happened; the shell passes each event to the agent.
pub(crate) type Events = mpsc::Sender<AgentEvent>;

/// An attempt that a service should run.
#[derive(Clone, Debug)]
pub(crate) struct AttemptRequest {
    pub(crate) job: JobId,
    pub(crate) attempt: Attempt,
    pub(crate) service_job_id: String,
    pub(crate) filter: OutputFilter,
    pub(crate) workflow: Arc<RawValue>,
    pub(crate) keys: JobKeys,
}

/// Nodes whose outputs are returned; empty means all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputFilter(pub(crate) BTreeSet<String>);

impl OutputFilter {
    /// A node that was created at run time carries its creator's id first: `2.0.0.1` belongs to `2`.
    pub(crate) fn includes(&self, node: &str) -> bool {
        let root = node.split('.').next().unwrap_or(node);
        self.0.is_empty() || self.0.contains(node) || self.0.contains(root)
    }
}
