//! What decides inside a worker: when to beat, what to say, which orders to follow, when to ask the service.
//!
//! ```text
//!            join                    order: start                 service: ended
//!  stranger ──────▶ member ─ beats ─────────────▶ held (running) ───────────────▶ finished ──settled──▶ forgotten
//!      ▲               │                               │ 30 s without a sign: probe      ▲
//!      └─ not known ───┘                               └── cancelled, lost ──────────────┘
//! ```
//!
//! Whoever runs attempts (a command, a ComfyUI server) is a *service* to it: `monitor` asks it, `repair` treats it.
//!
//! One beat is under way at a time. A beat that only waits for orders is overtaken by one with news, and once by mere
//! progress; a beat with news is answered at once, and further news gathers behind it. What was finished is said again until it is settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::id::{Attempt, FleetId, Incarnation, JobId, MachineId, Service, Term, WorkerId};
use crate::need::Capabilities;
use crate::time::Timestamp;
use crate::watch::WatchLimits;
use crate::wire::{
    AttemptOutcome, Beat, BeatReply, FinishedAttempt, HeldAttempt, JoinReply, JoinRequest, StartCheck,
    StartOrder,
};

mod end;
mod event;
mod monitor;
mod repair;
mod speech;
mod work;

pub use self::event::{AgentEffect, AgentEvent, AgentExit, AttemptEnd, CallError, FoundAttempt};
use self::repair::Health;
use self::work::Work;

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub worker: WorkerId,
    pub machine: Option<MachineId>,
    pub fleet: Option<FleetId>,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Capabilities,
    /// An attempt that says nothing for this long is asked about.
    pub inactivity: Duration,
    pub patience: AgentTimeouts,
    pub deadlines: AgentDeadlines,
}

/// What a worker was told about time when it was started; nothing of it need be said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentDeadlines {
    /// How long it may be silent while it holds nothing, in place of what the plane says.
    pub stale_after: Option<Duration>,
    /// Whoever had no contact with its plane for this long stops, and its machine with it: nobody else would.
    pub contact_timeout: Option<Duration>,
    /// How long it has to finish what it holds once it is asked to stop; the rest is handed back in time.
    pub notice: Option<Duration>,
}

/// How long a service is given before what it does not do counts against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTimeouts {
    /// Between the first "I do not know it" and the second, which counts: anything in flight has arrived by then.
    pub unknown_recheck: Duration,
    /// Whoever goes on for longer with what it was told to stop is sick.
    pub cancel_timeout: Duration,
    /// So long one thing may run at the service while ours waits behind it; after that nothing moves there any more.
    pub queue_stall_max: Duration,
    /// How often a service that was given up is looked at: somebody may have mended it.
    pub look_every: Duration,
}

