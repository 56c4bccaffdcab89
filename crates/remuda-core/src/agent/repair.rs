//! How an agent repairs its service. An unreachable service gets no new work until it answers. A sick one gets one remedy
//! after another, mildest first, each followed by a self-test. When nothing helps it is given up and only rechecked.
//!
//! ```text
//!        ignores cancellations             ┌────── remedy, then self-test ──────┐ passed
//!  well ───────────────────────────▶ sick ─┤ free ─▶ restart (if we started it) ├────────▶ well
//!   │    broken device: restart            └──────────────┬─────────────────────┘
//!   │    disk full                                        ▼ nothing helped
//!   └─────────────────────────────────────────────────▶ given up ── rechecked periodically ──▶ well
//! ```
//!
//! Running out of memory is no sickness: caches are emptied, and a larger worker gets the job.

use std::time::Duration;

use super::{Agent, AgentEffect, Capabilities};
use crate::service::{ProbeTrigger, ServiceEvent, ServiceFault, ServiceIncarnation, ServiceRemedy};
use crate::supervise::{Budget, BudgetVerdict};
use crate::time::Timestamp;

/// After this many probes in a row without an answer the service gets no new work.
const UNANSWERED_MAX: u32 = 3;
/// Restarts in a row without a success in between.
const RESTARTS_MAX: u32 = 3;
/// How often an idle service that does not answer is self-tested.
const RECHECK_EVERY: Duration = Duration::from_secs(10);
/// When a service that was given up gets another round of remedies.
const REPAIR_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// A remedy or self-test without a result by then has failed. A start may load models for minutes.
const REMEDY_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub(super) struct Health {
    condition: Condition,
    /// What the service's first start waits for.
    preparing: Option<String>,
    incarnation: ServiceIncarnation,
    /// Why the socket is closed, while it is.
    socket_problem: Option<String>,
    unanswered: u32,
    silence: String,
    recheck_at: Option<Timestamp>,
    restarts: Budget,
    /// It was unavailable once: from then on every beat reports its slots.
    reports_slots: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Well,
    /// A remedy or a self-test is running.
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
            socket_problem: None,
            unanswered: 0,
            silence: String::new(),
            recheck_at: None,
            restarts: Budget::new(RESTARTS_MAX),
            reports_slots: false,
        }
    }
}

impl Health {
    /// Why it takes no new work; `None` if it does.
    pub(super) fn closed(&self) -> Option<&str> {
        match &self.condition {
            _ if self.preparing.is_some() => self.preparing.as_deref(),
            Condition::Sick { why, .. } | Condition::GivenUp { why, .. } => Some(why),
            Condition::Well if self.unanswered >= UNANSWERED_MAX => Some(&self.silence),
            Condition::Well => self.socket_problem.as_deref(),
        }
    }

    /// Whether an order that arrives anyway is accepted: a short outage is no reason to reject it.
    pub(super) fn takes_work(&self) -> bool {
        self.condition == Condition::Well && self.preparing.is_none()
    }

    /// True if the reason changed.
    pub(super) fn prepare(&mut self, what: String) -> bool {
        let is_new = self.preparing.as_ref() != Some(&what);
        self.preparing = Some(what);
        is_new
    }

    pub(super) fn ready(&mut self) {
        self.preparing = None;
    }

    /// The slots to report; `None` while they never changed.
    pub(super) fn slots(&mut self, slots: u32) -> Option<u32> {
        self.reports_slots |= self.closed().is_some();
        self.reports_slots.then_some(if self.closed().is_some() { 0 } else { slots })
    }

    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        match &self.condition {
            Condition::Sick { until, .. } => Some(*until),
            Condition::Well | Condition::GivenUp { .. } => self.recheck_at,
        }
    }

    pub(super) fn saw_incarnation(&mut self, incarnation: ServiceIncarnation) {
        self.incarnation = self.incarnation.max(incarnation);
    }

    /// An attempt or a self-test succeeded: the restarts are earned back. A job that breaks the service repeatedly is for
    /// the plane to stop.
    pub(super) fn proved(&mut self) {
        self.restarts.earn_back();
    }

    pub(super) fn answered(&mut self) {
        self.unanswered = 0;
        if self.condition == Condition::Well {
            self.recheck_at = None;
        }
    }

    pub(super) fn unanswered(&mut self, now: Timestamp, why: &str) {
        self.unanswered += 1;
        if self.unanswered >= UNANSWERED_MAX {
            self.silence = format!("the service does not answer: {why}");
            self.recheck_at.get_or_insert(now.plus(RECHECK_EVERY));
        }
    }

    fn is_being_repaired(&self) -> bool {
        self.condition != Condition::Well
    }
}

