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
//! Only who is Ready is given work. A dead copy that has not ended is in quarantine: a thread that hangs cannot be ended
//! from outside, so it keeps its memory and gets nothing, for as long as it hangs.

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
    /// Which of the model's copies it is.
    pub(crate) slot: usize,
    pub(crate) state: CopyState,
    /// What its beacon said last, and for how long it has said the same while there was something to do.
    pub(crate) steps: u64,
    pub(crate) silent: Duration,
    pub(crate) read_at: Duration,
    pub(crate) idle_since: Duration,
    pub(crate) tested_at: Duration,
    /// Since when it may be given work, with breaks to prove itself.
    pub(crate) ready_at: Option<Duration>,
    /// Parts.
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) failed_in_row: u32,
}

#[derive(Debug)]
pub(crate) enum CopyState {
    Loading,
    /// Answers the question whose answer is known.
    Testing(RunId),
    Ready,
    Busy(BatchRun),
    /// Ends after what it is at.
    Draining(Option<BatchRun>),
    Dead(ExitReason),
}

/// A batch at work. What is in here is in flight, and nothing else is.
#[derive(Debug)]
pub(crate) struct BatchRun {
    pub(crate) id: RunId,
    pub(crate) since: Duration,
    pub(crate) items: Vec<QueuedPart>,
    /// How far this copy is in saying the answer, of which those before it may have said a part.
    pub(crate) streamed_bytes: usize,
    /// Told to stop, as nobody waits for any of it.
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

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, CopyState::Dead(_))
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, CopyState::Ready)
    }

    /// It is, or will be once it is loaded, of use to whoever waits.
    pub(crate) fn is_usable(&self) -> bool {
        match self.state {
            CopyState::Loading | CopyState::Testing(_) | CopyState::Ready | CopyState::Busy(_) => true,
            CopyState::Draining(_) | CopyState::Dead(_) => false,
        }
    }

    /// It has something to do, so its beacon has to advance.
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

    /// Its beacon was read. Silence is counted from look to look, and a long time between two looks counts as a short
    /// one: a machine that slept, or starved us, is not the copy's silence.
    pub(crate) fn beacon_read(&mut self, now: Duration, steps: u64, interval_max: Duration) {
        if steps == self.steps {
            self.silent += now.saturating_sub(self.read_at).min(interval_max);
        } else {
            self.silent = Duration::ZERO;
        }
        self.steps = steps;
        self.read_at = now;
    }

    /// Something new begins, and with it the time it may take.
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
    /// It could not be loaded.
    Load(LoadError),
    /// Its thread unwound.
    Panicked(String),
    /// Its process ended.
    Exited(String),
    /// Its beacon stood still while it had something to do.
    Hung(Duration),
    /// It answers the question whose answer is known, and wrongly.
    Wrong(String),
    /// It said of itself that it is of no use any more.
    Poisoned(String),
    /// It fails at everything it is given.
    Failing(String),
    /// It was told to: the pool closes, or another model needs the room.
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

    /// Another try would end alike, until somebody does something about the files.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            ExitReason::Load(error) => match error {
                LoadError::Missing { .. }
                | LoadError::Truncated { .. }
                | LoadError::Wrong { .. }
                | LoadError::Unsupported { .. }
                | LoadError::Pickle { .. } => true,
                // Somebody else lets go of it, or the driver is started anew.
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
            ExitReason::Hung(silent) => write!(f, "hung: no sign of life for {} ms", silent.as_millis()),
            ExitReason::Wrong(what) => write!(f, "answered a known question wrongly: {what}"),
            ExitReason::Poisoned(what) => write!(f, "can no longer be used: {what}"),
            ExitReason::Failing(what) => write!(f, "failed at everything it was given, at last: {what}"),
            ExitReason::Requested => f.write_str("was told to end"),
        }
    }
}
