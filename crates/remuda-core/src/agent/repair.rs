//! How an agent treats the service behind it. Whoever is out of reach gets no new work until it answers. Whoever is
//! sick gets one remedy after the other, mildest first, each followed by a check that it really works; past the last one
//! it is given up until somebody mends it.
//!
//! ```text
//!        does not stop what it runs          ┌─────── a remedy, then a check ──────┐ passed
//!  well ─────────────────────────────▶ sick ─┤ free ──▶ restart (if we started it) ├────────▶ well
//!   │    broken device: restart at once      └──────────────┬──────────────────────┘
//!   │    disk full                                          ▼ nothing helped
//!   └──────────────────────────────────────────────────▶ given up ── looked at now and then ──▶ well
//! ```
//!
//! Running out of memory is no sickness: caches are emptied, and a larger worker gets the job.

use std::time::Duration;

use super::{Agent, AgentEffect, Capabilities};
use crate::service::{ProbeTrigger, ServiceEvent, ServiceFault, ServiceIncarnation, ServiceRemedy};
use crate::time::Timestamp;
use crate::watch::{self, Budget};

/// So many questions in a row without an answer, and it gets no new work.
const UNANSWERED_MAX: u32 = 3;
/// Restarts in a row after which it did nothing right.
const RESTARTS_MAX: u32 = 3;
/// How often a service is looked at that holds nothing of ours and does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// After so long the remedies are tried once more.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// A remedy or a check that says nothing for this long counts as failed. Starting may mean loading for minutes.
const REMEDY_MAX: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub(super) struct Health {
    condition: Condition,
    /// What has to be done before there is a service at all.
    preparing: Option<String>,
    incarnation: ServiceIncarnation,
    /// Why there is no socket, while there is none.
    cut: Option<String>,
    unanswered: u32,
    silence: String,
    look_at: Option<Timestamp>,
    restarts: Budget,
    /// It was closed once: from then on every beat tells how many slots there are.
    has_varied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Well,
    /// Something is being done about it: a remedy, or a check alone.
    Sick {
        why: String,
        remedy: Option<ServiceRemedy>,
        until: Timestamp,
    },
    GivenUp {
        why: String,
        since: Timestamp,
    },
}

impl Default for Health {
    fn default() -> Self {
        Health {
            condition: Condition::Well,
            preparing: None,
            incarnation: ServiceIncarnation::default(),
            cut: None,
            unanswered: 0,
            silence: String::new(),
            look_at: None,
            restarts: Budget::new(RESTARTS_MAX),
            has_varied: false,
        }
    }
}

impl Health {
    /// Why no new work is welcome; nothing if it is.
    pub(super) fn closed(&self) -> Option<&str> {
        match &self.condition {
            _ if self.preparing.is_some() => self.preparing.as_deref(),
            Condition::Sick { why, .. } | Condition::GivenUp { why, .. } => Some(why),
            Condition::Well if self.unanswered >= UNANSWERED_MAX => Some(&self.silence),
            Condition::Well => self.cut.as_deref(),
        }
    }

    /// Whether work that comes anyway is taken on: being out of reach for a moment is no reason to send it back.
    pub(super) fn takes_work(&self) -> bool {
        self.condition == Condition::Well && self.preparing.is_none()
    }

    /// Whether these are other words than before.
    pub(super) fn prepare(&mut self, what: String) -> bool {
        let is_new = self.preparing.as_ref() != Some(&what);
        self.preparing = Some(what);
        is_new
    }

    pub(super) fn began(&mut self) {
        self.preparing = None;
    }

