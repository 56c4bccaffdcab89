//! Who waits for news of which job. A listener hears only that there is something new, and looks what it is when it has
//! time: nothing is queued for anybody, so a slow reader costs no memory and holds up no one. One task hears all that
//! happens and wakes those whom it concerns; with a thousand listeners, each is woken for its own job alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::{JobId, Sequence};
use tokio::sync::{broadcast, watch};

use crate::live::LiveEvent;

/// How often there was something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pulse {
    /// In the job's life.
    pub(super) turns: u64,
    /// In what its attempt is doing.
    pub(super) doings: u64,
    pub(super) previews: u64,
    /// The newest event of the job, if there was one since somebody listens.
    pub(super) newest: Option<Sequence>,
}

#[derive(Clone, Debug)]
pub(super) struct Hub {
    news: broadcast::Sender<LiveEvent>,
    board: Arc<Mutex<Board>>,
}

#[derive(Debug, Default)]
struct Board {
    jobs: BTreeMap<JobId, watch::Sender<Pulse>>,
    /// Somebody hears the news for all of them.
    is_followed: bool,
}

/// One listener's place; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Ear {
    job: JobId,
    board: Arc<Mutex<Board>>,
    pulse: watch::Receiver<Pulse>,
}

impl Hub {
    pub(super) fn new(news: broadcast::Sender<LiveEvent>) -> Hub {
        Hub { news, board: Arc::default() }
    }

    /// From now on; what was before has to be looked up after this.
    pub(super) fn listen(&self, job: JobId) -> Ear {
        let mut board = lock(&self.board);
        let pulse = board.jobs.entry(job).or_default().subscribe();
        if !std::mem::replace(&mut board.is_followed, true) {
            tokio::spawn(follow(self.news.subscribe(), self.board.clone()));
        }
        Ear { job, board: self.board.clone(), pulse }
    }
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until nobody listens any more.
async fn follow(mut news: broadcast::Receiver<LiveEvent>, board: Arc<Mutex<Board>>) {
    loop {
        let heard = news.recv().await;
        let mut board = lock(&board);
        if board.jobs.is_empty() {
            board.is_followed = false;
            return;
        }
        let wake = |job: &JobId, change: &dyn Fn(&mut Pulse)| {
            if let Some(pulse) = board.jobs.get(job) {
                pulse.send_modify(|pulse| change(pulse));
            }
        };
        match heard {
            Ok(LiveEvent::Stored(happened)) => {
                if let Some(job) = &happened.job {
                    wake(job, &|pulse| (pulse.turns, pulse.newest) = (pulse.turns + 1, Some(happened.seq)));
                }
            }
            Ok(LiveEvent::Update(told)) => wake(&told.job, &|pulse| pulse.doings += 1),
            // What a beat says of an attempt, its worker has told in more words.
            Ok(LiveEvent::Progress { .. }) => {}
            Ok(LiveEvent::Preview(shown)) => wake(&shown.job, &|pulse| pulse.previews += 1),
            // Whatever was missed: everybody looks at everything.
            Err(broadcast::error::RecvError::Lagged(_)) => {
                for pulse in board.jobs.values() {
                    pulse.send_modify(|pulse| {
                        (pulse.turns, pulse.doings, pulse.previews) =
                            (pulse.turns + 1, pulse.doings + 1, pulse.previews + 1);
                    });
                }
            }
            Err(broadcast::error::RecvError::Closed) => {
                board.jobs.clear();
                board.is_followed = false;
                return;
            }
        }
    }
}

impl Ear {
    pub(super) fn pulse(&mut self) -> Pulse {
        *self.pulse.borrow_and_update()
    }

    /// Until there is something new since `pulse`; false if there never will be.
    pub(super) async fn changed(&mut self) -> bool {
        self.pulse.changed().await.is_ok()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut board = lock(&self.board);
        // The last of its job, which is still counted here.
        if board.jobs.get(&self.job).is_some_and(|pulse| pulse.receiver_count() <= 1) {
            board.jobs.remove(&self.job);
        }
    }
}
