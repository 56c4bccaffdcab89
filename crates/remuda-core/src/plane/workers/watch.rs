//! When a worker is looked at again, when it is suspect, and the mass-loss brake: while there is no proof that the plane
//! hears, verdicts on silent workers are held back.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Workers;
use crate::alarm::Alarm;
use crate::brake::{Judgement, MassLossBrake, Silence};
use crate::id::WorkerId;
use crate::machine::{Presence, WorkerState};
use crate::plane::{DomainEvent, Outbox};
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::{ContactEvent, WorkerLine};

/// A verdict held back by the brake is checked again this much later.
const HELD_VERDICT_RETRY: Duration = Duration::from_secs(1);

/// Workers asked for a beat at a time: one answer is enough, and one of them may be dead as well.
const ASKED_MAX: usize = 3;

impl Workers {
    pub(in crate::plane) fn mass_loss(&self) -> &MassLossBrake {
        &self.mass_loss
    }

    /// Sets the worker's alarm to the next time its state can change.
    pub(in crate::plane) fn watch(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(worker) = self.known.get(id) else { return };
        let wake_at = worker.wake_at(now, settings);
        let wake_at = wake_at.map(|at| if at <= now { now.plus(HELD_VERDICT_RETRY) } else { at });
        outbox.set_alarm(Alarm::Worker(id.clone()), wake_at);
        self.update_free(now, id);
    }

    /// No new work for the worker; it keeps its attempts for now. Only a close that came before it was late says that its
    /// process has ended: after a cut, the ends of requests that timed out meanwhile arrive first.
    pub(in crate::plane) fn mark_suspect(&mut self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) {
        let Some(worker) = self.known.get_mut(id) else { return };
        worker.contact(ContactEvent::Late);
        self.mass_loss.record_silence(id, worker.line.is_closed());
        outbox.publish(now, DomainEvent::ClientState(worker));
    }

    /// A worker beats or joins. `is_on_time`: it was expected about now.
    pub(in crate::plane) fn hear(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        is_on_time: bool,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(worker) = self.known.get(id) else { return };
        let was_on = self.mass_loss.is_on();
        self.mass_loss.record_message(now, id, &worker.machine, is_on_time, settings);
        self.publish_brake(now, was_on, outbox);
    }

    /// Whether a worker whose lease ran out is dead, or may be judged only later.
    pub(in crate::plane) fn judge(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        is_rented: bool,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> Judgement {
        let Some(worker) = self.known.get(id) else { return Judgement::Later };
        let silence = Silence {
            worker: id,
            machine: &worker.machine,
            since: worker.watch.counted_from(),
            silence_max: worker.limits(settings).silence_max,
            is_rented,
        };
        let was_on = self.mass_loss.is_on();
        let present = || {
            let there = self.known.values().filter(|it| it.presence() != Presence::Offline);
            there.map(|it| &it.machine).collect::<BTreeSet<_>>().len()
        };
        let judgement = self.mass_loss.judge(now, &silence, present, settings);
        self.publish_brake(now, was_on, outbox);
        judgement
    }

    /// Ends the long polls of some workers that are online, if that is due; the caller answers them.
    pub(in crate::plane) fn hang_up_some(&mut self, now: Timestamp, settings: &Settings) -> Vec<WorkerId> {
        if !self.mass_loss.should_ask(now, settings) {
            return Vec::new();
        }
        let polling = self
            .known
            .values_mut()
            .filter(|it| (it.presence(), it.line) == (Presence::Online, WorkerLine::Polling));
        let asked = polling.take(ASKED_MAX).map(|worker| {
            worker.line = WorkerLine::Quiet;
            worker.id.clone()
        });
        asked.collect()
    }

    /// A worker left or was forgotten: its silence means nothing.
    pub(in crate::plane) fn stop_judging(&mut self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) {
        let was_on = self.mass_loss.is_on();
        self.mass_loss.forget(id);
        self.publish_brake(now, was_on, outbox);
    }

    pub(in crate::plane) fn record_list(&mut self, now: Timestamp) {
        self.mass_loss.record_list(now);
    }

    pub(in crate::plane) fn record_listener(&mut self, is_answering: bool) {
        self.mass_loss.record_listener(is_answering);
    }

    fn publish_brake(&self, now: Timestamp, was_on: bool, outbox: &mut Outbox) {
        match (was_on, self.mass_loss.is_on()) {
            (false, true) => {
                let reason = self.mass_loss.reason(now).unwrap_or_default();
                outbox.publish(now, DomainEvent::BrakeOn { reason });
            }
            (true, false) => outbox.publish(now, DomainEvent::BrakeReleased),
            (false, false) | (true, true) => {}
        }
    }

    /// The plane was away: that time does not count as any worker's silence.
    pub(in crate::plane) fn excuse_silence(&mut self, now: Timestamp, away: Duration, settings: &Settings) {
        self.mass_loss.listen_again(now, away, settings);
        for worker in self.known.values_mut() {
            worker.watch.extend_deadline(now, away);
            worker.excused_at = now;
            if worker.state() == WorkerState::Terminating {
                worker.changed_at = worker.changed_at.plus(away).min(now);
            }
            for hold in worker.assignments.values_mut() {
                hold.progressed_at = hold.progressed_at.plus(away).min(now);
                // Orders were delayed by the same pause: their grace period starts again.
                (hold.assigned_at, hold.sent_at, hold.sends) = (now, now, hold.sends.min(1));
            }
        }
    }

    /// Publishes an event about a worker, and whether the worker is usable now.
    pub(in crate::plane) fn publish(
        &self,
        now: Timestamp,
        id: &WorkerId,
        event: DomainEvent<'_>,
        outbox: &mut Outbox,
    ) {
        if let Some(worker) = self.known.get(id) {
            outbox.publish_with_state(now, worker, event);
        }
    }

    pub(in crate::plane) fn publish_usable(&self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) {
        if let Some(worker) = self.known.get(id) {
            outbox.publish(now, DomainEvent::ClientState(worker));
        }
    }

    pub(in crate::plane) fn publish_state(&self, now: Timestamp, id: &WorkerId, outbox: &mut Outbox) {
        if let Some(worker) = self.known.get(id) {
            let event = DomainEvent::WorkerState { worker, reason: &worker.reason };
            outbox.publish_with_state(now, worker, event);
        }
    }
}
