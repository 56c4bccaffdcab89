//! What follows from a provider's list for machines and their workers, and the timed calls to providers.

use std::time::Duration;

use super::attempts::Blame;
use super::{FleetEvent, Plane};
use crate::alarm::Alarm;
use crate::fleet::FleetSettings;
use crate::id::{FleetId, MachineId, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::provider::{BootstrapError, LISTS_UNHEARD_MIN, Pod, PodStatus, ProviderCall, ProviderError};
use crate::rental::{Bootstrap, RentalPhase, ReturnCause, Sighting};
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;
use crate::worker::LifeEvent;

impl Plane {
    pub(super) fn apply_list(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        result: Result<Vec<Pod>, ProviderError>,
    ) {
        let every = self.settings.fleet(id).map_or(Duration::ZERO, |fleet| fleet.limits.list_every);
        let asked_at = self.fleets.list_answered(now, id, result.is_ok(), every);
        let pods = match result {
            Ok(pods) => pods,
            Err(fault) => {
                let call = ("list", asked_at);
                return self.fleets.provider_failed(now, id, call, &fault, &mut self.outbox);
            }
        };
        self.fleets.provider_answered(id, &mut self.outbox);
        let Some(settings) = self.settings.fleet(id).cloned() else { return };
        self.fleets.note_orphans_of_others(now, id, &pods, &self.settings, &mut self.outbox);
        let (ours, strays) = self.fleets.split_pods(id, pods, &self.settings);
        let is_doubtful = self.fleets.check_list(now, &settings, &ours, &mut self.outbox);
        self.fleets.match_pods(now, id, (&ours, is_doubtful), &self.settings, &mut self.outbox);
        for (machine, pod) in &ours {
            self.judge_pod(now, machine, pod);
        }
        if !is_doubtful {
            // The first answer after an outage of our own proves nothing: the workers are on their way as well.
            if self.fleets.is_listed_steadily(now, id, self.settings.lease) {
                self.workers.record_list(now);
            }
            self.fleets.track_orphans(now, &settings, strays, &self.settings, &mut self.outbox);
        }
        self.judge_machines(now, &settings);
    }

    /// Draws conclusions from pods seen and missed.
    fn judge_machines(&mut self, now: Timestamp, settings: &FleetSettings) {
        let machines: Vec<_> =
            self.fleets.of_fleet(&settings.id).map(|rental| rental.machine.clone()).collect();
        for machine in machines {
            // After a restart no worker counts as silent yet; each gets time to beat.
            let silence_max = self.settings.beat_idle * 3 / 2;
            let workers = self.fleets.workers_on(&machine).filter_map(|worker| self.workers.get(worker));
            let is_heard = workers.into_iter().any(|worker| {
                worker.presence() != Presence::Offline && worker.watch.silent_for(now) < silence_max
            });
            let Some(rental) = self.fleets.rental(&machine) else { continue };
            let was_up = rental.was_up();
            // Ordered, searched for long enough and never seen. If it appears later, it is an orphan.
            let is_myth = rental.is_returning()
                && rental.pod().is_none()
                && rental.missed() >= LISTS_UNHEARD_MIN
                && now.since(rental.wanted_at) >= settings.limits.lost_create_timeout;
            if is_myth {
                self.forget_rental(now, &machine, "never seen");
                continue;
            }
            match (rental.sighting(now, is_heard, settings.limits.list_lag_max), rental.phase()) {
                (Sighting::Nothing, _) => {}
                (Sighting::Gone, RentalPhase::Returning) => self.forget_rental(now, &machine, "returned"),
                (Sighting::Gone, _) => {
                    self.give_up(now, &machine, AttemptVerdict::MachineLost, "its provider no longer has it");
                    self.forget_rental(now, &machine, "gone from its provider");
                }
                (Sighting::Ended, _) => {
                    let reason = if was_up { "its provider stopped it" } else { "it ended before it was up" };
                    self.give_up(now, &machine, AttemptVerdict::MachineLost, reason);
                }
            }
        }
    }

    /// Gives up a machine whatever its state; the attempts of its workers are requeued.
    pub(super) fn give_up(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        verdict: AttemptVerdict,
        reason: &str,
    ) {
        self.move_rental(now, machine, (LifeEvent::GiveUp, ReturnCause::Failed), reason);
        for worker in self.fleets.workers_on(machine).cloned().collect::<Vec<_>>() {
            let held: Vec<_> = self
                .workers
                .get(&worker)
                .map(|it| it.assignments.keys().copied().collect())
                .unwrap_or_default();
            for job in held {
                let why = format!("machine {machine} was given up: {reason}");
                self.lose(now, job, verdict, why, Blame::Unrelated);
            }
        }
    }

    /// Makes the provider calls that are due.
    pub(super) fn run_provider_calls(&mut self, now: Timestamp) {
        let mut next = Timestamp::NEVER;
        for settings in self.settings.fleets.iter().filter(|fleet| fleet.can_rent) {
            next = next.min(self.fleets.call_provider(now, settings, &mut self.outbox));
        }
        let due = self.cycle_due();
        if due <= now {
            self.cycle_soon(now);
        } else {
            next = next.min(due);
        }
        let next = Some(next.max(now.plus(super::TICK_MAX))).filter(|at| *at < Timestamp::NEVER);
        self.outbox.set_alarm(Alarm::Provider, next);
    }

    /// A worker's connection is gone or its beat is late: if its machine is rented, the provider may know why.
    pub(super) fn expedite_list(&mut self, now: Timestamp, id: &WorkerId) {
        if self.workers.get(id).is_some_and(|worker| self.fleets.expedite_list(&worker.machine)) {
            self.outbox.set_alarm(Alarm::Provider, Some(now));
        }
    }

    /// When time alone makes a machine overdue or ends a drain.
    fn cycle_due(&self) -> Timestamp {
        let rentals = self.fleets.rentals().filter_map(|rental| {
            let settings = self.settings.fleet(&rental.fleet)?;
            rental.due_at(settings)
        });
        let draining = self.workers.iter().filter(|worker| worker.state() == WorkerState::Terminating);
        rentals.chain(draining.filter_map(|worker| worker.drain_until())).min().unwrap_or(Timestamp::NEVER)
    }

    /// Installs a worker on a machine whose image starts none, as soon as SSH is reachable.
    pub(super) fn prepare(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rental(machine) else { return };
        let id = rental.fleet.clone();
        let is_wanted = rental.phase() == RentalPhase::Made
            && rental.joined_at().is_none()
            && pod.status == PodStatus::Running
            && pod.ssh.is_some()
            && self.settings.fleet(&id).is_some_and(|settings| settings.needs_bootstrap);
        let is_visited =
            matches!(self.fleets.bootstrap(machine), Some(Bootstrap::Running { .. } | Bootstrap::Done));
        if is_wanted && !is_visited {
            let again = Bootstrap::again(self.fleets.bootstrap(machine));
            self.fleets.set_bootstrap(machine, again);
            self.outbox.publish(now, FleetEvent::MachinePreparing(machine));
            self.outbox.call_provider(
                &id,
                ProviderCall::Bootstrap { machine: machine.clone(), pod: Box::new(pod.clone()) },
            );
        }
    }

    pub(super) fn prepared(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        result: Result<(), BootstrapError>,
    ) {
        if !self.fleets.is_rented(machine) {
            return;
        }
        let bootstrap = match &result {
            Ok(()) => Bootstrap::Done,
            Err(unprepared) => Bootstrap::Retrying(format!("{}: {}", unprepared.stage, unprepared.message)),
        };
        self.fleets.set_bootstrap(machine, bootstrap);
        let Err(unprepared) = result else { return };
        let is_made = self.fleets.rental(machine).is_some_and(|rental| rental.phase() == RentalPhase::Made);
        if is_made && !unprepared.is_retryable {
            let reason = format!("start-up over SSH failed ({}): {}", unprepared.stage, unprepared.message);
            self.give_up(now, machine, AttemptVerdict::MachineLost, &reason);
        }
    }
}
