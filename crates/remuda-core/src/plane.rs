//! The control plane: `step(now, event) -> Step`. It holds the headers of unfinished jobs, the workers and the blocks;
//! bodies and history are in the store. Whoever drives it commits the records first, then carries out the effects and
//! gives the answer, so that nothing is ever promised that a crash could take back.
//!
//! | part | decides |
//! |---|---|
//! | `submit` | what is accepted, cancelled |
//! | `beats` | who joins, beats, leaves; what a beat's inventory means |
//! | `presence` | who is silent, and the brake on mass loss |
//! | `reliability` | how well workers and machines were heard, and who is told when that is not well |
//! | `attempts` | how an attempt begins and ends, and what follows from it |
//! | `fence` | who may speak for an attempt, as a question |
//! | `affinities` | what operators wish for shapes |
//! | `routing` | which job goes to which worker, and why not |
//! | `health` | the control cycle |
//! | `fleets`, `rentals` | what people want of fleets, what providers say of machines |
//! | `cost` | what fleets cost, as questions |
//! | `documents` | what is kept beside the jobs |
//! | `news` | what whoever follows is told |
//! | `why` | the story of a job, as a question that changes nothing |
//! | `check` | that every index agrees with what it indexes |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Map;

use crate::affinity::Affinities;
use crate::alarm::{Alarm, Alarms};
use crate::block::Blocks;
use crate::brake::MassLoss;
use crate::id::{Incarnation, JobId, MachineId, Sequence, Tenant, Term, WorkerId};
use crate::job::{Extra, Job, JobState};
use crate::quarantine::Quarantine;
use crate::queue::{JobKinds, Queue, QueueEntry};
use crate::record::{AcceptedJob, JobStatus, Record, StoredState};
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
mod ended;
mod event;
mod fence;
mod fleets;
mod health;
mod joins;
mod listing;
mod news;
mod presence;
mod reliability;
mod rentals;
mod routing;
mod snapshots;
mod submit;
mod why;

use ended::Ended;
pub use event::{JoinProof, PlaneAnswer, PlaneEffect, PlaneEvent, Step};
use fleets::Fleets;
use news::{About, detail, note};
pub use routing::PassedOver;
pub use submit::{Known, Submission};
pub use why::{BlockedWorker, Candidate, Why};

#[derive(Clone, Debug)]
pub struct Plane {
    settings: Settings,
    term: Term,
    sequence: Sequence,
    /// The last moment anything was decided; a long gap means that we were away.
    stepped_at: Timestamp,
    jobs: BTreeMap<JobId, Box<Job>>,
    queue: Queue,
    kinds: JobKinds,
    workers: BTreeMap<WorkerId, Worker>,
    /// Workers that could take something now.
    free: BTreeSet<WorkerId>,
    /// Workers with orders to be told and a line to tell them on.
    undelivered: BTreeSet<WorkerId>,
    blocks: Blocks,
    quarantine: Quarantine,
    affinities: Affinities,
    fleets: Fleets,
    /// How well each machine was heard.
    machines: BTreeMap<MachineId, Reliability>,
    keys: BTreeMap<(Tenant, String), Known>,
    ended: Ended,
    alarms: Alarms,
    mass_loss: MassLoss,
    /// When the control cycle last ran.
    cycled_at: Timestamp,
    /// Something changed who may run what: before the step ends, everyone free looks for work again.
    needs_assign: bool,
    pub refusals: Refusals,
    records: Vec<Record>,
    effects: Vec<PlaneEffect>,
}

/// How many messages were refused, by kind: the fence at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    pub stale_attempts: u64,
    pub old_beats: u64,
    pub old_incarnations: u64,
    pub already_recorded: u64,
}

/// How far back a job's place in the queue is counted: some microseconds of everybody's time.
const AHEAD_MAX: usize = 10_000;
/// The plane looks up at least this often, so that a longer gap is known to be its own absence.
const TICK_MAX: Duration = Duration::from_secs(1);

impl Plane {
    /// Goes on where another plane stopped. Everyone gets a full lease from here on: that we were away is not their
    /// fault, and nothing is requeued for it.
    pub fn restore(settings: Settings, term: Term, now: Timestamp, stored: StoredState) -> Plane {
        let mut plane = Plane {
            settings,
            term,
            sequence: stored.sequence,
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
            refusals: Refusals::default(),
            records: Vec::new(),
            effects: Vec::new(),
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
            plane.fleets.housed(worker);
        }
        plane.adopt_orphaned_fleets();
        plane.load_jobs(now, stored.jobs);
        plane.restore_alarms(now);
        plane
    }

