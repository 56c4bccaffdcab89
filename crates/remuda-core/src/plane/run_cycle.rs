//! The control cycle: takes a snapshot of each fleet (`snapshots`), gets a plan from `cycle::plan`, and carries it
//! out. Workers that joined by hand can be failed here, but are never rented or returned.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::attempts::Blame;
use super::fleet_event::Scaling;
use super::{DomainEvent, FleetEvent, Plane, PlaneEffect};
use crate::alarm::Alarm;
use crate::cycle::{AttemptView, CycleAction, CycleReport, WorkerView};
use crate::id::{FleetId, WorkerId};
use crate::machine::Presence;
use crate::money::Money;
use crate::record::Record;
use crate::rental::ReturnCause;
use crate::scale::ScalingDirection;
use crate::settings::StuckPolicy;
use crate::time::Timestamp;
use crate::worker::{AttemptTimeout, LifeEvent, Worker};

impl Plane {
    pub(super) fn cycle(&mut self, now: Timestamp) -> Arc<CycleReport> {
        self.cycled_at = now;
        // Stuck attempts on workers that still beat are taken away one by one; the plan would fail the whole worker.
        for worker in self.workers.ids() {
            self.fail_stuck(now, &worker);
        }
        self.fleets.close_days(now, &self.settings, &mut self.outbox);
        let plans = self.plans(now);
        let report = Arc::new(CycleReport::merge(now, &plans));
        for (fleet, plan) in plans {
            if let Some(fleet) = &fleet {
                self.fleets.remember_plan(fleet, &plan);
            }
            for action in plan.actions {
                self.act(now, fleet.as_ref(), action);
            }
        }
        self.run_provider_calls(now);
        self.forget_workers(now);
        if let Ok(raw) = serde_json::value::to_raw_value(&*report) {
            self.outbox.record(Record::Cycle { at: now, report: Arc::<RawValue>::from(raw) });
        }
        self.outbox.effect(PlaneEffect::ReportCycle(report.clone()));
        self.outbox.set_alarm(Alarm::Cycle, Some(now.plus(self.settings.cycle_every)));
        report
    }

    /// Forgets workers that have been offline for long, so that their names do not pile up.
    fn forget_workers(&mut self, now: Timestamp) {
        let is_old = |worker: &&Worker| {
            worker.presence() == Presence::Offline
                && worker.assignments.is_empty()
                && now.since(worker.watch.seen_at()) >= self.settings.forget_workers_after
                && now.since(worker.changed_at) >= self.settings.forget_workers_after
        };
        let old: Vec<_> = self.workers.iter().filter(is_old).map(|worker| worker.id.clone()).collect();
        for id in old {
            self.trust.forget_worker(now, &id, &mut self.outbox);
            if let Some(worker) = self.workers.forget(now, &id, &mut self.outbox) {
                self.fleets.remove_worker(&worker);
            }
            self.outbox.set_alarm(Alarm::Worker(id), None);
        }
    }

    /// What a cycle would do now; changes nothing.
    pub fn preview_cycle(&self, now: Timestamp) -> CycleReport {
        CycleReport::merge(now, &self.plans(now))
    }

    pub(super) fn view(&self, now: Timestamp, worker: &Worker) -> WorkerView {
        WorkerView {
            id: worker.id.clone(),
            state: worker.state(),
            since: worker.changed_at,
            presence: worker.presence(),
            is_rented: false,
            counts_against_max: worker.state().is_capacity(),
            price: Money::ZERO,
            is_running: true,
            is_registered: true,
            start_check_passed: true,
            trouble: None,
            is_outdated: false,
            drain_until: worker.drain_until(),
            // Without the time in which the plane did not listen.
            beat_at: Some(now.minus(worker.watch.silent_for(now))),
            attempts: self.attempts_of(worker).collect(),
            idle_since: worker.assignments.is_empty().then_some(worker.idle_since),
            warm: worker.warm_shapes(),
            metrics_at: worker.metrics_at,
        }
    }

