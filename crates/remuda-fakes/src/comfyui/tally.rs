//! What a stand-in was asked and what it did, over all its lives: with this a test can prove that nothing ran twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::faults::Fault;

/// A copy of the counts at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests by `METHOD /path`, without `/api` in front and without query; ids stand as `{id}`.
    pub requests: BTreeMap<String, u64>,
    /// Prompts that were put into the queue, whatever the client was told.
    pub prompts_accepted: u64,
    pub prompts_refused: u64,
    /// What each prompt that was put into the queue had drawn.
    pub drawn: BTreeMap<String, BTreeSet<Fault>>,
    /// How often each prompt id was begun.
    pub executions: BTreeMap<String, u32>,
    /// How often each prompt id ended with success.
    pub successes: BTreeMap<String, u32>,
    pub sockets_open: usize,
    pub sockets_opened: u64,
    /// How often it came up.
    pub lives: u64,
    /// Faults that struck, by name.
    pub faults: BTreeMap<String, u64>,
}

impl Counts {
    /// How often this path was asked for, with any method.
    pub fn requests_to(&self, path: &str) -> u64 {
        let asked =
            self.requests.iter().filter(|(key, _)| key.split_once(' ').is_some_and(|(_, at)| at == path));
        asked.map(|(_, count)| count).sum()
    }

    /// Prompt ids that were begun more than once.
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
