//! Live reports of running attempts to the plane: the service's messages, progress, and outputs stored so far. Adding to
//! a report never blocks, the queue is bounded, and no decision depends on it.
//!
//! ```text
//!  ws_listener ──▶ messages, progress ─┐
//!                                      ├──▶ first after 50 ms, then every 100 ms, before a preview ──▶ PUT …/live
//!  early_outputs ──▶ outputs ──────────┘    and at the end at once
//! ```
//!
//! A run that is answered from ComfyUI's cache therefore needs one report, sent while its outputs are fetched.
//!
//! Messages that came after a preview are held until it was sent: a client without metadata takes an image for one of the node
//! that the last `executing` named.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::id::{Attempt, JobId};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use remuda_core::wire::live::{LiveReport, ProgressSnapshot};

use crate::plane_link::{PlaneLink, ReportError};

/// Too short to be noticed, and a run that ends sooner costs a single request.
const FIRST_REPORT_DELAY: Duration = Duration::from_millis(50);
/// Ten reports a second look smooth; a sampler counts much faster.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// While the plane does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the result of an attempt waits for the reports and previews before it, and a preview for the reports. A plane
/// that does not answer these would not answer the result either.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Messages queued for one attempt: a graph of hundreds of nodes in the time between two reports.
const MESSAGES_MAX: usize = 2_000;
const MESSAGES_BYTES_MAX: usize = 1 << 20;
/// Counters among them. `progress_state` names every node so far, and comes twice for each: of a large graph that is answered
/// from the cache, all of them would be a hundred times what the rest needs.
const COUNTERS_BYTES_MAX: usize = 64 << 10;

type Key = (JobId, Attempt);

/// A message of a service, passed on unchanged.
#[derive(Clone, Debug)]
pub(crate) struct ServiceMessage {
    pub(crate) raw: Arc<RawValue>,
    /// A message replaces an older one with the same key: of a counter only the newest value matters.
    pub(crate) supersedes: Option<String>,
}

/// A message, and which change to the report it is.
#[derive(Debug)]
struct QueuedMessage {
    number: u64,
    message: ServiceMessage,
}

/// Messages that are added after it stay queued until it is dropped.
#[derive(Debug)]
pub(crate) struct ReportHold {
    reports: LiveReports,
    key: Key,
    /// The last change that is not held.
    after: u64,
}

impl Drop for ReportHold {
    fn drop(&mut self) {
        if let Some(pending) = self.reports.state().attempts.get_mut(&self.key)
            && let Some(at) = pending.holds.iter().position(|after| *after == self.after)
        {
            pending.holds.remove(at);
        }
        self.reports.0.has_work.notify_one();
    }
}

/// The reports of all attempts; clones share one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveReports(Arc<ReportQueue>);

#[derive(Debug, Default)]
struct ReportQueue {
    state: Mutex<QueuedReports>,
    has_work: Notify,
    was_sent: Notify,
}

#[derive(Debug, Default)]
struct QueuedReports {
    attempts: BTreeMap<Key, PendingReport>,
    /// None until the worker has joined and has a token.
    link: Option<PlaneLink>,
}

/// The next report of one attempt. Progress and outputs are kept after they were sent, for a plane that was restarted
/// and does not know them.
#[derive(Debug)]
struct PendingReport {
    messages: VecDeque<QueuedMessage>,
    /// Of each hold, the last change that is not held; in order.
    holds: VecDeque<u64>,
    messages_bytes: usize,
    counters_bytes: usize,
    progress: Option<ProgressSnapshot>,
    outputs: Option<Vec<Arc<RawValue>>>,
    is_progress_new: bool,
    is_outputs_new: bool,
    /// Not sent before.
    next_at: Instant,
    /// Only one report is sent at a time, so that they arrive in order.
    is_in_flight: bool,
    /// How many changes were made, and how many of them a report took along that was answered.
    changes: u64,
    changes_taken: u64,
    changes_sent: u64,
}

