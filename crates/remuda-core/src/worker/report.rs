//! What a beat says about the worker itself: slots, capabilities, readiness, metrics.

use std::collections::BTreeMap;

use super::Worker;
use crate::job::truncated;
use crate::service::ServiceState;
use crate::tally::Tally;
use crate::time::Timestamp;
use crate::wire::{Beat, StartCheck};

/// What a beat changed about a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportChange {
    /// The worker's row has changed.
    pub is_news: bool,
    /// It takes work again, or takes none from now on.
    pub has_turned: bool,
    /// Other jobs may fit it now, or other workers may have to take its jobs.
    pub fits_other_jobs: bool,
}

impl Worker {
    /// What its probes found since its last beat. What they found before this plane heard it for the first time is not
    /// this plane's to count.
    pub(crate) fn take_probes(
        &mut self,
        total: &Tally<BTreeMap<ServiceState, u64>>,
    ) -> BTreeMap<ServiceState, u64> {
        let known = std::mem::replace(&mut self.probes, total.clone());
        if !self.has_beaten {
            return BTreeMap::new();
        }
        let more = |(result, count): (&ServiceState, &u64)| {
            (*result, count.saturating_sub(known.get(result).copied().unwrap_or(0)))
        };
        total.iter().map(more).collect()
    }

    /// Takes over what the worker reports about itself.
    pub(crate) fn take_report(&mut self, now: Timestamp, beat: &Beat) -> ReportChange {
        let mut change = ReportChange::default();
        if let Some(slots) = beat.slots_within(self.slots_max).filter(|slots| *slots != self.slots) {
            (self.slots, self.slots_observed) = (slots, None);
            (change.is_news, change.fits_other_jobs) = (true, true);
        }
        // An empty reason is none: workers in other languages may send one.
        let reason = beat.unavailable_reason.clone().filter(|reason| !reason.is_empty()).map(truncated);
        change.has_turned = reason.is_some() != self.unavailable_reason.is_some();
        change.fits_other_jobs |= change.has_turned;
        if reason != self.unavailable_reason {
            self.unavailable_reason = reason;
            change.is_news = true;
        }
        if let Some(offer) = beat.offer.as_ref().filter(|offer| **offer != self.offer) {
            self.offer = offer.clone();
            (change.is_news, change.fits_other_jobs) = (true, true);
        }
        if !beat.metrics.is_empty() {
            (self.metrics, self.metrics_at) = (beat.metrics.clone(), Some(now));
        }
        if let Some(check) = beat.check.as_ref().filter(|check| self.check.as_ref() != Some(check)) {
            let StartCheck { passed, problem, gpu } = check.clone();
            self.check = Some(StartCheck { passed, problem: truncated(problem), gpu: truncated(gpu) });
            change.is_news = true;
        }
        change
    }
}
