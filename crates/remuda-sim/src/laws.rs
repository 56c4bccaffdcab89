//! The rules of the fault catalogue, checked while a world runs. The laws know what is true in the world (who died,
//! what ran, which message was lost) and compare it with what the plane decides.
//!
//! | law | what must hold | where it is checked |
//! |---|---|---|
//! | S1 | an acknowledged submission is in the store, and in memory until it ends | `laws`, at every restart |
//! | S2 | an outcome never changes and is published once; one key is one job; no attempt of a cancelled job starts | `commits`, `placement` |
//! | S3 | a report with a wrong fence and a stale beat change nothing; a completed attempt did complete on that worker | `verdicts`, `commits` |
//! | S4 | attempt numbers rise, one worker each; no attempt is submitted to a service that has it; a machine on its way out gets no work | `commits`, `services`, `rentals` |
//! | S5 | agents and services get only committed attempts, under the committed id; pods are requested and returned only after a commit, and no tag twice | `laws`, `services`, `pods` |
//! | S6 | an attempt is lost only on evidence, never by a healthy worker nor while its service has it; a living worker is not given up while the plane hears no one; when workers return after that, the others get a lease | `verdicts`, `presence`, `services` |
//! | S7 | attempts are bounded, poison crashes no third worker, no worker is blamed for an attempt it never got, failures have causes | `commits` |
//! | S8 | no more pods than allowed and no more money, per hour and per day; foreign pods are never touched; what is above a lowered maximum is drained; a refused key is confirmed; a forgotten machine is gone, one that was given up does not come back; after three failed creations the next is delayed | `pods`, `rentals` |
//! | S9 | nothing of an older term is written | `commits` |
//! | S10 | the same world with other wall clocks, set differently while it runs, decides the same at the same moments; clocks that run 5 % apart break no other law; with a right clock the plane starts at the right time, whatever an earlier start did | `clocks`, `laws` |
//! | S11 | blocks, jobs, inventories and cancels stay within their limits | `plane_state` |
//! | S12 | a block concerns a workflow or, on evidence, its shape, holds, and ends with one trial and for a recorded reason; silent workers get no work; every waiting job has a reason; pins, exclusions and preferences hold; no work before a machine is ready; every index is correct | `commits`, `placement`, `verdicts`, `rentals`, `plane_state` |
//! | S16 | a worker whose messages arrive in time is never suspect, stale or offline, and the brake holds no verdict on it | `presence` |
//! | S17 | a worker is kept from all tenants' jobs of a shape only if it lacks something or failed two tenants | `blame` |
//! | S18 | a shape is quarantined only by its jobs' own failures on three workers since it last completed | `blame` |
//! | S19 | no job fails that was never tried | `blame` |
//! | S20 | a job called poison took down two workers without another explanation (drain, many at once), and one of them alone | `poison` |
//! | L1 | once faults have stopped, a job loses at most 120 s besides its own time and waits that have a reason, each with a bound; every job ends; jobs that only a fleet can run bring a machine | `liveness`, `pods`, at the end |
//! | L2 | a confirmed result is recorded; an end at a service is noticed; no socket stays mute | `laws`, `services` |
//! | L3 | a dead worker's attempts are taken from it within 60 s, and start elsewhere within 60 s while a worker is free for them | `plane_state`, `liveness` |
//! | L4 | no worker is believed to hold what it does not have; an attempt lost by its service is given up, a sick service is repaired; every pod has a record and every record a pod; drained machines are returned, and returns are requested until they are proved; at the end the plane's view of the fleet is correct, and no machine is left over | `plane_state`, `services`, `pods`, `rentals` |
//! | L5 | after healing no agent calls at more than twice its normal rate; a provider gets no call storm, and its waits are respected; a varying load makes no fleet oscillate | `load`, `pods`, `rentals` |
//! | L6 | no block and no trial outlives its reason | `plane_state` |
//! | L7 | a job that raised the same error on two workers has failed | `blame` |
//! | L8 | with a worker that is heard all the time, the brake lets go within two leases; without one it is declared, with its end, within two leases, and ends after `HOLD_MAX` | `presence` |
//! | L9 | then a dead worker's attempts are taken from it within a lease and 15 s, however many died, and start elsewhere within that time while a worker is free for them | `presence`, `liveness` |
//! | L10 | a plane that was away or restarted judges no one within 5 s | `presence` |
//! | fair | a tenant is not passed over again and again | `fairness` |
//! | events | sequence numbers have no gaps | `commits` |
//!
//! Not here: S13 to S15 (tokens, secrets and untrusted input are covered by the program's tests), and faults of a
//! connector itself.

