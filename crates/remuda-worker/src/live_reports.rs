//! What attempts are doing, on its way to the plane: what the service said, how far it is, which outputs are stored. Who
//! offers something never waits, what waits is bounded, and nothing is decided by any of it.
//!
//! ```text
//!  ears ──▶ messages, progress ─┐
//!                               ├──▶ first after 50 ms, then every 100 ms, at the end at once ──▶ PUT …/live
//!  early ──▶ outputs ───────────┘
//! ```
//!
//! So a run that is answered from the cache is told in one report, on its way while the outputs are fetched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::id::{Attempt, JobId};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use super::link::{Link, Untold};
use remuda_core::wire::live::{LiveReport, ProgressSnapshot};

/// Nobody sees the difference, and a run that ends sooner costs one request.
const FIRST_AFTER: Duration = Duration::from_millis(50);
/// Ten a second: more than that nobody sees, and a sampler counts faster.
const SEND_EVERY: Duration = Duration::from_millis(100);
/// While the plane does not answer.
const SEND_AGAIN: Duration = Duration::from_secs(1);
/// An end waits so long for what was said before it.
const TOLD_MAX: Duration = Duration::from_millis(300);
/// What waits for one attempt: a graph of hundreds of nodes in the time between two reports.
const MESSAGES_MAX: usize = 2_000;
const MESSAGES_BYTES_MAX: usize = 1 << 20;

type Key = (JobId, Attempt);

/// Something a service said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) raw: Arc<RawValue>,
    /// Of messages with the same name here only the newest matters.
    pub(super) count_of: Option<String>,
}

/// Clones share what waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    is_there: Notify,
    is_told: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    attempts: BTreeMap<Key, Pending>,
    /// Only who has joined has a token to send them with.
    link: Option<Link>,
}

/// What is told of one attempt; what was told already is kept for a plane that knows nothing of it.
#[derive(Debug)]
struct Pending {
    messages: VecDeque<Said>,
    messages_bytes: usize,
    progress: Option<ProgressSnapshot>,
    outputs: Option<Vec<Arc<RawValue>>>,
    is_progress_new: bool,
    is_outputs_new: bool,
    /// Not before.
    next_at: Instant,
    /// One at a time, so that they arrive in order.
    is_on_its_way: bool,
}

impl Reports {
    /// Takes in what was said and how far it is by that.
    pub(super) fn heard(
        &self,
        job: JobId,
        attempt: Attempt,
        said: Option<Said>,
        progress: Option<ProgressSnapshot>,
    ) {
        self.change((job, attempt), |pending| {
            if let Some(said) = said {
                pending.say(said);
            }
            if progress.is_some() {
                (pending.progress, pending.is_progress_new) = (progress, true);
            }
        });
    }

    /// All outputs that are stored by now.
    pub(super) fn stored(&self, job: JobId, attempt: Attempt, outputs: Vec<Arc<RawValue>>) {
        self.change((job, attempt), |pending| {
            (pending.outputs, pending.is_outputs_new) = (Some(outputs), true);
        });
    }

    /// Nothing more will be said: what waits need not wait for more.
    pub(super) fn hurry(&self, job: JobId, attempt: Attempt) {
        if let Some(pending) = self.waiting().attempts.get_mut(&(job, attempt)) {
            pending.next_at = Instant::now();
        }
        self.0.is_there.notify_one();
    }

    /// Until all that was offered has been told, or a moment has passed.
    pub(super) async fn told(&self, job: JobId, attempt: Attempt) {
        self.hurry(job, attempt);
        let told = async {
            loop {
                let is_told = self.0.is_told.notified();
                if self.waiting().attempts.get(&(job, attempt)).is_none_or(Pending::is_told) {
                    return;
                }
                is_told.await;
            }
        };
        if tokio::time::timeout(TOLD_MAX, told).await.is_err() {
            debug!(%job, %attempt, "its end does not wait longer for what was said before it");
        }
    }

