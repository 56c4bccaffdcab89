//! Webhooks: how many wait, and how tries ended. The task that delivers them writes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::page::Page;
use super::table;

#[derive(Debug, Default)]
pub struct WebhookStats {
    pending: AtomicUsize,
    accepted: AtomicU64,
    failed: AtomicU64,
}

impl WebhookStats {
    pub(crate) fn set_pending(&self, pending: usize) {
        self.pending.store(pending, Ordering::Relaxed);
    }

    pub(crate) fn count_try(&self, is_accepted: bool) {
        let count = if is_accepted { &self.accepted } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write(&self, page: &mut Page) {
        page.single(&table::WEBHOOKS_PENDING, self.pending.load(Ordering::Relaxed));
        page.family(&table::WEBHOOK_TRIES)
            .sample(["accepted"], self.accepted.load(Ordering::Relaxed))
            .sample(["failed"], self.failed.load(Ordering::Relaxed));
    }
}