mod blame;
mod commits;
mod fairness;
mod liveness;
mod load;
mod placement;
mod plane_state;
mod pods;
mod poison;
mod presence;
mod rentals;
mod services;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::cause::Cause;
use remuda_core::clock::SetBack;
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::machine::Presence;
use remuda_core::plane::Plane;
use remuda_core::record::{StateRow, StoredState};
use remuda_core::scope::BlockScope;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_core::wire::BeatReply;
use remuda_core::worker::Worker;

use crate::law::Law;
use crate::outcome::Violation;
use crate::scenario::{JobPlan, SMALL_BLOCKS_MAX, SMALL_JOBS_MAX, Scenario};
use crate::service::Key;
use crate::store::Store;

pub(crate) use fairness::FairShare;

/// A plane that starts with a right clock may be this much ahead: a clock that is behind by less is taken for drift.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(60);
/// The brake holds back the verdict on a worker for no longer than this after its lease ran out: a rented machine stops
/// itself after 15 minutes without contact. `brake/mass_loss.rs` has the same number, so a verdict falls neither earlier
/// nor later.
const HOLD_MAX: Duration = Duration::from_secs(15 * 60);
/// Deadlines are noticed by ticks of a second, and a beat may be on its way.
const MARGIN: Duration = Duration::from_millis(1500);
/// A world stops after this many violations.
const VIOLATIONS_MAX: usize = 8;

/// What the laws know of the world, and what was violated.
#[derive(Debug)]
pub(crate) struct Laws {
    pub(crate) violations: Vec<Violation>,
    /// The correct settings, even if a sabotage changed the plane's.
    rules: Settings,
    /// The plan of each job, by client.
    plans: Vec<JobPlan>,
    acknowledged: BTreeSet<JobId>,
    /// Jobs whose terminal event was published.
    ended: BTreeSet<JobId>,
    /// The newest committed attempt of each job, and its worker.
    latest_attempt: BTreeMap<JobId, (Attempt, WorkerId)>,
    /// Attempts that were submitted, and the host.
    ran: BTreeMap<Key, usize>,
    services: services::Services,
    failures: blame::Failures,
    explanations: poison::Explanations,
    /// Jobs that may be poison and were started in this batch.
    isolated: Vec<JobId>,
    completed: BTreeSet<(Key, WorkerId)>,
    /// Completed attempts whose agent is still alive.
    live_completed: BTreeSet<(Key, WorkerId)>,
    /// What happened to the order to start each attempt.
    orders: BTreeMap<Key, Order>,
    crashed_agents: BTreeSet<Key>,
    sequence: u64,
    /// When the block of a worker for a workflow or shape ends, and its cause; kept during the trial.
    blocks: BTreeMap<(WorkerId, BlockScope), (Timestamp, Cause)>,
    /// Running jobs: the worker, and since when.
    running: BTreeMap<JobId, (WorkerId, Timestamp)>,
    /// Since when the plane assigns an attempt to a worker that does not hold it.
    unheld: BTreeMap<Key, u64>,
    /// False where the block limit is small or an operator lifts blocks: there a block may disappear without a recorded
    /// reason.
    tracks_blocks: bool,
    /// When the plane last heard from each worker.
    last_heard: BTreeMap<WorkerId, Timestamp>,
    /// Workers whose end closed its connection and that were not heard since.
    closed: BTreeSet<WorkerId>,
    /// Workers that are suspect or offline.
    suspects: BTreeSet<WorkerId>,
    /// When the plane last saw progress of an attempt, and how much.
    progress: BTreeMap<Key, (Timestamp, u64)>,
    /// Attempts that a beat listed.
    named: BTreeSet<Key>,
    /// Verdicts that were already checked.
    judged: BTreeSet<(JobId, Attempt, Timestamp)>,
    /// When the plane started, shifted by every stall since.
    began_at: Timestamp,
    restored_at: Timestamp,
    /// When the plane started, or its last stall ended.
    listens_since: Timestamp,
    stepped_at: Timestamp,
    braked_at: Timestamp,
    /// Since when the brake is on, and when the first worker returned.
    braked_since: Option<Timestamp>,
    rereversed_at: Option<Timestamp>,
    steps: u64,
    share: Option<FairShare>,
    pods: pods::Pods,
    liveness: liveness::Liveness,
    /// Since when calls are counted, and what each host had done then.
    loads: Option<(u64, Vec<load::Load>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OnItsWay,
    /// The network lost it.
    Lost,
    /// It reached an agent that was gone or waited for a newer answer.
    Missed,
    Received {
        host: usize,
    },
}

impl Laws {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let tight = |is: usize, tight: usize, usual: usize| if is == tight { tight } else { usual };
        let usual = Settings::default();
        let rules = Settings {
            blocks_max: tight(scenario.blocks_max, SMALL_BLOCKS_MAX, usual.blocks_max),
            open_jobs_max: tight(scenario.core.open_jobs_max, SMALL_JOBS_MAX, usual.open_jobs_max),
            ..usual
        };
        Laws {
            violations: Vec::new(),
            rules,
            plans: scenario.jobs.clone(),
            acknowledged: BTreeSet::new(),
            ended: BTreeSet::new(),
            latest_attempt: BTreeMap::new(),
            ran: BTreeMap::new(),
            services: services::Services::default(),
            failures: blame::Failures::default(),
            explanations: poison::Explanations::default(),
            isolated: Vec::new(),
            completed: BTreeSet::new(),
            live_completed: BTreeSet::new(),
            orders: BTreeMap::new(),
            crashed_agents: BTreeSet::new(),
            sequence: 0,
            blocks: BTreeMap::new(),
            running: BTreeMap::new(),
            unheld: BTreeMap::new(),
            tracks_blocks: scenario.blocks_max != SMALL_BLOCKS_MAX,
            last_heard: BTreeMap::new(),
            closed: BTreeSet::new(),
            suspects: BTreeSet::new(),
            progress: BTreeMap::new(),
            named: BTreeSet::new(),
            judged: BTreeSet::new(),
            began_at: Timestamp::ZERO,
            restored_at: Timestamp::ZERO,
            listens_since: Timestamp::ZERO,
            stepped_at: Timestamp::ZERO,
            braked_at: Timestamp::ZERO,
            braked_since: None,
            rereversed_at: None,
            steps: 0,
            share: FairShare::new(scenario),
            pods: pods::Pods::default(),
            liveness: liveness::Liveness::default(),
            loads: None,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.violations.len() >= VIOLATIONS_MAX
    }

