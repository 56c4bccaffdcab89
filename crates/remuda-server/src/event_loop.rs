//! The event loop around the core: gather events, step, commit once, run the effects.
//!
//! ```text
//!  inbox ──▶ step, step, step ──▶ batch ──▶ commit (one at a time) ──▶ answers, orders, events
//!                                   ▲  while a commit is under way, the next batch gathers
//! ```
//!
//! No answer and no effect leaves before its records are stored. If a commit fails, every decision since then is
//! discarded: the plane is restored from the store and each caller is told to retry, which every message here allows. If
//! the disk failed, the batch may be stored or not: callers are told that the outcome is unknown, and the program ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remuda_core::clock::ClockStart;
use remuda_core::id::{JobId, Term, WorkerId};
use remuda_core::plane::{Plane, PlaneAnswer, PlaneEffect, PlaneEvent};
use remuda_core::record::{Record, StoredEvent};
use remuda_core::refusal::Refusal;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_net::clock::{Clock, machine_time};
use remuda_store::{RecordBatch, Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::effects::EffectRunner;
use crate::plane_handle::{Message, PlaneError, PlaneHandle, PlaneResult};

/// Messages stepped before the loop checks anything else.
const GATHER_MAX: usize = 1024;
/// A commit that takes longer comes from a slow store, and the time spent on it is the plane's own delay.
const SLOW_COMMIT: Duration = Duration::from_millis(500);
/// How soon a plane whose folder was missing goes on when it is back.
const MISPLACED_CHECK: Duration = Duration::from_millis(200);
/// The machine's clock is compared with the plane's time this often.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(1);
/// Open jobs restored at a time: a million at once would need memory that is never used again.
const RESTORE_PAGE: usize = 5000;

/// Decisions that are stored together.
#[derive(Debug, Default)]
struct PendingBatch {
    records: Vec<Record>,
    answers: Vec<PendingAnswer>,
    effects: Vec<PlaneEffect>,
}

/// An answer that waits until its records are stored.
#[derive(Debug)]
struct PendingAnswer {
    to: oneshot::Sender<PlaneResult>,
    outcome: Result<PlaneAnswer, Refusal>,
    /// The sender of a beat, whose long poll may have to be held.
    worker: Option<WorkerId>,
}

impl PendingBatch {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.answers.is_empty() && self.effects.is_empty()
    }
}

#[derive(Debug)]
pub struct EventLoop {
    store: Store,
    term: Term,
    settings: Settings,
    plane: Plane,
    clock: Clock,
    effects: EffectRunner,
    inbox: mpsc::Receiver<Message>,
    tick: Arc<AtomicU64>,
    /// Decided and not yet sent to the store.
    pending: PendingBatch,
    /// Decisions were discarded, and the store was not in its place to restore the plane from.
    needs_restore: bool,
    /// When the machine's clock was last read.
    clock_read_at: Instant,
}

impl EventLoop {
    /// Becomes the leader of the store and restores the plane from it.
    pub async fn start(
        store: Store,
        settings: Settings,
        effects: EffectRunner,
    ) -> Result<(PlaneHandle, EventLoop), StoreError> {
        let term = store.take_leadership().await?;
        let start = start_clock(&store, &settings, term).await?;
        let clock = Clock::starting_at(start.now);
        let (plane, newest_job) = restore(&store, &settings, term, clock).await?;
        info!(%term, open_jobs = plane.open_jobs(), workers = plane.workers().count(), "plane restored");
        let (handle, inbox, tick) = PlaneHandle::new(clock, newest_job);
        let mut event_loop = EventLoop {
            store,
            term,
            settings,
            plane,
            clock,
            effects,
            inbox,
            tick,
            pending: PendingBatch::default(),
            needs_restore: false,
            clock_read_at: Instant::now(),
        };
        event_loop.step(clock.now(), PlaneEvent::ClockStarted(start), None);
        Ok((handle, event_loop))
    }

