//! The decisions of a worker's agent: when to beat, what to report, which orders to follow, when to probe the service.
//!
//! ```text
//!            join                     order: start                service: ended
//!  unjoined ──────▶ member ─ beats ─────────────▶ held (running) ───────────────▶ finished ──settled──▶ forgotten
//!      ▲               │                               │ 30 s without a signal: probe    ▲
//!      └─ not known ───┘                               └── cancelled, lost ──────────────┘
//! ```
//!
//! What runs attempts (a ComfyUI server, a command, a model pool) is the *service*: `monitor` probes it, `repair` repairs it.
//!
//! One beat is in flight at a time. A long poll that only waits for orders is overtaken by a beat that reports a change, and
//! once by mere progress. A beat with finished attempts is answered immediately, and further changes wait for its reply.
//! A finished attempt is reported in every beat until the plane settles it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::id::{Attempt, FleetId, Incarnation, JobId, MachineId, Service, Term, WorkerId};
use crate::need::Capabilities;
use crate::supervise::{Backoff, WatchLimits};
use crate::time::Timestamp;
use crate::wire::{
    AttemptOutcome, Beat, BeatReply, FinishedAttempt, HeldAttempt, JoinReply, JoinRequest, StartCheck,
    StartOrder,
};

mod beats;
mod condition;
mod event;
mod monitor;
mod repair;
mod shutdown;
mod superseded;
mod work;

pub use self::event::{AgentEffect, AgentEvent, AgentExit, CallError, FoundAttempt};
use self::repair::Health;
use self::superseded::Superseded;
use self::work::Work;

/// An agent's configuration.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub worker: WorkerId,
    pub machine: Option<MachineId>,
    pub fleet: Option<FleetId>,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Capabilities,
    /// An attempt without a signal for this long is probed.
    pub inactivity: Duration,
    pub timeouts: AgentTimeouts,
    pub deadlines: AgentDeadlines,
}

/// Deadlines given on the worker's command line or by its fleet; each is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentDeadlines {
    /// How long this worker may be silent while idle, in place of the plane's setting.
    pub stale_after: Option<Duration>,
    /// Without contact to its plane for this long, a worker stops itself and its machine: the plane cannot do it.
    pub contact_timeout: Option<Duration>,
    /// How long it has to finish what it holds once it is asked to stop; the rest is handed back in time.
    pub notice: Option<Duration>,
}

/// How long a service may take before the delay counts against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTimeouts {
    /// Between the first "I do not know it" and the second, which counts: anything in flight has arrived by then.
    pub unknown_recheck: Duration,
    /// A service that still runs a cancelled attempt after this long is sick.
    pub cancel_timeout: Duration,
    /// So long one thing may run at the service while ours waits behind it; after that nothing moves there any more.
    pub queue_stall_max: Duration,
    /// How often a service that was given up is checked again: an operator may have repaired it.
    pub given_up_recheck: Duration,
}

