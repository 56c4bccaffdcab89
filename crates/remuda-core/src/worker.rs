//! A worker as the plane sees it: lifecycle state, presence, assigned attempts, and speed.
//!
//! `life` has its two state machines: lifecycle and contact.
//!
//! Two sources say what a worker holds: the plane's orders and the worker's beats. An assignment is *sent* once an
//! order went out, and *confirmed* once a beat listed it; a confirmed assignment that a later beat omits is lost.

mod assignment;
mod availability;
mod life;
mod line;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{Attempt, FleetId, Hash, Incarnation, JobId, MachineId, Service, Shape, WorkerId};
use crate::job::Job;
use crate::machine::{Presence, WorkerState};
use crate::need::Capabilities;
use crate::probation::Probation;
use crate::record::{JoinedProcess, WorkerRow};
use crate::reliability::Reliability;
use crate::settings::Settings;
use crate::supervise::{Watch, WatchLimits};
use crate::time::Timestamp;
use crate::wire;

pub use self::assignment::{Assignment, AttemptTimeout, PendingCancel};
pub use self::availability::Availability;
pub use self::life::{ContactEvent, LifeEvent};
pub use self::line::WorkerLine;
pub use self::report::ReportChange;

use self::life::{Contact, Life};

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub machine: MachineId,
    pub fleet: Option<FleetId>,
    pub incarnation: Incarnation,
    pub token_hash: Hash,
    life: Life,
    contact: Contact,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    /// The most slots that its beats may report, as its join agreed.
    pub slots_max: u32,
    /// Lowered when the worker rejected a job although it had reported a free slot.
    pub slots_observed: Option<u32>,
    pub offer: Capabilities,
    pub joined_at: Timestamp,
    pub changed_at: Timestamp,
    pub reason: String,
    /// Why it takes no work although it is online.
    pub unavailable_reason: Option<String>,
    pub watch: Watch,
    /// When the plane was last away itself: a connection that was closed meanwhile makes no one suspect sooner.
    pub excused_at: Timestamp,
    /// Extra silence allowed since the given time, until the next beat.
    silence_allowance: (Timestamp, Duration),
    /// Silence allowed while it holds nothing, if the worker asked for a limit of its own.
    stale_after: Option<Duration>,
    /// The newest joins under this name, by their nonce; the last is the current incarnation's.
    join_nonces: Vec<String>,
    /// The newest processes that joined under this name; the last is the current one.
    joined_processes: Vec<JoinedProcess>,
    pub reliability: Reliability,
    pub probation: Probation,
    pub counts: AttemptCounts,
    pub metrics: serde_json::Map<String, serde_json::Value>,
    pub metrics_at: Option<Timestamp>,
    /// Result of the start check of its machine.
    pub check: Option<wire::StartCheck>,
    /// Sequence number of the newest beat of this incarnation.
    pub beat_seq: u64,
    /// It has sent a beat since the plane started; until then no order can reach it.
    pub has_beaten: bool,
    pub line: WorkerLine,
    /// It has left: later messages were sent before that.
    pub has_left: bool,
    /// How often its service has started again, by its last beat that said so.
    pub service_restarts: Option<u64>,
    pub assignments: BTreeMap<JobId, Assignment>,
    /// Attempts it should cancel; the order is repeated until a beat no longer lists them.
    pub cancels: BTreeMap<(JobId, Attempt), PendingCancel>,
    /// When a reply last said that it is drained.
    pub drain_sent_at: Option<Timestamp>,
    /// The last shapes it ran, newest first.
    warm: Vec<Shape>,
    run_times: BTreeMap<Shape, Duration>,
    pub idle_since: Timestamp,
    /// The last job from the queue that its free slot was offered went before others because of its age: the next one does not.
    pub took_aged: bool,
    /// When the row was last stored; limits how often beats write it.
    pub stored_at: Timestamp,
    pub stored_counts: AttemptCounts,
}

