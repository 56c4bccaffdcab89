//! The newest preview of each running job, in memory only. A preview ends with its attempt; when all of them together are
//! too large, the one updated longest ago is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use remuda_core::wire::preview::PreviewFormat;

/// Of all jobs together; enough for a thousand running jobs.
const ALL_BYTES_MAX: usize = 64 << 20;

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
    /// With its key in `order`.
    previews: BTreeMap<JobId, (u64, Preview)>,
    /// Oldest update first.
    order: BTreeMap<u64, JobId>,
    number: u64,
    bytes: usize,
}

impl Previews {
    pub fn insert(&self, job: JobId, preview: Preview) {
        let mut stored = self.lock();
        stored.remove(job);
        stored.number += 1;
        stored.bytes += preview.bytes.len();
        let number = stored.number;
        stored.previews.insert(job, (number, preview));
        stored.order.insert(number, job);
        while stored.bytes > ALL_BYTES_MAX
            && let Some((_, oldest)) = stored.order.first_key_value()
        {
            let oldest = *oldest;
            stored.remove(oldest);
        }
    }

    pub fn find(&self, job: JobId) -> Option<Preview> {
        self.lock().previews.get(&job).map(|(_, preview)| preview.clone())
    }

    /// Called when the attempt has ended.
    pub fn remove(&self, job: JobId) {
        self.lock().remove(job);
    }

    fn lock(&self) -> MutexGuard<'_, StoredPreviews> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredPreviews {
    fn remove(&mut self, job: JobId) {
        if let Some((number, preview)) = self.previews.remove(&job) {
            self.order.remove(&number);
            self.bytes -= preview.bytes.len();
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
    fn only_the_newest_preview_of_a_job_is_stored_and_none_after_its_end() {
        let previews = Previews::default();
        let job = JobId::from_u128(1);
        previews.insert(job, preview(1, 10));
        previews.insert(job, preview(2, 20));
        assert_eq!(previews.find(job).unwrap().attempt, Attempt(2));
        assert_eq!(previews.lock().bytes, 20);
        previews.remove(job);
        previews.remove(job);
        assert!(previews.find(job).is_none());
        let stored = previews.lock();
        assert_eq!((stored.bytes, stored.order.len(), stored.previews.len()), (0, 0, 0));
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