impl Default for AgentTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        AgentTimeouts {
            unknown_recheck: seconds(5),
            cancel_timeout: seconds(30),
            queue_stall_max: seconds(3600),
            look_every: seconds(30),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Agent {
    settings: AgentSettings,
    membership: Membership,
    /// The newest it ever had.
    incarnation: Option<Incarnation>,
    seq: u64,
    line: Line,
    beat_at: Timestamp,
    held: BTreeMap<JobId, Work>,
    finished: BTreeMap<(JobId, Attempt), FinishedAttempt>,
    /// Attempts that were settled: a repeated order must not run them again.
    settled: VecDeque<(JobId, Attempt)>,
    metrics: serde_json::Map<String, serde_json::Value>,
    /// When they were read, and whether this plane was told: what is old must not pass for news.
    metrics_at: Timestamp,
    are_metrics_told: bool,
    check: Option<StartCheck>,
    /// It has something to say to a plane.
    has_begun: bool,
    stopping: Stopping,
    /// When whatever is left is handed back.
    stop_by: Option<Timestamp>,
    /// When the plane last answered anything at all.
    contact_at: Timestamp,
    health: Health,
    /// The beat that first told of what the worker offers now, until one such is answered.
    capabilities_sent_in: Option<u64>,
    /// Something worth a beat happened since the last one.
    has_news: bool,
    has_progress: bool,
    /// How long the plane last took to answer what is answered at once.
    round_trip: Duration,
    /// When anything was last heard, and whether progress overtook a beat since.
    heard_at: Timestamp,
    has_overtaken: bool,
    failures: u32,
    try_at: Timestamp,
    effects: Vec<AgentEffect>,
}

#[derive(Clone, Debug)]
enum Membership {
    Stranger,
    Joining,
    Member { incarnation: Incarnation, term: Term, beat_idle: Duration, beat_busy: Duration },
    Gone,
}

/// The one beat under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Free,
    /// Waits for orders and may be overtaken.
    Waiting(u64),
    /// Carries news and is answered at once.
    Busy(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    Draining,
    Now,
}

/// The longest wait between tries to reach the plane; well below a lease, so that a short cut costs nothing.
const RETRY_MAX: Duration = Duration::from_secs(5);
const RETRY_BASE: Duration = Duration::from_millis(100);
/// Readings older than this are none: they are taken every few seconds.
const METRICS_FRESH: Duration = Duration::from_secs(60);
const SETTLED_MAX: usize = 4096;

impl Agent {
    pub fn new(settings: AgentSettings, now: Timestamp) -> Self {
        Agent {
            settings,
            membership: Membership::Stranger,
            incarnation: None,
            seq: 0,
            line: Line::Free,
            beat_at: now,
            held: BTreeMap::new(),
            finished: BTreeMap::new(),
            settled: VecDeque::new(),
            metrics: serde_json::Map::new(),
            metrics_at: now,
            are_metrics_told: true,
            check: None,
            has_begun: false,
            stopping: Stopping::No,
            stop_by: None,
            contact_at: now,
            health: Health::default(),
            capabilities_sent_in: None,
            has_news: false,
            has_progress: false,
            round_trip: Duration::ZERO,
            heard_at: now,
            has_overtaken: false,
            failures: 0,
            try_at: now,
            effects: Vec::new(),
        }
    }

    pub fn step(&mut self, now: Timestamp, event: AgentEvent) -> Vec<AgentEffect> {
        let was_closed = self.health.closed().is_some();
        match event {
            AgentEvent::Preparing { what } => self.prepare(what),
            AgentEvent::StartChecked(check) => {
                self.has_news |= self.check.as_ref() != Some(&check);
                self.check = Some(check);
            }
            AgentEvent::Started { found, incarnation } => self.began(now, found, incarnation),
            AgentEvent::Joined(joined) => self.joined(now, &joined),
            AgentEvent::Reply { seq, reply } => self.reply(now, seq, reply),
            AgentEvent::CallFailed { seq, why, jitter } => self.unanswered(now, seq, why, jitter),
            AgentEvent::Signal { job, attempt, progress, phase } => {
                self.signal(now, job, attempt, progress, phase);
            }
            AgentEvent::Ended { job, attempt, outcome } => self.ended(job, attempt, outcome),
            AgentEvent::Submitted { job, attempt, incarnation, answer } => {
                self.submitted(now, job, attempt, incarnation, answer);
            }
            AgentEvent::CompletionHint { job, attempt } => self.completion_hint(now, job, attempt),
            AgentEvent::Probed { job, attempt, incarnation, result } => {
                self.probed(now, job, attempt, incarnation, result)
            }
            AgentEvent::Service(news) => self.service_event(now, news),
            AgentEvent::CapabilitiesChanged(offer) => self.offers(*offer),
            AgentEvent::Metrics(metrics) => {
                (self.metrics, self.metrics_at, self.are_metrics_told) = (metrics, now, false);
            }
            AgentEvent::Stop => self.stop(now),
            AgentEvent::Tick => {
                self.watch(now);
                self.treat(now);
            }
        }
        self.has_news |= self.health.closed().is_some() != was_closed;
        self.check_shutdown(now);
        self.speak(now);
        std::mem::take(&mut self.effects)
    }

