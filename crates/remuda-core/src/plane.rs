//! The control plane: `step(now, event) -> Step`. It holds the headers of unfinished jobs, the workers and the
//! blocks; workflows, results and history are in the store. The event loop commits the records of a step first, then
//! runs its effects and sends its answer, so that a crash never takes back a promise.
//!
//! `Plane` is a router: it takes an event to the owners of the state that it concerns. Each owner has private fields,
//! changes its own indexes together, and writes what follows to the `Outbox`; what concerns several owners is decided
//! here.
//!
//! | owner | holds | decides |
//! |---|---|---|
//! | `Jobs` | open jobs, queue, idempotency keys, recent outcomes, tenants' quotas | which job an event or a key means, who waits in which order, may this tenant have one more |
//! | `Workers` | workers, free slots, pending orders, uptime, mass-loss brake | who is there, who is suspect, when to look again |
//! | `Trust` | blocks, quarantine | may this worker run this shape, is it a trial, what follows from a verdict |
//! | `Router` | placement rules of operators | who can take what, and why not |
//! | `Fleets` | fleets, rented machines, orphaned pods | what is rented, what it costs, what a provider's list proves |
//! | `Outbox` | records, effects, events, alarms | nothing: it carries out what the others decided |
//!
//! | step | |
//! |---|---|
//! | `submit` | acceptance, cancellation and expiry of jobs |
//! | `beats`, `joins` | joining, leaving and draining of workers; reconciliation of a beat with the plane's state |
//! | `presence` | detection of silent workers and stuck attempts |
//! | `attempts` | start and end of an attempt, and the consequences for job, worker and shape |
//! | `memory` | what follows when a job ran out of memory |
//! | `assign` | offers jobs to free workers |
//! | `run_cycle`, `snapshots` | the control cycle |
//! | `fleet_orders`, `rentals`, `listing` | operators' orders for fleets, provider answers about machines |
//! | `documents` | documents that the plane stores without reading them |
//! | `fence`, `why`, `summary` | read-only: may a worker report, why does a job wait, the plane in one sentence |
//! | `check` | consistency check of all indexes, for the simulator |

use std::time::Duration;

use crate::affinity::Affinities;
use crate::alarm::Alarm;
use crate::block::Blocks;
use crate::brake::MassLossBrake;
use crate::id::{JobId, MachineId, Sequence, Tenant, Term, WorkerId};
use crate::job::{Job, JobState};
use crate::quarantine::Quarantine;
use crate::record::{AcceptedJob, JobStatus, StoredState};
use crate::refusal::Refusal;
use crate::reliability::Reliability;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::{ContactEvent, Worker};

mod admission;
mod assign;
mod attempts;
mod beats;
mod check;
mod documents;
mod domain_event;
mod event;
mod fence;
mod fleet_event;
mod fleet_orders;
mod fleets;
mod jobs;
mod joins;
mod judge;
mod listing;
mod memory;
mod outbox;
mod passed_over;
mod presence;
mod rentals;
mod router;
mod run_cycle;
mod snapshots;
mod submit;
mod summary;
mod trust;
mod waiting;
mod why;
mod workers;

use domain_event::DomainEvent;
pub use event::{JoinProof, PlaneAnswer, PlaneEffect, PlaneEvent, Step};
use fleet_event::FleetEvent;
use fleets::Fleets;
use jobs::Jobs;
pub use jobs::TenantUsage;
use outbox::Outbox;
pub use passed_over::PassedOver;
use router::{Matching, Router};
pub use submit::{JobSubmission, KnownKey};
pub use summary::{Concern, PlaneSummary, ShellHealth};
use trust::Trust;
pub use why::{BlockedWorker, Candidate, JobExplanation};
use workers::Workers;

#[derive(Clone, Debug)]
pub struct Plane {
    settings: Settings,
    term: Term,
    /// When the last step ran. A long gap means that the plane itself was paused.
    stepped_at: Timestamp,
    /// When the control cycle last ran.
    cycled_at: Timestamp,
    jobs: Jobs,
    workers: Workers,
    trust: Trust,
    router: Router,
    fleets: Fleets,
    outbox: Outbox,
    pub refusals: RefusalCounts,
}

/// Refused messages by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts {
    pub stale_attempts: u64,
    pub old_beats: u64,
    pub old_incarnations: u64,
    pub already_recorded: u64,
}

/// The plane steps at least this often, so that a longer gap must be a pause of its own.
const TICK_MAX: Duration = Duration::from_secs(1);

