//! The decisions of a cycle, and their report as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Attempt, FleetId, JobId, WorkerId};
use crate::rental::ReturnCause;
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;

/// The decisions about one fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CyclePlan {
    pub at: Timestamp,
    pub actions: Vec<CycleAction>,
    /// What was needed and forbidden, with the reason.
    pub held_back: Vec<String>,
    /// The fleet after the actions.
    pub status: CycleStatus,
    /// The target number of machines.
    pub wanted: u32,
}

impl CyclePlan {
    pub fn report(&self) -> CycleReport {
        let mut counts = CycleCounts::default();
        for action in &self.actions {
            match action {
                CycleAction::Promote { .. } => counts.workers_promoted += 1,
                CycleAction::Fail { .. } => counts.workers_failed += 1,
                CycleAction::Reset { .. } => counts.tasks_reset += 1,
                CycleAction::Terminate { .. } => counts.workers_terminated += 1,
                CycleAction::Spawn { count, .. } => counts.workers_spawned += count,
                CycleAction::Drain { .. } | CycleAction::Warn { .. } => {}
            }
        }
        let held_back = self.held_back.iter().map(|reason| format!("held back: {reason}"));
        CycleReport {
            timestamp: self.at.to_string(),
            actions: counts,
            status: self.status,
            reasons: self.actions.iter().map(CycleAction::to_string).chain(held_back).collect(),
            fleets: BTreeMap::new(),
        }
    }
}

/// One action and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CycleAction {
    Promote {
        worker: WorkerId,
        reason: String,
    },
    Fail {
        worker: WorkerId,
        reason: String,
    },
    /// Requeue the attempt's job, within the job's own limits.
    Reset {
        job: JobId,
        attempt: Attempt,
        worker: WorkerId,
        verdict: AttemptVerdict,
        reason: String,
    },
    /// No new work; held attempts may finish.
    Drain {
        worker: WorkerId,
        reason: String,
    },
    /// Final; a rented machine is returned.
    Terminate {
        worker: WorkerId,
        cause: ReturnCause,
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

impl CycleAction {
    pub fn reason(&self) -> &str {
        match self {
            CycleAction::Promote { reason, .. }
            | CycleAction::Fail { reason, .. }
            | CycleAction::Reset { reason, .. }
            | CycleAction::Drain { reason, .. }
            | CycleAction::Terminate { reason, .. }
            | CycleAction::Spawn { reason, .. }
            | CycleAction::Warn { reason, .. } => reason,
        }
    }
}

impl fmt::Display for CycleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CycleAction::Promote { worker, reason } => write!(f, "promote {worker}: {reason}"),
            CycleAction::Fail { worker, reason } => write!(f, "fail {worker}: {reason}"),
            CycleAction::Reset { job, attempt, reason, .. } => {
                write!(f, "reset {job} attempt {attempt}: {reason}")
            }
            CycleAction::Drain { worker, reason } => write!(f, "drain {worker}: {reason}"),
            CycleAction::Terminate { worker, reason, .. } => write!(f, "terminate {worker}: {reason}"),
            CycleAction::Spawn { count, reason } => write!(f, "spawn {count}: {reason}"),
            CycleAction::Warn { worker, reason } => write!(f, "warn about {worker}: {reason}"),
        }
    }
}

/// A cycle's report. Field names are those of the predecessor programs, which call jobs tasks. `reasons` has one line per action and per
/// action that was held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleReport {
    pub timestamp: String,
    pub actions: CycleCounts,
    pub status: CycleStatus,
    pub reasons: Vec<String>,
    /// The same for each fleet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fleets: BTreeMap<FleetId, FleetReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    pub actions: CycleCounts,
    pub status: CycleStatus,
    /// The target number of machines.
    #[serde(default)]
    pub machines_wanted: u32,
}

impl CycleReport {
    /// Merges the plans of one cycle: the one of workers without a fleet, and one per fleet.
    pub fn merge(at: Timestamp, plans: &[(Option<FleetId>, CyclePlan)]) -> CycleReport {
        let mut whole = CycleReport {
            timestamp: at.to_string(),
            actions: CycleCounts::default(),
            status: CycleStatus::default(),
            reasons: Vec::new(),
            fleets: BTreeMap::new(),
        };
        for (fleet, plan) in plans {
            let CycleReport { actions, status, reasons, .. } = plan.report();
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
pub struct CycleCounts {
    pub workers_promoted: u32,
    pub workers_failed: u32,
    pub workers_spawned: u32,
    pub workers_terminated: u32,
    pub tasks_reset: u32,
}

impl CycleCounts {
    fn add(&mut self, other: CycleCounts) {
        self.workers_promoted += other.workers_promoted;
        self.workers_failed += other.workers_failed;
        self.workers_spawned += other.workers_spawned;
        self.workers_terminated += other.workers_terminated;
        self.tasks_reset += other.tasks_reset;
    }
}

/// The fleet after the cycle. Workers in error are not part of the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStatus {
    pub queued_tasks: u32,
    pub spawning_workers: u32,
    pub active_workers: u32,
    pub terminating_workers: u32,
    pub total_workers: u32,
}

impl CycleStatus {
    fn add(&mut self, other: CycleStatus) {
        self.queued_tasks += other.queued_tasks;
        self.spawning_workers += other.spawning_workers;
        self.active_workers += other.active_workers;
        self.terminating_workers += other.terminating_workers;
        self.total_workers += other.total_workers;
    }
}
