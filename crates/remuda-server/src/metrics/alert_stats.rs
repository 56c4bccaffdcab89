//! Alerts: how many are open, and how their messages fared. The task that sends them writes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_core::alert::AlertChannel;

use super::page::Page;
use super::table;

#[derive(Debug, Default)]
pub struct AlertStats(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    firing: usize,
    pending: usize,
    messages: BTreeMap<(AlertChannel, bool), u64>,
}

impl AlertStats {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_open(&self, firing: usize, pending: usize) {
        let mut counted = self.lock();
        (counted.firing, counted.pending) = (firing, pending);
    }

    pub(crate) fn count_message(&self, channel: AlertChannel, is_accepted: bool) {
        *self.lock().messages.entry((channel, is_accepted)).or_default() += 1;
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let counted = self.lock();
        page.family(&table::ALERTS).sample(["firing"], counted.firing).sample(["pending"], counted.pending);
        let mut messages = page.family(&table::ALERT_MESSAGES);
        for ((channel, is_accepted), count) in &counted.messages {
            let outcome = if *is_accepted { "accepted" } else { "failed" };
            messages.sample([channel.as_str(), outcome], count);
        }
    }
}