/// Counters of its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptCounts {
    pub completed: u64,
    pub failed: u64,
    pub lost: u64,
    pub busy_millis: u64,
    pub went_stale: u64,
}

/// Less silence is normal on any network, and more than a day is not worth waiting for.
const STALE_MIN: Duration = Duration::from_secs(1);
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shapes remembered as warm: about what fits into GPU memory.
const WARM_MAX: usize = 4;
/// Joins remembered, so that a copy of one is recognised: an hour of a crash loop, and a row stays small.
const JOIN_NONCES_MAX: usize = 8;
/// A longer nonce or process is not remembered.
const NONCE_BYTES_MAX: usize = 64;
/// Shapes whose duration is remembered.
const PACES_MAX: usize = 64;

impl Worker {
    pub fn join(
        now: Timestamp,
        join: &wire::JoinRequest,
        incarnation: Incarnation,
        token_hash: Hash,
    ) -> Self {
        let machine = join.machine.clone().or_else(|| join.worker.as_str().parse().ok());
        Worker {
            id: join.worker.clone(),
            machine: machine.expect("a worker's name is a good name for its machine"),
            fleet: join.fleet.clone(),
            incarnation,
            token_hash,
            life: Life::Active,
            contact: Contact::Online,
            services: join.services.clone(),
            slots: join.slots,
            slots_max: join.slots_max(),
            slots_observed: None,
            offer: join.offer.clone(),
            joined_at: now,
            changed_at: now,
            reason: "joined".to_owned(),
            unavailable_reason: None,
            watch: Watch::new(now),
            excused_at: now,
            silence_allowance: (Timestamp::ZERO, Duration::ZERO),
            stale_after: join
                .stale_after_millis
                .map(|it| Duration::from_millis(it).clamp(STALE_MIN, STALE_MAX)),
            join_nonces: join.nonce.iter().filter(|it| it.len() <= NONCE_BYTES_MAX).cloned().collect(),
            joined_processes: (join.process.iter().filter(|it| it.len() <= NONCE_BYTES_MAX))
                .map(|it| JoinedProcess { process: it.clone(), join_number: join.join_number })
                .collect(),
            reliability: Reliability::new(now),
            probation: Probation::default(),
            counts: AttemptCounts::default(),
            metrics: serde_json::Map::new(),
            metrics_at: None,
            check: None,
            beat_seq: 0,
            has_beaten: true,
            line: WorkerLine::Quiet,
            has_left: false,
            service_restarts: None,
            assignments: BTreeMap::new(),
            cancels: BTreeMap::new(),
            drain_sent_at: None,
            warm: Vec::new(),
            run_times: BTreeMap::new(),
            idle_since: now,
            took_aged: false,
            stored_at: now,
            stored_counts: AttemptCounts::default(),
        }
    }

    /// It runs on a rented machine and gets no work before that is up.
    pub fn join_fleet(&mut self, fleet: FleetId, machine: WorkerState) {
        (self.life, self.fleet) = (Life::restore(machine, None), Some(fleet));
    }

    /// Silence allowed while it holds nothing: its own limit, that of its fleet, or the plane's.
    pub fn stale_after(&self, settings: &Settings) -> Duration {
        let fleet = || settings.fleets.iter().find(|fleet| Some(&fleet.id) == self.fleet.as_ref());
        self.stale_after.or_else(|| fleet()?.stale_after).unwrap_or(settings.stale_after)
    }

    /// Beat interval while it holds nothing: one beat may be lost and one late.
    pub fn beat_idle(&self, settings: &Settings) -> Duration {
        settings.beat_idle.min(self.stale_after(settings) / 3)
    }

