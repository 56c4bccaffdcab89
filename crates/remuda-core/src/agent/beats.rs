//! When an agent joins, beats and leaves, and what each message contains.

use std::time::Duration;

use super::{
    Agent, AgentEffect, AgentExit, Beat, HeldAttempt, InFlight, JoinRequest, Membership, Stopping, Timestamp,
};

/// Progress alone is worth a beat this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How long progress may overtake one beat after another without a reply.
const OVERTAKES_MAX: Duration = Duration::from_secs(4);
/// A long poll ends this long before the next beat is due.
const WAIT_MARGIN: Duration = Duration::from_secs(5);

impl Agent {
    /// Joins, beats or leaves if that is due.
    pub(super) fn send_due_beat(&mut self, now: Timestamp) {
        match self.membership {
            Membership::Unjoined
                if now >= self.retry_at && self.stopping == Stopping::No && self.has_started =>
            {
                self.join(now);
            }
            // It cannot report to any plane: unsettled results are lost with it, and the plane's leases will expire.
            Membership::Unjoined if self.stopping == Stopping::Draining && self.held.is_empty() => {
                self.leave();
            }
            Membership::Unjoined | Membership::Joining if self.stopping == Stopping::Now => self.leave(),
            Membership::Member { .. } if self.is_done() => self.leave(),
            Membership::Member { .. } => self.maybe_beat(now),
            Membership::Unjoined | Membership::Joining | Membership::Exited => {}
        }
    }

    fn is_done(&self) -> bool {
        match self.stopping {
            Stopping::No => false,
            Stopping::Draining => self.held.is_empty() && self.finished.is_empty(),
            Stopping::Now => true,
        }
    }

    fn leave(&mut self) {
        let held: Vec<_> = self.held().collect();
        for (job, attempt) in held {
            self.effects.push(AgentEffect::Cancel {
                job,
                attempt,
                reason: "the worker is stopping".to_owned(),
            });
        }
        if matches!(self.membership, Membership::Member { .. }) {
            self.effects.push(AgentEffect::Leave { reason: "it was asked to stop".to_owned() });
        }
        self.membership = Membership::Exited;
        self.effects.push(AgentEffect::Exit(AgentExit::Stopped));
    }

    fn join(&mut self, now: Timestamp) {
        (self.membership, self.beat_at, self.joins) = (Membership::Joining, now, self.joins + 1);
        // Counted as in a beat: a worker that joined with zero slots must report when it has some.
        let slots = self.health.slots(self.settings.slots);
        let settings = &self.settings;
        let stale_after = settings.deadlines.stale_after;
        self.effects.push(AgentEffect::Join(Box::new(JoinRequest {
            worker: settings.worker.clone(),
            machine: settings.machine.clone(),
            fleet: settings.fleet.clone(),
            services: settings.services.clone(),
            slots: slots.unwrap_or(settings.slots),
            slots_max: Some(settings.slots),
            offer: settings.offer.clone(),
            incarnation: self.incarnation,
            stale_after_millis: stale_after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            // The shell draws both.
            nonce: None,
            process: None,
            join_number: self.joins,
            held: self.claimed_attempts(now),
        })));
    }

    /// The attempts to name when joining. Finished but unsettled ones are included, or they would count as lost.
    fn claimed_attempts(&self, now: Timestamp) -> Vec<HeldAttempt> {
        let ended = self.finished.keys().map(|(job, attempt)| HeldAttempt {
            job: *job,
            attempt: *attempt,
            progress: 1.0,
            step: 0,
            phase: String::new(),
            service: None,
        });
        self.held_attempts(now).into_iter().chain(ended).collect()
    }

    /// How old a long poll must be before progress overtakes it. On a slow link its reply, with orders, may be on its
    /// way; overtaking it every time would keep orders from ever arriving.
    pub(super) fn overtake_after(&self) -> Duration {
        PROGRESS_EVERY.max(self.round_trip * 2)
    }

    /// One overtaking beat is always allowed; more only within `OVERTAKES_MAX` of the last reply, so that a link that
    /// became slow still delivers orders.
    pub(super) fn may_overtake(&self, now: Timestamp) -> bool {
        !self.has_overtaken || now.since(self.replied_at) < OVERTAKES_MAX
    }

    fn maybe_beat(&mut self, now: Timestamp) {
        let is_progress = self.progress_due && now.since(self.beat_at) >= self.overtake_after();
        match self.in_flight {
            InFlight::None if now >= self.retry_at => self.beat(now),
            InFlight::LongPoll(_) if self.beat_due && now >= self.retry_at => self.beat(now),
            InFlight::LongPoll(_) if is_progress && self.may_overtake(now) && now >= self.retry_at => {
                self.has_overtaken = true;
                self.beat(now);
            }
            InFlight::None | InFlight::LongPoll(_) | InFlight::Urgent(_) => {}
        }
    }

    fn beat(&mut self, now: Timestamp) {
        let Membership::Member { incarnation, term, beat_idle, beat_busy } = self.membership else { return };
        self.seq += 1;
        let beat = Beat {
            incarnation,
            seq: self.seq,
            term,
            held: self.held_attempts(now),
            finished: self.finished.values().cloned().collect(),
            slots: self.health.slots(self.settings.slots),
            unavailable_reason: self.health.closed_reason().map(str::to_owned),
            offer: self.capabilities_sent_in.map(|_| self.settings.offer.clone()),
            metrics: if self.metrics_sent { serde_json::Map::new() } else { self.metrics.clone() },
            check: self.check.clone(),
            draining: self.stopping != Stopping::No,
            service_restarts: Some(self.health.incarnation().0),
        };
        let interval = if !beat.finished.is_empty() {
            // A live plane answers this immediately; a longer wait would only hide a dead one.
            Duration::ZERO
        } else if self.held.is_empty() {
            beat_idle.saturating_sub(WAIT_MARGIN).max(beat_idle / 2)
        } else {
            beat_busy
        };
        self.in_flight =
            if beat.finished.is_empty() { InFlight::LongPoll(self.seq) } else { InFlight::Urgent(self.seq) };
        (self.beat_due, self.progress_due, self.beat_at) = (false, false, now);
        self.metrics_sent = true;
        self.effects.push(AgentEffect::Beat { beat: Box::new(beat), wait: interval });
    }

    fn held_attempts(&self, now: Timestamp) -> Vec<HeldAttempt> {
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
