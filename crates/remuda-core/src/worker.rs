//! A worker as the plane sees it: where it is in its life, whether it is heard, what it holds and what it is good at.
//!
//! ```text
//!  life:      spawning ──▶ active ──drain──▶ terminating ──nothing held──▶ terminated
//!                 └──────────┴──▶ error
//!  presence:  online ──silent──▶ suspect ──silent on──▶ offline      (any beat of this incarnation: online)
//! ```
//!
//! What a worker holds is believed from two sides: the plane's orders and the worker's beats. An attempt is `told`
//! once an order went out, and `named` once a beat has named it; what was named and is missing later is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{Attempt, FleetId, Hash, Incarnation, JobId, MachineId, Service, Shape, WorkerId};
use crate::job::Job;
use crate::machine::{Presence, WorkerState};
use crate::need::Capabilities;
use crate::probation::Probation;
use crate::record::WorkerRow;
use crate::reliability::Reliability;
use crate::settings::{Settings, StuckPolicy};
use crate::supervise::{Watch, WatchLimits};
use crate::time::Timestamp;
use crate::wire;

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub machine: MachineId,
    pub fleet: Option<FleetId>,
    pub incarnation: Incarnation,
    pub token_hash: Hash,
    pub state: WorkerState,
    pub presence: Presence,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    /// Lowered when the worker turned down work it said it had room for.
    pub slots_seen: Option<u32>,
    pub offer: Capabilities,
    pub joined_at: Timestamp,
    pub changed_at: Timestamp,
    pub reason: String,
    /// Why it takes no work although it is there.
    pub unavailable_reason: String,
    pub watch: Watch,
    /// How much longer than others it may be silent with what it was given at that moment, unless it was heard since.
    lent: (Timestamp, Duration),
    /// How long it may be silent while it holds nothing, if it said so itself.
    stale_after: Option<Duration>,
    pub reliability: Reliability,
    pub probation: Probation,
    pub tally: Tally,
    pub metrics: serde_json::Map<String, serde_json::Value>,
    pub metrics_at: Option<Timestamp>,
    /// What it found when it tried its machine.
    pub check: Option<wire::StartCheck>,
    /// The newest beat of this incarnation.
    pub beat_seq: u64,
    /// It was heard since the plane began; until then there is no line on which to tell it anything.
    pub is_heard: bool,
    /// A beat is waiting at the plane for orders.
    pub is_polling: bool,
    /// It said goodbye: what comes after that was sent before it.
    pub has_left: bool,
    pub holds: BTreeMap<JobId, Hold>,
    /// Attempts it should stop; asked for again and again until it no longer names them.
    pub cancels: BTreeMap<(JobId, Attempt), Stop>,
    /// When a reply last said that no more work will come.
    pub drain_told_at: Option<Timestamp>,
    /// What it holds by then is taken from it, if it is to go.
    pub drain_until: Option<Timestamp>,
    /// The last shapes it ran, newest first.
    warm: Vec<Shape>,
    run_times: BTreeMap<Shape, Duration>,
    pub idle_since: Timestamp,
    /// When the stored row was last written, so that a beat need not be.
    pub stored_at: Timestamp,
    pub stored_tally: Tally,
}

/// What became of the attempts it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub completed: u64,
    pub failed: u64,
    pub lost: u64,
    pub busy_millis: u64,
    pub went_stale: u64,
}

/// An attempt the plane believes this worker has.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub attempt: Attempt,
    pub assigned_at: Timestamp,
    /// The order was handed to a reply, the answer to this beat.
    pub told: Option<u64>,
    /// How often it was: one reply may be lost, and one overtaken by a beat with news.
    pub tells: u32,
    pub told_at: Timestamp,
    pub is_named: bool,
    /// It was begun under the plane before us, which may have heard it named.
    pub is_inherited: bool,
    pub step: u64,
    pub progress: f32,
    pub phase: String,
    pub progressed_at: Timestamp,
    /// Its service works on it, as far as anyone can know; until then it is on its way, or waits in a queue there.
    pub is_begun: bool,
    /// What the job itself allows.
    pub start_limit: Option<Duration>,
    pub node_limit: Option<Duration>,
}