impl Default for AgentTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        AgentTimeouts {
            unknown_recheck: seconds(5),
            cancel_timeout: seconds(30),
            queue_stall_max: seconds(3600),
            given_up_recheck: seconds(30),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Agent {
    settings: AgentSettings,
    membership: Membership,
    /// The newest incarnation this worker ever had.
    incarnation: Option<Incarnation>,
    /// How often it has asked to join.
    joins: u64,
    seq: u64,
    in_flight: InFlight,
    beat_at: Timestamp,
    held: BTreeMap<JobId, Work>,
    /// Attempts that newer ones replaced, until the service has stopped them.
    superseded: Superseded,
    finished: BTreeMap<(JobId, Attempt), FinishedAttempt>,
    /// Attempts that were settled: a repeated order must not run them again.
    settled: VecDeque<(JobId, Attempt)>,
    metrics: serde_json::Map<String, serde_json::Value>,
    /// When the metrics were read, and whether this plane has them: an old reading must not be sent as a new one.
    metrics_at: Timestamp,
    metrics_sent: bool,
    check: Option<StartCheck>,
    /// The service is ready or being prepared; before that there is nothing to join with.
    has_started: bool,
    stopping: Stopping,
    /// When it was asked to stop, other than by its plane.
    stopped_at: Option<Timestamp>,
    /// When the attempts still held are handed back.
    stop_deadline: Option<Timestamp>,
    /// When the plane last answered.
    contact_at: Timestamp,
    health: Health,
    /// The first beat that carried the present capabilities, until such a beat is answered.
    capabilities_sent_in: Option<u64>,
    /// A change since the last beat must be reported now.
    beat_due: bool,
    progress_due: bool,
    /// The last measured round trip of a beat that is answered immediately.
    round_trip: Duration,
    /// When the last reply came, and whether progress has overtaken a beat since.
    replied_at: Timestamp,
    /// When the service last sent progress of an attempt.
    progressed_at: Timestamp,
    has_overtaken: bool,
    failures: u32,
    retry_at: Timestamp,
    effects: Vec<AgentEffect>,
}

#[derive(Clone, Debug)]
enum Membership {
    Unjoined,
    Joining,
    Member { incarnation: Incarnation, term: Term, beat_idle: Duration, beat_busy: Duration },
    Exited,
}

/// The one beat in flight, by sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    None,
    /// Waits for orders; a newer beat may overtake it.
    LongPoll(u64),
    /// Carries finished attempts; answered immediately.
    Urgent(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    Draining,
    Now,
}

/// Between two calls to an unreachable plane. The maximum is well below a lease, so that a short outage loses nothing.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Metrics older than this are not sent: they are read every few seconds, so the reader has stopped.
const METRICS_FRESH: Duration = Duration::from_secs(60);
const SETTLED_MAX: usize = 4096;

impl Agent {
    pub fn new(settings: AgentSettings, now: Timestamp) -> Self {
        Agent {
            settings,
            membership: Membership::Unjoined,
            incarnation: None,
            joins: 0,
            seq: 0,
            in_flight: InFlight::None,
            beat_at: now,
            held: BTreeMap::new(),
            superseded: Superseded::default(),
            finished: BTreeMap::new(),
            settled: VecDeque::new(),
            metrics: serde_json::Map::new(),
            metrics_at: now,
            metrics_sent: true,
            check: None,
            has_started: false,
            stopping: Stopping::No,
            stopped_at: None,
            stop_deadline: None,
            contact_at: now,
            health: Health::default(),
            capabilities_sent_in: None,
            beat_due: false,
            progress_due: false,
            round_trip: Duration::ZERO,
            replied_at: now,
            progressed_at: now,
            has_overtaken: false,
            failures: 0,
            retry_at: now,
            effects: Vec::new(),
        }
    }

    pub fn step(&mut self, now: Timestamp, event: AgentEvent) -> Vec<AgentEffect> {
        let was_closed = self.health.closed_reason().is_some();
        match event {
            AgentEvent::Preparing { what } => self.prepare(what),
            AgentEvent::StartChecked(check) => {
                self.beat_due |= self.check.as_ref() != Some(&check);
                self.check = Some(check);
            }
            AgentEvent::Started { found, incarnation } => self.started(now, found, incarnation),
            AgentEvent::Joined(joined) => self.joined(now, &joined),
            AgentEvent::Reply { seq, reply } => self.reply(now, seq, reply),
            AgentEvent::CallFailed { seq, why, jitter } => self.call_failed(now, seq, why, jitter),
            AgentEvent::Signal { job, attempt, progress, phase } => {
                self.signal(now, job, attempt, progress, phase);
            }
            AgentEvent::Ended { job, attempt, outcome } => self.ended(job, attempt, outcome),
            AgentEvent::Submitted { job, attempt, incarnation, answer } => {
                self.submitted(now, job, attempt, incarnation, answer);
            }
            AgentEvent::CompletionHint { job, attempt } => self.completion_hint(now, job, attempt),
            AgentEvent::Probed { job, attempt, incarnation, result } => {
                self.probed(now, job, attempt, incarnation, result);
            }
            AgentEvent::Service(news) => self.service_event(now, news),
            AgentEvent::CapabilitiesChanged(offer) => self.set_capabilities(*offer),
            AgentEvent::Metrics(metrics) => {
                (self.metrics, self.metrics_at, self.metrics_sent) = (metrics, now, false);
            }
            AgentEvent::Stop => self.stop(now),
            AgentEvent::Tick => {
                self.probe_silent(now);
                self.probe_superseded(now);
                self.repair_due(now);
            }
        }
        self.beat_due |= self.health.closed_reason().is_some() != was_closed;
        self.check_shutdown(now);
        self.send_due_beat(now);
        std::mem::take(&mut self.effects)
    }

