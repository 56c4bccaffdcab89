//! TODO

use std::collections::BTreeMap;
use std::fmt;

use crate::law::Law;
use crate::trouble::Trouble;

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Jobs that were accepted: lives lived.
    pub jobs: u64,
    pub attempts: u64,
    /// How often a service began to run something for us: what exceeds the jobs was done again or for nothing.
    pub executions: u64,
    pub steps: u64,
    /// Pods that were made for us.
    pub pods: u64,
    /// How often each trouble was trouble_counts.
    pub trouble_counts: BTreeMap<Trouble, u64>,
    pub violations: Vec<Violation>,
    /// The same for the same seed, whoever runs it.
    pub trace_hash: u64,
}

/// A law was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub law: Law,
    /// Milliseconds since the world began.
    pub at: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ms: {}", self.law, self.at, self.what)
    }
}
