//! A child process together with everything it started.

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tracing::debug;

/// The group is killed when this is dropped, so that no process outlives the task that watches it.
pub(crate) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The child must have been started as the leader of a new group.
    pub(crate) fn new(child: &Child) -> ProcessGroup {
        ProcessGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    pub(crate) fn send(&self, signal: Signal) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, signal)
        {
            debug!(%error, "process group already gone");
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}
