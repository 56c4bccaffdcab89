//! The loop around the core: gather what happened, step, commit once, carry out.
//!
//! ```text
//!  asks ──▶ step, step, step ──▶ batch ──▶ commit (one at a time) ──▶ answers, orders, events
//!                                  ▲  while a commit is under way, the next batch gathers
//! ```
//!
//! Nothing leaves before its records are safe. If a commit fails, everything decided since is forgotten: the plane is
//! restored from the store and whoever asked is told to ask again, which every message here allows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::id::{JobId, Term, WorkerId};
use remuda_core::plane::{Answer, Effect, Event, Plane};
use remuda_core::record::Record;
use remuda_core::refusal::Refusal;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_store::{Batch, Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};
use uuid::{ContextV7, Timestamp as UuidTime, Uuid};

use crate::carry_out::CarryOut;
use remuda_net::clock::Clock;

/// Asks that may wait for the loop; more are told to come back.
const ASKS_MAX: usize = 16_384;
/// Events stepped before the loop looks at anything else.
const GATHER_MAX: usize = 1024;

/// A commit that takes longer than this is a slow store, and time spent on it is our own.
const COMMIT_PATIENCE: Duration = Duration::from_millis(500);
/// Open jobs read back at a time: a million at once would need memory that nobody uses afterwards.
const RESTORE_PAGE: usize = 5000;

/// Why there is no answer from the plane.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unanswered {
    #[error("{0}")]
    Refused(Refusal),
    /// Nothing was changed; worth asking again.
    #[error("the plane is overloaded: {ASKS_MAX} requests are waiting")]
    Overloaded,
    #[error("nothing was stored: {0}")]
    NotStored(StoreError),
    #[error("the plane is stopping")]
    Stopping,
}

type Reply = Result<Answer, Unanswered>;

/// A look at the plane, sent to where it lives.
type Look = Box<dyn FnOnce(&Plane, Timestamp) + Send>;

enum Ask {
    Event {
        event: Event,
        answer: oneshot::Sender<Reply>,
    },
    /// A fact with no one waiting for the answer.
    Tell(Event),
    Look(Look),
    Stop,
}

/// How everybody else talks to the plane.
#[derive(Clone, Debug)]
pub struct Handle {
    asks: mpsc::Sender<Ask>,
    ids: Arc<Mutex<ContextV7>>,
    pub clock: Clock,
    /// The plane's time when the loop last went round, in milliseconds.
    tick: Arc<AtomicU64>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ask")
    }
}

impl Handle {
    /// An id for a job: ordered by time, unguessable.
    pub fn draw_id(&self) -> JobId {
        let millis = self.clock.now().as_millis();
        let nanos = u32::try_from(millis % 1000 * 1_000_000).unwrap_or(0);
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        JobId::from_u128(Uuid::new_v7(UuidTime::from_unix(&*ids, millis / 1000, nanos)).as_u128())
    }

    /// The answer comes when everything it rests on is stored.
    pub async fn ask(&self, event: Event) -> Reply {
        let (answer, reply) = oneshot::channel();
        match self.asks.try_send(Ask::Event { event, answer }) {
            Ok(()) => reply.await.unwrap_or(Err(Unanswered::Stopping)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unanswered::Overloaded),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Unanswered::Stopping),
        }
    }

    /// As `ask`, for workers: their traffic is never turned away, it waits.
    pub async fn ask_patiently(&self, event: Event) -> Reply {
        let (answer, reply) = oneshot::channel();
        match self.asks.send(Ask::Event { event, answer }).await {
            Ok(()) => reply.await.unwrap_or(Err(Unanswered::Stopping)),
            Err(_) => Err(Unanswered::Stopping),
        }
    }

    /// Says something nobody waits to hear answered; dropped if the loop is too busy to listen.
    pub fn tell(&self, event: Event) {
        drop(self.asks.try_send(Ask::Tell(event)));
    }

    /// A look at the plane as it is now; may run ahead of the store by what is being committed.
    pub async fn look<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Plane, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (answer, reply) = oneshot::channel();
        let look = Box::new(move |plane: &Plane, now| drop(answer.send(question(plane, now))));
        self.asks.send(Ask::Look(look)).await.map_err(|_| Unanswered::Stopping)?;
        reply.await.map_err(|_| Unanswered::Stopping)
    }

    pub async fn stop(&self) {
        drop(self.asks.send(Ask::Stop).await);
    }

    pub fn is_stopped(&self) -> bool {
        self.asks.is_closed()
    }

    /// How long ago the loop last went round.
    pub fn tick_age(&self) -> Duration {
        self.clock.now().since(Timestamp::from_millis(self.tick.load(Ordering::Relaxed)))
    }
}

