//! Pictures of attempts under way, on their way to the plane: of each attempt only the newest, at most two a second, and
//! dropped for any reason. Nothing waits for them and nothing depends on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use tokio::sync::Notify;
use tracing::debug;

use super::link::Link;
use remuda_core::wire::preview::{PREVIEW_BYTES_MAX, PreviewFormat};

/// Two a second: more than that nobody sees, and a sampler makes dozens.
const SEND_EVERY: Duration = Duration::from_millis(500);

/// Clones share what waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Previews(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    is_there: Notify,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Picture {
    /// Which part of the workflow it shows, if that was said.
    node: Option<String>,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: BTreeMap<(JobId, Attempt), Picture>,
    /// Only who has joined has a token to send them with.
    link: Option<Link>,
}

impl Previews {
    /// Takes the place of an older one that was not sent yet.
    pub(super) fn offer(&self, job: JobId, attempt: Attempt, node: Option<&str>, bytes: &[u8]) {
        if bytes.len() > PREVIEW_BYTES_MAX || PreviewFormat::of(bytes).is_none() {
            return;
        }
        let picture = Picture { node: node.map(str::to_owned), bytes: Bytes::copy_from_slice(bytes) };
        self.waiting().newest.insert((job, attempt), picture);
        self.0.is_there.notify_one();
    }

    pub(super) fn forget(&self, job: JobId, attempt: Attempt) {
        self.waiting().newest.remove(&(job, attempt));
    }

    pub(super) fn send_over(&self, link: Link) {
        self.waiting().link = Some(link);
    }

    /// Never ends by itself.
    pub(super) async fn run(self) {
        loop {
            self.0.is_there.notified().await;
            let next_at = tokio::time::Instant::now() + SEND_EVERY;
            let (link, newest) = self.take();
            for ((job, attempt), Picture { node, bytes }) in newest {
                if let Some(link) = &link
                    && let Err(why) = link.preview(job, attempt, node.as_deref(), bytes).await
                {
                    debug!(%job, %attempt, %why, "a preview was not taken");
                }
            }
            tokio::time::sleep_until(next_at).await;
        }
    }

    fn take(&self) -> (Option<Link>, BTreeMap<(JobId, Attempt), Picture>) {
        let mut waiting = self.waiting();
        (waiting.link.clone(), std::mem::take(&mut waiting.newest))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_attempt_the_newest_waits_and_what_is_no_preview_does_not() {
        let previews = Previews::default();
        let (job, other) = (JobId::from_u128(1), JobId::from_u128(2));
        let jpeg = |last: u8| [0xff, 0xd8, 0xff, last];
        previews.offer(job, Attempt(1), None, &jpeg(1));
        previews.offer(job, Attempt(1), Some("3"), &jpeg(2));
        previews.offer(other, Attempt(1), None, &jpeg(3));
        previews.offer(job, Attempt(1), None, b"<html>");
        let large: Vec<u8> = jpeg(4).into_iter().chain(vec![0; PREVIEW_BYTES_MAX]).collect();
        previews.offer(job, Attempt(1), None, &large);
        previews.forget(other, Attempt(1));
        let (_, newest) = previews.take();
        let picture = Picture { node: Some("3".to_owned()), bytes: Bytes::from(jpeg(2).to_vec()) };
        assert_eq!(newest.into_iter().collect::<Vec<_>>(), [((job, Attempt(1)), picture)]);
        assert!(previews.take().1.is_empty());
    }
}
