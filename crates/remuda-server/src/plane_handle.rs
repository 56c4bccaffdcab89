//! How every other task talks to the plane: a bounded channel into the event loop. Requests are events of the core;
//! reads are closures that run where the plane is, so that no task ever holds a lock on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::id::JobId;
use remuda_core::plane::{Plane, PlaneAnswer, PlaneEvent};
use remuda_core::refusal::Refusal;
use remuda_core::time::Timestamp;
use remuda_net::clock::Clock;
use remuda_store::StoreError;
use tokio::sync::{mpsc, oneshot};
use uuid::{ContextV7, Timestamp as UuidTime, Uuid};

/// Messages that may wait for the event loop; further requests are refused.
pub(crate) const INBOX_MAX: usize = 16_384;

/// Why the plane gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlaneError {
    #[error("{0}")]
    Refused(Refusal),
    /// No state changed; the caller may retry.
    #[error("the plane is overloaded: {INBOX_MAX} requests are waiting")]
    Overloaded,
    #[error("nothing was stored: {0}")]
    NotStored(StoreError),
    /// The change may be stored or not; only the store knows, after a restart.
    #[error(
        "the outcome is unknown: {0}. Ask again with the same idempotency key; without a key, look first whether it is there"
    )]
    OutcomeUnknown(String),
    #[error("the plane is stopping")]
    Stopping,
}

pub(crate) type PlaneResult = Result<PlaneAnswer, PlaneError>;

/// A read of the plane, sent to the task that owns it.
type ReadFn = Box<dyn FnOnce(&Plane, Timestamp) + Send>;

/// What the event loop receives.
pub(crate) enum Message {
    Request {
        event: PlaneEvent,
        answer: oneshot::Sender<PlaneResult>,
    },
    /// An event whose sender does not wait for an answer.
    Notify(PlaneEvent),
    Read(ReadFn),
    Stop,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Message::Request { .. } => "Request",
            Message::Notify(_) => "Notify",
            Message::Read(_) => "Read",
            Message::Stop => "Stop",
        })
    }
}

/// The event loop took the request and ended without an answer: it panicked, perhaps after its commit.
fn no_answer() -> PlaneError {
    PlaneError::OutcomeUnknown("the event loop ended before it answered".to_owned())
}

/// The next id of a version 7 UUID; `ids` ignores a time that is earlier than the last one.
fn next_id(ids: &ContextV7, millis: u64) -> JobId {
    let nanos = u32::try_from(millis % 1000 * 1_000_000).unwrap_or(0);
    JobId::from_u128(Uuid::new_v7(UuidTime::from_unix(ids, millis / 1000, nanos)).as_u128())
}

/// The time part of an id.
fn id_millis(job: JobId) -> u64 {
    u64::try_from(job.as_u128() >> 80).unwrap_or(0)
}

#[derive(Clone, Debug)]
pub struct PlaneHandle {
    inbox: mpsc::Sender<Message>,
    ids: Arc<Mutex<ContextV7>>,
    pub clock: Clock,
    /// The plane's time of the event loop's last iteration, in milliseconds.
    tick: Arc<AtomicU64>,
}

impl PlaneHandle {
    /// The handle, and the event loop's ends of its channel and tick. `newest_job`: the newest id in the store.
    pub(crate) fn new(
        clock: Clock,
        newest_job: Option<JobId>,
    ) -> (PlaneHandle, mpsc::Receiver<Message>, Arc<AtomicU64>) {
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        let tick = Arc::new(AtomicU64::new(clock.now().as_millis()));
        let ids = ContextV7::new();
        if let Some(newest) = newest_job {
            // Ids never go back, so from now on they are greater than the newest one.
            next_id(&ids, id_millis(newest) + 1);
        }
        let ids = Arc::new(Mutex::new(ids));
        (PlaneHandle { inbox: sender, ids, clock, tick: tick.clone() }, inbox, tick)
    }