    /// When silence makes it suspect, and when offline: a busy worker is watched more closely, and so is one whose
    /// connection was closed.
    pub fn limits(&self, settings: &Settings) -> WatchLimits {
        if self.assignments.is_empty() {
            // A beat may be late by half an interval before new work goes elsewhere.
            let stale_after = self.stale_after(settings);
            let silence_max = (self.beat_idle(settings) * 3 / 2).min(stale_after);
            WatchLimits { silence_max, verdict_max: stale_after }
        } else {
            let (since, lent) = self.silence_allowance;
            let lent = if self.watch.seen_at() < since { lent } else { Duration::ZERO };
            let is_hasty = self.line.is_closed() && self.watch.seen_at() >= self.excused_at;
            let late = if is_hasty { settings.beat_busy * 3 / 2 } else { settings.suspect_after };
            let silence_max = late.min(settings.suspect_after);
            WatchLimits { silence_max: silence_max + lent, verdict_max: settings.lease + lent }
        }
    }

    /// The number of attempts that can still be assigned.
    pub fn free_slots(&self, now: Timestamp) -> usize {
        // No order could be delivered before its next message.
        if !self.availability(now).is_ready() || self.line.is_closed() {
            return 0;
        }
        if self.assignments.values().any(|hold| hold.is_isolated) {
            return 0;
        }
        let slots = self.slots.min(self.slots_observed.unwrap_or(u32::MAX));
        // An attempt being cancelled occupies its slot until it has stopped.
        let taken = self.assignments.len() + self.cancels.len();
        (self.probation.slots(now, slots) as usize).saturating_sub(taken)
    }

    pub fn is_warm(&self, shape: &Shape) -> bool {
        self.warm.contains(shape)
    }

    pub fn warm_shapes(&self) -> usize {
        self.warm.len()
    }

    pub fn pace(&self, shape: &Shape) -> Option<Duration> {
        self.run_times.get(shape).copied()
    }

    pub fn add_assignment(&mut self, now: Timestamp, job: &Job, settings: &Settings) {
        let (id, attempt, shape) = (job.id, job.attempt(), &*job.kind.shape);
        let assignment = Assignment {
            attempt,
            assigned_at: now,
            sent_with: None,
            sends: 0,
            sent_at: now,
            is_confirmed: false,
            is_inherited: false,
            step: 0,
            progress: 0.0,
            phase: String::new(),
            progressed_at: now,
            is_running: false,
            start_limit: job.options().and_then(|options| options.start_limit),
            node_limit: job.options().and_then(|options| options.node_limit),
            service_restarts: self.service_restarts,
            is_isolated: job.needs_isolation(settings),
        };
        if self.assignments.is_empty() {
            // It is watched more closely from now, but was not asked to beat more often before. So it gets the
            // difference as an allowance, only while it is busy, and no more than that: otherwise a long-silent
            // worker would count as online for a while.
            let slack = self.limits(settings).silence_max.saturating_sub(settings.suspect_after);
            self.silence_allowance = (now, self.watch.silent_for(now).min(slack));
        }
        self.assignments.insert(id, assignment);
        if self.warm.first() != Some(shape) {
            self.warm.retain(|known| known != shape);
            self.warm.insert(0, *shape);
            self.warm.truncate(WARM_MAX);
        }
    }

    pub fn release(&mut self, now: Timestamp, job: &JobId) -> Option<Assignment> {
        let hold = self.assignments.remove(job)?;
        if self.assignments.is_empty() {
            self.idle_since = now;
        }
        Some(hold)
    }

    /// Nothing has been heard of it for too long. `is_proven`: the worker is silent, and not the plane cut off.
    pub fn go_offline(&mut self, now: Timestamp, reason: &str, is_proven: bool) {
        if is_proven {
            self.reliability.mark_stale(now, self.watch.seen_at());
            self.counts.went_stale += 1;
        }
        self.contact(ContactEvent::Silent { is_proven });
        self.changed_at = now;
        if self.line == WorkerLine::Polling {
            self.line = WorkerLine::Quiet;
        }
        reason.clone_into(&mut self.reason);
    }

