//! Answers of providers since this plane started, for metrics.

use std::collections::BTreeMap;

use crate::provider::{ProviderError, ProviderErrorClass, ProviderEvent};

#[derive(Clone, Debug, Default)]
pub struct ProviderCallCounts(BTreeMap<(&'static str, ProviderOutcome), u64>);

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProviderOutcome {
    Ok,
    Failed(ProviderErrorClass),
    /// A worker could not be started over SSH.
    BootstrapFailed,
}

impl ProviderCallCounts {
    pub(super) fn record(&mut self, answer: &ProviderEvent) {
        let (call, outcome) = match answer {
            ProviderEvent::Rented { result, .. } => ("rent", outcome(result)),
            ProviderEvent::Listed { result } => ("list", outcome(result)),
            ProviderEvent::Returned { result, .. } => ("return", outcome(result)),
            ProviderEvent::Priced { result } => ("price", outcome(result)),
            ProviderEvent::Bootstrapped { result: Ok(()), .. } => ("bootstrap", ProviderOutcome::Ok),
            ProviderEvent::Bootstrapped { result: Err(_), .. } => {
                ("bootstrap", ProviderOutcome::BootstrapFailed)
            }
        };
        *self.0.entry((call, outcome)).or_default() += 1;
    }

    /// Each call and outcome that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, ProviderOutcome, u64)> {
        self.0.iter().map(|((call, outcome), count)| (*call, *outcome, *count))
    }
}

fn outcome<T>(result: &Result<T, ProviderError>) -> ProviderOutcome {
    result.as_ref().map_or_else(|error| ProviderOutcome::Failed(error.class), |_| ProviderOutcome::Ok)
}
