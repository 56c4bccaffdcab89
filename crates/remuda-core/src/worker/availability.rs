//! Whether a worker takes work now, whatever the job: the one definition of that question.
//!
//! ```text
//!  state active? ──▶ beats arrive? ──▶ heard by this plane? ──▶ reports itself fit? ──▶ off probation? ──▶ ready
//! ```
//!
//! Who asks, all by `Worker::availability`:
//!
//! | caller | for |
//! |---|---|
//! | `Worker::free_slots` | the index of free workers, from which jobs are assigned |
//! | `plane/router.rs`, `passed_over` | routing, `why`, the check of the plane's own state, the simulator's laws |
//! | `plane/router.rs`, `avoids` | whether another worker could take a retry |
//! | `plane/snapshots.rs`, `shares` | how many waiting jobs are left for rented machines |
//! | `plane/domain_event.rs` | `available` in `client:state` |
//! | `fleet_models` (server, OpenAI) | `ready` in `/v1/models`, and whether a call is refused at once |
//! | `WorkerView` (server) | `availability` in `/remuda/v1/workers`, shown by `remuda workers` |
//! | `WorkflowPool` (embedded) | `availability`, `is_online` and `workers_online` |
//!
//! What depends on the job (requirements, blocks, quarantine, free slots) is added by `passed_over`.

use std::fmt;

use super::{Worker, WorkerLine};
use crate::machine::{Presence, WorkerState};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    Ready,
    /// Ordered or joined, and not promoted yet.
    Starting,
    /// Finishes what it holds.
    Draining,
    Terminated,
    /// Given up by the control cycle.
    Failed,
    /// Beats are missing.
    Suspect,
    Offline,
    /// It has not sent a beat since this plane started, so no order can reach it.
    Unheard,
    /// It closed its connection and has not been heard since, so no order can reach it.
    Disconnected,
    Probation {
        until: Timestamp,
    },
    /// It reports that it takes no work: its service is sick, its start check runs, its disk is full.
    Sick {
        reason: String,
    },
}

impl Availability {
    pub fn is_ready(&self) -> bool {
        *self == Availability::Ready
    }

    /// Whether it takes work now or will soon without help: scaling does not replace it.
    pub fn is_capacity(&self) -> bool {
        matches!(
            self,
            Availability::Ready
                | Availability::Unheard
                | Availability::Disconnected
                | Availability::Probation { .. }
        )
    }

    /// The name used by the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Availability::Ready => "ready",
            Availability::Starting => "starting",
            Availability::Draining => "draining",
            Availability::Terminated => "terminated",
            Availability::Failed => "failed",
            Availability::Suspect => "suspect",
            Availability::Offline => "offline",
            Availability::Unheard => "unheard",
            Availability::Disconnected => "disconnected",
            Availability::Probation { .. } => "probation",
            Availability::Sick { .. } => "sick",
        }
    }
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Availability::Probation { until } => write!(f, "is on probation until {until}"),
            Availability::Sick { reason } => write!(f, "takes no work: {reason}"),
            Availability::Unheard => f.write_str("has not sent a beat since the plane started"),
            Availability::Disconnected => f.write_str("closed its connection and has not been heard since"),
            other => write!(f, "is {}", other.as_str()),
        }
    }
}

impl Worker {
    /// Whether it takes work now. A ready worker may still be busy, or unfit for a job.
    pub fn availability(&self, now: Timestamp) -> Availability {
        match (self.state(), self.presence()) {
            (WorkerState::Spawning, _) => Availability::Starting,
            (WorkerState::Terminating, _) => Availability::Draining,
            (WorkerState::Terminated, _) => Availability::Terminated,
            (WorkerState::Error, _) => Availability::Failed,
            (WorkerState::Active, Presence::Suspect) => Availability::Suspect,
            (WorkerState::Active, Presence::Offline) => Availability::Offline,
            (WorkerState::Active, Presence::Online) if !self.has_beaten => Availability::Unheard,
            (WorkerState::Active, Presence::Online) if self.line == WorkerLine::Gone => {
                Availability::Disconnected
            }
            (WorkerState::Active, Presence::Online) => {
                let probation = self.probation.until().filter(|until| now < *until);
                match (&self.unavailable_reason, probation) {
                    // First: probation ends by itself, a sick worker may need help.
                    (Some(reason), _) => Availability::Sick { reason: reason.clone() },
                    (None, Some(until)) => Availability::Probation { until },
                    (None, None) => Availability::Ready,
                }
            }
        }
    }

    /// Why it takes no work by its own report, or else why it was last moved.
    pub fn shown_reason(&self) -> &str {
        self.unavailable_reason.as_deref().unwrap_or(&self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::super::life::{Contact, Life};
    use super::*;
    use crate::id::{Hash, Incarnation, Shape};
    use crate::wire::JoinRequest;

    fn worker() -> Worker {
        let join: JoinRequest = serde_json::from_str(r#"{"worker":"a","services":["exec"]}"#).unwrap();
        Worker::join(Timestamp::ZERO, &join, Incarnation(1), Hash::digest(b"t"))
    }

    fn seen(change: impl FnOnce(&mut Worker)) -> (&'static str, bool, usize) {
        let mut worker = worker();
        change(&mut worker);
        let found = worker.availability(Timestamp::ZERO);
        (found.as_str(), found.is_capacity(), worker.free_slots(Timestamp::ZERO))
    }

    #[test]
    fn only_a_ready_worker_has_free_slots() {
        assert_eq!(seen(|_| ()), ("ready", true, 1));
        assert_eq!(seen(|it| it.life = Life::Spawning), ("starting", false, 0));
        assert_eq!(seen(|it| it.life = Life::Terminating { until: None }), ("draining", false, 0));
        assert_eq!(seen(|it| it.life = Life::Terminated), ("terminated", false, 0));
        assert_eq!(seen(|it| it.life = Life::Error), ("failed", false, 0));
        assert_eq!(seen(|it| it.contact = Contact::Suspect), ("suspect", false, 0));
        assert_eq!(seen(|it| it.contact = Contact::Offline { awaits_proof: false }), ("offline", false, 0));
        assert_eq!(seen(|it| it.has_beaten = false), ("unheard", true, 0));
        let fails = |it: &mut Worker| {
            it.probation.failed(Timestamp::ZERO, Shape::digest(b"s"), 1);
        };
        assert_eq!(seen(fails), ("probation", true, 0));
        let sickens = |it: &mut Worker| it.unavailable_reason = Some("disk full".to_owned());
        assert_eq!(seen(sickens), ("sick", false, 0));
        let both = |it: &mut Worker| {
            fails(it);
            sickens(it);
        };
        assert_eq!(seen(both), ("sick", false, 0), "the end of its probation would not make it ready");
    }
}