    /// Whatever the agent does not hold is over.
    pub(super) fn keep_only(&self, held: &BTreeSet<Key>) {
        self.waiting().attempts.retain(|key, _| held.contains(key));
    }

    /// A plane that was joined just now may know nothing of what was told before.
    pub(super) fn send_over(&self, link: Link) {
        let mut waiting = self.waiting();
        waiting.link = Some(link);
        for pending in waiting.attempts.values_mut() {
            pending.is_progress_new = pending.progress.is_some();
            pending.is_outputs_new = pending.outputs.is_some();
        }
        drop(waiting);
        self.0.is_there.notify_one();
    }

    /// Never ends by itself.
    pub(super) async fn run(self) {
        let mut sends = JoinSet::new();
        loop {
            let (due, next_at) = self.take(Instant::now());
            for (key, link, report) in due {
                sends.spawn(self.clone().send(key, link, report));
            }
            tokio::select! {
                () = self.0.is_there.notified() => {}
                Some(_) = sends.join_next() => {}
                () = tokio::time::sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => {}
            }
        }
    }

    async fn send(self, (job, attempt): Key, link: Link, report: LiveReport) {
        let told = link.live(job, attempt, &report).await;
        if let Err(why) = &told {
            debug!(%job, %attempt, %why, "a report was not taken");
        }
        if let Some(pending) = self.waiting().attempts.get_mut(&(job, attempt)) {
            pending.is_on_its_way = false;
            if let Err(Untold::Unreachable(_)) = told {
                // Words are lost, as they are for whoever comes late; how it stands is told again.
                pending.is_progress_new |= report.progress.is_some();
                pending.is_outputs_new |= report.outputs.is_some();
                pending.next_at = Instant::now() + SEND_AGAIN;
            }
        }
        self.0.is_told.notify_waiters();
    }

