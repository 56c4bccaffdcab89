//! The lifecycle of one copy: a loaded model and the thread or process that runs it.
//!
//! ```text
//!            loaded           test passed          a batch
//!  Loading ─────────▶ Testing ─────────▶ Ready ◀──────────────▶ Busy
//!     │                  │ ▲               │  after a failure,    │
//!     │                  │ └───────────────┴──periodically────────┘
//!     │                  │                 └────▶ Draining ◀──────┘   quit requested, or evicted
//!     └──────────────────┴────────┬─────────────────┘
//!                                 ▼
//!                             Dead(reason) ──joined or reaped──▶ removed, its memory released
//! ```
//!
//! Only a Ready copy gets work. A dead copy whose thread has not ended is stuck: a hung thread cannot be ended from
//! outside, so it keeps its memory and gets no work for as long as it hangs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::queue::QueuedPart;
use super::{CopyId, RunId};
use crate::failure::LoadError;

#[derive(Debug)]
pub(crate) struct ModelCopy {
    pub(crate) id: CopyId,
    pub(crate) model: Arc<str>,
    /// The index of its slot in the model.
    pub(crate) slot: usize,
    state: CopyState,
    /// The last step count of its beacon, and how long that has not changed while there was work.
    pub(crate) steps: u64,
    pub(crate) silent: Duration,
    pub(crate) read_at: Duration,
    pub(crate) idle_since: Duration,
    pub(crate) tested_at: Duration,
    /// When it first became ready.
    pub(crate) ready_at: Option<Duration>,
    /// Parts.
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) failed_in_row: u32,
}

#[derive(Debug)]
pub(crate) enum CopyState {
    Loading,
    /// Computes the golden request.
    Testing(RunId),
    Ready,
    Busy(BatchRun),
    /// Ends after the current run.
    Draining(Option<BatchRun>),
    Dead(ExitReason),
}

/// What can happen to a copy.
#[derive(Debug)]
pub(crate) enum CopyEvent {
    /// The golden request is sent to it, as this run.
    Test(RunId),
    /// A batch is sent to it.
    Start(BatchRun),
    /// It ended a run, well or badly.
    RunEnded(RunId),
    /// It gets nothing more, and ends after its current run.
    Drain,
    Die(ExitReason),
}

/// What an event did to a copy.
#[derive(Debug)]
pub(crate) enum CopyChange {
    /// Nothing: the event does not concern its present state.
    Ignored,
    Moved,
    /// This batch is over, or was interrupted.
    Released(BatchRun),
}

/// A batch in progress. Its parts are in flight.
#[derive(Debug)]
pub(crate) struct BatchRun {
    pub(crate) id: RunId,
    pub(crate) since: Duration,
    pub(crate) items: Vec<QueuedPart>,
    /// How much of the answer this copy has emitted; copies before it may have streamed more.
    pub(crate) streamed_bytes: usize,
    /// Stopped, because no caller waits for any of its parts.
    pub(crate) is_stopped: bool,
}

impl ModelCopy {
    pub(crate) fn new(id: CopyId, model: Arc<str>, slot: usize, now: Duration) -> Self {
        ModelCopy {
            id,
            model,
            slot,
            state: CopyState::Loading,
            steps: 0,
            silent: Duration::ZERO,
            read_at: now,
            idle_since: now,
            tested_at: now,
            ready_at: None,
            answered: 0,
            failed: 0,
            failed_in_row: 0,
        }
    }

    /// The only place where its state changes.
    pub(crate) fn apply(&mut self, event: CopyEvent) -> CopyChange {
        use CopyEvent::{Die, Drain, RunEnded, Start, Test};
        use CopyState::{Busy, Dead, Draining, Loading, Ready, Testing};
        let (state, change) = match (std::mem::replace(&mut self.state, Loading), event) {
            (Loading | Ready, Test(run)) => (Testing(run), CopyChange::Moved),
            (Ready, Start(batch)) => (Busy(batch), CopyChange::Moved),
            (Testing(run), RunEnded(ended)) if run == ended => (Ready, CopyChange::Moved),
            (Busy(batch), RunEnded(ended)) if batch.id == ended => (Ready, CopyChange::Released(batch)),
            (Draining(Some(batch)), RunEnded(ended)) if batch.id == ended => {
                (Draining(None), CopyChange::Released(batch))
            }
            (Loading | Testing(_) | Ready, Drain) => (Draining(None), CopyChange::Moved),
            (Busy(batch), Drain) => (Draining(Some(batch)), CopyChange::Moved),
            (Busy(batch) | Draining(Some(batch)), Die(why)) => (Dead(why), CopyChange::Released(batch)),
            (Loading | Testing(_) | Ready | Draining(None), Die(why)) => (Dead(why), CopyChange::Moved),
            (state @ (Testing(_) | Busy(_) | Draining(_)), Test(_))
            | (state @ (Loading | Testing(_) | Busy(_) | Draining(_)), Start(_))
            // A run that was taken from this copy.
            | (state @ (Loading | Testing(_) | Ready | Busy(_) | Draining(_)), RunEnded(_))
            | (state @ Draining(_), Drain)
            | (state @ Dead(_), _) => (state, CopyChange::Ignored),
        };
        self.state = state;
        change
    }

