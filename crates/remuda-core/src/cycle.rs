//! The control cycle: what a fleet's workers need now, in six phases. Each phase sees the decisions of the earlier ones (a
//! worker that has just failed is no capacity any more), and no worker changes state twice in one cycle.
//!
//! ```text
//!  1 promotion     spawning ──running, registered, start check passed──▶ active
//!                  spawning ──overdue──▶ error
//!  2 health        active ──silent while work waits, stuck attempt──▶ error
//!  3 reassignment  attempts of workers in error ──▶ back to the queue
//!  4 scale down    active ──idle, above the target; above a maximum or budget──▶ terminating ──holds nothing, or grace over──▶ terminated
//!                  error ──machine returned──▶ terminated
//!  5 replacement   outdated settings ──▶ one new spawning one, or one active ──▶ terminating
//!  6 scale up      too few for the queue ──▶ new spawning ones
//! ```
//!
//! A plan is a value: the plane records it and then executes it, so a plan that is never executed has changed nothing. Not
//! decided here: which worker gets which job (`queue`), and leases, which expire by their own deadlines.
//!
//! Each fleet has its own snapshot and plan; workers without a fleet share one. A rented machine is one worker here, even
//! if several agents run on it.
//!
//! While the mass-loss brake is on, our view of the workers is in doubt: none is failed, drained or terminated, and no
//! attempt is reset. Promotion and scale up continue; silent workers still count as capacity.

use std::time::Duration;

use crate::brake::{CreationBrake, MassLossBrake};
use crate::id::{Attempt, JobId, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::money::Money;
use crate::scale::ScalingTrend;
use crate::settings::{Settings, StuckPolicy};
use crate::time::{Timestamp, humanize};
use crate::verdict::AttemptVerdict;

pub use plan::{CycleAction, CycleCounts, CyclePlan, CycleReport, CycleStatus, FleetReport};

mod grow;
mod plan;
mod shrink;
mod target;
#[cfg(test)]
mod tests;

/// The plane's view of a fleet.
#[derive(Clone, Debug, Default)]
pub struct FleetSnapshot {
    /// Jobs that wait for a worker.
    pub queued: u32,
    pub workers: Vec<WorkerView>,
    /// Whether there is a provider: without one no machine is ever ordered or returned.
    pub can_rent: bool,
    /// When its machines stop themselves without contact to the plane.
    pub contact_timeout: Option<Duration>,
    pub creation: CreationBrake,
    pub mass_loss: MassLossBrake,
    pub heading: ScalingTrend,
    /// Why a person paused scaling.
    pub paused: Option<String>,
    /// The manually ordered number of machines.
    pub ordered: Option<u32>,
    /// The target of a policy other than `Queue`, and its reason.
    pub policy_target: Option<(u32, String)>,
    /// Billed pods with our tag and no record.
    pub orphans: u32,
    /// Why no machine may be created now.
    pub creation_hold: Option<String>,
    /// How many more machines the budget allows, and which budget.
    pub affordable: Option<(u32, String)>,
    /// Set when the day's budget is spent: every machine has to go.
    pub spent: Option<String>,
    /// The highest price of an hour of all machines.
    pub hour_max: Option<Money>,
    /// Why no machine comes, whatever is wanted: named even if nothing is.
    pub problem: Option<String>,
}

/// One worker in the snapshot.
#[derive(Clone, Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    pub state: WorkerState,
    /// Since when it is in this state.
    pub since: Timestamp,
    pub presence: Presence,
    /// Whether a provider bills for its machine.
    pub is_rented: bool,
    /// Counts against the maximum and the budget: not yet proved gone.
    pub counts_against_max: bool,
    /// The price of an hour of its machine.
    pub price: Money,
    /// The provider reports it running.
    pub is_running: bool,
    pub is_registered: bool,
    /// Disk, GPU and service passed the start check.
    pub start_check_passed: bool,
    /// Why it must be given up regardless of its behaviour: overdue, bad, gone.
    pub trouble: Option<String>,
    /// It was created from an older settings revision.
    pub is_outdated: bool,
    /// A person or the provider set a deadline for its draining.
    pub drain_until: Option<Timestamp>,
    pub beat_at: Option<Timestamp>,
    /// The attempts it holds.
    pub attempts: Vec<AttemptView>,
    /// Since when it holds nothing.
    pub idle_since: Option<Timestamp>,
    /// The number of shapes it is warm for.
    pub warm: usize,
    /// When its last VRAM reading came.
    pub metrics_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptView {
    pub job: JobId,
    pub attempt: Attempt,
    pub started_at: Timestamp,
    /// The start, until the first progress.
    pub progressed_at: Timestamp,
}

/// Runs all six phases over one snapshot. `settings.scaling` is the fleet's own.
pub fn plan(now: Timestamp, snapshot: &FleetSnapshot, settings: &Settings) -> CyclePlan {
    let brake = snapshot.mass_loss.reason(now);
    let mut cycle = Cycle {
        now,
        snapshot,
        settings,
        is_held: brake.is_some(),
        states: snapshot.workers.iter().map(|worker| worker.state).collect(),
        queued: snapshot.queued,
        spawned: 0,
        actions: Vec::new(),
        held_back: brake
            .map(|why| format!("no worker is failed, drained or terminated: {why}"))
            .into_iter()
            .chain(snapshot.problem.clone())
            .collect(),
    };
    cycle.promote();
    cycle.check_health();
    cycle.reassign();
    cycle.shrink();
    cycle.replace();
    cycle.grow();
    let status = cycle.status();
    let wanted = cycle.wanted();
    CyclePlan { at: now, actions: cycle.actions, held_back: cycle.held_back, status, wanted }
}

/// A cycle in progress.
struct Cycle<'a> {
    now: Timestamp,
    snapshot: &'a FleetSnapshot,
    settings: &'a Settings,
    /// The mass-loss brake is on.
    is_held: bool,
    /// The state of each worker in the snapshot after the phases so far.
    states: Vec<WorkerState>,
    /// Includes jobs that this cycle puts back.
    queued: u32,
    spawned: u32,
    actions: Vec<CycleAction>,
    held_back: Vec<String>,
}

