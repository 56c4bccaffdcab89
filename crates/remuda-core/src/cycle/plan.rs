//! What a cycle decided, and how it is told.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Attempt, FleetId, JobId, WorkerId};
use crate::time::Timestamp;

/// What to do about a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub at: Timestamp,
    pub actions: Vec<Action>,
    /// What would have been done, and what forbade it.
    pub held_back: Vec<String>,
    /// How the fleet stands once the actions are carried out.
    pub status: Status,
    /// How many machines there should be.
    pub wanted: u32,
}

impl Plan {
    pub fn report(&self) -> Report {
        let mut counts = Counts::default();
        for action in &self.actions {
            match action {
                Action::Promote { .. } => counts.workers_promoted += 1,
                Action::Fail { .. } => counts.workers_failed += 1,
                Action::Reset { .. } => counts.tasks_reset += 1,
                Action::Terminate { .. } => counts.workers_terminated += 1,
                Action::Spawn { count, .. } => counts.workers_spawned += count,
                Action::Drain { .. } | Action::Warn { .. } => {}
            }
        }
        let held_back = self.held_back.iter().map(|reason| format!("held back: {reason}"));
        Report {
            timestamp: self.at.to_string(),
            actions: counts,
            status: self.status,
            reasons: self.actions.iter().map(Action::to_string).chain(held_back).collect(),
            fleets: BTreeMap::new(),
        }
    }
}

/// One thing to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Promote {
        worker: WorkerId,
        reason: String,
    },
    Fail {
        worker: WorkerId,
        reason: String,
    },
    /// Back to the queue, within the job's own limits.
    Reset {
        job: JobId,
        attempt: Attempt,
        worker: WorkerId,
        reason: String,
    },
    /// No new work; what it holds may finish.
    Drain {
        worker: WorkerId,
        reason: String,
    },
    /// The end of its life; a rented machine is returned.
    Terminate {
        worker: WorkerId,
        reason: String,
    },
    /// Recorded as spawning before the provider is called, so that the next cycle counts them.
    Spawn {
        count: u32,
        reason: String,
    },
    /// For people; nothing is done.
    Warn {
        worker: WorkerId,
        reason: String,
    },
}

impl Action {
    pub fn reason(&self) -> &str {
        match self {
            Action::Promote { reason, .. }
            | Action::Fail { reason, .. }
            | Action::Reset { reason, .. }
            | Action::Drain { reason, .. }
            | Action::Terminate { reason, .. }
            | Action::Spawn { reason, .. }
            | Action::Warn { reason, .. } => reason,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Promote { worker, reason } => write!(f, "promote {worker}: {reason}"),
            Action::Fail { worker, reason } => write!(f, "fail {worker}: {reason}"),
            Action::Reset { job, attempt, reason, .. } => {
                write!(f, "reset {job} attempt {attempt}: {reason}")
            }
            Action::Drain { worker, reason } => write!(f, "drain {worker}: {reason}"),
            Action::Terminate { worker, reason } => write!(f, "terminate {worker}: {reason}"),
            Action::Spawn { count, reason } => write!(f, "spawn {count}: {reason}"),
            Action::Warn { worker, reason } => write!(f, "warn of {worker}: {reason}"),
        }
    }
}

/// A cycle as it is told, in the words and the shape of the seeds, where jobs are still called tasks; and one line
/// for every action and for everything that was held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub timestamp: String,
    pub actions: Counts,
    pub status: Status,
    pub reasons: Vec<String>,
    /// The same for each fleet, where there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fleets: BTreeMap<FleetId, FleetReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    pub actions: Counts,
    pub status: Status,
    /// How many machines there should be, by what waits and what was ordered.
    #[serde(default)]
    pub machines_wanted: u32,
}

impl Report {
    /// One report of all plans of a cycle: that of the workers without a fleet, and one for each fleet.
    pub fn of(at: Timestamp, plans: &[(Option<FleetId>, Plan)]) -> Report {
        let mut whole = Report {
            timestamp: at.to_string(),
            actions: Counts::default(),
            status: Status::default(),
            reasons: Vec::new(),
            fleets: BTreeMap::new(),
        };
        for (fleet, plan) in plans {
            let Report { actions, status, reasons, .. } = plan.report();
            whole.actions.add(actions);
            whole.status.add(status);
            let named = |reason: String| match fleet {
                Some(fleet) => format!("{fleet}: {reason}"),
                None => reason,
            };
            whole.reasons.extend(reasons.into_iter().map(named));
            if let Some(fleet) = fleet {
                let machines_wanted = plan.wanted;
                whole.fleets.insert(fleet.clone(), FleetReport { actions, status, machines_wanted });
            }
        }
        whole
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub workers_promoted: u32,
    pub workers_failed: u32,
    pub workers_spawned: u32,
    pub workers_terminated: u32,
    pub tasks_reset: u32,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.workers_promoted += other.workers_promoted;
        self.workers_failed += other.workers_failed;
        self.workers_spawned += other.workers_spawned;
        self.workers_terminated += other.workers_terminated;
        self.tasks_reset += other.tasks_reset;
    }
}

/// How the fleet stands after the cycle. Workers in error are no part of the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub queued_tasks: u32,
    pub spawning_workers: u32,
    pub active_workers: u32,
    pub terminating_workers: u32,
    pub total_workers: u32,
}

impl Status {
    fn add(&mut self, other: Status) {
        self.queued_tasks += other.queued_tasks;
        self.spawning_workers += other.spawning_workers;
        self.active_workers += other.active_workers;
        self.terminating_workers += other.terminating_workers;
        self.total_workers += other.total_workers;
    }
}
