//! How an agent exits: it was asked to stop (within its notice, and soon if no plane answers), another process took its
//! name, the plane retired its machine, or the plane has not answered for so long that no plane may be left to return the
//! machine.

use std::time::Duration;

use super::{Agent, AgentEffect, AgentExit, Membership, Stopping};
use crate::time::{Timestamp, humanize};

/// The part of the notice that is reserved for handing attempts back.
const HAND_BACK: Duration = Duration::from_secs(3);
/// A long silence only counts after this many failed calls in a row: after a pause of this process none was made yet.
const FAILURES_MIN: u32 = 3;

/// How long a worker that was asked to stop waits for a plane that does not answer: one default lease. After that the
/// plane has given its attempts up, or is away itself; waiting longer would make the process outlive its supervisor's
/// patience (90 s under systemd), and a person would have to ask twice.
const DRAIN_SILENCE_MAX: Duration = Duration::from_secs(30);

impl Agent {
    /// First call: finish the held attempts. Second call: leave now.
    pub(super) fn stop(&mut self, now: Timestamp) {
        self.stopping = match self.stopping {
            Stopping::No => Stopping::Draining,
            Stopping::Draining | Stopping::Now => Stopping::Now,
        };
        let notice = self.settings.deadlines.notice;
        let stop_deadline = notice.map(|notice| now.plus(notice.saturating_sub(HAND_BACK.min(notice / 2))));
        self.stop_deadline = self.stop_deadline.or(stop_deadline);
        self.stopped_at = self.stopped_at.or(Some(now));
        self.beat_due = true;
    }

    /// Applies the deadlines that end the agent.
    pub(super) fn check_shutdown(&mut self, now: Timestamp) {
        if self.drained_by().is_some_and(|at| at <= now) {
            self.stopping = Stopping::Now;
        }
        let is_abandoned = self.abandoned_at().is_some_and(|at| at <= now);
        if is_abandoned && !matches!(self.membership, Membership::Exited) {
            let silence = humanize(now.since(self.contact_at));
            self.dismiss(format!("no contact with the plane for {silence}"));
        }
    }

    /// When `check_shutdown` is due.
    pub(super) fn shutdown_at(&self) -> Option<Timestamp> {
        match self.membership {
            Membership::Exited => None,
            Membership::Unjoined | Membership::Joining | Membership::Member { .. } => {
                [self.drained_by(), self.abandoned_at()].into_iter().flatten().min()
            }
        }
    }

    /// When a worker that drains leaves, whatever it still holds.
    fn drained_by(&self) -> Option<Timestamp> {
        if self.stopping != Stopping::Draining {
            return None;
        }
        let is_unheard = match self.membership {
            Membership::Unjoined | Membership::Joining => true,
            Membership::Member { .. } => self.failures >= FAILURES_MIN,
            Membership::Exited => false,
        };
        // A drain that the plane has ordered is the plane's to bound.
        let stopped_at = self.stopped_at.filter(|_| is_unheard);
        let silence = stopped_at.map(|at| at.max(self.contact_at).plus(DRAIN_SILENCE_MAX));
        [self.stop_deadline, silence].into_iter().flatten().min()
    }

    /// When the plane counts as gone for good.
    fn abandoned_at(&self) -> Option<Timestamp> {
        let contact_timeout =
            self.settings.deadlines.contact_timeout.filter(|_| self.failures >= FAILURES_MIN)?;
        Some(self.contact_at.plus(contact_timeout))
    }

    /// Another process has this name: send nothing more, and leave the service's attempts to that process.
    pub(super) fn give_up(&mut self, problem: String) {
        self.membership = Membership::Exited;
        self.effects.push(AgentEffect::Exit(AgentExit::Replaced(problem)));
    }

    /// No plane wants the held attempts any more, and the machine costs money: cancel and exit.
    pub(super) fn dismiss(&mut self, why: String) {
        let held: Vec<_> = self.held().collect();
        for (job, attempt) in held {
            self.effects.push(AgentEffect::Cancel { job, attempt, reason: why.clone() });
        }
        self.membership = Membership::Exited;
        self.effects.push(AgentEffect::Exit(AgentExit::Dismissed(why)));
    }
}
