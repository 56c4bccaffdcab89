//! The newest preview of each running job: a picture to look at, in memory only and dropped first. It goes with the
//! attempt it shows; when all of them together become too large, the one that was not renewed for longest goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use remuda_core::id::{Attempt, JobId};
use remuda_core::wire::preview::PreviewFormat;

/// Of all jobs together; enough for a thousand that run at the same time.
const ALL_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    pub attempt: Attempt,
    pub media: PreviewFormat,
    pub bytes: Bytes,
    /// Which part of the workflow it shows, if that was said.
    pub node: Option<String>,
}

/// Clones share what they keep.
#[derive(Clone, Debug, Default)]
pub struct Previews(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// With the number under which it stands in `order`.
    previews: BTreeMap<JobId, (u64, Preview)>,
    /// The oldest first.
    order: BTreeMap<u64, JobId>,
    number: u64,
    bytes: usize,
}

impl Previews {
    pub fn keep(&self, job: JobId, preview: Preview) {
        let mut kept = self.kept();
        kept.remove(job);
        kept.number += 1;
        kept.bytes += preview.bytes.len();
        let number = kept.number;
        kept.previews.insert(job, (number, preview));
        kept.order.insert(number, job);
        while kept.bytes > ALL_BYTES_MAX
            && let Some((_, oldest)) = kept.order.first_key_value()
        {
            let oldest = *oldest;
            kept.remove(oldest);
        }
    }

    pub fn find(&self, job: JobId) -> Option<Preview> {
        self.kept().previews.get(&job).map(|(_, preview)| preview.clone())
    }

    /// The attempt is over: what it looked like on the way is of no more use.
    pub fn forget(&self, job: JobId) {
        self.kept().remove(job);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
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
    fn only_the_newest_of_a_job_is_kept_and_nothing_after_its_end() {
        let previews = Previews::default();
        let job = JobId::from_u128(1);
        previews.keep(job, preview(1, 10));
        previews.keep(job, preview(2, 20));
        assert_eq!(previews.find(job).unwrap().attempt, Attempt(2));
        assert_eq!(previews.kept().bytes, 20);
        previews.forget(job);
        previews.forget(job);
        assert!(previews.find(job).is_none());
        let kept = previews.kept();
        assert_eq!((kept.bytes, kept.order.len(), kept.previews.len()), (0, 0, 0));
    }

    #[test]
    fn when_there_are_too_many_the_one_that_was_not_renewed_for_longest_goes() {
        let previews = Previews::default();
        let jobs: Vec<_> = (0..65).map(JobId::from_u128).collect();
        for job in &jobs[..64] {
            previews.keep(*job, preview(1, PREVIEW_BYTES_MAX));
        }
        previews.keep(jobs[0], preview(1, PREVIEW_BYTES_MAX));
        previews.keep(jobs[64], preview(1, PREVIEW_BYTES_MAX));
        let has: Vec<_> = jobs.iter().map(|job| previews.find(*job).is_some()).collect();
        assert!(has[0] && !has[1] && has[2..].iter().all(|has| *has), "{has:?}");
        assert_eq!(previews.kept().bytes, ALL_BYTES_MAX);
    }
}
