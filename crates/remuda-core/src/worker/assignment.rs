//! An attempt that is assigned to a worker: what was sent, what was confirmed, how it gets on.

use std::time::Duration;

use crate::id::Attempt;
use crate::service::ServiceState;
use crate::settings::{Settings, StuckPolicy};
use crate::time::Timestamp;
use crate::wire;

/// An attempt assigned to this worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub attempt: Attempt,
    pub assigned_at: Timestamp,
    /// The beat whose reply carried the order.
    pub sent_with: Option<u64>,
    /// How often the order was sent: one reply may be lost, and one overtaken by a beat.
    pub sends: u32,
    pub sent_at: Timestamp,
    pub is_confirmed: bool,
    /// Assigned by the previous plane, which may have seen it confirmed.
    pub is_inherited: bool,
    pub step: u64,
    pub progress: f32,
    pub phase: String,
    pub progressed_at: Timestamp,
    /// The service runs it, as far as known; until then it is being submitted or queued there.
    pub is_running: bool,
    /// Limits set by the job itself.
    pub start_limit: Option<Duration>,
    pub node_limit: Option<Duration>,
    /// The worker's `service_restarts` when it was assigned.
    pub service_restarts: Option<u64>,
    /// Nothing else may run at the same time.
    pub is_isolated: bool,
}

/// Which limit an attempt ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptTimeout {
    /// No progress, or too old: the rule for all jobs.
    Stuck,
    /// The service did not start it within the job's own limit.
    NotBegun(Duration),
    /// No progress for longer than the job's own limit.
    NoProgress(Duration),
}

/// An attempt that the worker should cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCancel {
    pub reason: String,
    pub sent_at: Option<Timestamp>,
}

impl PendingCancel {
    pub fn new(reason: String) -> Self {
        PendingCancel { reason, sent_at: None }
    }
}

impl Assignment {
    /// Whether the worker may have started it.
    pub fn may_have_started(&self) -> bool {
        self.is_confirmed || self.is_inherited
    }

    /// How often this plane sent the order. One that it inherited counts as sent, and may never have left the previous plane:
    /// that it did not arrive is no evidence.
    pub fn own_sends(&self) -> u32 {
        self.sends.saturating_sub(u32::from(self.is_inherited))
    }

    /// When it runs into a limit unless it makes progress, and into which.
    pub fn timeout_at(
        &self,
        started_at: Option<Timestamp>,
        settings: &Settings,
    ) -> (Timestamp, AttemptTimeout) {
        let from = match settings.stuck_policy {
            StuckPolicy::Progress => self.progressed_at,
            StuckPolicy::Age => started_at.unwrap_or(self.assigned_at),
        };
        let stuck = (from.plus(settings.stuck_after), AttemptTimeout::Stuck);
        let own = if self.is_running {
            self.node_limit.map(|limit| (self.progressed_at.plus(limit), AttemptTimeout::NoProgress(limit)))
        } else {
            self.start_limit.map(|limit| (self.assigned_at.plus(limit), AttemptTimeout::NotBegun(limit)))
        };
        // At the same moment the job's own limit wins: the submitter set it.
        own.filter(|(at, _)| *at <= stuck.0).unwrap_or(stuck)
    }

    /// Whether this report means that the service runs it. A service with a queue reports when it leaves the queue; a
    /// worker without a service runs the attempt itself.
    pub fn is_reported_running(held: &wire::HeldAttempt) -> bool {
        let by_word =
            held.service.as_ref().map_or(held.step > 0, |note| note.status == ServiceState::Running);
        by_word || !held.phase.is_empty() || held.progress > 0.0
    }
}