    /// How many slots there are, once that is worth saying.
    pub(super) fn slots(&mut self, slots: u32) -> Option<u32> {
        self.has_varied |= self.closed().is_some();
        self.has_varied.then_some(if self.closed().is_some() { 0 } else { slots })
    }

    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        match &self.condition {
            Condition::Sick { until, .. } => Some(*until),
            Condition::Well | Condition::GivenUp { .. } => self.look_at,
        }
    }

    pub(super) fn saw_incarnation(&mut self, incarnation: ServiceIncarnation) {
        self.incarnation = self.incarnation.max(incarnation);
    }

    /// An attempt or a check went well: the remedies are earned back. A job that breaks the service again and again is
    /// the plane's business.
    pub(super) fn worked(&mut self) {
        self.restarts.earn_back();
    }

    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
        if self.condition == Condition::Well {
            self.look_at = None;
        }
    }

    pub(super) fn unanswered(&mut self, now: Timestamp, why: &str) {
        self.unanswered += 1;
        if self.unanswered >= UNANSWERED_MAX {
            self.silence = format!("the service does not answer: {why}");
            self.look_at.get_or_insert(now.plus(LOOK_AGAIN));
        }
    }

    fn is_under_treatment(&self) -> bool {
        self.condition != Condition::Well
    }
}

impl Agent {
    pub(super) fn service_event(&mut self, now: Timestamp, news: ServiceEvent) {
        match news {
            ServiceEvent::SocketClosed { why } => {
                self.health.cut = Some(format!("no connection to the service: {why}"));
                self.ask_about_all(now, ProbeTrigger::SocketClosed);
            }
            ServiceEvent::SocketOpened { incarnation } => self.connected(now, incarnation),
            ServiceEvent::Exited { why } => {
                if !self.health.is_under_treatment() {
                    self.start_anew(now, format!("the service ended: {why}"));
                }
            }
            ServiceEvent::RemedyDone { remedy, problem } => self.treated(now, remedy, problem),
            ServiceEvent::SelfTested { incarnation, problem, offer } => {
                self.health.saw_incarnation(incarnation);
                if let Some(offer) = offer {
                    self.offers(*offer);
                }
                self.checked(now, problem);
            }
        }
    }

    /// A service that began a new life has to show that it works; one that was only out of reach does not.
    fn connected(&mut self, now: Timestamp, incarnation: ServiceIncarnation) {
        let is_new = incarnation > self.health.incarnation;
        self.health.saw_incarnation(incarnation);
        self.health.answered();
        self.health.cut = None;
        if is_new && !matches!(self.health.condition, Condition::Sick { .. }) {
            self.check(now, "the service restarted".to_owned(), None);
        }
        self.ask_about_all(now, ProbeTrigger::SocketOpened);
    }

    /// What a failure says about the service itself.
    pub(super) fn diagnose(&mut self, now: Timestamp, fault: ServiceFault, message: &str) {
        match fault {
            _ if self.health.is_under_treatment() => {}
            ServiceFault::Memory => self.effects.push(AgentEffect::ApplyRemedy(ServiceRemedy::FreeMemory)),
            ServiceFault::Device => self.restart(now, format!("the device is broken: {message}")),
            ServiceFault::Disk => self.give_up_service(now, format!("no room on its disk: {message}")),
            ServiceFault::Graph
            | ServiceFault::Node
            | ServiceFault::Missing
            | ServiceFault::Lost
            | ServiceFault::Died => {}
        }
    }

    /// Something about it is wrong, and nobody knows what: the ladder from its foot.
    pub(super) fn mark_sick(&mut self, now: Timestamp, why: String) {
        if !self.health.is_under_treatment() {
            self.apply(now, ServiceRemedy::FreeMemory, why);
        }
    }

    fn apply(&mut self, now: Timestamp, remedy: ServiceRemedy, why: String) {
        self.health.condition = Condition::Sick { why, remedy: Some(remedy), until: now.plus(REMEDY_MAX) };
        self.effects.push(AgentEffect::ApplyRemedy(remedy));
    }

    fn check(&mut self, now: Timestamp, why: String, after: Option<ServiceRemedy>) {
        self.health.condition = Condition::Sick { why, remedy: after, until: now.plus(REMEDY_MAX) };
        self.effects.push(AgentEffect::SelfTest);
    }

    /// By our own hand: whatever else is there is lost with it, and not to blame.
    fn restart(&mut self, now: Timestamp, why: String) {
        self.held.values_mut().for_each(|work| work.is_bystander = true);
        self.start_anew(now, why);
    }

    fn start_anew(&mut self, now: Timestamp, why: String) {
        match self.health.restarts.spend() {
            watch::BudgetVerdict::Apply(_) => self.apply(now, ServiceRemedy::Restart, why),
            watch::BudgetVerdict::Escalate => {
                self.give_up_service(now, format!("{RESTARTS_MAX} restarts did not help: {why}"));
            }
        }
    }