    /// A new job id: greater than every earlier one, also if the clock went back; not guessable.
    pub fn new_job_id(&self) -> JobId {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        next_id(&ids, self.clock.now().as_millis())
    }

    /// Sends an event; the answer comes once every record it depends on is stored. A full inbox refuses.
    pub async fn request(&self, event: PlaneEvent) -> PlaneResult {
        let (answer, reply) = oneshot::channel();
        match self.inbox.try_send(Message::Request { event, answer }) {
            Ok(()) => reply.await.unwrap_or_else(|_| Err(no_answer())),
            Err(mpsc::error::TrySendError::Full(_)) => Err(PlaneError::Overloaded),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(PlaneError::Stopping),
        }
    }

    /// As `request`, for workers and our own tasks: a full inbox delays them and never refuses them.
    pub async fn request_queued(&self, event: PlaneEvent) -> PlaneResult {
        let (answer, reply) = oneshot::channel();
        match self.inbox.send(Message::Request { event, answer }).await {
            Ok(()) => reply.await.unwrap_or_else(|_| Err(no_answer())),
            Err(_) => Err(PlaneError::Stopping),
        }
    }

    /// Sends an event without waiting for its answer; dropped if the inbox is full.
    pub fn notify(&self, event: PlaneEvent) {
        drop(self.inbox.try_send(Message::Notify(event)));
    }

    /// Reads the plane as it is now, which may be ahead of the store by the commit under way.
    pub async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Plane, Timestamp) -> T + Send + 'static,
    ) -> Result<T, PlaneError> {
        let (answer, reply) = oneshot::channel();
        let read = Box::new(move |plane: &Plane, now| drop(answer.send(question(plane, now))));
        self.inbox.send(Message::Read(read)).await.map_err(|_| PlaneError::Stopping)?;
        reply.await.map_err(|_| PlaneError::Stopping)
    }

    /// As `read`, answered once everything that was read is stored: a job that the plane no longer has is found in the store.
    pub async fn read_stored<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Plane, Timestamp) -> T + Clone + Send + 'static,
    ) -> Result<T, PlaneError> {
        // Answers leave in the order of the batches, and this one is no earlier than the read.
        let flush = self.request_queued(PlaneEvent::Flush);
        let (seen, stored) = tokio::join!(self.read(question.clone()), flush);
        match stored {
            // What was read is discarded, and the plane was reloaded from the store.
            Err(PlaneError::NotStored(_)) => self.read(question).await,
            Err(error) => Err(error),
            Ok(_) => seen,
        }
    }

    pub async fn stop(&self) {
        drop(self.inbox.send(Message::Stop).await);
    }

    pub fn is_stopped(&self) -> bool {
        self.inbox.is_closed()
    }

    /// When the event loop last completed an iteration, in milliseconds of the plane's time.
    pub(crate) fn last_tick(&self) -> u64 {
        self.tick.load(Ordering::Relaxed)
    }

    /// How long ago the event loop last completed an iteration.
    pub fn tick_age(&self) -> Duration {
        self.clock.now().since(Timestamp::from_millis(self.last_tick()))
    }
}

#[cfg(test)]
mod tests {
    use remuda_net::clock::machine_time;

    use super::*;

    /// Faults: K1.
    #[test]
    fn ids_continue_after_the_newest_stored_one_although_the_clock_went_back() {
        let ahead = machine_time().plus(Duration::from_secs(50 * 365 * 24 * 3600));
        let newest = PlaneHandle::new(Clock::starting_at(ahead), None).0.new_job_id();
        let (handle, ..) = PlaneHandle::new(Clock::starting_now(), Some(newest));
        let ids: Vec<_> = (0..1000).map(|_| handle.new_job_id()).collect();
        assert!(ids[0] > newest && ids.is_sorted_by(|a, b| a < b), "{newest} {:?}", ids[0]);
    }
}