impl LiveReports {
    /// Adds a message of the service, and the progress it implies.
    pub(crate) fn add(
        &self,
        job: JobId,
        attempt: Attempt,
        message: Option<ServiceMessage>,
        progress: Option<ProgressSnapshot>,
    ) {
        let is_change = message.is_some() || progress.is_some();
        self.update((job, attempt), is_change, |pending| {
            if let Some(message) = message {
                pending.push(message);
            }
            if progress.is_some() {
                (pending.progress, pending.is_progress_new) = (progress, true);
            }
        });
    }

    /// Replaces the list of outputs stored so far.
    pub(crate) fn set_outputs(&self, job: JobId, attempt: Attempt, outputs: Vec<Arc<RawValue>>) {
        self.update((job, attempt), true, |pending| {
            (pending.outputs, pending.is_outputs_new) = (Some(outputs), true);
        });
    }

    /// Sends the next report at once: no further message is expected.
    pub(crate) fn send_now(&self, job: JobId, attempt: Attempt) {
        if let Some(pending) = self.state().attempts.get_mut(&(job, attempt)) {
            pending.next_at = Instant::now();
        }
        self.0.has_work.notify_one();
    }

    /// Holds what is added from now on.
    pub(crate) fn hold(&self, job: JobId, attempt: Attempt) -> ReportHold {
        let mut state = self.state();
        let pending = state.attempts.entry((job, attempt)).or_insert_with(PendingReport::new);
        pending.holds.push_back(pending.changes);
        ReportHold { reports: self.clone(), key: (job, attempt), after: pending.changes }
    }

    /// Waits until everything added before this call was sent, or the flush timeout has passed. What is added meanwhile
    /// is not waited for: a fast sampler always adds something.
    pub(crate) async fn flush(&self, job: JobId, attempt: Attempt) {
        let changes = self.state().attempts.get(&(job, attempt)).map_or(0, |pending| pending.changes);
        self.flush_changes((job, attempt), changes).await;
    }

    /// Waits until everything was sent that is not held.
    pub(crate) async fn flush_before(&self, hold: &ReportHold) {
        self.flush_changes(hold.key, hold.after).await;
    }