/// What was decided together and is stored together.
#[derive(Debug, Default)]
struct Decided {
    records: Vec<Record>,
    answers: Vec<Promise>,
    effects: Vec<Effect>,
}

/// An answer that waits for its records to be safe.
#[derive(Debug)]
struct Promise {
    to: oneshot::Sender<Reply>,
    outcome: Result<Answer, Refusal>,
    /// Who beat, if it was a beat: its line may have to be kept open.
    worker: Option<WorkerId>,
}

impl Decided {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.answers.is_empty() && self.effects.is_empty()
    }
}

#[derive(Debug)]
pub struct Drive {
    store: Store,
    term: Term,
    settings: Settings,
    plane: Plane,
    clock: Clock,
    carry_out: CarryOut,
    asks: mpsc::Receiver<Ask>,
    tick: Arc<AtomicU64>,
    /// Decided and not yet sent to the store.
    pending: Decided,
}

impl Drive {
    /// Takes the lead and goes on where the last plane stopped.
    pub async fn start(
        store: Store,
        settings: Settings,
        carry_out: CarryOut,
    ) -> Result<(Handle, Drive), StoreError> {
        let term = store.lead().await?;
        let (plane, clock) = restore(&store, &settings, term, None).await?;
        info!(%term, open_jobs = plane.open_jobs(), workers = plane.workers().count(), "the plane goes on");
        let (sender, asks) = mpsc::channel(ASKS_MAX);
        let tick = Arc::new(AtomicU64::new(clock.now().as_millis()));
        let handle =
            Handle { asks: sender, ids: Arc::new(Mutex::new(ContextV7::new())), clock, tick: tick.clone() };
        let pending = Decided::default();
        Ok((handle, Drive { store, term, settings, plane, clock, carry_out, asks, tick, pending }))
    }

