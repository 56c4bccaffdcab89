//! Preview images of running attempts, on their way to the plane: only the newest of each attempt, at most two a second.
//! A preview may be dropped at any time; no decision depends on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use tokio::sync::Notify;
use tracing::debug;

use remuda_core::wire::preview::{PREVIEW_BYTES_MAX, PreviewFormat};

use crate::plane_link::PlaneLink;

/// Two a second are enough to follow a run; a sampler makes dozens.
const SEND_INTERVAL: Duration = Duration::from_millis(500);

/// The previews of all attempts; clones share one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Previews(Arc<PreviewQueue>);

#[derive(Debug, Default)]
struct PreviewQueue {
    state: Mutex<QueuedPreviews>,
    has_work: Notify,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingPreview {
    /// The node it shows, if the service named it.
    node: Option<String>,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct QueuedPreviews {
    newest: BTreeMap<(JobId, Attempt), PendingPreview>,
    /// None until the worker has joined and has a token.
    link: Option<PlaneLink>,
}

impl Previews {
    /// Replaces an older preview that was not sent yet.
    pub(crate) fn add(&self, job: JobId, attempt: Attempt, node: Option<&str>, bytes: &[u8]) {
        if bytes.len() > PREVIEW_BYTES_MAX || PreviewFormat::detect(bytes).is_none() {
            return;
        }
        let picture = PendingPreview { node: node.map(str::to_owned), bytes: Bytes::copy_from_slice(bytes) };
        self.state().newest.insert((job, attempt), picture);
        self.0.has_work.notify_one();
    }

    pub(crate) fn remove(&self, job: JobId, attempt: Attempt) {
        self.state().newest.remove(&(job, attempt));
    }

    pub(crate) fn set_link(&self, link: PlaneLink) {
        self.state().link = Some(link);
    }

    /// Sends previews until the task is dropped.
    pub(crate) async fn run(self) {
        loop {
            self.0.has_work.notified().await;
            let next_at = tokio::time::Instant::now() + SEND_INTERVAL;
            let (link, newest) = self.take();
            for ((job, attempt), PendingPreview { node, bytes }) in newest {
                if let Some(link) = &link
                    && let Err(error) = link.send_preview(job, attempt, node.as_deref(), bytes).await
                {
                    debug!(%job, %attempt, %error, "preview not accepted");
                }
            }
            tokio::time::sleep_until(next_at).await;
        }
    }

    fn take(&self) -> (Option<PlaneLink>, BTreeMap<(JobId, Attempt), PendingPreview>) {
        let mut state = self.state();
        (state.link.clone(), std::mem::take(&mut state.newest))
    }

    fn state(&self) -> MutexGuard<'_, QueuedPreviews> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_preview_of_each_attempt_is_queued_and_other_bytes_are_not() {
        let previews = Previews::default();
        let (job, other) = (JobId::from_u128(1), JobId::from_u128(2));
        let jpeg = |last: u8| [0xff, 0xd8, 0xff, last];
        previews.add(job, Attempt(1), None, &jpeg(1));
        previews.add(job, Attempt(1), Some("3"), &jpeg(2));
        previews.add(other, Attempt(1), None, &jpeg(3));
        previews.add(job, Attempt(1), None, b"<html>");
        let large: Vec<u8> = jpeg(4).into_iter().chain(vec![0; PREVIEW_BYTES_MAX]).collect();
        previews.add(job, Attempt(1), None, &large);
        previews.remove(other, Attempt(1));
        let (_, newest) = previews.take();
        let picture = PendingPreview { node: Some("3".to_owned()), bytes: Bytes::from(jpeg(2).to_vec()) };
        assert_eq!(newest.into_iter().collect::<Vec<_>>(), [((job, Attempt(1)), picture)]);
        assert!(previews.take().1.is_empty());
    }
}
