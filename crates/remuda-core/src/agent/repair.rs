//! How an agent repairs its service: carries out what `condition` decides. An unreachable service gets no new work until
//! it answers.
//!
//! Running out of memory is no sickness: caches are emptied, and a larger worker gets the job.
//!
//! A self-test is a small prompt, and waits in the service's queue like any other. Behind an attempt of ours that takes an
//! hour it cannot end in time, and that says nothing against the service: if an attempt made progress meanwhile, the
//! service computes, and the test counts as passed; if one runs there in silence, the test is repeated until it ends or the
//! plane calls it stuck. Otherwise a healthy server would be out of service for that hour, or be restarted under the run.

use std::time::Duration;

use super::condition::{ConditionEvent, REMEDY_TIMEOUT, Repair, ServiceCondition};
use super::{Agent, AgentEffect, Capabilities};
use crate::service::{
    ProbeTrigger, SelfTestResult, ServiceEvent, ServiceFault, ServiceIncarnation, ServiceRemedy, ServiceState,
};
use crate::time::Timestamp;

/// After this many probes in a row without an answer the service gets no new work.
const UNANSWERED_MAX: u32 = 3;
/// How often an idle service that does not answer is self-tested.
const RECHECK_EVERY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    condition: ServiceCondition,
    /// What the service's first start waits for.
    preparing: Option<String>,
    incarnation: ServiceIncarnation,
    /// Why the socket is closed, while it is.
    socket_problem: Option<String>,
    unanswered: u32,
    /// Since when no probe was answered.
    unanswered_since: Option<Timestamp>,
    silence: String,
    recheck_at: Option<Timestamp>,
    /// Self-tests without a result so far, and when the last one began.
    tests: u32,
    tested_at: Option<Timestamp>,
    /// It was unavailable once: from then on every beat reports its slots.
    reports_slots: bool,
}

impl Health {
    /// Why it takes no new work; `None` if it does.
    pub(super) fn closed_reason(&self) -> Option<&str> {
        let silence = Some(self.silence.as_str()).filter(|_| self.unanswered >= UNANSWERED_MAX);
        let socket = self.socket_problem.as_deref();
        self.preparing.as_deref().or(self.condition.problem()).or(silence).or(socket)
    }

    /// Whether progress can be heard: without a socket it cannot.
    pub(super) fn can_hear(&self) -> bool {
        self.socket_problem.is_none()
    }

