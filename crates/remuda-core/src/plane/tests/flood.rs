//! What one tenant queues costs the others nothing. Work is counted, not timed.

use super::*;
use crate::need::COMPARISONS;
use crate::settings::quota::TenantQuota;

/// The jobs of the tenant that floods the queue.
const FLOOD: u32 = 5_000;

/// Comparisons of needs with a worker while one job of tenant `quiet` is submitted, runs and ends, behind `flood` waiting
/// jobs of another tenant that this worker cannot run.
fn comparisons_behind(flood: u32, needs: fn(u32) -> Requirements) -> u64 {
    // Not held back by its quota, which would bound the flood by itself.
    let quota = TenantQuota::unlimited();
    let mut story = Story::with(Settings { quota, ..Settings::default() });
    story.is_checked = false;
    story.join_with("a", |join| {
        join.offer.labels = [("zone".to_owned(), "eu".to_owned())].into();
        join.offer.vram_bytes = Some(8 << 30);
        join.offer.models = Some(["flux".to_owned(), "sdxl".to_owned()].into());
        join.offer.classes = Some(["KSampler".to_owned(), "SaveImage".to_owned()].into());
    });
    for n in 0..flood {
        let change = |it: &mut JobSubmission| {
            (it.job.tenant, it.job.needs) = ("flood".parse().unwrap(), needs(n));
            it.job.options.wait_for_capability = true;
        };
        story.submit_with("s", change).unwrap();
    }
    let before = COMPARISONS.get();
    let job = story.submit_with("s", |it| it.job.tenant = "quiet".parse().unwrap()).unwrap();
    story.is(job, "running on a");
    assert_eq!(story.complete("a", job), "recorded");
    let compared = COMPARISONS.get() - before;
    story.check("the flood");
    compared
}

/// Which of two labels is the common one shows with the second demand: so many may be filed under the wrong one.
const MISFILED_MAX: u64 = 4;

#[track_caller]
fn check(needs: fn(u32) -> Requirements) {
    check_within(MISFILED_MAX, needs);
}

#[track_caller]
fn check_within(misfiled_max: u64, needs: fn(u32) -> Requirements) {
    let (alone, behind) = (comparisons_behind(0, needs), comparisons_behind(FLOOD, needs));
    assert!(behind <= alone + misfiled_max, "{behind} comparisons instead of {alone}");
}

fn labels<const N: usize>(labels: [(&str, String); N]) -> Requirements {
    let labels = labels.map(|(name, value)| (name.to_owned(), value)).into();
    Requirements { labels, ..Requirements::default() }
}

/// Faults: J19.
#[test]
fn distinct_labels_of_other_tenants_cost_a_job_nothing() {
    check(|n| labels([("rack", n.to_string())]));
}

/// Faults: J19. The label that they share is one that the worker has.
#[test]
fn distinct_labels_beside_a_common_one_cost_a_job_nothing() {
    check(|n| labels([("a", n.to_string()), ("zone", "eu".to_owned())]));
    check(|n| labels([("zone", "eu".to_owned()), ("zzz", n.to_string())]));
}

/// Faults: J19.
#[test]
fn jobs_pinned_to_other_workers_cost_a_job_nothing() {
    check(|n| Requirements { pin: Some(id(&format!("w{n}"))), ..Requirements::default() });
}

fn names(models: &[String], classes: &[String]) -> Requirements {
    let (models, classes) = (models.iter().cloned().collect(), classes.iter().cloned().collect());
    Requirements { models, classes, ..Requirements::default() }
}

/// A group of up to eight demands is not told apart, and the worker looks for jobs twice: when it is free, and when this
/// job has ended.
const GROUP: u64 = 2 * 8;

/// Faults: J19.
#[test]
fn model_files_that_a_worker_lacks_cost_a_job_nothing() {
    check_within(GROUP, |n| names(&[format!("model{n}")], &[]));
}

/// Faults: J19. What they share is what the worker has: the names before the distinct one fill a group each.
#[test]
fn model_files_beside_common_ones_cost_a_job_nothing() {
    check_within(3 * GROUP, |n| names(&["flux".to_owned(), "sdxl".to_owned(), format!("zzz{n}")], &[]));
}

/// Faults: J19.
#[test]
fn node_classes_that_a_worker_lacks_cost_a_job_nothing() {
    check_within(3 * GROUP, |n| names(&["sdxl".to_owned()], &["KSampler".to_owned(), format!("Node{n}")]));
}
