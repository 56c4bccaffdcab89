//! The control plane: `step(now, event) -> Step`. It holds the headers of unfinished jobs, the workers and the
//! blocks; workflows, results and history are in the store. The event loop commits the records of a step first, then
//! runs its effects and sends its answer, so that a crash never takes back a promise.
//!
//! | part | decides |
//! |---|---|
//! | `submit` | acceptance, cancellation and expiry of jobs |
//! | `beats`, `joins` | joining, leaving and draining of workers; reconciliation of a beat with the plane's state |
//! | `presence` | detection of silent workers and the mass-loss brake |
//! | `reliability` | uptime of workers and machines, and alerts for unreliable ones |
//! | `attempts` | start and end of an attempt, and the consequences for job, worker and shape |
//! | `fence` | read-only check whether a worker may report on an attempt |
//! | `affinities` | operators' placement rules for shapes |
//! | `routing` | which worker can take which job, and why not |
//! | `health` | the control cycle |
//! | `fleets`, `rentals`, `listing` | operators' orders for fleets, provider answers about machines |
//! | `cost` | read-only cost figures of fleets |
//! | `documents` | documents that the plane stores without reading them |
//! | `domain_event`, `outbox` | the event stream for subscribers; records and effects of a step |
//! | `why` | read-only explanation of a job's state |
//! | `check` | consistency check of all indexes, for the simulator |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::affinity::Affinities;
use crate::alarm::{Alarm, Alarms};
use crate::block::Blocks;
use crate::brake::MassLoss;
use crate::id::{Incarnation, JobId, MachineId, Sequence, Tenant, Term, WorkerId};
use crate::job::{Job, JobExtras, JobState};
use crate::quarantine::Quarantine;
use crate::queue::{JobKinds, Queue, QueueEntry};
use crate::record::{AcceptedJob, JobStatus, StoredState};
use crate::refusal::Refusal;
use crate::reliability::Reliability;
use crate::settings::Settings;
use crate::time::Timestamp;
use crate::worker::Worker;

mod affinities;
mod attempts;
mod beats;
mod check;
mod cost;
mod documents;
mod domain_event;
mod ended;
mod event;
mod fence;
mod fleets;
mod health;
mod joins;
mod listing;
mod outbox;
mod presence;
mod reliability;
mod rentals;
mod routing;
mod snapshots;
mod submit;
mod why;

use domain_event::DomainEvent;
use ended::Ended;
pub use event::{JoinProof, PlaneAnswer, PlaneEffect, PlaneEvent, Step};
use fleets::Fleets;
use outbox::Outbox;
pub use routing::PassedOver;
pub use submit::{JobSubmission, KnownKey};
pub use why::{BlockedWorker, Candidate, JobExplanation};

#[derive(Clone, Debug)]
pub struct Plane {
    settings: Settings,
    term: Term,
    /// When the last step ran. A long gap means that the plane itself was paused.
    stepped_at: Timestamp,
    jobs: BTreeMap<JobId, Box<Job>>,
    queue: Queue,
    kinds: JobKinds,
    workers: BTreeMap<WorkerId, Worker>,
    /// Workers with a free slot.
    free: BTreeSet<WorkerId>,
    /// Workers with pending orders and an open long poll.
    undelivered: BTreeSet<WorkerId>,
    blocks: Blocks,
    quarantine: Quarantine,
    affinities: Affinities,
    fleets: Fleets,
    /// Uptime history of each machine.
    machines: BTreeMap<MachineId, Reliability>,
    keys: BTreeMap<(Tenant, String), KnownKey>,
    ended: Ended,
    alarms: Alarms,
    mass_loss: MassLoss,
    /// When the control cycle last ran.
    cycled_at: Timestamp,
    /// Something changed that decides who may run what: before the step ends, every free worker is offered work
    /// again.
    needs_assign: bool,
    pub refusals: RefusalCounts,
    outbox: Outbox,
}

/// Refused messages by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts {
    pub stale_attempts: u64,
    pub old_beats: u64,
    pub old_incarnations: u64,
    pub already_recorded: u64,
}

