//! How a world ended, and which laws were violated.

use std::collections::BTreeMap;
use std::fmt;

use crate::law::Law;
use crate::trouble::Trouble;

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Jobs that were accepted.
    pub jobs: u64,
    pub attempts: u64,
    /// How often a service started a run for us. More than the number of jobs means that work was repeated or wasted.
    pub executions: u64,
    pub steps: u64,
    /// Faults that were applied, without those of a provider.
    pub faults: u64,
    /// Attempts that were taken from a worker because it was silent.
    pub silent: u64,
    /// Attempts that were given up because they stood still.
    pub stuck: u64,
    /// Pods created for us.
    pub pods: u64,
    /// How often each trouble occurred.
    pub trouble_counts: BTreeMap<Trouble, u64>,
    pub violations: Vec<Violation>,
    /// Fingerprint of the trace: the same for the same seed on every machine.
    pub trace_hash: u64,
}

/// A law that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub law: Law,
    /// Milliseconds since the world started.
    pub at: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ms: {}", self.law, self.at, self.what)
    }
}
