//! The state of one client, which submits one job.

use remuda_core::id::JobId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// The job id from the acknowledgement.
    pub(crate) job: Option<JobId>,
    pub(crate) call: Option<u64>,
    pub(crate) sends: u32,
    pub(crate) is_cancelling: bool,
    pub(crate) is_done: bool,
}