    /// Averages the old and the new duration of a shape.
    pub fn record_duration(&mut self, shape: &Shape, took: Duration) {
        if self.run_times.len() >= PACES_MAX && !self.run_times.contains_key(shape) {
            self.run_times.pop_first();
        }
        let pace = self.run_times.entry(*shape).or_insert(took);
        *pace = (*pace + took) / 2;
    }

    /// When time alone changes something.
    pub fn wake_at(&self, now: Timestamp, settings: &Settings) -> Option<Timestamp> {
        let is_judged = self.presence() == Presence::Offline && !self.awaits_proof();
        let silence = (!is_judged).then(|| self.watch.wake_at(self.limits(settings)));
        let stuck = self.assignments.values().map(|hold| hold.timeout_at(None, settings).0).min();
        let probation = self.probation.until().filter(|until| now < *until);
        [silence, stuck, probation, self.line.wake_at()].into_iter().flatten().min()
    }

    /// Whether this join was seen before, or its process has joined again since it was sent.
    pub fn has_seen_join(&self, join: &wire::JoinRequest) -> bool {
        let is_seen = join.nonce.as_ref().is_some_and(|nonce| self.join_nonces.contains(nonce));
        let mut processes = self.joined_processes.iter();
        let process = processes.find(|it| join.process.as_ref() == Some(&it.process));
        is_seen || process.is_some_and(|it| join.join_number <= it.join_number)
    }

    /// Remembers the joins of its former incarnations besides its own.
    pub fn remember_joins(&mut self, former: &Worker) {
        let known = former.join_nonces.iter().chain(&self.join_nonces).cloned();
        let known: Vec<_> = known.collect();
        self.join_nonces = known[known.len().saturating_sub(JOIN_NONCES_MAX)..].to_vec();
        let is_other =
            |it: &&JoinedProcess| self.joined_processes.iter().all(|own| own.process != it.process);
        let others: Vec<_> = former.joined_processes.iter().filter(is_other).cloned().collect();
        let processes = [others, std::mem::take(&mut self.joined_processes)].concat();
        self.joined_processes = processes[processes.len().saturating_sub(JOIN_NONCES_MAX)..].to_vec();
    }

    pub fn row(&self) -> WorkerRow {
        WorkerRow {
            id: self.id.clone(),
            machine: self.machine.clone(),
            fleet: self.fleet.clone(),
            incarnation: self.incarnation,
            token_hash: self.token_hash,
            state: self.state(),
            presence: self.presence(),
            services: self.services.clone(),
            slots: self.slots,
            slots_max: self.slots_max,
            offer: self.offer.clone(),
            joined_at: self.joined_at,
            seen_at: self.watch.seen_at(),
            changed_at: self.changed_at,
            reason: self.reason.clone(),
            unavailable_reason: self.unavailable_reason.clone(),
            completed: self.counts.completed,
            failed: self.counts.failed,
            lost: self.counts.lost,
            busy_millis: self.counts.busy_millis,
            went_stale: self.counts.went_stale,
            probation: self.probation.clone(),
            stale_after_millis: self.stale_after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            join_nonces: self.join_nonces.clone(),
            joined_processes: self.joined_processes.clone(),
            reliability: Some(self.reliability.clone()),
            metrics: self.metrics.clone(),
            metrics_at: self.metrics_at,
            check: self.check.clone(),
            drain_until: self.drain_until(),
        }
    }