impl Agent {
    pub(super) fn service_event(&mut self, now: Timestamp, news: ServiceEvent) {
        match news {
            ServiceEvent::SocketClosed { why } => {
                self.health.socket_problem = Some(format!("no connection to the service: {why}"));
                self.probe_all(now, ProbeTrigger::SocketClosed);
            }
            ServiceEvent::SocketOpened { incarnation } => self.socket_opened(now, incarnation),
            ServiceEvent::Exited { why } => {
                if !self.health.is_being_repaired() {
                    self.restart_within_budget(now, format!("the service exited: {why}"));
                }
            }
            ServiceEvent::RemedyDone { remedy, problem } => self.remedy_done(now, remedy, problem),
            ServiceEvent::SelfTested { incarnation, problem, offer } => {
                self.health.saw_incarnation(incarnation);
                if let Some(offer) = offer {
                    self.set_capabilities(*offer);
                }
                self.self_tested(now, problem);
            }
        }
    }

    /// A restarted service has to pass a self-test; one that was only unreachable does not.
    fn socket_opened(&mut self, now: Timestamp, incarnation: ServiceIncarnation) {
        let is_new = incarnation > self.health.incarnation;
        self.health.saw_incarnation(incarnation);
        self.health.answered();
        self.health.socket_problem = None;
        if is_new && !matches!(self.health.condition, Condition::Sick { .. }) {
            self.self_test(now, "the service restarted".to_owned(), None);
        }
        self.probe_all(now, ProbeTrigger::SocketOpened);
    }

    /// What an attempt's failure says about the service itself.
    pub(super) fn diagnose(&mut self, now: Timestamp, fault: ServiceFault, message: &str) {
        match fault {
            _ if self.health.is_being_repaired() => {}
            ServiceFault::Memory => self.effects.push(AgentEffect::ApplyRemedy(ServiceRemedy::FreeMemory)),
            ServiceFault::Device => self.restart(now, format!("the device is broken: {message}")),
            ServiceFault::Disk => self.give_up_service(now, format!("its disk is full: {message}")),
            ServiceFault::Graph
            | ServiceFault::Node
            | ServiceFault::Missing
            | ServiceFault::Lost
            | ServiceFault::Died => {}
        }
    }

    /// Sick for an unknown cause: start with the mildest remedy.
    pub(super) fn mark_sick(&mut self, now: Timestamp, why: String) {
        if !self.health.is_being_repaired() {
            self.apply(now, ServiceRemedy::FreeMemory, why);
        }
    }

    fn apply(&mut self, now: Timestamp, remedy: ServiceRemedy, why: String) {
        self.health.condition =
            Condition::Sick { why, remedy: Some(remedy), until: now.plus(REMEDY_TIMEOUT) };
        self.effects.push(AgentEffect::ApplyRemedy(remedy));
    }

    fn self_test(&mut self, now: Timestamp, why: String, after: Option<ServiceRemedy>) {
        self.health.condition = Condition::Sick { why, remedy: after, until: now.plus(REMEDY_TIMEOUT) };
        self.effects.push(AgentEffect::SelfTest);
    }

    /// We restart it, so the other attempts there are lost without being at fault.
    fn restart(&mut self, now: Timestamp, why: String) {
        self.held.values_mut().for_each(|work| work.lost_to_restart = true);
        self.restart_within_budget(now, why);
    }