    /// When to step again without an event.
    pub fn wake_at(&self) -> Timestamp {
        let limits = self.limits();
        let probe = self.held.values().map(|work| work.wake_at(limits)).min();
        let treat = self.health.wake_at();
        let speak = match (&self.membership, self.in_flight) {
            (Membership::Unjoined, _) if !self.has_started => None,
            (Membership::Unjoined, _) | (Membership::Member { .. }, InFlight::None) => Some(self.retry_at),
            (Membership::Member { .. }, InFlight::LongPoll(_)) if self.progress_due => {
                Some(self.beat_at.plus(self.overtake_after())).filter(|at| self.may_overtake(*at))
            }
            (Membership::Member { .. } | Membership::Joining | Membership::Exited, _) => None,
        };
        [probe, self.superseded.wake_at(), treat, speak, self.shutdown_at()]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Timestamp::NEVER)
    }

    pub fn incarnation(&self) -> Option<Incarnation> {
        match self.membership {
            Membership::Member { incarnation, .. } => Some(incarnation),
            Membership::Unjoined | Membership::Joining | Membership::Exited => None,
        }
    }

    /// Why this worker takes no new work; `None` if it does.
    pub fn closed_reason(&self) -> Option<&str> {
        self.health.closed_reason()
    }

    /// The attempts it holds.
    pub fn held(&self) -> impl Iterator<Item = (JobId, Attempt)> {
        self.held.iter().map(|(job, work)| (*job, work.attempt))
    }

    fn limits(&self) -> WatchLimits {
        // A silent service is probed, never judged: only its answer is evidence.
        WatchLimits { silence_max: self.settings.inactivity, verdict_max: Duration::MAX }
    }

    fn joined(&mut self, now: Timestamp, joined: &JoinReply) {
        self.round_trip = now.since(self.beat_at);
        let millis = Duration::from_millis;
        self.membership = Membership::Member {
            incarnation: joined.incarnation,
            term: joined.term,
            beat_idle: millis(joined.beat_idle_millis),
            beat_busy: millis(joined.beat_busy_millis),
        };
        self.incarnation = self.incarnation.max(Some(joined.incarnation));
        self.contact_at = now;
        // A new plane does not have them yet.
        self.metrics_sent &= now.since(self.metrics_at) >= METRICS_FRESH;
        (self.failures, self.in_flight, self.beat_due) = (0, InFlight::None, true);
        self.seq = 0;
    }

    fn reply(&mut self, now: Timestamp, seq: u64, reply: BeatReply) {
        if self.in_flight != InFlight::LongPoll(seq) && self.in_flight != InFlight::Urgent(seq) {
            return;
        }
        if self.in_flight == InFlight::Urgent(seq) {
            self.round_trip = now.since(self.beat_at);
        }
        (self.in_flight, self.failures, self.retry_at) = (InFlight::None, 0, now);
        (self.replied_at, self.contact_at, self.has_overtaken) = (now, now, false);
        if let Membership::Member { term, .. } = &mut self.membership {
            *term = reply.term;
        }
        if reply.beat_again {
            self.beat_due = true;
            return;
        }
        self.capabilities_sent_in.take_if(|told| *told <= seq);
        for settled in reply.settled {
            self.finished.remove(&(settled.job, settled.attempt));
            self.settled.push_back((settled.job, settled.attempt));
        }
        while self.settled.len() > SETTLED_MAX {
            self.settled.pop_front();
        }
        for cancel in reply.cancel {
            self.cancel(now, cancel.job, cancel.attempt, cancel.reason);
        }
        if reply.drain && self.stopping == Stopping::No {
            self.stopping = Stopping::Draining;
        }
        self.probe_found(now);
        for start in reply.start {
            self.start(now, start);
        }
    }

    fn call_failed(&mut self, now: Timestamp, seq: Option<u64>, why: CallError, jitter: u64) {
        let is_current = match seq {
            Some(seq) => self.in_flight == InFlight::LongPoll(seq) || self.in_flight == InFlight::Urgent(seq),
            None => matches!(self.membership, Membership::Joining),
        };
        if !is_current {
            return;
        }
        (self.in_flight, self.replied_at, self.has_overtaken) = (InFlight::None, now, false);
        self.round_trip = self.round_trip.max(now.since(self.beat_at));
        match why {
            CallError::Unreachable(_) => {
                if matches!(self.membership, Membership::Joining) {
                    self.membership = Membership::Unjoined;
                }
                self.retry_at = now.plus(RETRY.equal_jitter(self.failures, jitter));
                self.failures += 1;
                self.beat_due = true;
            }
            CallError::Unknown => (self.membership, self.contact_at) = (Membership::Unjoined, now),
            CallError::Replaced(problem) => self.give_up(problem),
            CallError::Retired(why) => self.dismiss(why),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