    /// Runs until it is told to stop, or until the store fails in a way that a restored plane cannot recover from.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let mut gathered = Vec::with_capacity(GATHER_MAX);
        loop {
            if self.needs_restore && self.store.is_in_place() {
                self.restore_plane().await?;
            }
            let wake = self.wake_at();
            tokio::select! {
                biased;
                count = self.inbox.recv_many(&mut gathered, GATHER_MAX) => if count == 0 { return self.finish().await },
                () = tokio::time::sleep_until(wake) => {}
            }
            if self.step_all(&mut gathered) {
                return self.finish().await;
            }
            self.commit_pending(&mut gathered).await?;
        }
    }

    /// When the plane wants to be stepped next. While the store is not in its place, nothing is stepped, so that the plane
    /// recognises the gap as its own delay.
    fn wake_at(&self) -> tokio::time::Instant {
        if self.is_suspended() {
            return tokio::time::Instant::now() + MISPLACED_CHECK;
        }
        tokio::time::Instant::from_std(self.clock.instant(self.plane.wake_at().0))
    }

    fn is_suspended(&self) -> bool {
        self.needs_restore || !self.store.is_in_place()
    }

    /// Commits until nothing is pending; while a commit is under way the next batch gathers.
    async fn commit_pending(&mut self, gathered: &mut Vec<Message>) -> Result<(), StoreError> {
        while !self.pending.is_empty() {
            let mut batch = std::mem::take(&mut self.pending);
            let records = std::mem::take(&mut batch.records);
            if records.is_empty() {
                self.release(batch, &[]);
                continue;
            }
            let events = EffectRunner::stored_events(&records);
            let store = self.store.clone();
            let commit = store.commit(self.term, RecordBatch { records });
            tokio::pin!(commit);
            let slow = tokio::time::sleep(SLOW_COMMIT);
            tokio::pin!(slow);
            let result = loop {
                let wake = self.wake_at();
                tokio::select! {
                    biased;
                    result = &mut commit => break result,
                    () = &mut slow => break self.wait_for_commit(&mut commit).await,
                    count = self.inbox.recv_many(gathered, GATHER_MAX), if gathered.is_empty() => {
                        if count == 0 {
                            break commit.await;
                        }
                    }
                    () = tokio::time::sleep_until(wake) => {}
                }
                if self.step_all(gathered) {
                    // The caller that asked to stop sees everything stored first.
                    self.inbox.close();
                }
            };
            match result {
                Ok(()) => self.release(batch, &events),
                Err(error) => self.recover(batch, error).await?,
            }
        }
        Ok(())
    }

    /// Waits for a slow store. No event is stepped meanwhile, so that the plane recognises the gap as its own delay and
    /// holds it against no worker; the tick still advances, because the loop is alive.
    async fn wait_for_commit<T>(&self, commit: &mut (impl Future<Output = T> + Unpin)) -> T {
        warn!("store commit slow; decisions paused");
        loop {
            tokio::select! {
                result = &mut *commit => return result,
                () = tokio::time::sleep(SLOW_COMMIT) => {
                    self.tick.store(self.clock.now().as_millis(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Steps everything gathered; returns whether the loop was told to stop.
    fn step_all(&mut self, gathered: &mut Vec<Message>) -> bool {
        let now = self.clock.now();
        self.tick.store(now.as_millis(), Ordering::Relaxed);
        let mut stops = false;
        let is_suspended = self.is_suspended();
        for message in gathered.drain(..) {
            match message {
                Message::Request { answer, .. } if is_suspended => drop(answer.send(Err(self.refusal()))),
                Message::Notify(_) if is_suspended => {}
                Message::Request { event, answer } => self.step(now, event, Some(answer)),
                Message::Notify(event) => self.step(now, event, None),
                Message::Read(read) => read(&self.plane, now),
                Message::Stop => stops = true,
            }
        }
        if is_suspended {
            return stops;
        }
        if self.plane.wake_at().0 <= now {
            self.step(now, PlaneEvent::Tick, None);
        }
        if self.clock_read_at.elapsed() >= CLOCK_READ_EVERY {
            self.clock_read_at = Instant::now();
            self.step(now, PlaneEvent::ClockRead { wall: machine_time() }, None);
        }
        self.step(now, PlaneEvent::Flush, None);
        stops
    }

    fn step(&mut self, now: Timestamp, event: PlaneEvent, answer: Option<oneshot::Sender<PlaneResult>>) {
        if !event.is_admitted(self.store.has_reserve()) {
            if let Some(answer) = answer {
                let path = std::path::PathBuf::from("the store");
                drop(answer.send(Err(PlaneError::NotStored(StoreError::Full { path }))));
            }
            return;
        }
        let worker = match &event {
            PlaneEvent::Beat { worker, .. } => Some(worker.clone()),
            PlaneEvent::ReloadSettings(settings) => {
                // Needed when the plane has to be restored from the store.
                self.settings = (**settings).clone();
                None
            }
            _ => None,
        };
        let step = self.plane.step(now, event);
        self.pending.records.extend(step.records);
        self.pending.effects.extend(step.effects);
        if let Some(to) = answer {
            self.pending.answers.push(PendingAnswer { to, outcome: step.answer, worker });
        }
    }

    /// The answer to everything while the store is not in its place.
    fn refusal(&self) -> PlaneError {
        PlaneError::NotStored(self.store.misplaced().unwrap_or(StoreError::Closed))
    }

    /// Sends the answers and runs the effects of a stored batch.
    fn release(&mut self, batch: PendingBatch, events: &[Arc<StoredEvent>]) {
        for PendingAnswer { to, outcome, worker } in batch.answers {
            match (outcome, worker) {
                (Ok(PlaneAnswer::Pending), Some(worker)) => self.effects.hold_beat(worker, to),
                (outcome, _) => drop(to.send(outcome.map_err(PlaneError::Refused))),
            }
        }
        self.effects.run(batch.effects);
        self.effects.publish(events);
    }

    /// Handles a failed commit: discards every decision since, and restores the plane if the store can continue.
    async fn recover(&mut self, batch: PendingBatch, error: StoreError) -> Result<(), StoreError> {
        let pending = std::mem::take(&mut self.pending);
        let is_unknown = error.is_outcome_unknown();
        for answer in batch.answers.into_iter().chain(pending.answers) {
            // Also what was decided after the failed batch: it may repeat a key whose job is in that batch.
            let why = if is_unknown {
                PlaneError::OutcomeUnknown(error.to_string())
            } else {
                PlaneError::NotStored(error.clone())
            };
            drop(answer.to.send(Err(why)));
        }
        if matches!(error, StoreError::Misplaced { .. }) {
            error!(%error, "store is not in its place; decisions paused");
            self.effects.drop_held_beats();
            self.needs_restore = true;
            return Ok(());
        }
        if !matches!(error, StoreError::Full { .. } | StoreError::Busy(_) | StoreError::Conflict { .. }) {
            error!(%error, "store failed; the plane cannot continue");
            self.effects.drop_held_beats();
            return Err(error);
        }
        warn!(%error, "commit failed; state reloaded from the store");
        self.effects.drop_held_beats();
        self.restore_plane().await
    }

    /// The plane as the store has it. If the store is not in its place by now, that is left for later.
    async fn restore_plane(&mut self) -> Result<(), StoreError> {
        let restored = async {
            // A new term: messages from before the failure must not count as new evidence.
            let term = self.store.take_leadership().await?;
            let (plane, _) = restore(&self.store, &self.settings, term, self.clock).await?;
            Ok((term, plane))
        };
        match restored.await {
            Ok((term, plane)) => {
                (self.term, self.plane, self.needs_restore) = (term, plane, false);
                info!(%term, open_jobs = self.plane.open_jobs(), "plane restored");
                Ok(())
            }
            Err(StoreError::Misplaced { .. }) => {
                self.needs_restore = true;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn finish(mut self) -> Result<(), StoreError> {
        self.inbox.close();
        let mut gathered = Vec::new();
        self.commit_pending(&mut gathered).await?;
        self.effects.drop_held_beats();
        // They were never stepped, so nothing of them is stored.
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Request { answer, .. } = message {
                drop(answer.send(Err(PlaneError::Stopping)));
            }
        }
        info!("shutdown complete");
        Ok(())
    }
}

/// At which time the plane starts. If its time goes back, so do the stored ones.
async fn start_clock(store: &Store, settings: &Settings, term: Term) -> Result<ClockStart, StoreError> {
    let latest = store.restore_fleet().await?.latest;
    let start = ClockStart::new(machine_time(), latest, settings.trust_clock);
    if let Some(by) = start.set_back {
        store.set_back(term, by).await?;
        warn!(from = %by.from, to = %by.to, "the clock went back; stored times set back");
    }
    Ok(start)
}

/// The plane as the store has it, and the newest job there.
async fn restore(
    store: &Store,
    settings: &Settings,
    term: Term,
    clock: Clock,
) -> Result<(Plane, Option<JobId>), StoreError> {
    let fleet = store.restore_fleet().await?;
    let newest_job = fleet.newest_job;
    let mut plane = Plane::restore(settings.clone(), term, clock.now(), fleet);
    let mut after = None;
    loop {
        let page = store.open_jobs(after, RESTORE_PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok((plane, newest_job)) };
        after = Some(last.id);
        plane.load_jobs(clock.now(), page);
    }
}
