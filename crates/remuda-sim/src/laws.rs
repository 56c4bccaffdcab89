//! What must hold whatever goes wrong: the rules of the fault catalogue, as far as these parts reach. The laws know what
//! is true in the world (who died, what ran, which message was lost) and compare it with what the plane decides.
//!
//! | law | what is looked at | where |
//! |---|---|---|
//! | S1 | an acknowledged submission is in the store, and in memory until it ends | `laws`, at every restart |
//! | S2 | an outcome never changes and is told once; one key is one job; what was cancelled is not begun | `commits`, `places` |
//! | S3 | a report with a wrong fence and an old beat change nothing; what is completed was completed there | `verdicts`, `commits` |
//! | S4 | attempt numbers rise, one worker each; nothing is handed to a service that has it, nor to whoever is on the way out | `commits`, `services`, `rentals` |
//! | S5 | no agent and no service hears of an attempt that is not stored, nor by another name; no pod is asked for or returned before that is stored, and none twice | `laws`, `services`, `pods` |
//! | S6 | an attempt is lost only on evidence, never by a worker that is well nor while its service has it; the brake holds, and lets all return | `verdicts`, `services` |
//! | S7 | attempts are bounded, poison duration no third worker, nobody is blamed unheard, failures have causes | `commits` |
//! | S8 | never more pods than allowed nor dearer ones, by the hour and by the day; nobody else's is touched; what is forgotten is gone, who was given up does not come back; after three that came to nothing the next is waited with | `pods`, `rentals` |
//! | S9 | nothing of an older term is written | `commits` |
//! | S10 | as S6: every world has clocks that jump and run apart | `verdicts` |
//! | S11 | blocks, jobs, inventories and cancels stay within their bounds | `view` |
//! | S12 | a block is of a shape, holds, ends in one trial and for a reason; no work for the silent; a reason for all who wait; pins, exclusions and preferences hold; no work before a machine can do it; every index is right | `commits`, `places`, `verdicts`, `rentals`, `view` |
//! | L1 | every job ends; work that only a fleet can do brings a machine | at the end, `pods` |
//! | L2 | what is called recorded is recorded; what is over at a service is noticed; no socket stays deaf | `laws`, `services` |
//! | L3 | what a dead worker held is taken from it in time | `view` |
//! | L4 | nobody is believed to hold what he has not; what a service lost is let go, and a sick one treated; every pod is somebody's and every record of a pod, and who is drained goes; at the end the plane's view of the fleet is the fleet, and no machine is left over | `view`, `services`, `pods`, `rentals` |
//! | L5 | a quiet fleet is quiet; a provider is not stormed, and who is told to wait waits; a load that swings makes no fleet swing | `view`, `pods`, `rentals` |
//! | L6 | no block and no trial outlives its reason | `view` |
//! | fair | a tenant is not passed over again and again | `share` |
//! | events | numbered without gaps | `commits` |
//!
//! Not here: S13 to S15 (tokens, secrets and bytes from outside belong to the program's tests), and what only a connector can
//! get wrong (how the service is asked).

mod commits;
mod fairness;
mod placement;
mod plane_state;
mod pods;
mod rentals;
mod services;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::{Attempt, JobId, Shape, WorkerId};
use remuda_core::plane::Plane;
use remuda_core::record::StateRow;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_core::wire::BeatReply;

use crate::law::Law;
use crate::outcome::Violation;
use crate::scenario::{JobPlan, SMALL_BLOCKS_MAX, SMALL_JOBS_MAX, Scenario};
use crate::service::Key;
use crate::store::Store;

pub(crate) use fairness::FairShare;

/// Violations after which a world has said enough.
const VIOLATIONS_MAX: usize = 8;

