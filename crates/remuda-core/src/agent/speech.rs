//! What an agent says, and when: it joins, beats, names what it holds, and says goodbye.

use std::time::Duration;

use super::{
    Agent, AgentEffect, AgentExit, Beat, HeldAttempt, JoinRequest, Line, Membership, Stopping, Timestamp,
};

/// Progress alone is worth a beat this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How long progress may overtake one beat after the other before something must be heard.
const OVERTAKES_MAX: Duration = Duration::from_secs(4);
/// A waiting beat returns this much before the next one is due.
const WAIT_MARGIN: Duration = Duration::from_secs(5);

impl Agent {
    /// Says what there is to say, if this is the moment.
    pub(super) fn speak(&mut self, now: Timestamp) {
        match self.membership {
            Membership::Stranger if now >= self.try_at && self.stopping == Stopping::No && self.has_begun => {
                self.ask_to_join(now);
            }
            // Nobody to tell: what ended and was not settled is the plane's to find out.
            Membership::Stranger if self.stopping == Stopping::Draining && self.held.is_empty() => self.bye(),
            Membership::Stranger | Membership::Joining if self.stopping == Stopping::Now => self.bye(),
            Membership::Member { .. } if self.is_done() => self.bye(),
            Membership::Member { .. } => self.maybe_beat(now),
            Membership::Stranger | Membership::Joining | Membership::Gone => {}
        }
    }

    fn is_done(&self) -> bool {
        match self.stopping {
            Stopping::No => false,
            Stopping::Draining => self.held.is_empty() && self.finished.is_empty(),
            Stopping::Now => true,
        }
    }

    fn bye(&mut self) {
        let held: Vec<_> = self.held().collect();
        for (job, attempt) in held {
            self.effects.push(AgentEffect::Cancel { job, attempt, reason: "the worker stops".to_owned() });
        }
        if matches!(self.membership, Membership::Member { .. }) {
            self.effects.push(AgentEffect::Leave { reason: "it was asked to stop".to_owned() });
        }
        self.membership = Membership::Gone;
        self.effects.push(AgentEffect::Exit(AgentExit::Stopped));
    }

    fn ask_to_join(&mut self, now: Timestamp) {
        (self.membership, self.beat_at) = (Membership::Joining, now);
        // Asked the same way as for a beat: who joins without room has to say so when there is some.
        let slots = self.health.slots(self.settings.slots);
        let settings = &self.settings;
        let stale_after = settings.deadlines.stale_after;
        self.effects.push(AgentEffect::Join(Box::new(JoinRequest {
            worker: settings.worker.clone(),
            machine: settings.machine.clone(),
            fleet: settings.fleet.clone(),
            services: settings.services.clone(),
            slots: slots.unwrap_or(settings.slots),
            offer: settings.offer.clone(),
            incarnation: self.incarnation,
            stale_after_millis: stale_after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            held: self.claims(now),
        })));
    }

    /// What to name when joining: also what has ended and is not settled, or it would be taken for lost.
    fn claims(&self, now: Timestamp) -> Vec<HeldAttempt> {
        let ended = self.finished.keys().map(|(job, attempt)| HeldAttempt {
            job: *job,
            attempt: *attempt,
            progress: 1.0,
            step: 0,
            phase: String::new(),
            service: None,
        });
        self.inventory(now).into_iter().chain(ended).collect()
    }

    /// How old a waiting beat must be before progress overtakes it. On a slow line the answer may be on its way, and
    /// with it orders: overtaking it every time would keep them from ever arriving.
    pub(super) fn overtakes_after(&self) -> Duration {
        PROGRESS_EVERY.max(self.round_trip * 2)
    }

    /// A line that became slow since it was last measured would be overtaken for ever: once is always allowed, more only
    /// for a while.
    pub(super) fn may_overtake(&self, now: Timestamp) -> bool {
        !self.has_overtaken || now.since(self.heard_at) < OVERTAKES_MAX
    }

    fn maybe_beat(&mut self, now: Timestamp) {
        let is_progress = self.has_progress && now.since(self.beat_at) >= self.overtakes_after();
        match self.line {
            Line::Free if now >= self.try_at => self.beat(now),
            Line::Waiting(_) if self.has_news && now >= self.try_at => self.beat(now),
            Line::Waiting(_) if is_progress && self.may_overtake(now) && now >= self.try_at => {
                self.has_overtaken = true;
                self.beat(now);
            }
            Line::Free | Line::Waiting(_) | Line::Busy(_) => {}
        }
    }

    fn beat(&mut self, now: Timestamp) {
        let Membership::Member { incarnation, term, beat_idle, beat_busy } = self.membership else { return };
        self.seq += 1;
        let beat = Beat {
            incarnation,
            seq: self.seq,
            term,
            held: self.inventory(now),
            finished: self.finished.values().cloned().collect(),
            slots: self.health.slots(self.settings.slots),
            unavailable_reason: self.health.closed().unwrap_or_default().to_owned(),
            offer: self.capabilities_sent_in.map(|_| self.settings.offer.clone()),
            metrics: if self.are_metrics_told { serde_json::Map::new() } else { self.metrics.clone() },
            check: self.check.clone(),
            draining: self.stopping != Stopping::No,
        };
        let interval = if !beat.finished.is_empty() {
            // Answered at once by any plane that is there: whoever takes longer is not, and is not waited for.
            Duration::ZERO
        } else if self.held.is_empty() {
            beat_idle.saturating_sub(WAIT_MARGIN).max(beat_idle / 2)
        } else {
            beat_busy
        };
        self.line = if beat.finished.is_empty() { Line::Waiting(self.seq) } else { Line::Busy(self.seq) };
        (self.has_news, self.has_progress, self.beat_at) = (false, false, now);
        self.are_metrics_told = true;
        self.effects.push(AgentEffect::Beat { beat: Box::new(beat), wait: interval });
    }

    fn inventory(&self, now: Timestamp) -> Vec<HeldAttempt> {
        let held = self.held.iter();
        held.map(|(job, work)| HeldAttempt {
            job: *job,
            attempt: work.attempt,
            progress: work.progress,
            step: work.step,
            phase: work.phase.clone(),
            service: work.note(now),
        })
        .collect()
    }
}
