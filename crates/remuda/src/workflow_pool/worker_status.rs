//! The servers of a pool as they are now. Whether one takes work is the core's answer, the same that routing uses.

use remuda_core::id::{JobId, WorkerId};
use remuda_core::plane::Plane;
use remuda_core::time::Timestamp;
use remuda_core::worker::Availability;

use super::servers::ListedServer;
use super::{WorkflowPool, WorkflowPoolError};

/// The current state of one server of the pool.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    pub worker: WorkerId,
    pub url: String,
    /// Whether it takes work now, and if not, why. A server that has not joined yet is starting.
    pub availability: Availability,
    /// Whether it is online and accepts work: `availability` is ready.
    pub is_online: bool,
    /// It is being removed from the pool.
    pub is_leaving: bool,
    /// Why it accepts no work; empty if it does.
    pub reason: String,
    pub running: Vec<JobId>,
    pub completed: u64,
    pub failed: u64,
}

impl WorkerStatus {
    fn read(server: ListedServer, plane: &Plane, now: Timestamp) -> WorkerStatus {
        let ListedServer { worker, url, is_leaving } = server;
        let Some(known) = plane.worker(&worker) else {
            let reason = "not joined: the server has not answered yet, or failed its self-test".to_owned();
            return WorkerStatus {
                worker,
                url,
                availability: Availability::Starting,
                is_online: false,
                is_leaving,
                reason,
                running: Vec::new(),
                completed: 0,
                failed: 0,
            };
        };
        let availability = known.availability(now);
        WorkerStatus {
            is_online: availability.is_ready(),
            availability,
            is_leaving,
            reason: known.shown_reason().to_owned(),
            running: known.assignments.keys().copied().collect(),
            completed: known.counts.completed,
            failed: known.counts.failed,
            worker,
            url,
        }
    }
}

impl WorkflowPool {
    /// All servers, including those that are offline.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let servers = self.inner.servers();
        let read = move |plane: &Plane, now| {
            servers.into_iter().map(|server| WorkerStatus::read(server, plane, now)).collect()
        };
        Ok(context.plane.read(read).await?)
    }
}