impl Plane {
    /// Continues from the stored state. Every worker gets a full lease from now: time in which no plane listened is
    /// not counted as the worker's silence, and nothing is requeued for it.
    pub fn restore(settings: Settings, term: Term, now: Timestamp, stored: StoredState) -> Plane {
        let mut plane = Plane {
            settings,
            term,
            stepped_at: now,
            cycled_at: Timestamp::ZERO,
            jobs: Jobs::default(),
            workers: Workers::default(),
            trust: Trust::default(),
            router: Router::default(),
            fleets: Fleets::default(),
            outbox: Outbox::new(stored.sequence),
            refusals: RefusalCounts::default(),
        };
        plane.workers.restore(now, stored.workers);
        plane.trust.restore(stored.blocks, stored.quarantine, &plane.settings);
        for document in &stored.documents {
            plane.router.restore(document);
            plane.fleets.restore(now, document);
            plane.workers.restore_machine(document);
        }
        for worker in plane.workers.iter() {
            plane.fleets.add_worker(worker);
        }
        plane.adopt_orphaned_fleets();
        plane.load_jobs(now, stored.jobs);
        plane.trust.restore_alarms(&mut plane.outbox);
        plane.outbox.set_alarm(Alarm::Cycle, Some(now.plus(plane.settings.cycle_every)));
        plane.schedule_fleets(now);
        plane
    }

    /// Loads a page of open jobs; there may be too many for one call.
    pub fn load_jobs(&mut self, now: Timestamp, jobs: Vec<(AcceptedJob, JobStatus)>) {
        for (accepted, status) in jobs {
            self.restore_job(now, accepted, status);
        }
        self.watch_workers(now);
    }

    fn restore_job(&mut self, now: Timestamp, accepted: AcceptedJob, status: JobStatus) {
        let job = self.jobs.restore(now, accepted, status);
        if let JobState::Running { worker, .. } = job.state() {
            if let Some(worker) = self.workers.get_mut(worker) {
                worker.add_assignment(now, job, &self.settings);
                if let Some(hold) = worker.assignments.get_mut(&job.id) {
                    // The previous plane may have sent the order.
                    (hold.sends, hold.is_inherited) = (1, true);
                }
                worker.contact(ContactEvent::FoundHolding);
            }
            self.trust.start(worker, job);
        }
        self.outbox.set_alarm(Alarm::Job(job.id), job.wake_at(now));
    }

    fn watch_workers(&mut self, now: Timestamp) {
        for worker in self.workers.ids() {
            self.workers.watch(now, &worker, &self.settings, &mut self.outbox);
        }
    }

    /// The only entry point.
    pub fn step(&mut self, now: Timestamp, event: PlaneEvent) -> Step {
        // Time never goes back, even if the caller's clock does.
        let now = now.max(self.stepped_at);
        self.notice_own_absence(now);
        self.stepped_at = now;
        let answer = self.decide(now, event);
        // An assignment may start a trial, which changes again who may run what. The loop ends because jobs run out.
        while self.router.take_offer_again() {
            self.assign_all(now);
        }
        self.count_refusal(&answer);
        let (records, effects) = self.outbox.take();
        Step { answer, records, effects }
    }

    fn decide(&mut self, now: Timestamp, event: PlaneEvent) -> Result<PlaneAnswer, Refusal> {
        match event {
            PlaneEvent::Submit(submission) => self.submit(now, *submission),
            PlaneEvent::Cancel { job, message } => self.cancel(now, job, message),
            PlaneEvent::Join { join, token_hash, proof } => self.join(now, &join, token_hash, &proof),
            PlaneEvent::Beat { worker, token_hash, beat, long_poll } => {
                self.beat(now, &worker, token_hash, &beat, long_poll)
            }
            PlaneEvent::ConnectionDropped { worker, seq } => self.connection_dropped(now, &worker, seq),
            PlaneEvent::ListenerChecked { is_answering } => {
                self.workers.record_listener(is_answering);
                Ok(PlaneAnswer::Done)
            }
            PlaneEvent::Leave { worker, token_hash, reason } => self.leave(now, &worker, token_hash, &reason),
            PlaneEvent::Drain { worker, reason, within } => self.drain(now, &worker, &reason, within),
            PlaneEvent::DrainMachine { machine, reason, within } => {
                self.drain_machine(now, &machine, &reason, within)
            }
            PlaneEvent::Provider { fleet, news } => Ok(self.apply_provider_event(now, &fleet, *news)),
            PlaneEvent::OrderFleet { fleet, order } => self.order(now, &fleet, order),
            PlaneEvent::NameDeployment(name) => {
                self.fleets.name_deployment(name, &mut self.outbox);
                Ok(PlaneAnswer::Done)
            }
            PlaneEvent::LiftBlock { worker, hash } => self.lift_block(now, &worker, hash),
            PlaneEvent::ReleaseShape { shape } => self.release_shape(now, shape),
            PlaneEvent::SetAffinity { shape, affinity } => {
                self.router.set_affinity(now, shape, affinity, &mut self.outbox).map(|()| PlaneAnswer::Done)
            }
            PlaneEvent::RemoveAffinity { shape } => {
                self.router.remove_affinity(now, shape, &mut self.outbox).map(|()| PlaneAnswer::Done)
            }
            PlaneEvent::WebhookSettled(told) => Ok(self.webhook_settled(now, &told)),
            PlaneEvent::PutDocument(document) => Ok(self.put_document(document)),
            PlaneEvent::DeleteDocument { collection, id } => Ok(self.delete_document(collection, id)),
            PlaneEvent::ReloadSettings(settings) => Ok(self.reload_settings(now, *settings)),
            PlaneEvent::RunCycle => Ok(PlaneAnswer::Cycled(self.cycle(now))),
            PlaneEvent::Tick => Ok(self.tick(now)),
            PlaneEvent::Flush => Ok(self.flush(now)),
        }
    }