    fn restart_within_budget(&mut self, now: Timestamp, why: String) {
        match self.health.restarts.spend() {
            BudgetVerdict::Apply(_) => self.apply(now, ServiceRemedy::Restart, why),
            BudgetVerdict::Escalate => {
                self.give_up_service(now, format!("{RESTARTS_MAX} restarts did not help: {why}"));
            }
        }
    }

    fn remedy_done(&mut self, now: Timestamp, done: ServiceRemedy, problem: Option<String>) {
        let Condition::Sick { why, remedy, .. } = &self.health.condition else { return };
        if *remedy != Some(done) {
            return;
        }
        let why = why.clone();
        match (done, problem) {
            // Caches are emptied after the running work, and a self-test would wait behind it.
            (ServiceRemedy::FreeMemory, None) if self.has_stuck_cancel(now) => self.restart(now, why),
            (_, None) => self.self_test(now, why, Some(done)),
            (ServiceRemedy::FreeMemory, Some(problem)) => self.restart(now, format!("{why}; {problem}")),
            (ServiceRemedy::Restart, Some(problem)) => self.give_up_service(now, format!("{why}; {problem}")),
        }
    }

    fn self_tested(&mut self, now: Timestamp, problem: Option<String>) {
        match (&self.health.condition, problem) {
            (_, None) => {
                self.health.condition = Condition::Well;
                self.health.answered();
                self.health.proved();
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

    /// Whether a cancelled attempt still runs there past the limit.
    fn has_stuck_cancel(&self, now: Timestamp) -> bool {
        let cancel_timeout = self.settings.timeouts.cancel_timeout;
        self.held.values().any(|work| work.cancelled_at.is_some_and(|at| now.since(at) >= cancel_timeout))
    }

    /// No remedy helps: report it, and recheck, because a person may fix it.
    fn give_up_service(&mut self, now: Timestamp, why: String) {
        let since = match &self.health.condition {
            Condition::GivenUp { since, .. } => *since,
            Condition::Well | Condition::Sick { .. } => now,
        };
        self.health.condition = Condition::GivenUp { why, since };
        self.health.recheck_at = Some(now.plus(self.settings.timeouts.given_up_recheck));
    }

    /// Handles expired remedies and due rechecks.
    pub(super) fn repair_due(&mut self, now: Timestamp) {
        match &self.health.condition {
            Condition::Sick { why, remedy, until } if *until <= now => {
                let (why, is_restart) = (why.clone(), *remedy == Some(ServiceRemedy::Restart));
                if is_restart {
                    self.give_up_service(now, format!("{why}; the restart timed out"));
                } else {
                    self.restart(now, format!("{why}; the remedy timed out"));
                }
            }
            Condition::GivenUp { why, since } if now.since(*since) >= REPAIR_AGAIN_AFTER => {
                // The cause may have gone away: one more round of restarts.
                let why = why.clone();
                self.health.restarts.earn_back();
                self.restart(now, why);
            }
            Condition::Well | Condition::GivenUp { .. }
                if self.health.recheck_at.is_some_and(|at| at <= now) =>
            {
                let given_up_recheck = self.settings.timeouts.given_up_recheck;
                let is_given_up = self.health.condition != Condition::Well;
                self.health.recheck_at =
                    Some(now.plus(if is_given_up { given_up_recheck } else { RECHECK_EVERY }));
                // With attempts there, those are probed instead: a self-test would wait behind them.
                if is_given_up || self.held.is_empty() {
                    self.effects.push(AgentEffect::SelfTest);
                }
            }
            Condition::Well | Condition::Sick { .. } | Condition::GivenUp { .. } => {}
        }
    }

    /// The next beat reports changed capabilities.
    pub(super) fn set_capabilities(&mut self, mut offer: Capabilities) {
        // Labels come from the configuration, not from the service.
        offer.labels.clone_from(&self.settings.offer.labels);
        if offer != self.settings.offer {
            self.settings.offer = offer;
            (self.capabilities_sent_in, self.beat_due) = (Some(self.seq + 1), true);
        }
    }
}