/// Why an attempt has taken too long, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// It stands still, or is too old: the rule for all jobs.
    Stuck,
    /// Its service did not begin it within what the job allows.
    NotBegun(Duration),
    /// It made no progress for longer than the job allows.
    NoProgress(Duration),
}

/// An attempt the worker should stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    pub reason: String,
    pub told_at: Option<Timestamp>,
}

impl Stop {
    pub fn new(reason: String) -> Self {
        Stop { reason, told_at: None }
    }
}

impl Hold {
    /// Whether the worker is known to have taken it on, as far as anyone can know.
    pub fn has_begun(&self) -> bool {
        self.is_named || self.is_inherited
    }

    /// When it will have taken too long unless it advances, and in which way.
    pub fn overrun_at(&self, started_at: Option<Timestamp>, settings: &Settings) -> (Timestamp, Overrun) {
        let from = match settings.stuck_policy {
            StuckPolicy::Progress => self.progressed_at,
            StuckPolicy::Age => started_at.unwrap_or(self.assigned_at),
        };
        let stuck = (from.plus(settings.stuck_after), Overrun::Stuck);
        let own = if self.is_begun {
            self.node_limit.map(|limit| (self.progressed_at.plus(limit), Overrun::NoProgress(limit)))
        } else {
            self.start_limit.map(|limit| (self.assigned_at.plus(limit), Overrun::NotBegun(limit)))
        };
        // At the same moment the job's own rule speaks: it was asked for.
        own.filter(|(at, _)| *at <= stuck.0).unwrap_or(stuck)
    }

    /// Whether what a worker says of it means that it was begun. A service that has a queue says when it left it; who
    /// says nothing of a service works on it itself.
    pub fn is_begun_by(held: &wire::HeldAttempt) -> bool {
        let by_word = held.service.as_ref().map_or(held.step > 0, |note| note.status == "running");
        by_word || !held.phase.is_empty() || held.progress > 0.0
    }
}

