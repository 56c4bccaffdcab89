//! The control cycle: what the lives of a fleet's workers ask for now, in five phases. Each phase sees what the
//! earlier ones decided (a worker that failed a line above is no capacity any more), and no worker is moved twice in
//! one cycle.
//!
//! ```text
//!  1 promotion     spawning ──running, registered, start check passed──▶ active
//!                  spawning ──overdue──▶ error
//!  2 health        active ──silent while work waits, stuck attempt──▶ error
//!  3 reassignment  attempts of workers in error ──▶ back to the queue
//!  4 scale down    active ──idle, more than wanted──▶ terminating ──holds nothing, or grace over──▶ terminated
//!                  error ──machine returned──▶ terminated
//!  5 scale up      too few for the queue ──▶ new spawning ones
//! ```
//!
//! A plan is a value: the plane records it and carries it out, and a cycle that is planned and never carried out has
//! changed nothing. Not decided here: which worker gets which job, and leases, which end by their own deadlines.
//!
//! While the mass-loss brake is on, what we believe of the workers is in doubt: nobody is failed, drained or
//! terminated and nothing is reset. Promotion and scale up go on; the silent still count as capacity.

use std::time::Duration;

use crate::brake::{CreationBrake, MassLoss};
use crate::id::{Attempt, JobId, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::scale::{self, Direction, Heading};
use crate::settings::{Settings, StuckPolicy};
use crate::time::{Timestamp, spoken};

pub use plan::{Action, Counts, Plan, Report, Status};

mod plan;
#[cfg(test)]
mod tests;

/// Cold pulls of an image take 5 to 13 minutes; a machine that is not running after twice that never will be.
const PULL_MAX: Duration = Duration::from_secs(30 * 60);

/// A fleet as the plane believes it to be.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Jobs that wait for a worker.
    pub queued: u32,
    pub workers: Vec<WorkerView>,
    /// Whether there is a provider: without one no machine is ever ordered or returned.
    pub can_rent: bool,
    pub creation: CreationBrake,
    pub mass_loss: MassLoss,
    pub heading: Heading,
}

/// What the cycle needs to know of a worker.
#[derive(Clone, Debug)]
pub struct WorkerView {
    pub id: WorkerId,
    pub state: WorkerState,
    /// Since when it is in this state.
    pub since: Timestamp,
    pub presence: Presence,
    /// Whether a provider bills for its machine.
    pub is_rented: bool,
    /// When the provider first said running.
    pub provider_running_at: Option<Timestamp>,
    pub is_registered: bool,
    /// Disk, GPU and service were tried and answered.
    pub start_check_passed: bool,
    pub beat_at: Option<Timestamp>,
    /// What it holds.
    pub attempts: Vec<AttemptView>,
    /// Since when it holds nothing.
    pub idle_since: Option<Timestamp>,
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

/// All five phases over one snapshot. A fleet with a scaling policy of its own comes with settings that hold it.
pub fn plan(now: Timestamp, snapshot: &Snapshot, settings: &Settings) -> Plan {
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
        held_back: brake.into_iter().map(|why| format!("every verdict on a worker: {why}")).collect(),
    };
    cycle.promote();
    cycle.check_health();
    cycle.reassign();
    cycle.shrink();
    cycle.grow();
    let status = cycle.status();
    Plan { at: now, actions: cycle.actions, held_back: cycle.held_back, status }
}

/// A cycle under way.
struct Cycle<'a> {
    now: Timestamp,
    snapshot: &'a Snapshot,
    settings: &'a Settings,
    /// The mass-loss brake is on.
    is_held: bool,
    /// Where each worker of the snapshot is after the phases so far.
    states: Vec<WorkerState>,
    /// With the jobs that come back.
    queued: u32,
    spawned: u32,
    actions: Vec<Action>,
    held_back: Vec<String>,
}

