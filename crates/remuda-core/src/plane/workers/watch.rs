//! When a worker is looked at again, when it is suspect, and the mass-loss brake: when most of the fleet falls silent
//! together, the plane's own link has more likely failed, and verdicts are held back.

use std::time::Duration;

use super::Workers;
use crate::alarm::Alarm;
use crate::brake::MassLoss;
use crate::id::WorkerId;
use crate::machine::Presence;
use crate::plane::{DomainEvent, Outbox};
use crate::settings::Settings;
use crate::time::Timestamp;

/// A verdict held back by the brake is checked again this much later.
const HELD_VERDICT_RETRY: Duration = Duration::from_secs(1);

impl Workers {
    pub(in crate::plane) fn mass_loss(&self) -> &MassLoss {
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

    /// No new work for the worker; it keeps its attempts for now.
    pub(in crate::plane) fn mark_suspect(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let Some(worker) = self.known.get_mut(id) else { return };
        worker.presence = Presence::Suspect;
        outbox.publish(now, DomainEvent::ClientState(worker));
        let online = self.known.values().filter(|worker| worker.presence == Presence::Online).count();
        let was_on = self.mass_loss.is_on(now);
        let is_on = self.mass_loss.record_loss(now, id, online, settings);
        outbox.set_alarm(Alarm::Brake, self.mass_loss.wake_at());
        if is_on && !was_on {
            let reason = self.mass_loss.reason(now).unwrap_or_default();
            outbox.publish(now, DomainEvent::BrakeOn { reason });
        }
    }

    /// A worker beats after a mass loss: the brake may be released sooner.
    pub(in crate::plane) fn end_mass_loss(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        self.mass_loss.record_beat(now, id, settings);
        if let Some(at) = self.mass_loss.wake_at() {
            outbox.set_alarm(Alarm::Brake, Some(at));
        }
    }

    /// Releases the brake if its time is over. Returns the workers whose verdict was held back.
    pub(in crate::plane) fn release_brake(&mut self, now: Timestamp, outbox: &mut Outbox) -> Vec<WorkerId> {
        if !self.mass_loss.release(now) {
            outbox.set_alarm(Alarm::Brake, self.mass_loss.wake_at());
            return Vec::new();
        }
        outbox.publish(now, DomainEvent::BrakeReleased);
        let silent = self.known.values().filter(|worker| worker.presence == Presence::Suspect);
        silent.map(|worker| worker.id.clone()).collect()
    }

    /// The plane was away: that time does not count as any worker's silence.
    pub(in crate::plane) fn excuse_silence(&mut self, now: Timestamp, away: Duration) {
        for worker in self.known.values_mut() {
            worker.watch.extend_deadline(now, away);
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
