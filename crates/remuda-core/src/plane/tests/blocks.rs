//! Workers and shapes that are kept apart (rows C13 to C15).

use super::*;
use crate::settings::BlockOn;

/// Faults: C14.
#[test]
fn a_block_ends_with_one_trial_at_a_time_and_doubles_with_each_that_fails() {
    let mut story = Story::new();
    story.join_bystander();
    story.join_with("a", |join| join.slots = 4);
    let first = story.submit_with("s", |it| it.job.attempts_max = Some(1)).unwrap();
    story.fail("a", first, Cause::Job);
    let jobs: Vec<_> =
        (0..4).map(|_| story.submit_with("s", |it| it.job.attempts_max = Some(1)).unwrap()).collect();
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    story.beat_to(59, &["a"]);
    story.are(&jobs, "queued");
    story.beat_to(60, &["a"]);
    story.is(jobs[0], "running on a, attempt 1");
    story.are(&jobs[1..], "queued");
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a"]);
    assert_eq!(story.why(jobs[1]), "all matching workers are on trial for its shape");
    story.fail("a", jobs[0], Cause::Job);
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    assert_eq!(story.why(jobs[1]), "all matching workers are blocked until 1970-01-01T00:03:00.000Z");
    story.beat_to(179, &["a"]);
    story.are(&jobs[1..], "queued");
    story.beat_to(180, &["a"]);
    story.complete("a", jobs[1]);
    story.are(&jobs[2..], "running on a, attempt 1");
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a", "client:unblocked_workflow a"]);
    assert!(story.kept.blocks.is_empty());
}

#[test]
fn a_block_never_touches_another_pair() {
    let mut story = Story::new();
    story.join("a");
    let bad = story.submit("s");
    story.fail("a", bad, Cause::Job);
    let other = story.submit("t");
    story.is(other, "running on a, attempt 1");
    story.join("b");
    story.to(5);
    story.is(bad, "running on b, attempt 2");
}

#[test]
fn a_block_is_lifted_by_hand() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Job);
    story.to(5);
    story.is(job, "queued");
    story.step(PlaneEvent::LiftBlock { worker: id("a"), shape: shape("s") }).unwrap();
    story.is(job, "running on a, attempt 2");
}

#[test]
fn below_the_limit_failures_are_counted_and_a_success_forgets_them() {
    let mut story =
        Story::with(Settings { max_failures_before_block: 2, attempts_max: 9, ..Settings::default() });
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Job);
    story.restart();
    story.beat_to(5, &["a"]);
    story.is(job, "running on a, attempt 2");
    story.complete("a", job);
    let job = story.submit("s");
    story.fail("a", job, Cause::Job);
    story.beat_to(10, &["a"]);
    story.fail("a", job, Cause::Job);
    story.beat_to(20, &["a"]);
    story.is(job, "queued");
}

/// Faults: C13.
#[test]
fn jobs_that_differ_in_seed_and_text_share_a_block() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    let (bad, like_it) = (story.submit("s"), story.submit("s"));
    assert_ne!(story.kept.jobs[&bad].0.workflow_hash, story.kept.jobs[&like_it].0.workflow_hash);
    story.fail("a", bad, Cause::Job);
    story.is(like_it, "queued");

    let mut exact = Story::with(Settings { block_on: BlockOn::Exact, ..Settings::default() });
    exact.join("a");
    let (bad, like_it) = (exact.submit("s"), exact.submit("s"));
    exact.fail("a", bad, Cause::Job);
    exact.is(like_it, "running on a, attempt 1");
}

/// Faults: C13.
#[test]
fn only_so_many_blocks_are_kept_and_the_one_that_ends_first_makes_room() {
    let settings = Settings { blocks_max: 2, probation_after: 100, attempts_max: 9, ..Settings::default() };
    let mut story = Story::with(settings);
    story.join_bystander();
    story.join("a");
    let mut jobs = Vec::new();
    for (second, shape) in [(0, "s"), (10, "t"), (20, "u")] {
        story.beat_to(second, &["a"]);
        let job = story.submit(shape);
        story.fail("a", job, Cause::Job);
        jobs.push(job);
    }
    story.beat_to(30, &["a"]);
    assert_eq!((story.kept.blocks.len(), story.kept.quarantine.len()), (2, 2));
    story.is(jobs[0], "running on a, attempt 2");
    story.are(&jobs[1..], "queued");
}