    pub(super) fn attempts_of<'a>(&'a self, worker: &'a Worker) -> impl Iterator<Item = AttemptView> + 'a {
        worker.assignments.iter().map(|(job, hold)| AttemptView {
            job: *job,
            attempt: hold.attempt,
            started_at: self.jobs.started_at(*job).unwrap_or(hold.assigned_at),
            progressed_at: hold.progressed_at,
        })
    }

    fn act(&mut self, now: Timestamp, fleet: Option<&FleetId>, action: CycleAction) {
        match action {
            CycleAction::Promote { worker, reason } => {
                self.move_machine(now, &worker, (LifeEvent::Promote, ReturnCause::NotWanted), &reason);
            }
            CycleAction::Fail { worker, reason } => {
                self.move_machine(now, &worker, (LifeEvent::GiveUp, ReturnCause::Failed), &reason);
            }
            CycleAction::Terminate { worker, cause, reason } => {
                self.move_machine(now, &worker, (LifeEvent::Terminate, cause), &reason);
            }
            CycleAction::Drain { worker, reason } => {
                let (direction, worker) = (ScalingDirection::Down, &worker);
                if let Some(fleet) = fleet {
                    self.fleets.record_direction(now, fleet, direction, &mut self.outbox);
                }
                let scaling = Scaling { direction, fleet, worker: Some(worker), count: 1, reason: &reason };
                self.outbox.publish(now, FleetEvent::Scaled(scaling));
                let drain = LifeEvent::Drain { until: None };
                self.move_machine(now, worker, (drain, ReturnCause::NotWanted), &reason);
            }
            CycleAction::Reset { job, attempt, verdict, reason, .. } => {
                let Some(ran) = self.jobs.running(job).filter(|ran| ran.attempt == attempt) else { return };
                // A stuck attempt brings its worker down; the other attempts there are requeued without blame.
                let hold = self.workers.get(&ran.worker).and_then(|it| it.assignments.get(&job));
                let timeout = hold.map(|hold| hold.timeout_at(None, &self.settings));
                let is_stuck = self.settings.stuck_policy == StuckPolicy::Progress
                    && timeout.is_some_and(|(at, how)| at <= now && how == AttemptTimeout::Stuck);
                let blame = if is_stuck { self.stuck_blame(&ran.worker, job) } else { Blame::Unrelated };
                self.lose(now, job, verdict, reason, blame);
            }
            CycleAction::Warn { worker, reason } => {
                let event = DomainEvent::WorkerWarning { worker: &worker, reason: &reason };
                self.outbox.publish(now, event);
            }
            CycleAction::Spawn { count, reason } => {
                if let Some(fleet) = fleet {
                    self.fleets.rent(now, fleet, count, &reason, &self.settings, &mut self.outbox);
                }
            }
        }
    }

    /// Moves a worker, or a rented machine with all its workers.
    fn move_machine(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        (event, cause): (LifeEvent, ReturnCause),
        reason: &str,
    ) {
        let machine = id.as_str().parse().ok().filter(|machine| self.fleets.is_rented(machine));
        match machine {
            Some(machine) => self.move_rental(now, &machine, (event, cause), reason),
            None => self.move_worker(now, id, event, reason),
        }
    }

    /// Nothing follows from an event that means nothing to this worker now.
    pub(super) fn move_worker(&mut self, now: Timestamp, id: &WorkerId, event: LifeEvent, reason: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.apply(now, event, reason).is_ok() {
            self.worker_moved(now, id);
        }
    }

    /// Its life has moved on: that is stored and published, and the queue is looked at again.
    pub(super) fn worker_moved(&mut self, now: Timestamp, id: &WorkerId) {
        self.workers.store(now, id, &mut self.outbox);
        self.workers.publish_state(now, id, &mut self.outbox);
        self.workers.watch(now, id, &self.settings, &mut self.outbox);
        // A worker that may take work now must be in the free set before work is assigned.
        self.workers.update_free(now, id);
        self.router.offer_again();
    }
}