    fn violated(&mut self, law: Law, at: u64, what: String) {
        if !self.is_full() {
            self.violations.push(Violation { law, at, what });
        }
    }

    /// For laws about a condition that lasts: one violation says it, and leaves room for those of other laws.
    fn violated_once(&mut self, law: Law, at: u64, what: String) {
        if !self.violations.iter().any(|violation| violation.law == law) {
            self.violated(law, at, what);
        }
    }

    /// S1: a client got an acknowledgement.
    pub(crate) fn acknowledged(
        &mut self,
        at: u64,
        job: JobId,
        known: Option<JobId>,
        created: bool,
        store: &Store,
    ) {
        self.acknowledged.insert(job);
        if store.status(job).is_none() {
            self.violated(Law::S1, at, format!("job {job} was acknowledged and is not stored"));
        }
        if known.is_some_and(|known| known != job || created) {
            self.violated(Law::S2, at, format!("{known:?} was resubmitted and became {job}"));
        }
    }

    pub(crate) fn conflict(&mut self, at: u64, client: usize, job: JobId, known: Option<JobId>) {
        if known.is_none_or(|known| known != job) {
            self.violated(
                Law::S2,
                at,
                format!("client {client} has {known:?} and got a conflict with {job}"),
            );
        }
    }

    pub(crate) fn cancelled(&mut self, at: u64, job: JobId, store: &Store) {
        if store.status(job).is_none_or(|status| status.state.is_open()) {
            self.violated(Law::S2, at, format!("job {job} was confirmed as ended and is still open"));
        }
    }

    /// S1: a restarted plane knows every open job.
    pub(crate) fn restored(&mut self, now: Timestamp, at: u64, plane: &Plane, store: &Store) {
        for job in self.acknowledged.clone() {
            match store.status(job) {
                None => self.violated(Law::S1, at, format!("job {job} is not stored any more")),
                Some(status) if status.state.is_open() && plane.job(job).is_none() => {
                    self.violated(
                        Law::S1,
                        at,
                        format!("job {job} is open, and the restarted plane does not know it"),
                    );
                }
                Some(_) => {}
            }
        }
        self.forget_waits();
        self.forget_drains();
        self.recall_refusals(plane);
        self.last_heard.clear();
        self.closed.clear();
        let is_away = |worker: &&Worker| worker.presence() != Presence::Online;
        self.suspects = plane.workers().filter(is_away).map(|worker| worker.id.clone()).collect();
        self.progress.values_mut().for_each(|(heard_at, _)| *heard_at = now);
        self.restored_at = now;
        (self.began_at, self.listens_since) = (now, now);
        (self.stepped_at, self.braked_at) = (now, Timestamp::ZERO);
        (self.braked_since, self.rereversed_at) = (None, None);
        if let Some(share) = &mut self.share {
            share.restart();
        }
    }

