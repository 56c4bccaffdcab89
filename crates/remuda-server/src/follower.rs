//! Follows the plane's events: subscribe, catch up from the store after a lag, end with the plane. Every reader of events
//! uses it: SSE, Comfy API v2, ComfyUI's socket, the OpenAI surface and the embedded pool.
//!
//! ```text
//!  position known:    … 7, 8 ──lag──▶ Gap ──store──▶ 9, 10, … ──▶ CaughtUp ──channel──▶ 57, …
//!  position unknown:  … ──────lag──▶ Gap ──channel──▶ 57, …       (the reader has to look for itself)
//! ```
//!
//! A reader whose position is of events that the store lost (a restored copy, an accepted loss) gets `Restored`, as does one
//! that reads across such a place: it has to look for itself what is still there.
//!
//! The position is known from the first stored event on, or from the start for a reader that resumes. Stored events then
//! come in order, each once, and none is left out. Live events (progress, previews) are not stored, so a lag loses them.

use std::collections::VecDeque;
use std::time::Duration;

use remuda_core::id::Sequence;
use remuda_core::record::StoredEvent;
use remuda_core::supervise::Backoff;
use remuda_store::{Store, StoreError, StoreHistory};
use tokio::sync::{broadcast, watch};
use tracing::warn;

use crate::live::LiveEvent;
use crate::shutdown::stopped;

/// Stored events per read.
const PAGE: usize = 512;
/// A store that cannot be read now is asked again: a reader that gave up would miss the ends of its jobs.
const STORE_RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// What a follower returns.
#[derive(Clone, Debug)]
pub enum Followed {
    Event(LiveEvent),
    /// The reader was too slow. If `is_replayed`, the stored events among the missed ones follow.
    Gap {
        missed: u64,
        is_replayed: bool,
    },
    /// Events before this were lost, and the store continues as this generation.
    Restored {
        generation: u64,
    },
    /// Every event that was stored when the follower last looked was returned.
    CaughtUp,
}

#[derive(Debug)]
pub struct Follower {
    store: Store,
    channel: broadcast::Receiver<LiveEvent>,
    /// `None` for a reader that has to see what happens while the plane stops.
    stopping: Option<watch::Receiver<bool>>,
    position: Option<Sequence>,
    /// Read from the store and not yet returned.
    backlog: VecDeque<StoredEvent>,
    is_behind: bool,
    /// Read once, before the first page.
    history: Option<StoreHistory>,
    /// A generation whose beginning is to be returned, and the last one that was.
    owes_restored: Option<u64>,
    generation: u64,
    /// The last page was read, and `CaughtUp` is not returned yet.
    owes_caught_up: bool,
}

impl Follower {
    /// Follows what comes after `position`, or what comes from now on, until the plane is gone.
    pub fn new(store: Store, events: &broadcast::Sender<LiveEvent>, position: Option<Sequence>) -> Follower {
        // Subscribed before the store is read: an event in between is in both, and its number removes the duplicate.
        let channel = events.subscribe();
        let (backlog, is_behind) = (VecDeque::new(), position.is_some());
        Follower {
            store,
            channel,
            stopping: None,
            position,
            backlog,
            is_behind,
            history: None,
            owes_restored: None,
            generation: 0,
            owes_caught_up: false,
        }
    }

    /// Ends as soon as the program is told to stop.
    pub fn until(mut self, stopping: watch::Receiver<bool>) -> Follower {
        self.stopping = Some(stopping);
        self
    }

    /// Skips what the reader knows already. It must have read `position` after it subscribed, so that the channel has
    /// everything that follows: live and stored events then stay in the order in which they happened.
    pub fn skip_until(mut self, position: Sequence) -> Follower {
        self.position = Some(position);
        self
    }

    /// The number of the last stored event that was returned.
    pub fn position(&self) -> Option<Sequence> {
        self.position
    }

    /// The next event; `None` at the end. Nothing is lost if the returned future is dropped.
    pub async fn next(&mut self) -> Option<Followed> {
        loop {
            if let Some(generation) = self.owes_restored.take() {
                self.generation = generation;
                return Some(Followed::Restored { generation });
            }
            if let Some(event) = self.backlog.pop_front() {
                if self.crosses_generation(event.seq) {
                    self.backlog.push_front(event);
                    continue;
                }
                self.position = Some(event.seq);
                return Some(Followed::Event(LiveEvent::Stored(event.into())));
            }
            if self.is_behind {
                self.read_page().await?;
                continue;
            }
            if std::mem::take(&mut self.owes_caught_up) {
                return Some(Followed::CaughtUp);
            }
            let received = tokio::select! {
                biased;
                received = self.channel.recv() => received,
                () = told_to_stop(&mut self.stopping) => return None,
            };
            match received {
                Ok(LiveEvent::Stored(event)) => {
                    if self.position.is_none_or(|position| event.seq > position) {
                        self.position = Some(event.seq);
                        return Some(Followed::Event(LiveEvent::Stored(event)));
                    }
                }
                Ok(live) => return Some(Followed::Event(live)),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    self.is_behind = self.position.is_some();
                    return Some(Followed::Gap { missed, is_replayed: self.is_behind });
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Whether events were lost between the position and `next`, and the reader does not know it yet.
    fn crosses_generation(&mut self, next: Sequence) -> bool {
        let position = self.position.unwrap_or_default();
        let begun = self.history.as_ref().and_then(|history| history.begun_between(position, next));
        self.owes_restored = begun.map(|it| it.number).filter(|number| *number > self.generation);
        self.owes_restored.is_some()
    }

    /// Compares the position that the reader brought with what the store has.
    fn check_position(&mut self, history: StoreHistory) {
        let position = self.position.unwrap_or_default();
        if let Some(generation) = history.lost_event(position) {
            self.owes_restored = Some(generation.number);
        } else if position > history.sequence {
            // A copy was put back together with its proof, or the number was never given out.
            self.owes_restored = Some(history.generation());
            self.position = Some(history.sequence);
        }
        self.history = Some(history);
    }

    /// Reads the next page; `None` at the end.
    async fn read_page(&mut self) -> Option<()> {
        let mut failures = 0;
        loop {
            if self.history.is_none()
                && let Ok(history) = self.store.history().await
            {
                self.check_position(history);
            }
            match self.store.events(self.position.unwrap_or_default(), PAGE).await {
                Ok(page) => {
                    self.is_behind = page.len() == PAGE;
                    self.owes_caught_up = !self.is_behind;
                    self.backlog = page.into();
                    return Some(());
                }
                Err(StoreError::Closed) => return None,
                Err(error) => warn!(%error, "stored events could not be read; they are read again"),
            }
            tokio::select! {
                () = tokio::time::sleep(STORE_RETRY.delay(failures)) => failures += 1,
                () = told_to_stop(&mut self.stopping) => return None,
            }
        }
    }
}

async fn told_to_stop(stopping: &mut Option<watch::Receiver<bool>>) {
    match stopping {
        Some(stopping) => stopped(stopping).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