    /// What is due now, and when the next is.
    fn take(&self, now: Instant) -> (Vec<(Key, Link, LiveReport)>, Option<Instant>) {
        let mut waiting = self.waiting();
        let Some(link) = waiting.link.clone() else { return (Vec::new(), None) };
        let ready = waiting.attempts.iter_mut().filter(|(_, it)| it.has_news() && !it.is_on_its_way);
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

    fn change(&self, key: Key, change: impl FnOnce(&mut Pending)) {
        let mut waiting = self.waiting();
        let pending = waiting.attempts.entry(key).or_insert_with(Pending::new);
        let had_news = pending.has_news();
        change(pending);
        if !had_news && pending.has_news() {
            self.0.is_there.notify_one();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn new() -> Self {
        Pending {
            messages: VecDeque::new(),
            messages_bytes: 0,
            progress: None,
            outputs: None,
            is_progress_new: false,
            is_outputs_new: false,
            next_at: Instant::now() + FIRST_AFTER,
            is_on_its_way: false,
        }
    }

    fn has_news(&self) -> bool {
        !self.messages.is_empty() || self.is_progress_new || self.is_outputs_new
    }

    fn is_told(&self) -> bool {
        !self.has_news() && !self.is_on_its_way
    }

    /// Counts go first when there is too much, then what is oldest.
    fn say(&mut self, said: Said) {
        if said.count_of.is_some()
            && let Some(older) = self.messages.iter().rposition(|it| it.count_of == said.count_of)
        {
            self.drop_message(older);
        }
        self.messages_bytes += said.raw.get().len();
        self.messages.push_back(said);
        while self.messages.len() > MESSAGES_MAX || self.messages_bytes > MESSAGES_BYTES_MAX {
            let first = self.messages.iter().position(|it| it.count_of.is_some()).unwrap_or(0);
            self.drop_message(first);
        }
    }

    fn drop_message(&mut self, at: usize) {
        if let Some(said) = self.messages.remove(at) {
            self.messages_bytes -= said.raw.get().len();
        }
    }

    /// Takes out what is new.
    fn report(&mut self, now: Instant) -> LiveReport {
        (self.is_on_its_way, self.next_at) = (true, now + SEND_EVERY);
        self.messages_bytes = 0;
        let is_new = (std::mem::take(&mut self.is_progress_new), std::mem::take(&mut self.is_outputs_new));
        LiveReport {
            messages: self.messages.drain(..).map(|said| said.raw).collect(),
            progress: self.progress.clone().filter(|_| is_new.0),
            outputs: self.outputs.clone().filter(|_| is_new.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_net::http_client::Credentials;

    fn said(text: &str, count_of: Option<&str>) -> Said {
        let raw = RawValue::from_string(format!("{text:?}")).unwrap();
        Said { raw: Arc::from(raw), count_of: count_of.map(str::to_owned) }
    }

    fn pending(story: impl IntoIterator<Item = Said>) -> Pending {
        let mut pending = Pending::new();
        story.into_iter().for_each(|said| pending.say(said));
        pending
    }

    fn words(mut pending: Pending) -> Vec<String> {
        let report = pending.report(Instant::now());
        assert_eq!((pending.messages_bytes, pending.messages.len()), (0, 0));
        report.messages.iter().map(|raw| raw.get().trim_matches('"').to_owned()).collect()
    }

    #[test]
    fn of_counts_the_newest_is_told_and_all_else_in_order() {
        let (one, two) = (Some("progress 1"), Some("progress 2"));
        let story = [("start", None), ("1/9", one), ("2/9", one), ("1/3", two), ("next", None), ("3/9", one)];
        let pending = pending(story.map(|(text, count_of)| said(text, count_of)));
        assert_eq!(words(pending), ["start", "1/3", "next", "3/9"]);
    }

    #[test]
    fn too_much_costs_counts_first_and_then_the_oldest() {
        let counts = (0..10).map(|node| said("count", Some(&format!("progress {node}"))));
        let rest = (0..MESSAGES_MAX + 2).map(|n| said(&n.to_string(), None));
        let words = words(pending(counts.chain(rest)));
        assert_eq!(words.len(), MESSAGES_MAX);
        assert_eq!((words[0].as_str(), words.iter().any(|it| it == "count")), ("2", false));
        let large = "x".repeat(MESSAGES_BYTES_MAX / 2);
        assert_eq!(pending([said(&large, None), said(&large, None)]).messages.len(), 1);
        let too_large = "x".repeat(MESSAGES_BYTES_MAX);
        assert_eq!(pending([said(&too_large, None)]).messages.len(), 0);
    }

    #[tokio::test]
    async fn what_is_told_once_is_told_again_only_to_another_plane() {
        let reports = Reports::default();
        let (job, attempt) = (JobId::from_u128(1), Attempt(1));
        let soon = || Instant::now() + FIRST_AFTER + SEND_EVERY;
        let link = Link::new("http://127.0.0.1:9", "w".parse().unwrap(), Credentials::default(), "".as_ref());
        let began = Instant::now();
        reports.heard(job, attempt, Some(said("start", None)), Some(ProgressSnapshot::default()));
        assert!(reports.take(soon()).0.is_empty(), "nobody has joined yet");
        reports.send_over(link.clone());
        assert!(reports.take(began).0.is_empty(), "more may come in a moment");
        let (due, _) = reports.take(soon());
        assert_eq!((due.len(), due[0].2.messages.len(), due[0].2.progress.is_some()), (1, 1, true));
        reports.change((job, attempt), |pending| pending.is_on_its_way = false);
        assert!(reports.take(soon() + SEND_EVERY).0.is_empty());
        reports.send_over(link);
        let (due, _) = reports.take(soon() + SEND_EVERY);
        assert_eq!((due.len(), due[0].2.messages.len(), due[0].2.progress.is_some()), (1, 0, true));
        reports.keep_only(&BTreeSet::new());
        assert!(reports.waiting().attempts.is_empty());
    }
}