    /// Goes round until it is told to stop, or the store says that going on would be wrong.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let mut gathered = Vec::with_capacity(GATHER_MAX);
        loop {
            let wake = tokio::time::Instant::from_std(self.clock.instant(self.plane.wake_at().0));
            tokio::select! {
                biased;
                count = self.asks.recv_many(&mut gathered, GATHER_MAX) => if count == 0 { return self.finish().await },
                () = tokio::time::sleep_until(wake) => {}
            }
            if self.step_all(&mut gathered) {
                return self.finish().await;
            }
            self.commit_until_quiet(&mut gathered).await?;
        }
    }

    /// Commits what is pending; while a commit is under way the next batch gathers.
    async fn commit_until_quiet(&mut self, gathered: &mut Vec<Ask>) -> Result<(), StoreError> {
        while !self.pending.is_empty() {
            let mut decided = std::mem::take(&mut self.pending);
            let records = std::mem::take(&mut decided.records);
            if records.is_empty() {
                self.carry_out(decided, &[]);
                continue;
            }
            let happened = CarryOut::happened(&records);
            let store = self.store.clone();
            let commit = store.commit(self.term, Batch { records });
            tokio::pin!(commit);
            let patience = tokio::time::sleep(COMMIT_PATIENCE);
            tokio::pin!(patience);
            let result = loop {
                let wake = tokio::time::Instant::from_std(self.clock.instant(self.plane.wake_at().0));
                tokio::select! {
                    biased;
                    result = &mut commit => break result,
                    () = &mut patience => break self.wait_for(&mut commit).await,
                    count = self.asks.recv_many(gathered, GATHER_MAX), if gathered.is_empty() => {
                        if count == 0 {
                            break commit.await;
                        }
                    }
                    () = tokio::time::sleep_until(wake) => {}
                }
                if self.step_all(gathered) {
                    // Whoever asked us to stop sees everything stored first.
                    self.asks.close();
                }
            };
            match result {
                Ok(()) => self.carry_out(decided, &happened),
                Err(error) => self.start_over(decided, error).await?,
            }
        }
        Ok(())
    }

    /// The store is slow. Nothing is decided meanwhile, so that the plane sees its own absence afterwards and blames
    /// nobody for it; but the loop is alive, and says so.
    async fn wait_for<T>(&self, commit: &mut (impl Future<Output = T> + Unpin)) -> T {
        warn!("the store takes its time; nothing is decided until it has answered");
        loop {
            tokio::select! {
                result = &mut *commit => return result,
                () = tokio::time::sleep(COMMIT_PATIENCE) => {
                    self.tick.store(self.clock.now().as_millis(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Steps everything gathered; whether it is time to stop.
    fn step_all(&mut self, gathered: &mut Vec<Ask>) -> bool {
        let now = self.clock.now();
        self.tick.store(now.as_millis(), Ordering::Relaxed);
        let mut stops = false;
        for ask in gathered.drain(..) {
            match ask {
                Ask::Event { event, answer } => self.step(now, event, Some(answer)),
                Ask::Tell(event) => self.step(now, event, None),
                Ask::Look(look) => look(&self.plane, now),
                Ask::Stop => stops = true,
            }
        }
        if self.plane.wake_at().0 <= now {
            self.step(now, Event::Tick, None);
        }
        self.step(now, Event::Flush, None);
        stops
    }

    fn step(&mut self, now: Timestamp, event: Event, answer: Option<oneshot::Sender<Reply>>) {
        if is_new_work(&event) && !self.store.has_reserve() {
            if let Some(answer) = answer {
                let path = std::path::PathBuf::from("the store");
                drop(answer.send(Err(Unanswered::NotStored(StoreError::Full { path }))));
            }
            return;
        }
        let worker = match &event {
            Event::Beat { worker, .. } => Some(worker.clone()),
            Event::Settings(settings) => {
                // For when the plane has to be restored from the store.
                self.settings = (**settings).clone();
                None
            }
            _ => None,
        };
        let step = self.plane.step(now, event);
        self.pending.records.extend(step.records);
        self.pending.effects.extend(step.effects);
        if let Some(to) = answer {
            self.pending.answers.push(Promise { to, outcome: step.answer, worker });
        }
    }

    fn carry_out(&mut self, decided: Decided, happened: &[Arc<remuda_core::record::Happened>]) {
        for Promise { to, outcome, worker } in decided.answers {
            match (outcome, worker) {
                (Ok(Answer::Hold), Some(worker)) => self.carry_out.hold(worker, to),
                (outcome, _) => drop(to.send(outcome.map_err(Unanswered::Refused))),
            }
        }
        self.carry_out.effects(decided.effects);
        self.carry_out.publish(happened);
    }

    /// A commit failed. What was decided since is forgotten, unless going on would be wrong altogether.
    async fn start_over(&mut self, decided: Decided, error: StoreError) -> Result<(), StoreError> {
        let pending = std::mem::take(&mut self.pending);
        for promise in decided.answers.into_iter().chain(pending.answers) {
            drop(promise.to.send(Err(Unanswered::NotStored(error.clone()))));
        }
        if !matches!(error, StoreError::Full { .. } | StoreError::Busy(_) | StoreError::Conflict { .. }) {
            error!(%error, "the store cannot go on");
            return Err(error);
        }
        warn!(%error, "nothing was stored; going on from what the store has");
        self.carry_out.drop_lines();
        // A new term: what was said to the plane before this must not pass for news.
        self.term = self.store.lead().await?;
        (self.plane, _) = restore(&self.store, &self.settings, self.term, Some(self.clock)).await?;
        Ok(())
    }

    async fn finish(mut self) -> Result<(), StoreError> {
        self.asks.close();
        let mut gathered = Vec::new();
        self.commit_until_quiet(&mut gathered).await?;
        self.carry_out.drop_lines();
        info!("everything is stored; the plane stops");
        Ok(())
    }
}

/// Whether it only makes the store larger: the last room is for the ends of what was accepted.
fn is_new_work(event: &Event) -> bool {
    match event {
        Event::Submit(_) => true,
        Event::Keep(document) => document.shelf.is_of_clients(),
        _ => false,
    }
}

/// A plane as the store knows it, and the clock it goes by.
async fn restore(
    store: &Store,
    settings: &Settings,
    term: Term,
    clock: Option<Clock>,
) -> Result<(Plane, Clock), StoreError> {
    let fleet = store.restore_fleet().await?;
    let clock = clock.unwrap_or_else(|| Clock::after(fleet.latest));
    let mut plane = Plane::restore(settings.clone(), term, clock.now(), fleet);
    let mut after = None;
    loop {
        let page = store.open_jobs(after, RESTORE_PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok((plane, clock)) };
        after = Some(last.id);
        plane.take_back(clock.now(), page);
    }
}