/// All that the laws know of the world, and what was violated.
#[derive(Debug)]
pub(crate) struct Laws {
    pub(crate) violations: Vec<Violation>,
    /// The rules as they should be, whatever a saboteur made of them.
    rules: Settings,
    /// What was asked for, by client.
    plans: Vec<JobPlan>,
    acknowledged: BTreeSet<JobId>,
    /// Jobs whose end was told.
    told: BTreeSet<JobId>,
    /// The newest attempt that was stored, and whose it is.
    given: BTreeMap<JobId, (Attempt, WorkerId)>,
    /// Attempts that ran, and where.
    ran: BTreeMap<Key, usize>,
    services: services::Services,
    completed: BTreeSet<(Key, WorkerId)>,
    /// Those of which the agent that learned it is still there.
    known: BTreeSet<(Key, WorkerId)>,
    /// What became of the orders to start an attempt.
    orders: BTreeMap<Key, Order>,
    took_down: BTreeSet<Key>,
    sequence: u64,
    /// Pairs that are kept apart, or on trial, and until when.
    blocks: BTreeMap<(WorkerId, Shape), Timestamp>,
    /// What runs where, and since when.
    running: BTreeMap<JobId, (WorkerId, Timestamp)>,
    /// Since when the plane believes in an attempt that its worker does not have.
    holderless: BTreeMap<Key, u64>,
    /// Where few blocks are kept, or a person lifts some, one may be gone for no other reason.
    knows_pairs: bool,
    /// When the plane last heard of each worker, as far as it listened.
    heard: BTreeMap<WorkerId, Timestamp>,
    /// When it last heard of progress, and of how much.
    progress: BTreeMap<Key, (Timestamp, u64)>,
    /// Attempts that were named in a beat.
    named: BTreeSet<Key>,
    /// Verdicts looked at.
    judged: BTreeSet<(JobId, Attempt, Timestamp)>,
    /// When the plane began, later by every time it was away.
    began_at: Timestamp,
    restored_at: Timestamp,
    /// When it began, or was last away.
    listens_since: Timestamp,
    stepped_at: Timestamp,
    braked_at: Timestamp,
    /// Since when the brake holds, and when the first was heard since.
    braked_since: Option<Timestamp>,
    returned_at: Option<Timestamp>,
    steps: u64,
    share: Option<FairShare>,
    pods: pods::Pods,
    calls: Option<(u64, Vec<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    OnItsWay,
    /// The network lost it.
    Lost,
    /// It came to an agent that waited for something newer, or was gone.
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
            told: BTreeSet::new(),
            given: BTreeMap::new(),
            ran: BTreeMap::new(),
            services: services::Services::default(),
            completed: BTreeSet::new(),
            known: BTreeSet::new(),
            orders: BTreeMap::new(),
            took_down: BTreeSet::new(),
            sequence: 0,
            blocks: BTreeMap::new(),
            running: BTreeMap::new(),
            holderless: BTreeMap::new(),
            knows_pairs: scenario.blocks_max != SMALL_BLOCKS_MAX,
            heard: BTreeMap::new(),
            progress: BTreeMap::new(),
            named: BTreeSet::new(),
            judged: BTreeSet::new(),
            began_at: Timestamp::ZERO,
            restored_at: Timestamp::ZERO,
            listens_since: Timestamp::ZERO,
            stepped_at: Timestamp::ZERO,
            braked_at: Timestamp::ZERO,
            braked_since: None,
            returned_at: None,
            steps: 0,
            share: FairShare::new(scenario),
            pods: pods::Pods::default(),
            calls: None,
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

    /// S1: a client was told that its job is accepted.
    pub(crate) fn acknowledged(
        &mut self,
        at: u64,
        job: JobId,
        known: Option<JobId>,
        is_new: bool,
        store: &Store,
    ) {
        self.acknowledged.insert(job);
        if store.life(job).is_none() {
            self.violated(Law::S1, at, format!("job {job} was acknowledged and is not stored"));
        }
        if known.is_some_and(|known| known != job || is_new) {
            self.violated(Law::S2, at, format!("{known:?} was submitted again and became {job}"));
        }
    }

    pub(crate) fn conflict(&mut self, at: u64, client: usize, job: JobId, known: Option<JobId>) {
        if known.is_none_or(|known| known != job) {
            self.violated(Law::S2, at, format!("client {client} has {known:?} and was told of {job}"));
        }
    }

    pub(crate) fn cancelled(&mut self, at: u64, job: JobId, store: &Store) {
        if store.life(job).is_none_or(|life| life.state.is_open()) {
            self.violated(Law::S2, at, format!("job {job} was said to be over and is not"));
        }
    }

    /// S1: what a new plane knows.
    pub(crate) fn restored(&mut self, now: Timestamp, at: u64, plane: &Plane, store: &Store) {
        for job in self.acknowledged.clone() {
            match store.life(job) {
                None => self.violated(Law::S1, at, format!("job {job} is not stored any more")),
                Some(life) if life.state.is_open() && plane.job(job).is_none() => {
                    self.violated(Law::S1, at, format!("job {job} is open, and the plane forgot it"));
                }
                Some(_) => {}
            }
        }
        self.forgot_waits();
        self.forget_drains();
        self.heard.clear();
        self.progress.values_mut().for_each(|(heard_at, _)| *heard_at = now);
        self.restored_at = now;
        (self.began_at, self.listens_since) = (now, now);
        (self.stepped_at, self.braked_at) = (now, Timestamp::ZERO);
        (self.braked_since, self.returned_at) = (None, None);
        if let Some(share) = &mut self.share {
            share.restart();
        }
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

    /// S5 and L2: what an agent hears is stored.
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
            if store.life(start.job).is_none_or(|life| life.attempt < start.attempt) {
                let (job, attempt) = (start.job, start.attempt);
                self.violated(
                    Law::S5,
                    at,
                    format!("{worker} is to start job {job} attempt {attempt}: not stored"),
                );
            }
        }
        for settled in reply.settled.iter().filter(|settled| settled.verdict == "recorded") {
            let key = (settled.job, settled.attempt);
            let is_completed = self.known.contains(&(key, worker.clone()));
            let is_stored = store.life(settled.job).is_some_and(|life| {
                life.tries.iter().any(|one| one.attempt == settled.attempt && one.ended_at.is_some())
                    && (!is_completed || matches!(life.state, StateRow::Completed { .. }))
            });
            if !is_stored {
                let what = format!("job {} attempt {} is called recorded, and is not", key.0, key.1);
                self.violated(Law::L2, at, what);
            }
        }
    }

    /// What only this agent knew is lost with it.
    pub(crate) fn agent_died(&mut self, worker: &WorkerId) {
        self.known.retain(|(_, knower)| knower != worker);
    }

    /// An agent learns that an attempt completed.
    pub(crate) fn completed(&mut self, worker: &WorkerId, key: Key) {
        self.completed.insert((key, worker.clone()));
        self.known.insert((key, worker.clone()));
    }

    /// A run took its agent down.
    pub(crate) fn took_down(&mut self, key: Key) {
        self.took_down.insert(key);
    }
}