/// Counting a job's position in the queue stops here: it costs microseconds on the shared event loop.
const AHEAD_MAX: usize = 10_000;
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
            jobs: BTreeMap::new(),
            queue: Queue::default(),
            kinds: JobKinds::default(),
            workers: BTreeMap::new(),
            free: BTreeSet::new(),
            undelivered: BTreeSet::new(),
            blocks: Blocks::default(),
            quarantine: Quarantine::default(),
            affinities: Affinities::default(),
            fleets: Fleets::default(),
            machines: BTreeMap::new(),
            keys: BTreeMap::new(),
            ended: Ended::default(),
            alarms: Alarms::default(),
            mass_loss: MassLoss::default(),
            cycled_at: Timestamp::ZERO,
            needs_assign: false,
            refusals: RefusalCounts::default(),
            outbox: Outbox::new(stored.sequence),
        };
        for row in stored.workers {
            plane.workers.insert(row.id.clone(), Worker::restore(now, row));
        }
        for row in stored.blocks {
            plane.blocks.restore(row, now, &plane.settings);
        }
        for row in stored.quarantine {
            plane.quarantine.restore(row);
        }
        for document in &stored.documents {
            plane.affinities.restore(document);
            plane.fleets.restore(now, document);
            plane.restore_reliability(document);
        }
        for worker in plane.workers.values() {
            plane.fleets.add_worker(worker);
        }
        plane.adopt_orphaned_fleets();
        plane.load_jobs(now, stored.jobs);
        plane.restore_alarms(now);
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
        let mut job = Box::new(self.header(accepted));
        job.restore_status(status);
        if let JobState::Running { worker, .. } = job.state() {
            let (id, worker) = (job.id, worker.clone());
            if let Some(worker) = self.workers.get_mut(&worker) {
                worker.add_assignment(now, &job, &self.settings);
                if let Some(hold) = worker.assignments.get_mut(&id) {
                    // The previous plane may have sent the order.
                    (hold.sends, hold.is_inherited) = (1, true);
                }
            }
            self.blocks.started(&worker, &job.kind.shape, id);
            self.quarantine.started(&job.kind.shape, id);
        }
        self.remember_key(&job);
        self.alarms.set(Alarm::Job(job.id), job.wake_at(now));
        if matches!(job.state(), JobState::Waiting { not_before } if *not_before <= now) {
            self.queue.insert(queue_entry(&job));
        }
        self.jobs.insert(job.id, job);
    }

    fn restore_alarms(&mut self, now: Timestamp) {
        let blocks: Vec<_> = self
            .blocks
            .iter()
            .map(|(worker, shape, block)| (worker.clone(), *shape, block.until()))
            .collect();
        for (worker, shape, until) in blocks {
            self.alarms.set(Alarm::Block(worker, shape), Some(until).filter(|until| now < *until));
        }
        let shapes: Vec<_> = self.quarantine.iter().map(|(shape, it)| (*shape, it.trial_at())).collect();
        for (shape, trial_at) in shapes {
            self.alarms.set(Alarm::Shape(shape), trial_at);
        }
        self.alarms.set(Alarm::Cycle, Some(now.plus(self.settings.cycle_every)));
        self.schedule_fleets(now);
    }

    fn watch_workers(&mut self, now: Timestamp) {
        let workers: Vec<_> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.watch_worker(now, &worker);
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
        while std::mem::take(&mut self.needs_assign) {
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
            PlaneEvent::Leave { worker, token_hash, reason } => self.leave(now, &worker, token_hash, &reason),
            PlaneEvent::Drain { worker, reason, within } => self.drain(now, &worker, &reason, within),
            PlaneEvent::DrainMachine { machine, reason, within } => {
                self.drain_machine(now, &machine, &reason, within)
            }
            PlaneEvent::Provider { fleet, news } => Ok(self.apply_provider_event(now, &fleet, *news)),
            PlaneEvent::OrderFleet { fleet, order } => self.order(now, &fleet, order),
            PlaneEvent::NameDeployment(name) => Ok(self.name_deployment(name)),
            PlaneEvent::LiftBlock { worker, shape } => self.lift(now, &worker, shape),
            PlaneEvent::ReleaseShape { shape } => self.release(now, shape),
            PlaneEvent::SetAffinity { shape, affinity } => self.set_affinity(now, shape, affinity),
            PlaneEvent::RemoveAffinity { shape } => self.remove_affinity(now, shape),
            PlaneEvent::WebhookSettled(told) => Ok(self.webhook_settled(now, &told)),
            PlaneEvent::PutDocument(document) => Ok(self.put_document(document)),
            PlaneEvent::DeleteDocument { collection, id } => Ok(self.delete_document(collection, id)),
            PlaneEvent::ReloadSettings(settings) => Ok(self.reload_settings(now, *settings)),
            PlaneEvent::RunCycle => Ok(PlaneAnswer::Cycled(self.cycle(now))),
            PlaneEvent::Tick => Ok(self.tick(now)),
            PlaneEvent::Flush => Ok(self.flush(now)),
        }
    }

    /// Applies reloaded settings: jobs and workers continue under them, and every alarm is set again.
    fn reload_settings(&mut self, now: Timestamp, settings: Settings) -> PlaneAnswer {
        self.settings = settings;
        self.adopt_orphaned_fleets();
        let workers: Vec<_> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.watch_worker(now, &worker);
        }
        self.alarms.set(Alarm::Cycle, Some(now.plus(self.settings.cycle_every)));
        self.schedule_fleets(now);
        self.needs_assign = true;
        self.outbox.publish(now, DomainEvent::SettingsReloaded);
        PlaneAnswer::Done
    }

    /// When to step again even without an event, and why.
    pub fn wake_at(&self) -> (Timestamp, String) {
        let tick = self.stepped_at.plus(TICK_MAX);
        match self.alarms.first() {
            Some((at, alarm)) if *at <= tick => (*at, alarm.reason()),
            Some(_) | None => (tick, "to notice a pause of the plane itself".to_owned()),
        }
    }

    /// Handles due alarms, up to a bound; the rest is handled by the next step.
    fn tick(&mut self, now: Timestamp) -> PlaneAnswer {
        const ALARMS_MAX: usize = 10_000;
        for _ in 0..ALARMS_MAX {
            match self.alarms.take_due(now) {
                Some(Alarm::Job(job)) => self.job_alarm(now, job),
                Some(Alarm::Worker(worker)) => self.worker_alarm(now, &worker),
                Some(Alarm::Block(worker, shape)) => self.block_alarm(now, &worker, shape),
                Some(Alarm::Shape(shape)) => self.shape_alarm(now, shape),
                Some(Alarm::Brake) => self.brake_alarm(now),
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
        self.jobs.get(&job).map(|job| &**job)
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|job| &**job)
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    pub fn worker(&self, worker: &WorkerId) -> Option<&Worker> {
        self.workers.get(worker)
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    pub fn affinities(&self) -> &Affinities {
        &self.affinities
    }

    pub fn mass_loss(&self) -> &MassLoss {
        &self.mass_loss
    }

    pub fn open_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Number of jobs ahead of a queued one; None if it is not queued or too many are ahead.
    pub fn jobs_ahead(&self, job: JobId) -> Option<usize> {
        self.queue.jobs_ahead(queue_entry(self.jobs.get(&job)?), AHEAD_MAX)
    }

    /// Jobs that could start now if a worker were free.
    pub fn ready_jobs(&self) -> usize {
        self.queue.len()
    }
}

/// The queue entry of a job.
fn queue_entry(job: &Job) -> QueueEntry<'_> {
    QueueEntry { job: job.id, priority: job.priority, tenant: &job.tenant, kind: &job.kind }
}

impl Plane {
    /// The in-memory header of an accepted job.
    fn header(&mut self, accepted: AcceptedJob) -> Job {
        let kind = self.kinds.kind(accepted.service, accepted.needs, accepted.shape);
        let tenant = self.kinds.tenant(accepted.tenant);
        let mut job = Job::new(accepted.id, accepted.accepted_at, tenant, accepted.priority, kind);
        (job.deadline, job.attempts_max) = (accepted.deadline, accepted.attempts_max);
        job.workflow_hash = accepted.workflow_hash;
        let extra = JobExtras {
            key: accepted.key,
            labels: accepted.labels,
            metadata: accepted.metadata,
            options: accepted.options,
        };
        job.extras = Some(extra).filter(|extra| *extra != JobExtras::default()).map(Box::new);
        job
    }

    /// The incarnation for the next join under this name: above all earlier ones.
    fn next_incarnation(&self, worker: &WorkerId) -> Incarnation {
        self.workers.get(worker).map_or(Incarnation(0), |known| known.incarnation).next()
    }
}

#[cfg(test)]
pub(crate) mod tests;
