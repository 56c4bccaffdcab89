//! How an agent ends: because it is asked to, within the notice it was given; because another of its name goes on;
//! because nobody wants its machine; or because it has not heard from its plane for so long that nobody may be left
//! who would ever return the machine.

use std::time::Duration;

use super::{Agent, AgentEffect, AgentExit, Membership, Stopping};
use crate::time::{Timestamp, humanize};

/// So much of a notice is kept for handing back what is not done.
const HANDING_BACK: Duration = Duration::from_secs(3);
/// So many tries in a row must have failed before a long silence counts: after a pause of our own nobody has been asked.
const FAILURES_MIN: u32 = 3;

impl Agent {
    /// The first time: finish what is held. The second time: now.
    pub(super) fn stop(&mut self, now: Timestamp) {
        self.stopping = match self.stopping {
            Stopping::No => Stopping::Draining,
            Stopping::Draining | Stopping::Now => Stopping::Now,
        };
        let notice = self.settings.deadlines.notice;
        let stop_by = notice.map(|notice| now.plus(notice.saturating_sub(HANDING_BACK.min(notice / 2))));
        self.stop_by = self.stop_by.or(stop_by);
        self.has_news = true;
    }

    /// What time alone ends.
    pub(super) fn check_shutdown(&mut self, now: Timestamp) {
        if self.stopping == Stopping::Draining && self.stop_by.is_some_and(|at| at <= now) {
            self.stopping = Stopping::Now;
        }
        let is_forgotten = self.forgotten_at().is_some_and(|at| at <= now);
        if is_forgotten && !matches!(self.membership, Membership::Gone) {
            let silence = humanize(now.since(self.contact_at));
            self.dismiss(format!("no contact with the plane for {silence}"));
        }
    }

    /// When to look at it again.
    pub(super) fn end_at(&self) -> Option<Timestamp> {
        let stop_by = self.stop_by.filter(|_| self.stopping == Stopping::Draining);
        match self.membership {
            Membership::Gone => None,
            Membership::Stranger | Membership::Joining | Membership::Member { .. } => {
                [stop_by, self.forgotten_at()].into_iter().flatten().min()
            }
        }
    }

    /// When nobody has answered for so long that nobody will.
    fn forgotten_at(&self) -> Option<Timestamp> {
        let contact_timeout =
            self.settings.deadlines.contact_timeout.filter(|_| self.failures >= FAILURES_MIN)?;
        Some(self.contact_at.plus(contact_timeout))
    }

    /// Two of us must not fight over one name: nothing more is said, and what the service runs is the other's now.
    pub(super) fn give_up(&mut self, problem: String) {
        self.membership = Membership::Gone;
        self.effects.push(AgentEffect::Exit(AgentExit::Replaced(problem)));
    }

    /// What it holds is nobody's any more, and what it runs on costs somebody money.
    pub(super) fn dismiss(&mut self, why: String) {
        let held: Vec<_> = self.held().collect();
        for (job, attempt) in held {
            self.effects.push(AgentEffect::Cancel { job, attempt, reason: why.clone() });
        }
        self.membership = Membership::Gone;
        self.effects.push(AgentEffect::Exit(AgentExit::Dismissed(why)));
    }
}