    /// Applies reloaded settings: jobs and workers continue under them, and the alarms of the workers, the
    /// control cycle and the fleets are set again.
    fn reload_settings(&mut self, now: Timestamp, settings: Settings) -> PlaneAnswer {
        self.settings = settings;
        self.adopt_orphaned_fleets();
        self.watch_workers(now);
        self.outbox.set_alarm(Alarm::Cycle, Some(now.plus(self.settings.cycle_every)));
        self.schedule_fleets(now);
        self.router.offer_again();
        self.outbox.publish(now, DomainEvent::SettingsReloaded);
        PlaneAnswer::Done
    }

    /// When to step again even without an event, and why.
    pub fn wake_at(&self) -> (Timestamp, String) {
        let tick = self.stepped_at.plus(TICK_MAX);
        match self.outbox.alarms().first() {
            Some((at, alarm)) if *at <= tick => (*at, alarm.reason()),
            Some(_) | None => (tick, "to notice a pause of the plane itself".to_owned()),
        }
    }

    /// Handles due alarms, up to a bound; the rest is handled by the next step.
    fn tick(&mut self, now: Timestamp) -> PlaneAnswer {
        const ALARMS_MAX: usize = 10_000;
        for _ in 0..ALARMS_MAX {
            match self.outbox.take_due_alarm(now) {
                Some(Alarm::Job(job)) => self.job_alarm(now, job),
                Some(Alarm::Worker(worker)) => self.worker_alarm(now, &worker),
                Some(Alarm::Block(worker, scope)) => self.block_alarm(now, &worker, &scope),
                Some(Alarm::Quarantine(jobs)) => self.quarantine_alarm(now, &jobs),
                Some(Alarm::Cycle) => drop(self.cycle(now)),
                Some(Alarm::Provider) => self.run_provider_calls(now),
                None => break,
            }
        }
        PlaneAnswer::Done
    }

    fn count_refusal(&mut self, answer: &Result<PlaneAnswer, Refusal>) {
        match answer {
            Err(Refusal::StaleBeat { .. }) => self.refusals.old_beats += 1,
            Err(Refusal::StaleIncarnation { .. }) => self.refusals.old_incarnations += 1,
            Err(_) | Ok(_) => {}
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// Sequence number of the newest event.
    pub fn sequence(&self) -> Sequence {
        self.outbox.sequence()
    }

    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter()
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    pub fn worker(&self, worker: &WorkerId) -> Option<&Worker> {
        self.workers.get(worker)
    }

    pub fn blocks(&self) -> &Blocks {
        self.trust.blocks()
    }

    pub fn quarantine(&self) -> &Quarantine {
        self.trust.quarantine()
    }

    pub fn affinities(&self) -> &Affinities {
        self.router.affinities()
    }

    pub fn mass_loss(&self) -> &MassLossBrake {
        self.workers.mass_loss()
    }

    /// A machine's uptime history, if any worker of it is known.
    pub fn machine_reliability(&self, machine: &MachineId) -> Option<&Reliability> {
        self.workers.machine_reliability(machine)
    }

    /// Machines that went stale too often within the last hour.
    pub fn unreliable_machines(&self, now: Timestamp) -> impl Iterator<Item = &MachineId> {
        let is_so = move |it: &Reliability| it.is_unreliable(now, self.settings.flaps_before_alert);
        self.workers.machines().filter(move |(_, it)| is_so(it)).map(|(machine, _)| machine)
    }

    /// Workers that went stale too often within the last hour.
    pub fn unreliable_workers(&self, now: Timestamp) -> impl Iterator<Item = &WorkerId> {
        let is_so = move |it: &Reliability| it.is_unreliable(now, self.settings.flaps_before_alert);
        self.workers.iter().filter(move |worker| is_so(&worker.reliability)).map(|worker| &worker.id)
    }

    pub fn open_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// What each tenant with open jobs uses of its quota.
    pub fn tenant_usages(&self) -> impl Iterator<Item = (&Tenant, TenantUsage)> {
        self.jobs.usages()
    }

    /// Number of jobs ahead of a queued one; None if it is not queued or too many are ahead.
    pub fn jobs_ahead(&self, job: JobId) -> Option<usize> {
        self.jobs.ahead_of(job)
    }

    /// Jobs that could start now if a worker were free.
    pub fn ready_jobs(&self) -> usize {
        self.jobs.queue().len()
    }
}

#[cfg(test)]
pub(crate) mod tests;
