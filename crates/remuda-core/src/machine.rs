//! The state of a machine, derived from its workers. A machine sends no beats: it is online while any of its workers
//! is, so nothing is stored that could disagree.
//!
//! Also the two states of a worker: its lifecycle (`WorkerState`) and its presence (`Presence`);
//! `worker/life.rs` changes them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether beats arrive. Ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Online,
    /// Beats are missing: no new work, but its attempts stay assigned.
    Suspect,
    Offline,
}

impl Presence {
    pub const ALL: [Presence; 3] = [Presence::Online, Presence::Suspect, Presence::Offline];

    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Online => "online",
            Presence::Suspect => "suspect",
            Presence::Offline => "offline",
        }
    }
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A machine's presence: that of its best worker. A machine without workers is offline.
pub fn machine_presence(workers: impl IntoIterator<Item = Presence>) -> Presence {
    workers.into_iter().min().unwrap_or(Presence::Offline)
}

/// Lifecycle of a machine that is not rented: active while any of its workers is.
pub fn machine_state(workers: impl IntoIterator<Item = WorkerState>) -> Option<WorkerState> {
    workers.into_iter().min_by_key(|state| (*state != WorkerState::Active, *state))
}

/// Lifecycle of a worker; `worker/life.rs` has the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Ordered, and not ready for work yet.
    Spawning,
    Active,
    /// Finishes what it holds and gets nothing new.
    Terminating,
    Terminated,
    /// Given up; a rented machine under it still has to be returned.
    Error,
}

impl WorkerState {
    pub const ALL: [WorkerState; 5] = [
        WorkerState::Spawning,
        WorkerState::Active,
        WorkerState::Terminating,
        WorkerState::Terminated,
        WorkerState::Error,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Spawning => "spawning",
            WorkerState::Active => "active",
            WorkerState::Terminating => "terminating",
            WorkerState::Terminated => "terminated",
            WorkerState::Error => "error",
        }
    }

    /// Whether scaling counts it as capacity: a spawning worker counts, or it would be ordered twice.
    pub fn is_capacity(self) -> bool {
        matches!(self, WorkerState::Spawning | WorkerState::Active)
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Presence::{Offline, Online, Suspect};
    use super::*;

    #[test]
    fn a_machine_stands_as_its_best_worker_does() {
        for (workers, expected) in [
            (&[Offline, Online, Suspect][..], Online),
            (&[Offline, Suspect], Suspect),
            (&[Offline, Offline], Offline),
            (&[], Offline),
        ] {
            assert_eq!(machine_presence(workers.iter().copied()), expected, "{workers:?}");
        }
    }

    #[test]
    fn a_machine_works_while_any_of_its_workers_does() {
        use WorkerState::{Active, Error, Spawning, Terminating};
        assert_eq!(machine_state([Spawning, Error, Active]), Some(Active));
        assert_eq!(machine_state([Error, Terminating]), Some(Terminating));
        assert_eq!(machine_state([]), None);
    }

    #[test]
    fn what_is_stored_is_the_word_that_is_shown() {
        for presence in Presence::ALL {
            assert_eq!(serde_json::to_value(presence).unwrap(), presence.as_str());
        }
        for state in WorkerState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