    /// Restores a stored worker; the time without a plane does not count as its silence.
    pub fn restore(now: Timestamp, row: WorkerRow) -> Self {
        let mut watch = Watch::new(row.seen_at);
        watch.extend_deadline(now, now.since(row.seen_at));
        let contact = Contact::restore(row.presence);
        Worker {
            id: row.id,
            machine: row.machine,
            fleet: row.fleet,
            incarnation: row.incarnation,
            token_hash: row.token_hash,
            life: Life::restore(row.state, row.drain_until),
            contact,
            services: row.services,
            slots: row.slots,
            slots_max: row.slots_max.max(row.slots),
            slots_observed: None,
            offer: row.offer,
            joined_at: row.joined_at,
            changed_at: row.changed_at,
            reason: row.reason,
            unavailable_reason: row.unavailable_reason,
            watch,
            excused_at: now,
            silence_allowance: (Timestamp::ZERO, Duration::ZERO),
            stale_after: row.stale_after_millis.map(Duration::from_millis),
            join_nonces: row.join_nonces,
            joined_processes: row.joined_processes,
            reliability: row.reliability.unwrap_or_else(|| {
                let mut since_joined = Reliability::new(row.joined_at);
                if row.presence == Presence::Offline {
                    since_joined.mark_away(row.seen_at);
                }
                since_joined
            }),
            probation: row.probation,
            counts: AttemptCounts {
                completed: row.completed,
                failed: row.failed,
                lost: row.lost,
                busy_millis: row.busy_millis,
                went_stale: row.went_stale,
            },
            metrics: row.metrics,
            metrics_at: row.metrics_at,
            check: row.check,
            beat_seq: 0,
            has_beaten: false,
            line: WorkerLine::Quiet,
            has_left: false,
            service_restarts: None,
            assignments: BTreeMap::new(),
            cancels: BTreeMap::new(),
            drain_sent_at: None,
            warm: Vec::new(),
            run_times: BTreeMap::new(),
            idle_since: now,
            took_aged: false,
            stored_at: now,
            stored_counts: AttemptCounts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn worker() -> Worker {
        let join = serde_json::from_str(r#"{"worker":"a","services":["exec"],"slots":2}"#).unwrap();
        Worker::join(at(0), &join, Incarnation(1), Hash::digest(b"token"))
    }

    fn job(id: u128, shape: &[u8]) -> Job {
        let kind = crate::queue::JobKind::for_tests(Shape::digest(shape));
        Job::new(JobId::from_u128(id), at(0), "default".parse().unwrap(), 0, kind)
    }

    #[test]
    fn a_busy_worker_is_watched_more_closely_than_an_idle_one() {
        let settings = Settings::default();
        let mut worker = worker();
        assert_eq!(worker.wake_at(at(0), &settings), Some(at(45)));
        let mut late = worker.clone();
        worker.add_assignment(at(25), &job(1, b"s"), &settings);
        assert_eq!(worker.wake_at(at(25), &settings), Some(at(40)), "it was not asked to beat faster before");
        late.add_assignment(at(44), &job(1, b"s"), &settings);
        assert_eq!(late.wake_at(at(44), &settings), Some(at(45)), "what it is given is no sign of life");
    }

    #[test]
    fn a_stored_worker_comes_back_as_it_was_and_is_not_blamed_for_our_absence() {
        let settings = Settings::default();
        let mut before = worker();
        before.counts.completed = 7;
        let after = Worker::restore(at(1000), before.row());
        assert_eq!(after.row(), before.row());
        assert_eq!(after.watch.seen_at(), at(0), "our return is not its sign of life");
        assert_eq!(after.wake_at(at(1000), &settings), Some(at(1045)));
    }

    #[test]
    fn the_newest_shapes_are_warm_and_the_pace_follows() {
        let mut worker = worker();
        for n in 0..=4_u8 {
            worker.add_assignment(at(0), &job(n.into(), &[n]), &Settings::default());
        }
        assert!(!worker.is_warm(&Shape::digest(&[0])) && worker.is_warm(&Shape::digest(&[1])));
        worker.record_duration(&Shape::digest(&[1]), Duration::from_secs(10));
        worker.record_duration(&Shape::digest(&[1]), Duration::from_secs(20));
        assert_eq!(worker.pace(&Shape::digest(&[1])), Some(Duration::from_secs(15)));
    }
}