    /// The plane starts, and its wall clock is right.
    pub(crate) fn started_with_right_clock(
        &mut self,
        true_time: Timestamp,
        now: Timestamp,
        at: u64,
        stored: &StoredState,
    ) {
        let ahead = now.apart(true_time);
        if ahead > CLOCK_ERROR_MAX {
            let what = format!("the clock is right, and the plane starts at {now} in place of {true_time}");
            self.violated(Law::S10, at, what);
        }
        let jobs = stored.jobs.iter().map(|(job, status)| job.accepted_at.max(status.changed_at));
        let workers = stored.workers.iter().map(|row| row.seen_at.max(row.changed_at));
        if let Some(newest) = jobs.chain(workers).max().filter(|newest| *newest > now) {
            self.violated(Law::S10, at, format!("a stored record is of {newest}, and it is {now}"));
        }
    }

    /// The stored times were set back. What is compared over a restart moves with them, all by the same amount: the order
    /// of starts and ends of blocks stays, and what is still to come stays as far ahead, as in the store.
    pub(crate) fn times_set_back(&mut self, by: SetBack) {
        let earlier = |time: &mut Timestamp| *time = time.minus(by.from.since(by.to));
        self.blocks.values_mut().for_each(|(until, _)| earlier(until));
        self.running.values_mut().for_each(|(_, since)| earlier(since));
    }

    /// An order leaves the plane.
    pub(crate) fn ordered(&mut self, reply: &BeatReply, is_lost: bool) {
        for start in &reply.start {
            let fate = if is_lost { Order::Lost } else { Order::OnItsWay };
            let known = self.orders.entry((start.job, start.attempt)).or_insert(fate);
            if *known == Order::OnItsWay {
                *known = fate;
            }
        }
    }

    pub(crate) fn orders_missed(&mut self, reply: &BeatReply) {
        for start in &reply.start {
            let order = self.orders.entry((start.job, start.attempt)).or_insert(Order::Missed);
            if *order == Order::OnItsWay {
                *order = Order::Missed;
            }
        }
    }

    /// S5 and L2: an agent gets only what is committed.
    pub(crate) fn reply_received(
        &mut self,
        at: u64,
        host: usize,
        worker: &WorkerId,
        reply: &BeatReply,
        store: &Store,
    ) {
        for start in &reply.start {
            self.orders.insert((start.job, start.attempt), Order::Received { host });
            if store.status(start.job).is_none_or(|status| status.attempt < start.attempt) {
                let (job, attempt) = (start.job, start.attempt);
                self.violated(
                    Law::S5,
                    at,
                    format!("{worker} was ordered to start job {job} attempt {attempt}, which is not stored"),
                );
            }
        }
        for settled in reply.settled.iter().filter(|settled| settled.refused.is_none()) {
            let key = (settled.job, settled.attempt);
            let is_completed = self.live_completed.contains(&(key, worker.clone()));
            let is_stored = store.status(settled.job).is_some_and(|status| {
                status.attempts.iter().any(|one| one.attempt == settled.attempt && one.ended_at.is_some())
                    && (!is_completed || matches!(status.state, StateRow::Completed { .. }))
            });
            if !is_stored {
                let what = format!("job {} attempt {} was confirmed as recorded and is not", key.0, key.1);
                self.violated(Law::L2, at, what);
            }
        }
    }

    /// What only this agent knew is lost with it.
    pub(crate) fn agent_died(&mut self, worker: &WorkerId) {
        self.live_completed.retain(|(_, knower)| knower != worker);
    }

    /// An agent learns that an attempt completed.
    pub(crate) fn completed(&mut self, worker: &WorkerId, key: Key) {
        self.completed.insert((key, worker.clone()));
        self.live_completed.insert((key, worker.clone()));
    }

    /// A run crashed its agent.
    pub(crate) fn agent_crashed(&mut self, key: Key) {
        self.crashed_agents.insert(key);
    }
}
