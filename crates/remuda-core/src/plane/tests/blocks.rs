//! Workers and shapes that are kept apart (rows C13 to C15).

use super::*;
use crate::settings::BlockOn;

/// Faults: C14.
#[test]
fn a_block_ends_with_one_trial_at_a_time_and_doubles_with_each_that_fails() {
    let mut story = Story::new();
    story.join_busy("y");
    story.join_with("a", |join| join.slots = 4);
    let first = story.submit_same("s");
    story.fail("a", first, Cause::Service);
    story.cancel(first).unwrap();
    let jobs: Vec<_> = (0..4).map(|_| story.submit_same("s")).collect();
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    let both = ["a", "y"];
    story.work_to(59, &both);
    story.are(&jobs, "queued");
    story.work_to(60, &both);
    story.is(jobs[0], "running on a, attempt 1");
    story.are(&jobs[1..], "queued");
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a"]);
    story.fail("a", jobs[0], Cause::Service);
    story.cancel(jobs[0]).unwrap();
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    story.work_to(179, &both);
    story.are(&jobs[1..], "queued");
    story.work_to(180, &both);
    story.complete("a", jobs[1]);
    story.are(&jobs[2..], "running on a, attempt 1");
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a", "client:unblocked_workflow a"]);
    assert!(story.kept.blocks.is_empty());
}

#[test]
fn a_block_never_touches_another_pair() {
    let mut story = Story::new();
    story.join("a");
    story.join_busy("y");
    let bad = story.submit("s");
    story.fail("a", bad, Cause::Service);
    let (other, like_it) = (story.submit("t"), story.submit("s"));
    story.is(other, "running on a, attempt 1");
    story.complete("a", other);
    story.is(like_it, "running on a, attempt 1");
    story.join("b");
    story.to(5);
    story.is(bad, "running on b, attempt 2");
}

#[test]
fn a_block_is_lifted_by_hand() {
    let mut story = Story::new();
    story.join("a");
    story.join_busy("y");
    let first = story.submit_same("s");
    story.fail("a", first, Cause::Service);
    story.cancel(first).unwrap();
    let job = story.submit_same("s");
    story.to(5);
    story.is(job, "queued");
    story.step(PlaneEvent::LiftBlock { worker: id("a"), hash: shape("s") }).unwrap();
    story.is(job, "running on a, attempt 1");
}

#[test]
fn below_the_limit_failures_are_counted_and_a_success_forgets_them() {
    let mut story = Story::with(Settings { max_failures_before_block: 2, ..Settings::default() });
    story.join("a");
    story.join_busy("y");
    let fail = |story: &mut Story| {
        let job = story.submit_same("s");
        story.is(job, "running on a");
        story.fail("a", job, Cause::Service);
        story.cancel(job).unwrap();
    };
    fail(&mut story);
    story.restart();
    story.beat_to(5, &["a", "y"]);
    let done = story.submit_same("s");
    story.complete("a", done);
    fail(&mut story);
    fail(&mut story);
    let job = story.submit_same("s");
    story.is(job, "queued");
}

/// Faults: C13.
#[test]
fn jobs_that_differ_in_seed_share_a_block_only_on_evidence() {
    let fail = |story: &mut Story, job| story.fail("a", job, Cause::Service);
    for (completed_elsewhere, block_on, expected) in [
        (true, BlockOn::Shape, "queued"),
        (true, BlockOn::Exact, "running on a"),
        (false, BlockOn::Shape, "running on a"),
    ] {
        let mut story = Story::with(Settings { block_on, ..Settings::default() });
        story.join("y");
        if completed_elsewhere {
            let done = story.submit("s");
            story.complete("y", done);
        }
        story.submit_with("video", |it| it.job.needs.pin = Some(id("y"))).unwrap();
        story.join("a");
        let bad = story.submit("s");
        fail(&mut story, bad);
        let another = story.submit("s");
        story.is(another, "running on a");
        fail(&mut story, another);
        let third = story.submit("s");
        story.is(third, expected);
    }
}

/// Faults: C13.
#[test]
fn only_so_many_blocks_are_kept_and_the_one_that_ends_first_makes_room() {
    let mut story = Story::with(Settings { blocks_max: 2, probation_after: 100, ..Settings::default() });
    story.join("a");
    story.join_busy("y");
    let shapes = ["s", "t", "u"];
    for (second, shape) in [(0, "s"), (10, "t"), (20, "u")] {
        story.work_to(second, &["a", "y"]);
        let job = story.submit_same(shape);
        story.fail("a", job, Cause::Service);
        story.cancel(job).unwrap();
    }
    assert_eq!(story.kept.blocks.len(), 2);
    let jobs = shapes.map(|shape| story.submit_same(shape));
    story.is(jobs[0], "running on a, attempt 1");
    story.are(&jobs[1..], "queued");
}

/// Faults: J13.
#[test]
fn new_incarnation_of_a_service_ends_the_blocks_that_the_old_one_caused() {
    let mut story = Story::new();
    story.join("a");
    story.join_busy("y");
    let restarts = |story: &mut Story, restarts| {
        let beat = Beat { service_restarts: Some(restarts), ..story.beat_of("a") };
        story.send("a", beat, true).unwrap();
    };
    restarts(&mut story, 0);
    let [own, service] = ["own", "service"].map(|shape| {
        let job = story.submit_same(shape);
        story.is(job, "running on a");
        let cause = if shape == "own" { Cause::Worker } else { Cause::Service };
        story.fail("a", job, cause);
        story.cancel(job).unwrap();
        story.submit_same(shape)
    });
    restarts(&mut story, 0);
    story.are(&[own, service], "queued");
    restarts(&mut story, 1);
    story.is(service, "running on a, attempt 1");
    story.is(own, "queued");
    // Its service starts again under it, and the loss is reported afterwards.
    restarts(&mut story, 2);
    story.fail("a", service, Cause::Service);
    story.cancel(service).unwrap();
    let next = story.submit_same("service");
    story.is(next, "running on a, attempt 1");
}

#[test]
fn a_retry_goes_to_another_worker_and_waits_for_it_but_not_for_ever() {
    let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    let long = story.submit("video");
    story.is(long, "running on b, attempt 1");
    story.fail("a", job, Cause::Service);
    story.work_to(60, &["a", "b"]);
    story.is(job, "queued");
    let why = "no matching worker is ready: 1 is busy, 1 failed it before; next: it starts when one of them is free";
    assert_eq!(story.why(job), why);
    story.work_to(65, &["a", "b"]);
    story.is(job, "running on a, attempt 2");
    story.fail("a", job, Cause::Service);
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
    story.fail("a", job, Cause::Service);
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
        story.fail("a", job, Cause::Service);
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
fn who_is_alone_is_not_blocked() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    story.beat_to(10, &["a"]);
    story.is(job, "running on a, attempt 2");
    story.fail("a", job, Cause::Job);
    assert_eq!(story.news("client:"), ["client:blocked_workflow a", "client:unblocked_workflow a"]);
}

/// Found by world 10037954.
#[test]
fn a_trial_that_fails_on_who_is_alone_by_then_does_not_stay_a_trial_for_ever() {
    let mut story = Story::with(Settings { exempt_sole_worker: true, ..Settings::default() });
    story.join("a");
    story.join_busy("y");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    story.work_to(62, &["a", "y"]);
    story.is(job, "running on a, attempt 2");
    story.step(PlaneEvent::Leave { worker: id("y"), token_hash: None, reason: "gone".to_owned() }).unwrap();
    story.fail("a", job, Cause::Service);
    story.beat_to(70, &["a"]);
    story.is(job, "running on a, attempt 3");
}