    fn treated(&mut self, now: Timestamp, done: ServiceRemedy, problem: Option<String>) {
        let Condition::Sick { why, remedy, .. } = &self.health.condition else { return };
        if *remedy != Some(done) {
            return;
        }
        let why = why.clone();
        match (done, problem) {
            // Caches are emptied after what runs now, and a check would wait behind it.
            (ServiceRemedy::FreeMemory, None) if self.is_stuck(now) => self.restart(now, why),
            (_, None) => self.check(now, why, Some(done)),
            (ServiceRemedy::FreeMemory, Some(problem)) => self.restart(now, format!("{why}; {problem}")),
            (ServiceRemedy::Restart, Some(problem)) => self.give_up_service(now, format!("{why}; {problem}")),
        }
    }

    fn checked(&mut self, now: Timestamp, problem: Option<String>) {
        match (&self.health.condition, problem) {
            (_, None) => {
                self.health.condition = Condition::Well;
                self.health.answered();
                self.health.worked();
            }
            (Condition::Well, Some(problem)) => self.mark_sick(now, problem),
            (Condition::Sick { why, remedy, .. }, Some(problem)) => {
                let why = format!("{why}; {problem}");
                match remedy {
                    None => self.apply(now, ServiceRemedy::FreeMemory, why),
                    Some(_) => self.restart(now, why),
                }
            }
            (Condition::GivenUp { .. }, Some(problem)) => self.give_up_service(now, problem),
        }
    }

    /// Whether something that was told to stop long ago still runs there.
    fn is_stuck(&self, now: Timestamp) -> bool {
        let cancel_timeout = self.settings.patience.cancel_timeout;
        self.held.values().any(|work| work.cancelled_at.is_some_and(|at| now.since(at) >= cancel_timeout))
    }

    /// Nothing we may do helps: said so, and looked at again and again, because somebody may mend it.
    fn give_up_service(&mut self, now: Timestamp, why: String) {
        let since = match &self.health.condition {
            Condition::GivenUp { since, .. } => *since,
            Condition::Well | Condition::Sick { .. } => now,
        };
        self.health.condition = Condition::GivenUp { why, since };
        self.health.look_at = Some(now.plus(self.settings.patience.look_every));
    }

    /// What time alone asks for.
    pub(super) fn treat(&mut self, now: Timestamp) {
        match &self.health.condition {
            Condition::Sick { why, remedy, until } if *until <= now => {
                let (why, is_restart) = (why.clone(), *remedy == Some(ServiceRemedy::Restart));
                if is_restart {
                    self.give_up_service(now, format!("{why}; the restart took too long"));
                } else {
                    self.restart(now, format!("{why}; nothing happened in time"));
                }
            }
            Condition::GivenUp { why, since } if now.since(*since) >= TRY_AGAIN_AFTER => {
                // Whatever was in the way may be gone: one more round of restarts.
                let why = why.clone();
                self.health.restarts.earn_back();
                self.restart(now, why);
            }
            Condition::Well | Condition::GivenUp { .. }
                if self.health.look_at.is_some_and(|at| at <= now) =>
            {
                let look_every = self.settings.patience.look_every;
                let is_given_up = self.health.condition != Condition::Well;
                self.health.look_at = Some(now.plus(if is_given_up { look_every } else { LOOK_AGAIN }));
                // What holds something of ours is asked about that instead: a check would wait behind it.
                if is_given_up || self.held.is_empty() {
                    self.effects.push(AgentEffect::SelfTest);
                }
            }
            Condition::Well | Condition::Sick { .. } | Condition::GivenUp { .. } => {}
        }
    }

    /// It can do other things than before: the plane hears of it with the next beat.
    pub(super) fn offers(&mut self, mut offer: Capabilities) {
        // Labels are given by people, not found.
        offer.labels.clone_from(&self.settings.offer.labels);
        if offer != self.settings.offer {
            self.settings.offer = offer;
            (self.capabilities_sent_in, self.has_news) = (Some(self.seq + 1), true);
        }
    }
}