    /// Whether an order that arrives anyway is accepted: a short outage is no reason to reject it.
    pub(super) fn takes_work(&self) -> bool {
        self.condition.is_well() && self.preparing.is_none()
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
        self.reports_slots |= self.closed_reason().is_some();
        self.reports_slots.then_some(if self.closed_reason().is_some() { 0 } else { slots })
    }

    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.condition.timeout_at().or(self.recheck_at)
    }

    pub(super) fn incarnation(&self) -> ServiceIncarnation {
        self.incarnation
    }

    pub(super) fn saw_incarnation(&mut self, incarnation: ServiceIncarnation) {
        self.incarnation = self.incarnation.max(incarnation);
    }

    /// An attempt succeeded.
    pub(super) fn proved(&mut self) {
        self.condition.proved();
    }

    pub(super) fn answered(&mut self) {
        (self.unanswered, self.unanswered_since) = (0, None);
        if self.condition.is_well() {
            self.recheck_at = None;
        }
    }

    pub(super) fn unanswered(&mut self, now: Timestamp, why: &str) {
        self.unanswered += 1;
        self.unanswered_since.get_or_insert(now);
        if self.unanswered >= UNANSWERED_MAX {
            self.silence = format!("the service does not answer: {why}");
            self.recheck_at.get_or_insert(now.plus(RECHECK_EVERY));
        }
    }

    /// How long no probe was answered.
    pub(super) fn unanswered_for(&self, now: Timestamp) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Whether the result of a self-test is still to come. One older than `REMEDY_TIMEOUT` is no longer awaited.
    fn awaits_test(&self, now: Timestamp) -> bool {
        self.tests > 0 && self.tested_at.is_some_and(|at| now.since(at) < REMEDY_TIMEOUT)
    }

    pub(super) fn is_being_repaired(&self) -> bool {
        !self.condition.is_well()
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
            ServiceEvent::Exited { why, how } => {
                let is_alone = self.held.len() == 1;
                self.held.values_mut().for_each(|work| work.exit = Some((how, is_alone)));
                self.judge(now, ConditionEvent::Exited { why: format!("the service exited: {why}") });
            }
            ServiceEvent::RemedyDone { remedy, problem } => {
                let is_stuck = self.has_stuck_cancel(now);
                self.judge(now, ConditionEvent::RemedyDone { remedy, problem, is_stuck });
            }
            ServiceEvent::SelfTested { incarnation, result, offer } => {
                self.health.tests = self.health.tests.saturating_sub(1);
                if result != SelfTestResult::Passed && incarnation < self.health.incarnation {
                    return self.outdated_test(now);
                }
                self.health.saw_incarnation(incarnation);
                if let Some(offer) = offer {
                    self.set_capabilities(*offer);
                }
                let tested = self.test_verdict(result);
                self.judge(now, tested);
                if self.health.condition.is_well() {
                    self.health.answered();
                }
            }
        }
    }

    /// What the result of a self-test says about the service; see the head of this file.
    fn test_verdict(&self, result: SelfTestResult) -> ConditionEvent {
        let has_computed = self.health.tested_at.is_some_and(|at| self.progressed_at >= at);
        let is_occupied = self
            .held
            .values()
            .any(|work| work.cancelled_at.is_none() && work.status == Some(ServiceState::Running));
        match result {
            SelfTestResult::Passed => ConditionEvent::Tested { problem: None },
            SelfTestResult::Queued(_) if has_computed => ConditionEvent::Tested { problem: None },
            SelfTestResult::Queued(_) if is_occupied => ConditionEvent::TestQueued,
            SelfTestResult::Queued(problem) | SelfTestResult::Failed(problem) => {
                ConditionEvent::Tested { problem: Some(problem) }
            }
        }
    }

    /// A self-test failed that began before the service started again: it says nothing about the new process.
    fn outdated_test(&mut self, now: Timestamp) {
        if self.health.condition.is_testing() && !self.health.awaits_test(now) {
            self.self_test(now);
        }
    }

    fn self_test(&mut self, now: Timestamp) {
        let others = if self.health.awaits_test(now) { self.health.tests } else { 0 };
        (self.health.tests, self.health.tested_at) = (others + 1, Some(now));
        self.effects.push(AgentEffect::SelfTest);
    }

    /// A restarted service has to pass a self-test; one that was only unreachable does not.
    fn socket_opened(&mut self, now: Timestamp, incarnation: ServiceIncarnation) {
        let is_new = incarnation > self.health.incarnation;
        self.health.saw_incarnation(incarnation);
        self.health.answered();
        self.health.socket_problem = None;
        if is_new {
            self.superseded.clear();
            self.judge(now, ConditionEvent::Replaced);
        }
        self.probe_all(now, ProbeTrigger::SocketOpened);
    }

    /// What an attempt's failure says about the service itself.
    pub(super) fn diagnose(&mut self, now: Timestamp, fault: ServiceFault, message: &str) {
        match fault {
            ServiceFault::Memory => {
                if self.health.condition.is_well() {
                    self.effects.push(AgentEffect::ApplyRemedy(ServiceRemedy::FreeMemory));
                }
            }
            ServiceFault::Device => {
                self.judge(
                    now,
                    ConditionEvent::DeviceBroken { why: format!("the device is broken: {message}") },
                );
            }
            ServiceFault::Disk => {
                self.judge(now, ConditionEvent::DiskFull { why: format!("its disk is full: {message}") });
            }
            ServiceFault::Graph
            | ServiceFault::Node
            | ServiceFault::Missing
            | ServiceFault::Lost
            | ServiceFault::Died
            | ServiceFault::Crashed
            | ServiceFault::Killed => {}
        }
    }

    /// Sick for an unknown cause: start with the mildest remedy.
    pub(super) fn mark_sick(&mut self, now: Timestamp, why: String) {
        self.judge(now, ConditionEvent::Sickened { why });
    }

    /// Applies an event to the condition of the service, and carries out what follows.
    fn judge(&mut self, now: Timestamp, event: ConditionEvent) {
        match self.health.condition.apply(now, event) {
            Repair::Nothing => {}
            Repair::FreeMemory => self.effects.push(AgentEffect::ApplyRemedy(ServiceRemedy::FreeMemory)),
            Repair::SelfTest => self.self_test(now),
            Repair::Restart { takes_attempts } => {
                // The other attempts there are lost without being at fault.
                self.held.values_mut().for_each(|work| work.lost_to_restart |= takes_attempts);
                self.superseded.clear();
                self.effects.push(AgentEffect::ApplyRemedy(ServiceRemedy::Restart));
            }
        }
        // Rechecked, because a person may repair it.
        if self.health.condition.is_given_up() {
            self.health.recheck_at.get_or_insert(now.plus(self.settings.timeouts.given_up_recheck));
        }
    }

    /// Whether a cancelled attempt still runs there past the limit.
    fn has_stuck_cancel(&self, now: Timestamp) -> bool {
        let cancel_timeout = self.settings.timeouts.cancel_timeout;
        self.held.values().any(|work| work.ignored_for(now) >= cancel_timeout)
            || self.superseded.is_stuck(now, cancel_timeout)
    }

    /// Handles expired remedies and due rechecks.
    pub(super) fn repair_due(&mut self, now: Timestamp) {
        self.judge(now, ConditionEvent::Tick);
        let (condition, is_due) =
            (&self.health.condition, self.health.recheck_at.is_some_and(|at| at <= now));
        if !is_due || condition.timeout_at().is_some() {
            return;
        }
        let is_given_up = condition.is_given_up();
        let every = if is_given_up { self.settings.timeouts.given_up_recheck } else { RECHECK_EVERY };
        self.health.recheck_at = Some(now.plus(every));
        // With attempts there, those are probed instead: a self-test would wait behind them, as it would behind another one.
        if (is_given_up || self.held.is_empty()) && !self.health.awaits_test(now) {
            self.self_test(now);
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