    async fn flush_changes(&self, key: Key, wanted: u64) {
        let (job, attempt) = key;
        let is_flushed = || self.state().attempts.get(&key).is_none_or(|it| it.is_flushed(wanted));
        if is_flushed() {
            return;
        }
        self.send_now(job, attempt);
        let flushed = async {
            loop {
                let was_sent = self.0.was_sent.notified();
                if is_flushed() {
                    return;
                }
                was_sent.await;
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
            debug!(%job, %attempt, "reporting the result before all progress messages were sent");
        }
    }

    /// Drops the reports of every attempt that the agent does not hold.
    pub(crate) fn retain(&self, held: &BTreeSet<Key>) {
        self.state().attempts.retain(|key, _| held.contains(key));
    }

    /// Sends over this link from now on. The plane may have been restarted, so progress and outputs are sent again.
    pub(crate) fn set_link(&self, link: PlaneLink) {
        let mut state = self.state();
        state.link = Some(link);
        for pending in state.attempts.values_mut() {
            pending.is_progress_new = pending.progress.is_some();
            pending.is_outputs_new = pending.outputs.is_some();
        }
        drop(state);
        self.0.has_work.notify_one();
    }

    /// Sends due reports until the task is dropped.
    pub(crate) async fn run(self) {
        let mut sends = JoinSet::new();
        loop {
            let (due, next_at) = self.take_due(Instant::now());
            for (key, link, report) in due {
                sends.spawn(self.clone().send(key, link, report));
            }
            tokio::select! {
                () = self.0.has_work.notified() => {}
                Some(_) = sends.join_next() => {}
                () = tokio::time::sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => {}
            }
        }
    }

    async fn send(self, (job, attempt): Key, link: PlaneLink, report: LiveReport) {
        let sent = link.send_report(job, attempt, &report).await;
        if let Err(error) = &sent {
            debug!(%job, %attempt, %error, "live report not accepted");
        }
        self.sent((job, attempt), &report, &sent);
    }

    fn sent(&self, key: Key, report: &LiveReport, result: &Result<(), ReportError>) {
        if let Some(pending) = self.state().attempts.get_mut(&key) {
            pending.is_in_flight = false;
            pending.changes_sent = pending.changes_taken;
            if let Err(ReportError::Unreachable(_)) = result {
                // Messages are lost, as they are for a client that connects late; progress and outputs are sent again.
                pending.is_progress_new |= report.progress.is_some();
                pending.is_outputs_new |= report.outputs.is_some();
                pending.next_at = Instant::now() + RETRY_INTERVAL;
            }
        }
        self.0.was_sent.notify_waiters();
    }

    /// The reports due now, and when the next one is due.
    fn take_due(&self, now: Instant) -> (Vec<(Key, PlaneLink, LiveReport)>, Option<Instant>) {
        let mut state = self.state();
        let Some(link) = state.link.clone() else { return (Vec::new(), None) };
        let ready = state.attempts.iter_mut().filter(|(_, it)| it.has_changes() && !it.is_in_flight);
        let (mut due, mut next_at) = (Vec::new(), None);
        for (key, pending) in ready {
            if pending.next_at <= now {
                due.push((*key, link.clone(), pending.report(now)));
            } else {
                next_at = Some(next_at.map_or(pending.next_at, |at: Instant| at.min(pending.next_at)));
            }
        }
        (due, next_at)
    }

    fn update(&self, key: Key, is_change: bool, change: impl FnOnce(&mut PendingReport)) {
        let mut state = self.state();
        let pending = state.attempts.entry(key).or_insert_with(PendingReport::new);
        let had_changes = pending.has_changes();
        change(pending);
        pending.changes += u64::from(is_change);
        if !had_changes && pending.has_changes() {
            self.0.has_work.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, QueuedReports> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingReport {
    fn new() -> Self {
        PendingReport {
            messages: VecDeque::new(),
            holds: VecDeque::new(),
            messages_bytes: 0,
            counters_bytes: 0,
            progress: None,
            outputs: None,
            is_progress_new: false,
            is_outputs_new: false,
            next_at: Instant::now() + FIRST_REPORT_DELAY,
            is_in_flight: false,
            changes: 0,
            changes_taken: 0,
            changes_sent: 0,
        }
    }

    fn has_changes(&self) -> bool {
        self.messages.front().is_some_and(|it| !self.is_held(it))
            || self.is_progress_new
            || self.is_outputs_new
    }

    /// A message that was too large is never sent.
    fn is_flushed(&self, changes: u64) -> bool {
        let is_idle = !self.is_in_flight && self.messages.is_empty() && !self.has_changes();
        self.changes_sent >= changes || is_idle
    }

    fn is_held(&self, message: &QueuedMessage) -> bool {
        self.holds.front().is_some_and(|after| message.number > *after)
    }

    /// A counter replaces an older value unless another message or a preview came between them: what a client sees keeps its
    /// order. When the queue is full, counters are dropped first, then the oldest message.
    fn push(&mut self, message: ServiceMessage) {
        let size = message.raw.get().len();
        if message.supersedes.is_some() {
            let last_hold = self.holds.back().copied().unwrap_or(0);
            let newest = self.messages.iter().rev().take_while(|it| it.number > last_hold);
            let counters = newest.map(|it| &it.message.supersedes).take_while(|it| it.is_some());
            let older = counters.enumerate().find(|(_, it)| **it == message.supersedes);
            if let Some(back) = older.map(|(back, _)| back) {
                self.drop_message(self.messages.len() - 1 - back);
            }
            self.counters_bytes += size;
        }
        self.messages_bytes += size;
        self.messages.push_back(QueuedMessage { number: self.changes + 1, message });
        while self.messages.len() > MESSAGES_MAX
            || self.messages_bytes > MESSAGES_BYTES_MAX
            || self.counters_bytes > COUNTERS_BYTES_MAX
        {
            let first = self.messages.iter().position(|it| it.message.supersedes.is_some()).unwrap_or(0);
            self.drop_message(first);
        }
    }

    fn drop_message(&mut self, at: usize) -> Option<ServiceMessage> {
        let QueuedMessage { message, .. } = self.messages.remove(at)?;
        let size = message.raw.get().len();
        self.messages_bytes -= size;
        self.counters_bytes -= if message.supersedes.is_some() { size } else { 0 };
        Some(message)
    }

    /// Takes everything that changed since the last report and is not held.
    fn report(&mut self, now: Instant) -> LiveReport {
        let mut messages = Vec::new();
        while self.messages.front().is_some_and(|it| !self.is_held(it)) {
            messages.extend(self.drop_message(0).map(|message| message.raw));
        }
        let taken = self.messages.front().map_or(self.changes, |held| held.number - 1);
        (self.is_in_flight, self.next_at, self.changes_taken) = (true, now + REPORT_INTERVAL, taken);
        let is_new = (std::mem::take(&mut self.is_progress_new), std::mem::take(&mut self.is_outputs_new));
        LiveReport {
            messages,
            progress: self.progress.clone().filter(|_| is_new.0),
            outputs: self.outputs.clone().filter(|_| is_new.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_net::http_client::Credentials;

    fn message(text: &str, supersedes: Option<&str>) -> ServiceMessage {
        let raw = RawValue::from_string(format!("{text:?}")).unwrap();
        ServiceMessage { raw: Arc::from(raw), supersedes: supersedes.map(str::to_owned) }
    }

    fn pending(story: impl IntoIterator<Item = ServiceMessage>) -> PendingReport {
        let mut pending = PendingReport::new();
        story.into_iter().for_each(|message| pending.push(message));
        pending
    }

    fn texts(mut pending: PendingReport) -> Vec<String> {
        let report = pending.report(Instant::now());
        assert_eq!((pending.messages_bytes, pending.messages.len()), (0, 0));
        report.messages.iter().map(|raw| raw.get().trim_matches('"').to_owned()).collect()
    }

    #[test]
    fn only_the_newest_value_of_a_counter_is_reported_and_the_order_stays() {
        let (one, two) = (Some("progress 1"), Some("progress 2"));
        let story = [("start", None), ("1/9", one), ("1/3", two), ("2/9", one), ("next", None), ("3/9", one)];
        let pending = pending(story.map(|(text, supersedes)| message(text, supersedes)));
        assert_eq!(texts(pending), ["start", "1/3", "2/9", "next", "3/9"]);
    }

    #[test]
    fn counters_of_a_large_graph_take_little_room() {
        let state = "x".repeat(COUNTERS_BYTES_MAX / 4);
        let story = (0..40)
            .flat_map(|node| [message(&format!("{node}"), None), message(&state, Some("progress_state"))]);
        let pending = pending(story);
        let counters = pending.messages.iter().filter(|it| it.message.supersedes.is_some()).count();
        assert_eq!((pending.messages.len() - counters, counters), (40, 3), "the newest ones");
        assert!(pending.messages.back().unwrap().message.supersedes.is_some());
    }

    #[test]
    fn full_queue_drops_counters_first_and_then_the_oldest() {
        let counts = (0..10).map(|node| message("count", Some(&format!("progress {node}"))));
        let rest = (0..MESSAGES_MAX + 2).map(|n| message(&n.to_string(), None));
        let texts = texts(pending(counts.chain(rest)));
        assert_eq!(texts.len(), MESSAGES_MAX);
        assert_eq!((texts[0].as_str(), texts.iter().any(|it| it == "count")), ("2", false));
        let large = "x".repeat(MESSAGES_BYTES_MAX / 2);
        assert_eq!(pending([message(&large, None), message(&large, None)]).messages.len(), 1);
        let too_large = "x".repeat(MESSAGES_BYTES_MAX);
        assert_eq!(pending([message(&too_large, None)]).messages.len(), 0);
    }

    #[tokio::test]
    async fn flush_waits_for_what_was_added_before_it_only() {
        let reports = LiveReports::default();
        let (job, attempt) = (JobId::from_u128(1), Attempt(1));
        let link =
            PlaneLink::new("http://127.0.0.1:9", "w".parse().unwrap(), Credentials::default(), "".as_ref());
        reports.set_link(link);
        let mut flush = Box::pin(reports.flush(job, attempt));
        assert!(futures_util::poll!(&mut flush).is_ready(), "nothing to send");
        reports.add(job, attempt, None, None);
        let mut flush = Box::pin(reports.flush(job, attempt));
        assert!(futures_util::poll!(&mut flush).is_ready(), "an image is no message");
        reports.add(job, attempt, Some(message("1/9", None)), None);
        let mut flush = Box::pin(reports.flush(job, attempt));
        assert!(futures_util::poll!(&mut flush).is_pending());
        assert_eq!(reports.take_due(Instant::now()).0.len(), 1, "at once, and not after the delay");
        reports.add(job, attempt, Some(message("2/9", None)), None);
        assert!(futures_util::poll!(&mut flush).is_pending(), "on its way");
        reports.sent((job, attempt), &LiveReport::default(), &Ok(()));
        assert!(futures_util::poll!(&mut flush).is_ready());
        assert!(reports.take_due(Instant::now()).0.is_empty(), "the next one waits again");
    }

    #[tokio::test]
    async fn messages_after_a_preview_wait_until_it_was_sent() {
        let reports = LiveReports::default();
        let (job, attempt) = (JobId::from_u128(1), Attempt(1));
        let link =
            PlaneLink::new("http://127.0.0.1:9", "w".parse().unwrap(), Credentials::default(), "".as_ref());
        reports.set_link(link);
        let add = |text: &str, key| reports.add(job, attempt, Some(message(text, key)), None);
        let sent = || {
            reports.send_now(job, attempt);
            let (due, _) = reports.take_due(Instant::now());
            reports.sent((job, attempt), &LiveReport::default(), &Ok(()));
            let raws = due.into_iter().flat_map(|(_, _, report)| report.messages);
            raws.map(|raw| raw.get().trim_matches('"').to_owned()).collect::<Vec<_>>()
        };
        let step = Some("progress 1");
        add("start", None);
        add("1/2", step);
        let first = reports.hold(job, attempt);
        add("2/2", step);
        let second = reports.hold(job, attempt);
        add("next", None);
        assert!(futures_util::poll!(Box::pin(reports.flush_before(&first))).is_pending());
        assert_eq!(sent(), ["start", "1/2"], "a preview has the counter of its step before it");
        assert!(futures_util::poll!(Box::pin(reports.flush_before(&first))).is_ready());
        assert_eq!(sent(), [""; 0]);
        drop(first);
        assert_eq!(sent(), ["2/2"]);
        assert!(futures_util::poll!(Box::pin(reports.flush(job, attempt))).is_pending(), "one is held");
        drop(second);
        assert_eq!(sent(), ["next"]);
        assert!(futures_util::poll!(Box::pin(reports.flush(job, attempt))).is_ready());
    }

    #[tokio::test]
    async fn progress_is_reported_again_only_after_another_join() {
        let reports = LiveReports::default();
        let (job, attempt) = (JobId::from_u128(1), Attempt(1));
        let soon = || Instant::now() + FIRST_REPORT_DELAY + REPORT_INTERVAL;
        let link =
            PlaneLink::new("http://127.0.0.1:9", "w".parse().unwrap(), Credentials::default(), "".as_ref());
        let began = Instant::now();
        reports.add(job, attempt, Some(message("start", None)), Some(ProgressSnapshot::default()));
        assert!(reports.take_due(soon()).0.is_empty(), "the worker has not joined yet");
        reports.set_link(link.clone());
        assert!(reports.take_due(began).0.is_empty(), "the first report waits for more messages");
        let (due, _) = reports.take_due(soon());
        assert_eq!((due.len(), due[0].2.messages.len(), due[0].2.progress.is_some()), (1, 1, true));
        reports.update((job, attempt), false, |pending| pending.is_in_flight = false);
        assert!(reports.take_due(soon() + REPORT_INTERVAL).0.is_empty());
        reports.set_link(link);
        let (due, _) = reports.take_due(soon() + REPORT_INTERVAL);
        assert_eq!((due.len(), due[0].2.messages.len(), due[0].2.progress.is_some()), (1, 0, true));
        reports.retain(&BTreeSet::new());
        assert!(reports.state().attempts.is_empty());
    }
}
