//! The connection of a worker: on which its long poll waits for orders.
//!
//! ```text
//!  quiet ──long poll──▶ polling ──closed by its side─▶ closed ──2 s without a message──▶ gone
//!    ▲                     │                             │                                │
//!    └── reply, new beat ──┴──────────── message ────────┴──────────── message ───────────┘
//! ```
//!
//! An agent may end its long poll at any time, and usually does it to send its next beat. So a closed line is no verdict and
//! no suspicion. It has two consequences: until its next message the worker gets no new work, which could not be delivered
//! anyway; and if that message is overdue, it is suspect sooner than by silence alone.

use std::time::Duration;

use super::Worker;
use crate::time::Timestamp;

/// The message that follows a long poll ended by its agent comes within a round trip; longer is a reason to look closer.
const LINE_GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerLine {
    /// No request of it waits.
    Quiet,
    /// A long poll waits for orders.
    Polling,
    /// The worker's side closed the connection, and nothing was heard since.
    Closed { at: Timestamp },
    /// As `Closed`, and the grace is over.
    Gone,
}

impl WorkerLine {
    pub fn is_closed(self) -> bool {
        match self {
            WorkerLine::Closed { .. } | WorkerLine::Gone => true,
            WorkerLine::Quiet | WorkerLine::Polling => false,
        }
    }

    /// When the grace after a close ends.
    pub fn wake_at(self) -> Option<Timestamp> {
        match self {
            WorkerLine::Closed { at } => Some(at.plus(LINE_GRACE)),
            WorkerLine::Quiet | WorkerLine::Polling | WorkerLine::Gone => None,
        }
    }
}

impl Worker {
    /// Its side closed the connection of its newest long poll.
    pub fn close_line(&mut self, now: Timestamp) {
        self.line = WorkerLine::Closed { at: now };
    }

    /// Whether it has ended its long poll a moment ago, and could take work with its next beat.
    pub fn is_between_polls(&self) -> bool {
        let has_room = self.assignments.len() + self.cancels.len() < self.slots as usize;
        matches!(self.line, WorkerLine::Closed { .. }) && has_room
    }

    /// True once, when no message followed a close within the grace.
    pub fn lose_line(&mut self, now: Timestamp) -> bool {
        let is_over = self.line.wake_at().is_some_and(|at| at <= now);
        if is_over {
            self.line = WorkerLine::Gone;
        }
        is_over
    }
}