    pub(crate) fn state(&self) -> &CopyState {
        &self.state
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, CopyState::Dead(_))
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, CopyState::Ready)
    }

    /// The copy can serve waiting requests now, or once it is loaded.
    pub(crate) fn is_usable(&self) -> bool {
        match self.state {
            CopyState::Loading | CopyState::Testing(_) | CopyState::Ready | CopyState::Busy(_) => true,
            CopyState::Draining(_) | CopyState::Dead(_) => false,
        }
    }

    /// The copy has work, so its beacon must advance.
    pub(crate) fn is_watched(&self) -> bool {
        match self.state {
            CopyState::Loading | CopyState::Testing(_) | CopyState::Busy(_) | CopyState::Draining(_) => true,
            CopyState::Ready | CopyState::Dead(_) => false,
        }
    }

    pub(crate) fn run(&self) -> Option<&BatchRun> {
        match &self.state {
            CopyState::Busy(run) | CopyState::Draining(Some(run)) => Some(run),
            CopyState::Loading
            | CopyState::Testing(_)
            | CopyState::Ready
            | CopyState::Draining(None)
            | CopyState::Dead(_) => None,
        }
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut BatchRun> {
        match &mut self.state {
            CopyState::Busy(run) | CopyState::Draining(Some(run)) => Some(run),
            CopyState::Loading
            | CopyState::Testing(_)
            | CopyState::Ready
            | CopyState::Draining(None)
            | CopyState::Dead(_) => None,
        }
    }

    /// Records a beacon reading. Silence accumulates from reading to reading, and a long gap between two readings
    /// counts as a short one: a machine that slept or was overloaded is not the copy's silence.
    pub(crate) fn beacon_read(&mut self, now: Duration, steps: u64, interval_max: Duration) {
        if steps == self.steps {
            self.silent += now.saturating_sub(self.read_at).min(interval_max);
        } else {
            self.silent = Duration::ZERO;
        }
        self.steps = steps;
        self.read_at = now;
    }

    /// New work begins, so the silence counter starts again.
    pub(crate) fn reset_silence(&mut self, now: Duration) {
        self.silent = Duration::ZERO;
        self.read_at = now;
    }
}

impl CopyState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            CopyState::Loading => "loading",
            CopyState::Testing(_) => "testing",
            CopyState::Ready => "ready",
            CopyState::Busy(_) => "busy",
            CopyState::Draining(_) => "draining",
            CopyState::Dead(_) => "dead",
        }
    }
}

/// Why a copy ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// Loading failed.
    Load(LoadError),
    /// Its thread panicked.
    Panicked(String),
    /// Its process ended.
    Exited(String),
    /// Its beacon stood still while it had work.
    Hung(Duration),
    /// It answered the golden request wrongly.
    Wrong(String),
    /// It reported that it can no longer be used.
    Poisoned(String),
    /// It failed on every request.
    Failing(String),
    /// The pool is closing, or another model needs the memory.
    Requested,
}

impl ExitReason {
    pub fn name(&self) -> &'static str {
        match self {
            ExitReason::Load(_) => "load",
            ExitReason::Panicked(_) => "panicked",
            ExitReason::Exited(_) => "exited",
            ExitReason::Hung(_) => "hung",
            ExitReason::Wrong(_) => "wrong",
            ExitReason::Poisoned(_) => "poisoned",
            ExitReason::Failing(_) => "failing",
            ExitReason::Requested => "requested",
        }
    }

    /// Another start would fail the same way until the files are changed.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            ExitReason::Load(error) => match error {
                LoadError::Missing { .. }
                | LoadError::Truncated { .. }
                | LoadError::Wrong { .. }
                | LoadError::Unsupported { .. }
                | LoadError::Pickle { .. } => true,
                // Memory may be freed, and a driver may recover.
                LoadError::Memory { .. }
                | LoadError::Device { .. }
                | LoadError::Engine(_)
                | LoadError::Stopped => false,
            },
            ExitReason::Panicked(_)
            | ExitReason::Exited(_)
            | ExitReason::Hung(_)
            | ExitReason::Wrong(_)
            | ExitReason::Poisoned(_)
            | ExitReason::Failing(_)
            | ExitReason::Requested => false,
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitReason::Load(error) => write!(f, "could not be loaded: {error}"),
            ExitReason::Panicked(what) => write!(f, "panicked: {what}"),
            ExitReason::Exited(what) => write!(f, "its process ended: {what}"),
            ExitReason::Hung(silent) => write!(f, "hung: no progress for {} ms", silent.as_millis()),
            ExitReason::Wrong(what) => write!(f, "answered the golden request wrongly: {what}"),
            ExitReason::Poisoned(what) => write!(f, "can no longer be used: {what}"),
            ExitReason::Failing(what) => write!(f, "failed on every request, most recently: {what}"),
            ExitReason::Requested => f.write_str("ended on request"),
        }
    }
}
