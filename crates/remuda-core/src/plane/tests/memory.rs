//! Jobs that run out of memory: an impossible demand is told as soon as the largest card has said so (row J10), and what
//! could fit is tried again.

use super::*;
use crate::service::ServiceFault;
use crate::service::memory::MemoryShortage;

const GIB: u64 = 1 << 30;

fn join_card(story: &mut Story, name: &str, gib: u64) {
    story.join_with(name, |join| join.offer.vram_bytes = Some(gib * GIB));
}

/// The worker reports that the job asked for so much.
fn run_out(story: &mut Story, worker: &str, job: JobId, asked_gib: u64, limit_gib: u64) {
    let shortage = MemoryShortage { requested_bytes: asked_gib * GIB, limit_bytes: Some(limit_gib * GIB) };
    story.fault(worker, job, ServiceFault::Memory, |it| it.shortage = Some(shortage));
}

const SENTENCE: &str = "failed: it asks for 300.00 GiB of memory at once, and the largest worker that could run it has 140.00 GiB: boom";

/// Faults: J10.
#[test]
fn demand_above_the_largest_card_is_told_after_one_attempt_there() {
    let mut story = Story::new();
    ["a", "b"].iter().for_each(|name| join_card(&mut story, name, 140));
    let job = story.submit("s");
    let worker = story.worker_of(job);
    run_out(&mut story, &worker, job, 300, 140);
    story.is(job, SENTENCE);
    let status = story.kept.status(job);
    assert_eq!((status.attempt, status.failures, status.infra_failures), (Attempt(1), 1, 0));
    assert!(story.kept.blocks.is_empty(), "no worker is at fault");
    let again = story.submit("s");
    story.is(again, "running");
}

/// Faults: J10.
#[test]
fn demand_above_a_small_card_goes_to_the_largest_and_waits_for_it() {
    let mut story = Story::new();
    join_card(&mut story, "small", 24);
    let job = story.submit("s");
    join_card(&mut story, "middle", 48);
    join_card(&mut story, "large", 140);
    let other = story.submit_with("video", |it| it.job.needs.pin = Some(id("large"))).unwrap();
    run_out(&mut story, "small", job, 300, 24);
    story.beat_to(200, &["small", "middle", "large"]);
    story.is(job, "queued");
    assert!(story.why(job).contains("1 is busy, 2 ran out of memory"), "{}", story.why(job));
    story.complete("large", other);
    story.is(job, "running on large, attempt 2");
    run_out(&mut story, "large", job, 300, 140);
    story.is(job, SENTENCE);
}

/// Faults: J10.
#[test]
fn demand_is_impossible_once_the_larger_card_is_gone() {
    let mut story = Story::new();
    join_card(&mut story, "small", 24);
    let job = story.submit("s");
    join_card(&mut story, "large", 140);
    story.submit_with("video", |it| it.job.needs.pin = Some(id("large"))).unwrap();
    run_out(&mut story, "small", job, 100, 24);
    story.is(job, "queued");
    story.leave("large");
    story.beat_to(80, &["small"]);
    story.is(job, "running on small, attempt 2");
    run_out(&mut story, "small", job, 100, 24);
    story.is(job, "failed: it asks for 100.00 GiB of memory at once");
}

/// Faults: J10, T8.
#[test]
fn what_would_fit_on_an_empty_card_is_tried_again() {
    let mut story = Story::new();
    join_card(&mut story, "a", 140);
    let job = story.submit("s");
    run_out(&mut story, "a", job, 60, 140);
    story.beat_to(10, &["a"]);
    story.is(job, "running on a, attempt 2");
    story.fault("a", job, ServiceFault::Memory, |_| {});
    story.beat_to(30, &["a"]);
    story.is(job, "running on a, attempt 3");
}

/// Faults: J10.
#[test]
fn card_of_unknown_size_may_be_larger_until_it_has_said_otherwise() {
    let mut story = Story::new();
    join_card(&mut story, "known", 140);
    let job = story.submit("s");
    story.join("unknown");
    run_out(&mut story, "known", job, 300, 140);
    story.beat_to(5, &["known", "unknown"]);
    story.is(job, "running on unknown, attempt 2");
    run_out(&mut story, "unknown", job, 300, 80);
    story.is(job, "failed: it asks for 300.00 GiB of memory at once");
}

/// Faults: J10.
#[test]
fn impossible_demand_keeps_nobody_from_a_card_that_is_large_enough_for_others() {
    let mut story = Story::new();
    join_card(&mut story, "small", 24);
    let job = story.submit("s");
    join_card(&mut story, "large", 140);
    story.submit_with("video", |it| it.job.needs.pin = Some(id("large"))).unwrap();
    run_out(&mut story, "small", job, 300, 24);
    let other = story.submit("s");
    story.is(other, "running on small, attempt 1");
}