    /// When to step again even if nothing happens.
    pub fn wake_at(&self) -> Timestamp {
        let limits = self.limits();
        let probe = self.held.values().map(|work| work.wake_at(limits)).min();
        let treat = self.health.wake_at();
        let speak = match (&self.membership, self.line) {
            (Membership::Stranger, _) if !self.has_begun => None,
            (Membership::Stranger, _) | (Membership::Member { .. }, Line::Free) => Some(self.try_at),
            (Membership::Member { .. }, Line::Waiting(_)) if self.has_progress => {
                Some(self.beat_at.plus(self.overtakes_after())).filter(|at| self.may_overtake(*at))
            }
            (Membership::Member { .. } | Membership::Joining | Membership::Gone, _) => None,
        };
        [probe, treat, speak, self.end_at()].into_iter().flatten().min().unwrap_or(Timestamp::NEVER)
    }

    pub fn incarnation(&self) -> Option<Incarnation> {
        match self.membership {
            Membership::Member { incarnation, .. } => Some(incarnation),
            Membership::Stranger | Membership::Joining | Membership::Gone => None,
        }
    }

    /// Why it takes no new work, if so.
    pub fn closed(&self) -> Option<&str> {
        self.health.closed()
    }

    /// What it runs now.
    pub fn held(&self) -> impl Iterator<Item = (JobId, Attempt)> {
        self.held.iter().map(|(job, work)| (*job, work.attempt))
    }

    fn limits(&self) -> WatchLimits {
        // A service that is silent is asked, not judged: only its answer is evidence.
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
        // To it they are news, unless whoever reads them has stopped doing so.
        self.are_metrics_told &= now.since(self.metrics_at) >= METRICS_FRESH;
        (self.failures, self.line, self.has_news) = (0, Line::Free, true);
        self.seq = 0;
    }

    fn reply(&mut self, now: Timestamp, seq: u64, reply: BeatReply) {
        if self.line != Line::Waiting(seq) && self.line != Line::Busy(seq) {
            return;
        }
        if self.line == Line::Busy(seq) {
            self.round_trip = now.since(self.beat_at);
        }
        (self.line, self.failures, self.try_at) = (Line::Free, 0, now);
        (self.heard_at, self.contact_at, self.has_overtaken) = (now, now, false);
        if let Membership::Member { term, .. } = &mut self.membership {
            *term = reply.term;
        }
        if reply.beat_again {
            self.has_news = true;
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
        self.ask_about_found(now);
        for start in reply.start {
            self.start(now, start);
        }
    }

    fn unanswered(&mut self, now: Timestamp, seq: Option<u64>, why: CallError, jitter: u64) {
        let is_current = match seq {
            Some(seq) => self.line == Line::Waiting(seq) || self.line == Line::Busy(seq),
            None => matches!(self.membership, Membership::Joining),
        };
        if !is_current {
            return;
        }
        (self.line, self.heard_at, self.has_overtaken) = (Line::Free, now, false);
        self.round_trip = self.round_trip.max(now.since(self.beat_at));
        match why {
            CallError::Unreachable(_) => {
                if matches!(self.membership, Membership::Joining) {
                    self.membership = Membership::Stranger;
                }
                let ceiling =
                    RETRY_BASE.saturating_mul(1 << self.failures.min(8)).min(RETRY_MAX).as_millis() as u64;
                self.failures += 1;
                self.has_news = true;
                self.try_at = now.plus(Duration::from_millis(ceiling / 2 + jitter % (ceiling / 2 + 1)));
            }
            CallError::Unknown => (self.membership, self.contact_at) = (Membership::Stranger, now),
            CallError::Replaced(problem) => self.give_up(problem),
            CallError::Retired(why) => self.dismiss(why),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
