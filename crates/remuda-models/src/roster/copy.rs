//! The life of one copy: one loaded model with somebody who runs it.
//!
//! ```text
//!            loaded            proved              a batch
//!  Loading ─────────▶ Proving ─────────▶ Ready ◀──────────────▶ Busy
//!     │                  │ ▲               │  after a failure,    │
//!     │                  │ └───────────────┴──now and then────────┘
//!     │                  │                 └────▶ Draining ◀──────┘   told to end, or making room
//!     └──────────────────┴────────┬─────────────────┘
//!                                 ▼
//!                             Dead(why) ──joined or reaped──▶ forgotten, its memory given back
//! ```
//!
//! Only who is Ready is given work. A dead copy that has not ended is in quarantine: a thread that hangs cannot be ended
//! from outside, so it keeps its memory and gets nothing, for as long as it hangs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::line::Item;
use super::{CopyId, RunId};
use crate::failure::LoadError;

#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) id: CopyId,
    pub(crate) model: Arc<str>,
    /// Which of the model's copies it is.
    pub(crate) slot: usize,
    pub(crate) life: Life,
    /// What its beacon said last, and for how long it has said the same while there was something to do.
    pub(crate) steps: u64,
    pub(crate) silent: Duration,
    pub(crate) looked_at: Duration,
    pub(crate) idle_since: Duration,
    pub(crate) proved_at: Duration,
    /// Since when it may be given work, with breaks to prove itself.
    pub(crate) ready_at: Option<Duration>,
    /// Parts.
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) failed_in_row: u32,
}

#[derive(Debug)]
pub(crate) enum Life {
    Loading,
    /// Answers the question whose answer is known.
    Proving(RunId),
    Ready,
    Busy(Run),
    /// Ends after what it is at.
    Draining(Option<Run>),
    Dead(Why),
}

/// A batch at work. What is in here is in flight, and nothing else is.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) since: Duration,
    pub(crate) items: Vec<Item>,
    /// How far this copy is in saying the answer, of which those before it may have said a part.
    pub(crate) said_bytes: usize,
    /// Told to stop, as nobody waits for any of it.
    pub(crate) is_stopped: bool,
}

impl Copy {
    pub(crate) fn new(id: CopyId, model: Arc<str>, slot: usize, now: Duration) -> Self {
        Copy {
            id,
            model,
            slot,
            life: Life::Loading,
            steps: 0,
            silent: Duration::ZERO,
            looked_at: now,
            idle_since: now,
            proved_at: now,
            ready_at: None,
            answered: 0,
            failed: 0,
            failed_in_row: 0,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready)
    }

    /// It is, or will be once it is loaded, of use to whoever waits.
    pub(crate) fn is_of_use(&self) -> bool {
        match self.life {
            Life::Loading | Life::Proving(_) | Life::Ready | Life::Busy(_) => true,
            Life::Draining(_) | Life::Dead(_) => false,
        }
    }

    /// It has something to do, so its beacon has to advance.
    pub(crate) fn is_watched(&self) -> bool {
        match self.life {
            Life::Loading | Life::Proving(_) | Life::Busy(_) | Life::Draining(_) => true,
            Life::Ready | Life::Dead(_) => false,
        }
    }

    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.life {
            Life::Busy(run) | Life::Draining(Some(run)) => Some(run),
            Life::Loading | Life::Proving(_) | Life::Ready | Life::Draining(None) | Life::Dead(_) => None,
        }
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.life {
            Life::Busy(run) | Life::Draining(Some(run)) => Some(run),
            Life::Loading | Life::Proving(_) | Life::Ready | Life::Draining(None) | Life::Dead(_) => None,
        }
    }

    /// Its beacon was read. Silence is counted from look to look, and a long time between two looks counts as a short
    /// one: a machine that slept, or starved us, is not the copy's silence.
    pub(crate) fn looked(&mut self, now: Duration, steps: u64, look_max: Duration) {
        if steps == self.steps {
            self.silent += now.saturating_sub(self.looked_at).min(look_max);
        } else {
            self.silent = Duration::ZERO;
        }
        self.steps = steps;
        self.looked_at = now;
    }

    /// Something new begins, and with it the time it may take.
    pub(crate) fn begins(&mut self, now: Duration) {
        self.silent = Duration::ZERO;
        self.looked_at = now;
    }
}

impl Life {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Life::Loading => "loading",
            Life::Proving(_) => "proving",
            Life::Ready => "ready",
            Life::Busy(_) => "busy",
            Life::Draining(_) => "draining",
            Life::Dead(_) => "dead",
        }
    }
}

/// Why a copy ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
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
    Told,
}

impl Why {
    pub fn name(&self) -> &'static str {
        match self {
            Why::Load(_) => "load",
            Why::Panicked(_) => "panicked",
            Why::Exited(_) => "exited",
            Why::Hung(_) => "hung",
            Why::Wrong(_) => "wrong",
            Why::Poisoned(_) => "poisoned",
            Why::Failing(_) => "failing",
            Why::Told => "told",
        }
    }

    /// Another try would end alike, until somebody does something about the files.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Why::Load(error) => match error {
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
            Why::Panicked(_)
            | Why::Exited(_)
            | Why::Hung(_)
            | Why::Wrong(_)
            | Why::Poisoned(_)
            | Why::Failing(_)
            | Why::Told => false,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Load(error) => write!(f, "could not be loaded: {error}"),
            Why::Panicked(what) => write!(f, "panicked: {what}"),
            Why::Exited(what) => write!(f, "its process ended: {what}"),
            Why::Hung(silent) => write!(f, "hung: no sign of life for {} ms", silent.as_millis()),
            Why::Wrong(what) => write!(f, "answered a known question wrongly: {what}"),
            Why::Poisoned(what) => write!(f, "can no longer be used: {what}"),
            Why::Failing(what) => write!(f, "failed at everything it was given, at last: {what}"),
            Why::Told => f.write_str("was told to end"),
        }
    }
}