impl<'a> Cycle<'a> {
    fn promote(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Spawning) {
            let id = worker.id.clone();
            if worker.is_ready() {
                let reason = "running, registered and its start check passed".to_owned();
                self.go(at, WorkerState::Active, Action::Promote { worker: id, reason });
            } else if let Some(reason) = self.overdue(worker).filter(|_| !self.is_held) {
                self.go(at, WorkerState::Error, Action::Fail { worker: id, reason });
            }
        }
    }

    /// Why a spawning worker is given up.
    fn overdue(&self, worker: &WorkerView) -> Option<String> {
        match worker.running_at() {
            Some(running_at) if self.is_past(running_at, self.settings.scaling.spawning_timeout) => {
                Some("Spawning timeout".to_owned())
            }
            None if self.is_past(worker.since, PULL_MAX) => {
                Some(format!("Spawning timeout: not running {} after it was ordered", spoken(PULL_MAX)))
            }
            Some(_) | None => None,
        }
    }

    fn check_health(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Active) {
            let id = worker.id.clone();
            if let Some(reason) = self.sickness(worker).filter(|_| !self.is_held) {
                self.go(at, WorkerState::Error, Action::Fail { worker: id, reason });
            } else if let Some(reason) = self.stale_reading(worker) {
                self.actions.push(Action::Warn { worker: id, reason });
            }
        }
    }

    /// Why an active worker has failed. Being quiet is no sickness while nothing waits.
    fn sickness(&self, worker: &WorkerView) -> Option<String> {
        let (heard_at, reason) = match worker.beat_at {
            Some(beat_at) => (beat_at, "Heartbeat expired with tasks queued"),
            None => (worker.since, "No heartbeat received with tasks queued"),
        };
        if self.snapshot.queued > 0 && self.is_past(heard_at, self.settings.scaling.idle_timeout) {
            return Some(reason.to_owned());
        }
        // Of a worker that is not heard nobody knows whether it advances; its lease decides.
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

    /// Readings come with beats: of a silent worker old ones are no news.
    fn stale_reading(&self, worker: &WorkerView) -> Option<String> {
        let read_at = worker.metrics_at.filter(|_| worker.presence == Presence::Online)?;
        let is_stale = self.is_past(read_at, self.settings.scaling.vram_stale_after);
        is_stale.then(|| format!("Stale VRAM data ({} old)", spoken(self.now.since(read_at))))
    }

    fn reassign(&mut self) {
        if self.is_held {
            return;
        }
        for (at, worker) in self.snapshot.workers.iter().enumerate() {
            if self.states[at] == WorkerState::Error {
                self.reset(worker, &format!("worker {} has failed", worker.id));
            }
        }
    }

    fn reset(&mut self, worker: &WorkerView, reason: &str) {
        for AttemptView { job, attempt, .. } in worker.attempts.iter().copied() {
            let (worker, reason) = (worker.id.clone(), reason.to_owned());
            self.actions.push(Action::Reset { job, attempt, worker, reason });
            self.queued += 1;
        }
    }

    fn shrink(&mut self) {
        if self.is_held {
            return;
        }
        self.end_terminating();
        self.return_failed();
        if self.snapshot.can_rent {
            self.drain_idle();
        }
    }

    fn end_terminating(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Terminating) {
            let is_over = self.is_past(worker.since, self.settings.scaling.drain_timeout);
            if worker.is_rented && !self.snapshot.can_rent || !worker.attempts.is_empty() && !is_over {
                continue;
            }
            let reason = if worker.attempts.is_empty() {
                "drained: it holds nothing any more".to_owned()
            } else {
                let grace = spoken(self.settings.scaling.drain_timeout);
                self.reset(
                    worker,
                    &format!("worker {} was not done {grace} after it began to drain", worker.id),
                );
                format!("not done {grace} after it began to drain")
            };
            self.go(at, WorkerState::Terminated, Action::Terminate { worker: worker.id.clone(), reason });
        }
    }

    fn return_failed(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Error) {
            if worker.is_rented && self.snapshot.can_rent {
                let reason = "failed: its machine is returned".to_owned();
                self.go(at, WorkerState::Terminated, Action::Terminate { worker: worker.id.clone(), reason });
            }
        }
    }

    /// The one that has been idle longest goes first; ties by name, so that every run decides alike.
    fn drain_idle(&mut self) {
        let active = self.count(WorkerState::Active);
        let mut idle = self.unmoved(WorkerState::Active);
        idle.retain(|(_, worker)| {
            worker.is_rented
                && worker.attempts.is_empty()
                && self.now.since(worker.since) >= self.settings.scaling.life_min
        });
        idle.sort_by_key(|(_, worker)| (worker.idle_from(), worker.id.clone()));
        let idle_count = u32::try_from(idle.len()).unwrap_or(u32::MAX);
        let surplus = scale::surplus(self.queued, active, idle_count, &self.settings.scaling);
        let free_at = self.snapshot.heading.free_at(Direction::Down, self.settings.scaling.turn_min);
        if surplus > 0 && self.now < free_at {
            self.held_back
                .push(format!("an idle surplus of {surplus} stays until {free_at}: the fleet grew just now"));
            return;
        }
        let wanted = scale::wanted(self.queued, &self.settings.scaling);
        for (at, worker) in idle.into_iter().take(surplus as usize) {
            let idle_for = spoken(self.now.since(worker.idle_from()));
            let reason = format!("idle for {idle_for}: {active} active, {wanted} wanted");
            self.go(at, WorkerState::Terminating, Action::Drain { worker: worker.id.clone(), reason });
        }
    }

    fn grow(&mut self) {
        let Snapshot { creation, heading, can_rent, .. } = self.snapshot;
        let (queued, scaling) = (self.queued, &self.settings.scaling);
        let spawning = self.count(WorkerState::Spawning);
        let capacity = self.count(WorkerState::Active) + spawning;
        if !scale::is_short(queued, capacity, scaling.jobs_per_worker) {
            return;
        }
        let missing = scale::missing(queued, capacity, scaling);
        let reason = format!("{queued} queued on a capacity of {capacity}: {missing} more wanted");
        if missing == 0 {
            return self
                .held_back
                .push(format!("{queued} queued on a capacity of {capacity}: that is the maximum"));
        }
        if !can_rent {
            return self.held_back.push(format!("{reason}, but there is no provider to rent from"));
        }
        let free_at = heading.free_at(Direction::Up, scaling.turn_min);
        // The damper is for fleets that swing, not for one that has lost what it cannot do without.
        if self.now < free_at && capacity >= scaling.machines_min.max(1) {
            return self
                .held_back
                .push(format!("{reason}, but the fleet shrank just now: not before {free_at}"));
        }
        let count = missing.min(self.room());
        if count < missing {
            self.held_back
                .push(format!("{reason}, room for {count}: machines not yet returned count as well"));
        }
        let allowed = count.min(creation.room(self.now, spawning));
        if let Some(brake) = creation.reason(self.now).filter(|_| allowed < count) {
            self.held_back.push(format!("{reason}, {allowed} may be created: {brake}"));
        }
        if allowed > 0 {
            self.spawned = allowed;
            self.actions.push(Action::Spawn { count: allowed, reason });
        }
    }

    /// How many more machines may exist. One that is to be returned bills until it is gone, so it counts until then.
    fn room(&self) -> u32 {
        let is_there = |worker: &&WorkerView| {
            worker.state.is_capacity() || worker.is_rented && worker.state != WorkerState::Terminated
        };
        let there = self.snapshot.workers.iter().filter(is_there).count();
        self.settings.scaling.machines_max.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX))
    }

    fn status(&self) -> Status {
        let spawning_workers = self.count(WorkerState::Spawning) + self.spawned;
        let active_workers = self.count(WorkerState::Active);
        let terminating_workers = self.count(WorkerState::Terminating);
        Status {
            queued_tasks: self.queued,
            spawning_workers,
            active_workers,
            terminating_workers,
            total_workers: spawning_workers + active_workers + terminating_workers,
        }
    }

    /// The workers that were in `state` when the cycle began and still are, with their places.
    fn unmoved(&self, state: WorkerState) -> Vec<(usize, &'a WorkerView)> {
        let workers = self.snapshot.workers.iter().enumerate();
        workers.filter(|(at, worker)| worker.state == state && self.states[*at] == state).collect()
    }

    fn count(&self, state: WorkerState) -> u32 {
        u32::try_from(self.states.iter().filter(|it| **it == state).count()).unwrap_or(u32::MAX)
    }

    fn go(&mut self, at: usize, state: WorkerState, action: Action) {
        self.states[at] = state;
        self.actions.push(action);
    }

    fn is_past(&self, since: Timestamp, limit: Duration) -> bool {
        self.now.since(since) > limit
    }
}

impl WorkerView {
    fn is_ready(&self) -> bool {
        self.running_at().is_some() && self.is_registered && self.start_check_passed
    }

    /// A machine that nobody rents to us was running before we heard of it.
    fn running_at(&self) -> Option<Timestamp> {
        if self.is_rented { self.provider_running_at } else { Some(self.since) }
    }

    fn idle_from(&self) -> Timestamp {
        self.idle_since.unwrap_or(self.since)
    }
}
