//! Counts requests and executions across restarts, so that a test can prove that nothing ran twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::faults::Fault;

/// A snapshot of the counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests by `METHOD /path`, without `/api` and query; ids are `{id}`.
    pub requests: BTreeMap<String, u64>,
    /// Prompts that were queued, whatever the answer was.
    pub prompts_accepted: u64,
    pub prompts_refused: u64,
    /// The faults drawn for each queued prompt.
    pub drawn: BTreeMap<String, BTreeSet<Fault>>,
    /// How often each prompt id was started.
    pub executions: BTreeMap<String, u32>,
    /// How often each prompt id succeeded.
    pub successes: BTreeMap<String, u32>,
    pub sockets_open: usize,
    pub sockets_opened: u64,
    /// How often the server started.
    pub lives: u64,
    /// Faults that happened, by name.
    pub faults: BTreeMap<String, u64>,
}

impl Counts {
    /// How often this path was requested, with any method.
    pub fn requests_to(&self, path: &str) -> u64 {
        let asked =
            self.requests.iter().filter(|(key, _)| key.split_once(' ').is_some_and(|(_, at)| at == path));
        asked.map(|(_, count)| count).sum()
    }

    /// Prompt ids that were started more than once.
    pub fn ran_twice(&self) -> Vec<&str> {
        self.executions.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id.as_str()).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counts>);

impl Tally {
    pub(super) fn counts(&self) -> Counts {
        self.change().clone()
    }

    pub(super) fn change(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