impl<'a> Cycle<'a> {
    fn promote(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Spawning) {
            let id = worker.id.clone();
            if worker.is_ready() && worker.trouble.is_none() {
                let reason = "running, registered and its start check passed".to_owned();
                self.go(at, WorkerState::Active, CycleAction::Promote { worker: id, reason });
            } else if let Some(reason) = worker.trouble.clone().filter(|_| !self.is_held) {
                self.go(at, WorkerState::Error, CycleAction::Fail { worker: id, reason });
            }
        }
    }

    fn check_health(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Active) {
            let id = worker.id.clone();
            if let Some(reason) = self.failure(worker).filter(|_| !self.is_held) {
                self.go(at, WorkerState::Error, CycleAction::Fail { worker: id, reason });
            } else if let Some(reason) = self.stale_reading(worker) {
                self.actions.push(CycleAction::Warn { worker: id, reason });
            }
        }
    }

    /// Why an active worker has failed. Silence is no failure while no job waits, except for a rented machine that must
    /// have stopped itself by now: it is not paid for any longer.
    fn failure(&self, worker: &WorkerView) -> Option<String> {
        if worker.trouble.is_some() {
            return worker.trouble.clone();
        }
        let (heard_at, reason) = match worker.beat_at {
            Some(beat_at) => (beat_at, "Heartbeat expired with tasks queued"),
            None => (worker.since, "No heartbeat received with tasks queued"),
        };
        if self.snapshot.queued > 0 && self.is_past(heard_at, self.settings.scaling.idle_timeout) {
            return Some(reason.to_owned());
        }
        let is_silent = worker.is_rented && worker.presence == Presence::Offline;
        let contact_timeout = self.snapshot.contact_timeout.filter(|_| is_silent);
        if contact_timeout
            .is_some_and(|limit| self.is_past(heard_at, limit.max(self.settings.scaling.idle_timeout)))
        {
            return Some(format!(
                "no beat for {}: its machine has stopped itself",
                humanize(self.now.since(heard_at))
            ));
        }
        // Whether a silent worker makes progress is unknown; its lease decides.
        let mut attempts = worker.attempts.iter().filter(|_| worker.presence == Presence::Online);
        let stuck = attempts.find(|attempt| {
            let advanced_at = match self.settings.stuck_policy {
                StuckPolicy::Progress => attempt.progressed_at,
                StuckPolicy::Age => attempt.started_at,
            };
            self.is_past(advanced_at, self.settings.stuck_after)
        })?;
        Some(format!("Stuck task {}", stuck.job))
    }

    /// Metrics come with beats, so only an online worker's can be stale.
    fn stale_reading(&self, worker: &WorkerView) -> Option<String> {
        let read_at = worker.metrics_at.filter(|_| worker.presence == Presence::Online)?;
        let is_stale = self.is_past(read_at, self.settings.scaling.vram_stale_after);
        is_stale.then(|| format!("its last VRAM reading is {} old", humanize(self.now.since(read_at))))
    }

    fn reassign(&mut self) {
        if self.is_held {
            return;
        }
        for (at, worker) in self.snapshot.workers.iter().enumerate() {
            if self.states[at] == WorkerState::Error {
                let why = format!("worker {} has failed", worker.id);
                self.reset(worker, AttemptVerdict::WorkerFailed, &why);
            }
        }
    }

    fn reset(&mut self, worker: &WorkerView, verdict: AttemptVerdict, reason: &str) {
        for AttemptView { job, attempt, .. } in worker.attempts.iter().copied() {
            let (worker, reason) = (worker.id.clone(), reason.to_owned());
            self.actions.push(CycleAction::Reset { job, attempt, worker, verdict, reason });
            self.queued += 1;
        }
    }

    fn status(&self) -> CycleStatus {
        let spawning_workers = self.count(WorkerState::Spawning) + self.spawned;
        let active_workers = self.count(WorkerState::Active);
        let terminating_workers = self.count(WorkerState::Terminating);
        CycleStatus {
            queued_tasks: self.queued,
            spawning_workers,
            active_workers,
            terminating_workers,
            total_workers: spawning_workers + active_workers + terminating_workers,
        }
    }

    /// The workers that were in `state` when the cycle began and still are, with their indices.
    fn unmoved(&self, state: WorkerState) -> Vec<(usize, &'a WorkerView)> {
        let workers = self.snapshot.workers.iter().enumerate();
        workers.filter(|(at, worker)| worker.state == state && self.states[*at] == state).collect()
    }

    fn count(&self, state: WorkerState) -> u32 {
        u32::try_from(self.states.iter().filter(|it| **it == state).count()).unwrap_or(u32::MAX)
    }

    fn go(&mut self, at: usize, state: WorkerState, action: CycleAction) {
        self.states[at] = state;
        self.actions.push(action);
    }

    fn is_past(&self, since: Timestamp, limit: Duration) -> bool {
        self.now.since(since) > limit
    }
}

impl WorkerView {
    fn is_ready(&self) -> bool {
        self.is_running && self.is_registered && self.start_check_passed
    }

    fn idle_from(&self) -> Timestamp {
        self.idle_since.unwrap_or(self.since)
    }
}
