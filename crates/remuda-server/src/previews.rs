//! The newest previews of each running job, in memory only. A preview ends with its attempt; when all of them together are
//! too large, the oldest is dropped. A few of each job, and those of the jobs that ended last, are kept for readers that were
//! told of one and have not read it yet: the end of a job must not overtake its last previews.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use remuda_core::wire::preview::PreviewFormat;

/// Of all jobs together; enough for a thousand running jobs.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Of one job.
const RECENT_MAX: usize = 8;
/// Jobs that ended last. A reader is behind by milliseconds, in which few jobs end.
const ENDED_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    pub attempt: Attempt,
    pub media: PreviewFormat,
    pub bytes: Bytes,
    /// The node it shows, if the worker named one.
    pub node: Option<String>,
}

/// Clones share the previews.
#[derive(Clone, Debug, Default)]
pub struct Previews(Arc<Mutex<StoredPreviews>>);

#[derive(Debug, Default)]
struct StoredPreviews {
    /// Oldest first, each with its number.
    previews: BTreeMap<JobId, VecDeque<(u64, Preview)>>,
    /// By number, which grows with time.
    order: BTreeMap<u64, JobId>,
    /// Jobs whose attempt has ended, the oldest first.
    ended: VecDeque<JobId>,
    number: u64,
    bytes: usize,
}

impl Previews {
    /// Returns the number of the preview.
    pub fn insert(&self, job: JobId, preview: Preview) -> u64 {
        let mut stored = self.lock();
        if let Some(at) = stored.ended.iter().position(|it| *it == job) {
            stored.ended.remove(at);
            stored.remove_all(job);
        }
        stored.number += 1;
        stored.bytes += preview.bytes.len();
        let number = stored.number;
        let previews = stored.previews.entry(job).or_default();
        previews.push_back((number, preview));
        let is_full = previews.len() > RECENT_MAX;
        stored.order.insert(number, job);
        if is_full {
            stored.remove_oldest(job);
        }
        while stored.bytes > ALL_BYTES_MAX
            && let Some((_, job)) = stored.order.first_key_value()
        {
            let job = *job;
            stored.remove_oldest(job);
        }
        number
    }

    /// The newest preview of a running job.
    pub fn find(&self, job: JobId) -> Option<Preview> {
        let stored = self.lock();
        if stored.ended.contains(&job) {
            return None;
        }
        stored.previews.get(&job)?.back().map(|(_, preview)| preview.clone())
    }

    /// This preview, if it is among the newest of its job, which may just have ended.
    pub fn find_number(&self, job: JobId, number: u64) -> Option<Preview> {
        let stored = self.lock();
        let mut previews = stored.previews.get(&job)?.iter();
        previews.find(|(it, _)| *it == number).map(|(_, preview)| preview.clone())
    }

    /// Called when the attempt has ended.
    pub fn remove(&self, job: JobId) {
        let mut stored = self.lock();
        if !stored.previews.contains_key(&job) || stored.ended.contains(&job) {
            return;
        }
        stored.ended.push_back(job);
        if stored.ended.len() > ENDED_MAX
            && let Some(oldest) = stored.ended.pop_front()
        {
            stored.remove_all(oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoredPreviews> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredPreviews {
    fn remove_all(&mut self, job: JobId) {
        while self.previews.contains_key(&job) {
            self.remove_oldest(job);
        }
    }

    fn remove_oldest(&mut self, job: JobId) {
        let Some(previews) = self.previews.get_mut(&job) else { return };
        if let Some((number, preview)) = previews.pop_front() {
            self.order.remove(&number);
            self.bytes -= preview.bytes.len();
        }
        if previews.is_empty() {
            self.previews.remove(&job);
            self.ended.retain(|it| *it != job);
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::wire::preview::PREVIEW_BYTES_MAX;

    use super::*;

    fn preview(attempt: u32, size: usize) -> Preview {
        Preview {
            attempt: Attempt(attempt),
            media: PreviewFormat::Jpeg,
            bytes: vec![0; size].into(),
            node: None,
        }
    }

    #[test]
    fn only_the_newest_previews_of_a_job_are_stored_and_none_after_its_end() {
        let previews = Previews::default();
        let job = JobId::from_u128(1);
        previews.insert(job, preview(1, 10));
        previews.insert(job, preview(2, 20));
        assert_eq!(previews.find(job).unwrap().attempt, Attempt(2));
        assert_eq!(previews.lock().bytes, 30);
        assert_eq!(previews.find_number(job, 1).unwrap().attempt, Attempt(1));
        for _ in 0..RECENT_MAX {
            previews.insert(job, preview(2, 20));
        }
        assert!(previews.find_number(job, 2).is_none() && previews.find_number(job, 3).is_some());
        assert_eq!(previews.lock().bytes, 20 * RECENT_MAX);
        previews.remove(job);
        previews.remove(job);
        assert!(previews.find(job).is_none());
        assert!(previews.find_number(job, 3).is_some(), "a reader may not have read it yet");
        previews.insert(job, preview(3, 10));
        assert_eq!(previews.find(job).unwrap().attempt, Attempt(3), "another attempt");
        assert!(previews.find_number(job, 3).is_none());
        for job in 1..=ENDED_MAX as u128 + 2 {
            previews.insert(JobId::from_u128(job), preview(1, 10));
            previews.remove(JobId::from_u128(job));
        }
        let stored = previews.lock();
        let counts = (stored.order.len(), stored.previews.len(), stored.ended.len());
        assert_eq!((stored.bytes, counts), (10 * ENDED_MAX, (ENDED_MAX, ENDED_MAX, ENDED_MAX)));
    }

    #[test]
    fn the_preview_updated_longest_ago_is_dropped_when_they_grow_too_large() {
        let previews = Previews::default();
        let jobs: Vec<_> = (0..65).map(JobId::from_u128).collect();
        for job in &jobs[..64] {
            previews.insert(*job, preview(1, PREVIEW_BYTES_MAX));
        }
        previews.insert(jobs[0], preview(1, PREVIEW_BYTES_MAX));
        previews.insert(jobs[64], preview(1, PREVIEW_BYTES_MAX));
        let has: Vec<_> = jobs.iter().map(|job| previews.find(*job).is_some()).collect();
        assert!(has[0] && !has[1] && has[2..].iter().all(|has| *has), "{has:?}");
        assert_eq!(previews.lock().bytes, ALL_BYTES_MAX);
    }
}
