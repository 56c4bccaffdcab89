//! Change notifications per job. A subscriber learns only that something changed and reads the state when it is ready:
//! nothing is queued, so a slow reader costs no memory and delays no one. One supervised task (`run`) follows all events and
//! wakes the subscribers of the job concerned; with a thousand subscribers, each is woken for its own job alone. Without
//! subscribers it follows nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{JobId, Sequence};
use tokio::sync::{Notify, watch};

use super::super::Context;
use crate::follower::Followed;
use crate::live::LiveEvent;
use crate::shutdown::stopped;
use crate::tasks::Ticker;

/// Counters of changes of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeCounts {
    /// Events of the job.
    pub(super) events: u64,
    /// Live reports of its attempt.
    pub(super) live: u64,
    pub(super) previews: u64,
    /// The newest event of the job since the first subscription.
    pub(super) newest: Option<Sequence>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JobWatchers(Arc<WatchedJobs>);

#[derive(Debug, Default)]
struct WatchedJobs {
    jobs: Mutex<BTreeMap<JobId, watch::Sender<ChangeCounts>>>,
    /// Wakes the task for the first subscriber.
    subscribed: Notify,
}

/// A subscription; dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct JobWatch {
    job: JobId,
    watched: Arc<WatchedJobs>,
    counts: watch::Receiver<ChangeCounts>,
}

impl JobWatchers {
    /// Subscribes to later changes; the caller reads the current state after this call.
    pub(super) fn subscribe(&self, job: JobId) -> JobWatch {
        let counts = self.0.lock().entry(job).or_default().subscribe();
        self.0.subscribed.notify_one();
        JobWatch { job, watched: self.0.clone(), counts }
    }

    /// Wakes subscribers until the program stops.
    pub(super) async fn run(&self, context: &Context, ticker: &Ticker) {
        let mut stopping = context.stopping.clone();
        loop {
            ticker.tick();
            if self.0.lock().is_empty() {
                tokio::select! {
                    () = self.0.subscribed.notified() => {}
                    () = stopped(&mut stopping) => return,
                }
            }
            let mut events = context.follow(None);
            // What changed before this task followed, or while it was restarted, is unknown.
            self.0.notify_all();
            while !self.0.lock().is_empty() {
                ticker.tick();
                match events.next().await {
                    Some(followed) => self.0.notify(&followed),
                    None => return self.0.lock().clear(),
                }
            }
        }
    }
}

impl WatchedJobs {
    fn notify(&self, followed: &Followed) {
        match followed {
            Followed::Event(LiveEvent::Stored(event)) => {
                if let Some(job) = event.job {
                    self.change(job, |counts| {
                        (counts.events, counts.newest) = (counts.events + 1, Some(event.seq));
                    });
                }
            }
            Followed::Event(LiveEvent::Update(update)) => self.change(update.job, |counts| counts.live += 1),
            Followed::Event(LiveEvent::Preview(preview)) => {
                self.change(preview.job, |counts| counts.previews += 1);
            }
            // Live reports carry more detail than the progress of a beat.
            Followed::Event(LiveEvent::Progress { .. }) | Followed::CaughtUp => {}
            Followed::Gap { .. } | Followed::Restored { .. } => self.notify_all(),
        }
    }

    fn change(&self, job: JobId, change: impl FnOnce(&mut ChangeCounts)) {
        if let Some(counts) = self.lock().get(&job) {
            counts.send_modify(change);
        }
    }

    /// Something was missed: every subscriber reads everything.
    fn notify_all(&self) {
        for counts in self.lock().values() {
            counts.send_modify(|counts| {
                (counts.events, counts.live, counts.previews) =
                    (counts.events + 1, counts.live + 1, counts.previews + 1);
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, watch::Sender<ChangeCounts>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobWatch {
    pub(super) fn counts(&mut self) -> ChangeCounts {
        *self.counts.borrow_and_update()
    }

    /// Waits for a change since `counts`; false if there will be none.
    pub(super) async fn changed(&mut self) -> bool {
        self.counts.changed().await.is_ok()
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        let mut jobs = self.watched.lock();
        // This subscription is still counted here.
        if jobs.get(&self.job).is_some_and(|counts| counts.receiver_count() <= 1) {
            jobs.remove(&self.job);
        }
    }
}
