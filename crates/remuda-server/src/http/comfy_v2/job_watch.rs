//! Change notifications per job. A subscriber learns only that something changed and reads the state when it is ready:
//! nothing is queued, so a slow reader costs no memory and delays no one. One task receives all events and wakes the
//! subscribers of the job concerned; with a thousand subscribers, each is woken for its own job alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{JobId, Sequence};
use tokio::sync::{broadcast, watch};

use crate::live::LiveEvent;

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

#[derive(Clone, Debug)]
pub(super) struct JobWatchers {
    news: broadcast::Sender<LiveEvent>,
    watched: Arc<Mutex<WatchedJobs>>,
}

#[derive(Debug, Default)]
struct WatchedJobs {
    jobs: BTreeMap<JobId, watch::Sender<ChangeCounts>>,
    /// The task that receives events is running.
    is_running: bool,
}

/// A subscription; dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct JobWatch {
    job: JobId,
    watched: Arc<Mutex<WatchedJobs>>,
    counts: watch::Receiver<ChangeCounts>,
}

impl JobWatchers {
    pub(super) fn new(news: broadcast::Sender<LiveEvent>) -> JobWatchers {
        JobWatchers { news, watched: Arc::default() }
    }

    /// Subscribes to later changes; the caller reads the current state after this call.
    pub(super) fn subscribe(&self, job: JobId) -> JobWatch {
        let mut watched = lock(&self.watched);
        let counts = watched.jobs.entry(job).or_default().subscribe();
        if !std::mem::replace(&mut watched.is_running, true) {
            tokio::spawn(run(self.news.subscribe(), self.watched.clone()));
        }
        JobWatch { job, watched: self.watched.clone(), counts }
    }
}

fn lock(watched: &Mutex<WatchedJobs>) -> MutexGuard<'_, WatchedJobs> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until there is no subscriber left.
async fn run(mut news: broadcast::Receiver<LiveEvent>, watched: Arc<Mutex<WatchedJobs>>) {
    loop {
        let received = news.recv().await;
        let mut watched = lock(&watched);
        if watched.jobs.is_empty() {
            watched.is_running = false;
            return;
        }
        let notify = |job: &JobId, change: &dyn Fn(&mut ChangeCounts)| {
            if let Some(counts) = watched.jobs.get(job) {
                counts.send_modify(|counts| change(counts));
            }
        };
        match received {
            Ok(LiveEvent::Stored(event)) => {
                if let Some(job) = &event.job {
                    notify(job, &|counts| {
                        (counts.events, counts.newest) = (counts.events + 1, Some(event.seq));
                    });
                }
            }
            Ok(LiveEvent::Update(update)) => notify(&update.job, &|counts| counts.live += 1),
            // Live reports carry more detail than the progress of a beat.
            Ok(LiveEvent::Progress { .. }) => {}
            Ok(LiveEvent::Preview(shown)) => notify(&shown.job, &|counts| counts.previews += 1),
            // Events were missed: every subscriber reads everything.
            Err(broadcast::error::RecvError::Lagged(_)) => {
                for counts in watched.jobs.values() {
                    counts.send_modify(|counts| {
                        (counts.events, counts.live, counts.previews) =
                            (counts.events + 1, counts.live + 1, counts.previews + 1);
                    });
                }
            }
            Err(broadcast::error::RecvError::Closed) => {
                watched.jobs.clear();
                watched.is_running = false;
                return;
            }
        }
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
        let mut watched = lock(&self.watched);
        // This subscription is still counted here.
        if watched.jobs.get(&self.job).is_some_and(|counts| counts.receiver_count() <= 1) {
            watched.jobs.remove(&self.job);
        }
    }
}
