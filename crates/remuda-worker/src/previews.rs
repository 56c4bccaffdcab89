//! Preview images of running attempts, on their way to the plane. While a client watches the attempt, every preview is sent,
//! as ComfyUI does; otherwise only the newest, at most two a second. The plane says in each answer whether a client watches.
//! A preview may be dropped at any time; no decision depends on it.
//!
//! A preview comes after the messages that came before it, and before those that came after it: some clients take its node
//! from the last `progress`, and fail if there was none, others from the last `executing`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use remuda_core::wire::preview::{PREVIEW_BYTES_MAX, PreviewFormat};

use crate::live_reports::{FLUSH_TIMEOUT, LiveReports, ReportHold};
use crate::plane_link::PlaneLink;

/// Two a second are enough for a client that looks later; a sampler makes dozens.
const SEND_INTERVAL: Duration = Duration::from_millis(500);
/// Previews of one attempt that wait while earlier ones are sent; the oldest are dropped.
const QUEUED_MAX: usize = 8;

/// The previews of all attempts; clones share one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Previews(Arc<PreviewQueue>);

#[derive(Debug, Default)]
struct PreviewQueue {
    state: Mutex<QueuedPreviews>,
    has_work: Notify,
    was_sent: Notify,
}

#[derive(Debug)]
struct PendingPreview {
    /// The node it shows, if the service named it.
    node: Option<String>,
    bytes: Bytes,
    /// Keeps later messages behind it, while a client watches.
    hold: Option<ReportHold>,
}

#[derive(Debug, Default)]
struct QueuedPreviews {
    attempts: BTreeMap<Key, AttemptPreviews>,
    /// None until the worker has joined and has a token.
    link: Option<PlaneLink>,
}

#[derive(Debug)]
struct AttemptPreviews {
    queue: VecDeque<PendingPreview>,
    /// The last answer of the plane; before the first one, a client may well be watching.
    is_watched: bool,
    /// While no client watches: when the newest is sent.
    next_at: Instant,
    is_in_flight: bool,
}

impl AttemptPreviews {
    fn new() -> AttemptPreviews {
        AttemptPreviews {
            queue: VecDeque::new(),
            is_watched: true,
            next_at: Instant::now(),
            is_in_flight: false,
        }
    }

    /// Whether a client that watches has everything.
    fn is_flushed(&self) -> bool {
        !self.is_in_flight && (self.queue.is_empty() || !self.is_watched)
    }

    /// What is to be sent now.
    fn take_due(&mut self, now: Instant) -> Option<PendingPreview> {
        let due = if self.is_watched {
            self.queue.pop_front()
        } else if now < self.next_at {
            None
        } else {
            let newest = self.queue.pop_back();
            self.queue.clear();
            newest
        };
        self.is_in_flight = due.is_some();
        due
    }
}

type Key = (JobId, Attempt);

impl Previews {
    pub(crate) fn add(
        &self,
        job: JobId,
        attempt: Attempt,
        node: Option<&str>,
        bytes: &[u8],
        hold: Option<ReportHold>,
    ) {
        if bytes.len() > PREVIEW_BYTES_MAX || PreviewFormat::detect(bytes).is_none() {
            return;
        }
        let mut state = self.state();
        let previews = state.attempts.entry((job, attempt)).or_insert_with(AttemptPreviews::new);
        let hold = hold.filter(|_| previews.is_watched);
        let bytes = Bytes::copy_from_slice(bytes);
        let picture = PendingPreview { node: node.map(str::to_owned), bytes, hold };
        let queue = &mut previews.queue;
        if queue.len() == QUEUED_MAX {
            queue.pop_front();
        }
        queue.push_back(picture);
        self.0.has_work.notify_one();
    }

    pub(crate) fn remove(&self, job: JobId, attempt: Attempt) {
        self.state().attempts.remove(&(job, attempt));
    }

    pub(crate) fn set_link(&self, link: PlaneLink) {
        self.state().link = Some(link);
        self.0.has_work.notify_one();
    }