#[test]
fn a_retry_goes_to_another_worker_and_waits_for_it_but_not_for_ever() {
    let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    let long = story.submit("video");
    story.is(long, "running on b, attempt 1");
    story.fail("a", job, Cause::Job);
    story.work_to(60, &["a", "b"]);
    story.is(job, "queued");
    let why = "no matching worker is ready: 1 is busy, 1 failed it before; next: it starts when one of them is free";
    assert_eq!(story.why(job), why);
    story.work_to(65, &["a", "b"]);
    story.is(job, "running on a, attempt 2");
    story.fail("a", job, Cause::Job);
    story.complete("b", long);
    story.work_to(75, &["a", "b"]);
    story.is(job, "running on b, attempt 3");
}

#[test]
fn a_retry_does_not_wait_for_a_worker_that_takes_nothing() {
    let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
    story.join("a");
    story.join_with("closed", |join| join.slots = 0);
    let job = story.submit("s");
    story.fail("a", job, Cause::Job);
    story.beat_to(5, &["a", "closed"]);
    story.is(job, "running on a, attempt 2");
}

/// How a worker that others counted on drops out.
type Way = (&'static str, fn(&mut Story));

#[test]
fn a_retry_that_waited_for_a_worker_is_taken_back_when_that_worker_will_not_take_it() {
    let waits_for_b = || {
        let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
        story.join("a");
        let job = story.submit("s");
        story.join("b");
        story.submit("video");
        story.fail("a", job, Cause::Job);
        story.to(5);
        story.is(job, "queued");
        (story, job)
    };
    let ways: [Way; 6] = [
        ("drained", |story| drop(story.drain("b").unwrap())),
        ("left", |story| story.leave("b")),
        ("drains itself", |story| {
            let beat = Beat { draining: true, ..story.beat_of("b") };
            story.send("b", beat, true).unwrap();
        }),
        ("has other models", |story| {
            let offer = Capabilities {
                labels: [("new".to_owned(), "label".to_owned())].into(),
                ..Capabilities::default()
            };
            let beat = Beat { offer: Some(offer), slots: Some(0), ..story.beat_of("b") };
            story.send("b", beat, true).unwrap();
        }),
        ("starts again and offers something else", |story| {
            story.join_with("b", |join| join.services = ["other".parse().unwrap()].into());
        }),
        ("line dropped", |story| {
            story.poll("b");
            drop(story.drop_line("b").unwrap());
            story.wait(2);
        }),
    ];
    for (way, happens) in ways {
        let (mut story, job) = waits_for_b();
        happens(&mut story);
        assert_eq!(story.kept.state(job), "running on a, attempt 2", "b {way}");
    }
}

#[test]
fn who_is_alone_is_spared_if_that_is_wished_for() {
    let mut story = Story::with(Settings { exempt_sole_worker: true, ..Settings::default() });
    story.join("a");
    let job = story.submit("s");
    for second in [5, 10, 15] {
        story.fail("a", job, Cause::Job);
        story.beat_to(second, &["a"]);
    }
    story.is(job, "failed");
    assert_eq!(story.news("client:"), Vec::<String>::new());
}

#[test]
fn who_is_alone_is_not_blocked_for_what_was_not_the_workflows_own_fault() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    story.beat_to(10, &["a"]);
    story.is(job, "running on a, attempt 2");
    story.fail("a", job, Cause::Job);
    story.beat_to(20, &["a"]);
    story.is(job, "queued");
    assert_eq!(story.news("client:").len(), 1);
}

/// Found by world 10037954.
#[test]
fn a_trial_that_fails_on_who_is_alone_by_then_does_not_stay_a_trial_for_ever() {
    let mut story = Story::with(Settings { exempt_sole_worker: true, ..Settings::default() });
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    story.beat_to(61, &["a", "z"]);
    story.is(job, "running on a, attempt 2");
    story.step(PlaneEvent::Leave { worker: id("z"), token_hash: None, reason: "gone".to_owned() }).unwrap();
    story.fail("a", job, Cause::Service);
    story.beat_to(70, &["a"]);
    story.is(job, "running on a, attempt 3");
}