    /// Goes on with open jobs, as many as come: there may be too many to hand over at once.
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
                worker.hold(now, &job, &self.settings);
                if let Some(hold) = worker.holds.get_mut(&id) {
                    // It was told by the plane before us, for all we know.
                    (hold.tells, hold.is_inherited) = (1, true);
                }
            }
            self.blocks.started(&worker, &job.kind.shape, id);
            self.quarantine.started(&job.kind.shape, id);
        }
        self.remember_key(&job);
        self.alarms.set(Alarm::Job(job.id), job.wake_at(now));
        if matches!(job.state(), JobState::Waiting { not_before } if *not_before <= now) {
            self.queue.insert(place(&job));
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
        self.look_at_fleets(now);
    }

    fn watch_workers(&mut self, now: Timestamp) {
        let workers: Vec<_> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.watch_worker(now, &worker);
        }
    }

    /// The one way in.
    pub fn step(&mut self, now: Timestamp, event: PlaneEvent) -> Step {
        // Time only goes up, whatever the caller's clock does.
        let now = now.max(self.stepped_at);
        self.notice_own_absence(now);
        self.stepped_at = now;
        let answer = self.decide(now, event);
        // Whoever is fed may be somebody's trial, which changes once more who may run what; jobs run out in the end.
        while std::mem::take(&mut self.needs_assign) {
            self.assign_all(now);
        }
        self.count_refusal(&answer);
        Step {
            answer,
            records: std::mem::take(&mut self.records),
            effects: std::mem::take(&mut self.effects),
        }
    }

    fn decide(&mut self, now: Timestamp, event: PlaneEvent) -> Result<PlaneAnswer, Refusal> {
        match event {
            PlaneEvent::Submit(submission) => self.submit(now, *submission),
            PlaneEvent::Cancel { job, message } => self.cancel(now, job, message),
            PlaneEvent::Join { join, token_hash, proof } => self.join(now, &join, token_hash, &proof),
            PlaneEvent::Beat { worker, token_hash, beat, waits } => {
                self.beat(now, &worker, token_hash, &beat, waits)
            }
            PlaneEvent::ConnectionDropped { worker, seq } => self.line_dropped(now, &worker, seq),
            PlaneEvent::Leave { worker, token_hash, reason } => self.leave(now, &worker, token_hash, &reason),
            PlaneEvent::Drain { worker, reason, within } => self.drain(now, &worker, &reason, within),
            PlaneEvent::DrainMachine { machine, reason, within } => {
                self.drain_machine(now, &machine, &reason, within)
            }
            PlaneEvent::Provider { fleet, news } => Ok(self.provider_said(now, &fleet, *news)),
            PlaneEvent::OrderFleet { fleet, order } => self.order(now, &fleet, order),
            PlaneEvent::NameDeployment(name) => Ok(self.named(name)),
            PlaneEvent::LiftBlock { worker, shape } => self.lift(now, &worker, shape),
            PlaneEvent::ReleaseShape { shape } => self.release(now, shape),
            PlaneEvent::SetAffinity { shape, affinity } => self.set_affinity(now, shape, affinity),
            PlaneEvent::RemoveAffinity { shape } => self.remove_affinity(now, shape),
            PlaneEvent::WebhookSettled(told) => Ok(self.told(now, &told)),
            PlaneEvent::PutDocument(document) => Ok(self.keep(document)),
            PlaneEvent::DeleteDocument { collection, id } => Ok(self.discard(collection, id)),
            PlaneEvent::ReloadSettings(settings) => Ok(self.follow(now, *settings)),
            PlaneEvent::RunCycle => Ok(PlaneAnswer::Cycled(self.cycle(now))),
            PlaneEvent::Tick => Ok(self.tick(now)),
            PlaneEvent::Flush => Ok(self.flush(now)),
        }
    }

    /// Other rules from here on: what is under way goes on under them, and every alarm is set anew.
    fn follow(&mut self, now: Timestamp, settings: Settings) -> PlaneAnswer {
        self.settings = settings;
        self.adopt_orphaned_fleets();
        let workers: Vec<_> = self.workers.keys().cloned().collect();
        for worker in workers {
            self.watch_worker(now, &worker);
        }
        self.alarms.set(Alarm::Cycle, Some(now.plus(self.settings.cycle_every)));
        self.look_at_fleets(now);
        self.needs_assign = true;
        self.happened(now, "plane:settings", About::default(), Map::new());
        PlaneAnswer::Done
    }

    /// When to step again even if nothing happens, and what for.
    pub fn wake_at(&self) -> (Timestamp, String) {
        let tick = self.stepped_at.plus(TICK_MAX);
        match self.alarms.first() {
            Some((at, alarm)) if *at <= tick => (*at, alarm.reason()),
            Some(_) | None => (tick, "to notice if the plane itself was away".to_owned()),
        }
    }

    /// Alarms that are due; a bound on one step's work, the rest comes with the next.
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
                Some(Alarm::Provider) => self.keep_rentals(now),
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

    /// The newest event's place.
    pub fn sequence(&self) -> Sequence {
        self.sequence
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

    /// How many jobs go before one that is ready to start, as far as they can be counted cheaply.
    pub fn ahead(&self, job: JobId) -> Option<usize> {
        self.queue.ahead(place(self.jobs.get(&job)?), AHEAD_MAX)
    }

    /// Jobs that could start now if there were someone to take them.
    pub fn ready_jobs(&self) -> usize {
        self.queue.len()
    }
}

/// Where a job stands in the queue.
fn place(job: &Job) -> QueueEntry<'_> {
    QueueEntry { job: job.id, priority: job.priority, tenant: &job.tenant, kind: &job.kind }
}

impl Plane {
    /// A job's short form.
    fn header(&mut self, accepted: AcceptedJob) -> Job {
        let kind = self.kinds.kind(accepted.service, accepted.needs, accepted.shape);
        let tenant = self.kinds.tenant(accepted.tenant);
        let mut job = Job::new(accepted.id, accepted.accepted_at, tenant, accepted.priority, kind);
        (job.deadline, job.attempts_max) = (accepted.deadline, accepted.attempts_max);
        job.workflow_hash = accepted.workflow_hash;
        let extra = Extra {
            key: accepted.key,
            labels: accepted.labels,
            metadata: accepted.metadata,
            options: accepted.options,
        };
        job.extra = Some(extra).filter(|extra| *extra != Extra::default()).map(Box::new);
        job
    }

    /// The incarnation a worker of this name would get: one above all it ever had.
    fn next_incarnation(&self, worker: &WorkerId) -> Incarnation {
        self.workers.get(worker).map_or(Incarnation(0), |known| known.incarnation).next()
    }
}

#[cfg(test)]
pub(crate) mod tests;