    /// Waits until a client that watches has all previews so far, or the flush timeout has passed.
    pub(crate) async fn flush(&self, job: JobId, attempt: Attempt) {
        let flushed = async {
            loop {
                let was_sent = self.0.was_sent.notified();
                if self.state().attempts.get(&(job, attempt)).is_none_or(AttemptPreviews::is_flushed) {
                    return;
                }
                was_sent.await;
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
            debug!(%job, %attempt, "reporting the result before all previews were sent");
        }
    }

    /// Sends previews until the task is dropped.
    pub(crate) async fn run(self, reports: LiveReports) {
        loop {
            let (link, due, next_at) = self.take_due(Instant::now());
            let Some(link) = link.filter(|_| !due.is_empty()) else {
                let sleep = async { tokio::time::sleep_until(next_at.unwrap_or_else(Instant::now)).await };
                tokio::select! {
                    () = self.0.has_work.notified() => {}
                    () = sleep, if next_at.is_some() => {}
                }
                continue;
            };
            for ((job, attempt), PendingPreview { node, bytes, hold }) in due {
                match &hold {
                    Some(hold) => reports.flush_before(hold).await,
                    None => reports.flush(job, attempt).await,
                }
                let sent = link.send_preview(job, attempt, node.as_deref(), bytes).await;
                let is_watched = sent.unwrap_or_else(|error| {
                    debug!(%job, %attempt, %error, "preview not accepted");
                    false
                });
                drop(hold);
                self.apply_answer((job, attempt), is_watched, Instant::now());
            }
        }
    }

    /// One preview of each attempt that has one to send, and when the next is due.
    fn take_due(&self, now: Instant) -> (Option<PlaneLink>, Vec<(Key, PendingPreview)>, Option<Instant>) {
        let mut state = self.state();
        let Some(link) = state.link.clone() else { return (None, Vec::new(), None) };
        let mut due = Vec::new();
        for (key, previews) in &mut state.attempts {
            due.extend(previews.take_due(now).map(|preview| (*key, preview)));
        }
        let waiting = state.attempts.values().filter(|it| !it.queue.is_empty());
        (Some(link), due, waiting.map(|it| it.next_at).min())
    }

    fn apply_answer(&self, key: Key, is_watched: bool, now: Instant) {
        // It may have ended meanwhile.
        if let Some(previews) = self.state().attempts.get_mut(&key) {
            (previews.is_watched, previews.next_at) = (is_watched, now + SEND_INTERVAL);
            previews.is_in_flight = false;
            if !is_watched {
                previews.queue.iter_mut().for_each(|preview| preview.hold = None);
            }
        }
        self.0.was_sent.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, QueuedPreviews> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use remuda_net::http_client::Credentials;

    use super::*;

    fn jpeg(last: u8) -> [u8; 4] {
        [0xff, 0xd8, 0xff, last]
    }

    fn joined() -> Previews {
        let previews = Previews::default();
        let link =
            PlaneLink::new("http://127.0.0.1:9", "w".parse().unwrap(), Credentials::default(), "".as_ref());
        previews.set_link(link);
        previews
    }

    /// The last byte of each preview that is sent now.
    fn due(previews: &Previews, now: Instant) -> Vec<u8> {
        previews.take_due(now).1.into_iter().map(|(_, preview)| preview.bytes[3]).collect()
    }

    #[tokio::test]
    async fn all_previews_are_sent_while_somebody_watches_and_otherwise_the_newest() {
        let (previews, key) = (joined(), (JobId::from_u128(1), Attempt(1)));
        let now = Instant::now();
        for number in 1..=3 {
            previews.add(key.0, key.1, Some("3"), &jpeg(number), None);
        }
        for number in 1..=3 {
            assert_eq!(due(&previews, now), [number], "one after the other");
            previews.apply_answer(key, true, now);
        }
        assert_eq!(due(&previews, now), [0; 0]);
        (4..=6).for_each(|number| previews.add(key.0, key.1, None, &jpeg(number), None));
        previews.apply_answer(key, false, now);
        assert_eq!(due(&previews, now), [0; 0], "nobody watches: not so soon");
        assert_eq!(due(&previews, now + SEND_INTERVAL), [6], "only the newest");
        (1..=100).for_each(|number| previews.add(key.0, key.1, None, &jpeg(number), None));
        previews.apply_answer(key, true, now);
        let sent: Vec<u8> = std::iter::from_fn(|| due(&previews, now).pop()).collect();
        assert_eq!(sent, (93..=100).collect::<Vec<u8>>(), "a slow link loses the oldest");
    }

    #[tokio::test]
    async fn end_of_a_run_waits_for_the_previews_that_a_client_watches() {
        let (previews, key) = (joined(), (JobId::from_u128(1), Attempt(1)));
        let now = Instant::now();
        (1..=2).for_each(|number| previews.add(key.0, key.1, None, &jpeg(number), None));
        let mut flush = Box::pin(previews.flush(key.0, key.1));
        for number in 1..=2 {
            assert!(futures_util::poll!(&mut flush).is_pending());
            assert_eq!(due(&previews, now), [number]);
            assert!(futures_util::poll!(&mut flush).is_pending(), "on its way");
            previews.apply_answer(key, true, now);
        }
        assert!(futures_util::poll!(&mut flush).is_ready());
        previews.apply_answer(key, false, now);
        previews.add(key.0, key.1, None, &jpeg(3), None);
        assert!(futures_util::poll!(Box::pin(previews.flush(key.0, key.1))).is_ready(), "no client watches");
    }

    #[tokio::test]
    async fn only_images_of_running_attempts_are_queued() {
        let previews = joined();
        let (job, other) = (JobId::from_u128(1), JobId::from_u128(2));
        previews.add(job, Attempt(1), None, b"<html>", None);
        let large: Vec<u8> = jpeg(4).into_iter().chain(vec![0; PREVIEW_BYTES_MAX]).collect();
        previews.add(job, Attempt(1), None, &large, None);
        previews.add(other, Attempt(1), None, &jpeg(3), None);
        previews.remove(other, Attempt(1));
        previews.apply_answer((other, Attempt(1)), true, Instant::now());
        let (_, due, next_at) = previews.take_due(Instant::now());
        assert!(due.is_empty() && next_at.is_none());
    }
}