/// Less silence than this is everyday life on any line, and more than a day nobody waits for.
const STALE_MIN: Duration = Duration::from_secs(1);
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How many shapes a worker is remembered to be warm for: about what fits into its memory.
const WARM_MAX: usize = 4;
/// How many shapes a worker's pace is remembered for.
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
            state: WorkerState::Active,
            presence: Presence::Online,
            services: join.services.clone(),
            slots: join.slots,
            slots_seen: None,
            offer: join.offer.clone(),
            joined_at: now,
            changed_at: now,
            reason: "joined".to_owned(),
            unavailable_reason: String::new(),
            watch: Watch::new(now),
            lent: (Timestamp::ZERO, Duration::ZERO),
            stale_after: join
                .stale_after_millis
                .map(|it| Duration::from_millis(it).clamp(STALE_MIN, STALE_MAX)),
            reliability: Reliability::new(now),
            probation: Probation::default(),
            tally: Tally::default(),
            metrics: serde_json::Map::new(),
            metrics_at: None,
            check: None,
            beat_seq: 0,
            is_heard: true,
            is_polling: false,
            has_left: false,
            holds: BTreeMap::new(),
            cancels: BTreeMap::new(),
            drain_told_at: None,
            drain_until: None,
            warm: Vec::new(),
            run_times: BTreeMap::new(),
            idle_since: now,
            stored_at: now,
            stored_tally: Tally::default(),
        }
    }

    /// How long it may be silent while it holds nothing: as it says itself, its fleet, or the plane.
    pub fn stale_after(&self, settings: &Settings) -> Duration {
        let fleet = || settings.fleets.iter().find(|fleet| Some(&fleet.id) == self.fleet.as_ref());
        self.stale_after.or_else(|| fleet()?.stale_after).unwrap_or(settings.stale_after)
    }

    /// How often it is to beat while it holds nothing: one beat may be lost and one late.
    pub fn beat_idle(&self, settings: &Settings) -> Duration {
        settings.beat_idle.min(self.stale_after(settings) / 3)
    }

    /// When silence becomes suspicious, and when it is judged: a worker that holds something is watched more closely.
    pub fn limits(&self, settings: &Settings) -> WatchLimits {
        if self.holds.is_empty() {
            // One beat may be late by half before the next order goes elsewhere.
            let stale_after = self.stale_after(settings);
            let silence_max = (self.beat_idle(settings) * 3 / 2).min(stale_after);
            WatchLimits { silence_max, verdict_max: stale_after }
        } else {
            let (since, lent) = self.lent;
            let lent = if self.watch.seen_at() < since { lent } else { Duration::ZERO };
            WatchLimits { silence_max: settings.suspect_after + lent, verdict_max: settings.lease + lent }
        }
    }

    /// How many more attempts it may be given.
    pub fn free_slots(&self, now: Timestamp) -> usize {
        if self.state != WorkerState::Active || self.presence != Presence::Online || !self.is_heard {
            return 0;
        }
        let slots = self.slots.min(self.slots_seen.unwrap_or(u32::MAX));
        // What it was told to stop takes its room until it has stopped.
        let taken = self.holds.len() + self.cancels.len();
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

    pub fn hold(&mut self, now: Timestamp, job: &Job, settings: &Settings) {
        let (id, attempt, shape) = (job.id, job.attempt(), &*job.kind.shape);
        let hold = Hold {
            attempt,
            assigned_at: now,
            told: None,
            tells: 0,
            told_at: now,
            is_named: false,
            is_inherited: false,
            step: 0,
            progress: 0.0,
            phase: String::new(),
            progressed_at: now,
            is_begun: false,
            start_limit: job.options().and_then(|options| options.start_limit),
            node_limit: job.options().and_then(|options| options.node_limit),
        };
        if self.holds.is_empty() {
            // It is watched more closely from here on, though nobody asked it to beat more often before: so much is
            // lent, and no more, or whoever is long silent would count as heard for a while; and only while it holds
            // something.
            let slack = self.limits(settings).silence_max.saturating_sub(settings.suspect_after);
            self.lent = (now, self.watch.silent_for(now).min(slack));
        }
        self.holds.insert(id, hold);
        if self.warm.first() != Some(shape) {
            self.warm.retain(|known| known != shape);
            self.warm.insert(0, *shape);
            self.warm.truncate(WARM_MAX);
        }
    }

    pub fn release(&mut self, now: Timestamp, job: &JobId) -> Option<Hold> {
        let hold = self.holds.remove(job)?;
        if self.holds.is_empty() {
            self.idle_since = now;
        }
        Some(hold)
    }

    /// Remembers how long a shape took here: half of what was known, half of what is new.
    pub fn ran(&mut self, shape: &Shape, took: Duration) {
        if self.run_times.len() >= PACES_MAX && !self.run_times.contains_key(shape) {
            self.run_times.pop_first();
        }
        let pace = self.run_times.entry(*shape).or_insert(took);
        *pace = (*pace + took) / 2;
    }

    /// The next moment at which time alone changes something.
    pub fn wake_at(&self, now: Timestamp, settings: &Settings) -> Option<Timestamp> {
        let silence = match self.presence {
            Presence::Online | Presence::Suspect => Some(self.watch.wake_at(self.limits(settings))),
            Presence::Offline => None,
        };
        let stuck = self.holds.values().map(|hold| hold.overrun_at(None, settings).0).min();
        let probation = self.probation.until().filter(|until| now < *until);
        [silence, stuck, probation].into_iter().flatten().min()
    }

    pub fn row(&self) -> WorkerRow {
        WorkerRow {
            id: self.id.clone(),
            machine: self.machine.clone(),
            fleet: self.fleet.clone(),
            incarnation: self.incarnation,
            token_hash: self.token_hash,
            state: self.state.as_str().to_owned(),
            presence: self.presence.as_str().to_owned(),
            services: self.services.clone(),
            slots: self.slots,
            offer: self.offer.clone(),
            joined_at: self.joined_at,
            seen_at: self.watch.seen_at(),
            changed_at: self.changed_at,
            reason: self.reason.clone(),
            unavailable_reason: self.unavailable_reason.clone(),
            completed: self.tally.completed,
            failed: self.tally.failed,
            lost: self.tally.lost,
            busy_millis: self.tally.busy_millis,
            went_stale: self.tally.went_stale,
            probation: self.probation.clone(),
            stale_after_millis: self.stale_after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            reliability: Some(self.reliability.clone()),
            metrics: self.metrics.clone(),
            metrics_at: self.metrics_at,
            check: self.check.clone(),
            drain_until: self.drain_until,
        }
    }

    /// As it was stored; that we were away is not its silence.
    pub fn restore(now: Timestamp, row: WorkerRow) -> Self {
        let state = WorkerState::ALL.into_iter().find(|state| state.as_str() == row.state);
        let presence = Presence::ALL.into_iter().find(|presence| presence.as_str() == row.presence);
        let mut watch = Watch::new(row.seen_at);
        watch.extend_deadline(now, now.since(row.seen_at));
        let presence = match presence.unwrap_or(Presence::Offline) {
            // Whoever was merely doubted gets the benefit of our own absence.
            Presence::Online | Presence::Suspect => Presence::Online,
            Presence::Offline => Presence::Offline,
        };
        Worker {
            id: row.id,
            machine: row.machine,
            fleet: row.fleet,
            incarnation: row.incarnation,
            token_hash: row.token_hash,
            state: state.unwrap_or(WorkerState::Error),
            presence,
            services: row.services,
            slots: row.slots,
            slots_seen: None,
            offer: row.offer,
            joined_at: row.joined_at,
            changed_at: row.changed_at,
            reason: row.reason,
            unavailable_reason: row.unavailable_reason,
            watch,
            lent: (Timestamp::ZERO, Duration::ZERO),
            stale_after: row.stale_after_millis.map(Duration::from_millis),
            reliability: row.reliability.unwrap_or_else(|| {
                let mut since_joined = Reliability::new(row.joined_at);
                if presence == Presence::Offline {
                    since_joined.left(row.seen_at);
                }
                since_joined
            }),
            probation: row.probation,
            tally: Tally {
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
            is_heard: false,
            is_polling: false,
            has_left: false,
            holds: BTreeMap::new(),
            cancels: BTreeMap::new(),
            drain_told_at: None,
            drain_until: row.drain_until,
            warm: Vec::new(),
            run_times: BTreeMap::new(),
            idle_since: now,
            stored_at: now,
            stored_tally: Tally::default(),
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
        worker.hold(at(25), &job(1, b"s"), &settings);
        assert_eq!(worker.wake_at(at(25), &settings), Some(at(40)), "it was not asked to beat faster before");
        late.hold(at(44), &job(1, b"s"), &settings);
        assert_eq!(late.wake_at(at(44), &settings), Some(at(45)), "what it is given is no sign of life");
    }

    #[test]
    fn a_stored_worker_comes_back_as_it_was_and_is_not_blamed_for_our_absence() {
        let settings = Settings::default();
        let mut before = worker();
        before.tally.completed = 7;
        let after = Worker::restore(at(1000), before.row());
        assert_eq!(after.row(), before.row());
        assert_eq!(after.watch.seen_at(), at(0), "our return is not its sign of life");
        assert_eq!(after.wake_at(at(1000), &settings), Some(at(1045)));
    }

    #[test]
    fn the_newest_shapes_are_warm_and_the_pace_follows() {
        let mut worker = worker();
        for n in 0..=4_u8 {
            worker.hold(at(0), &job(n.into(), &[n]), &Settings::default());
        }
        assert!(!worker.is_warm(&Shape::digest(&[0])) && worker.is_warm(&Shape::digest(&[1])));
        worker.ran(&Shape::digest(&[1]), Duration::from_secs(10));
        worker.ran(&Shape::digest(&[1]), Duration::from_secs(20));
        assert_eq!(worker.pace(&Shape::digest(&[1])), Some(Duration::from_secs(15)));
    }
}
