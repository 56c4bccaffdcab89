//! Clocks that jump, pauses of our own, and stores that make us wait (rows K and D8, D17).

use super::*;
use crate::clock::ClockStart;

/// Faults: K1, C21.
#[test]
fn a_clock_that_jumps_back_moves_no_lease_and_no_retry() {
    let mut story = Story::new();
    story.join("a");
    story.to(7200);
    story.poll("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    let JobState::Waiting { not_before } = *story.plane.job(job).unwrap().state() else { panic!() };
    story.join("b");
    // The hour that is lived through twice counts for no worker, and the retry fires once.
    for second in [3600, 3700, 3800] {
        story.now = secs(second);
        story.step(PlaneEvent::Tick).unwrap();
        story.is(job, "queued");
    }
    let meanwhile = story.submit("t");
    story.is(meanwhile, "running on a, attempt 1");
    story.now = not_before;
    story.step(PlaneEvent::Tick).unwrap();
    story.is(job, "running on b, attempt 2");
    story.now = secs(3600);
    story.step(PlaneEvent::Tick).unwrap();
    story.work_to(7300, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
    story.is(meanwhile, "running on a, attempt 1");
}

/// Faults: K1, K2.
#[test]
fn clock_jump_counts_as_own_absence() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let (job, waiting) =
        (story.submit("s"), story.submit_with("s", |it| it.job.service = "x".parse().unwrap()));
    story.work_to(10, &["a", "b"]);
    story.away_to(3610);
    story.is(job, "running on a, attempt 1");
    assert_eq!([story.presence("a"), story.presence("b")], [Presence::Online; 2]);
    assert_eq!(story.news("plane:"), ["plane:away"]);
    story.work_to(3700, &["a", "b"]);
    story.is(job, "running on a, attempt 1");
    story.is(waiting.unwrap(), "queued");
}

/// Faults: K2.
#[test]
fn after_a_pause_everyone_has_the_rest_of_the_lease_and_no_more() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    story.beat_to(10, &["a", "z"]);
    story.beat_to(20, &["z"]);
    story.away_to(620);
    story.beat_to(638, &["z"]);
    story.is(job, "running on a, attempt 1");
    story.beat_to(641, &["z"]);
    story.is(job, "queued");
}

/// Faults: K2, A9.
#[test]
fn a_pause_of_ours_is_no_lack_of_progress() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    story.beat_to(200, &["a"]);
    story.away_to(500);
    story.beat_to(590, &["a"]);
    story.is(job, "running on a, attempt 1");
    story.beat_to(605, &["a"]);
    assert_eq!(story.kept.status(job).attempts[0].verdict, Some(crate::verdict::AttemptVerdict::Stuck));
}

/// Faults: K5.
#[test]
fn what_a_worker_thinks_the_time_is_decides_nothing() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    let job = story.submit("s");
    for (second, clock) in [(5, 0_u64), (10, 4_102_444_800_000), (15, 1)] {
        story.to(second);
        let mut beat = story.beat_of("a");
        beat.metrics = detail([("time", clock.into())]);
        story.send("a", beat, true).unwrap();
    }
    story.beat_to(44, &["z"]);
    story.is(job, "running on a, attempt 1");
    story.beat_to(46, &["z"]);
    story.is(job, "queued");
    let shown = serde_json::to_value(story.beat_of("a")).unwrap();
    let fields: Vec<_> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["held", "incarnation", "seq", "term"], "there is no time on the wire");
}

/// Faults: K1.
#[test]
fn a_clock_that_is_set_is_reported_and_moves_no_lease() {
    let mut story = Story::new();
    let began = Timestamp::from_millis(1_795_000_000_000);
    story.now = began;
    story.join("a");
    let job = story.submit("s");
    assert_eq!(story.news("plane:"), ["plane:away"], "it is away since 1970");
    let start = ClockStart::new(began, began, false);
    story.step(PlaneEvent::ClockStarted(start)).unwrap();
    assert!(story.news("plane:").is_empty(), "an ordinary start is no news");
    for second in 1..=20 {
        story.now = began.plus(Duration::from_secs(second));
        let wall = story.now.minus(Duration::from_secs(3600));
        story.step(PlaneEvent::ClockRead { wall }).unwrap();
        story.poll("a");
    }
    assert_eq!(story.news("plane:"), ["plane:clock"]);
    assert_eq!(story.restarts_wanted, 1);
    assert!(story.plane.clock_difference().problem().is_some());
    story.is(job, "running on a, attempt 1");
}

/// Faults: D8.
#[test]
fn slow_store_is_not_worker_silence() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    story.join("c");
    let jobs = [story.submit("s"), story.submit("s"), story.submit("s")];
    // Every write takes eight seconds; beats wait in line with everything else, and only some are reached.
    for round in 1..40 {
        story.away_to(round * 8);
        if round % 3 == 0 {
            ["a", "b", "c"].iter().for_each(|worker| story.poll(worker));
        }
    }
    story.are(&jobs, "running");
    jobs.iter().for_each(|job| assert_eq!(story.kept.status(*job).attempt, Attempt(1)));
}

/// Faults: D17.
#[test]
fn while_the_store_is_away_workers_run_on_and_their_news_is_taken_afterwards() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let (done, running) = (story.submit("s"), story.submit("s"));
    let waiting = story.submit("s");
    story.work_to(10, &["a", "b"]);
    story.away_to(610);
    assert_eq!(story.complete("a", done), "recorded");
    story.is(done, "completed by a");
    story.is(running, "running on b, attempt 1");
    story.is(waiting, "running on a, attempt 1");
    assert_eq!(story.plane.worker(&id("b")).unwrap().counts.lost, 0);
}

/// Faults: C21.
#[test]
fn a_deadline_is_kept_while_it_waits_and_while_it_runs() {
    let mut story = Story::new();
    story.join("a");
    let minute = Some(Duration::from_secs(60));
    let running = story.submit_with("s", |it| it.deadline = minute).unwrap();
    let waiting = story.submit_with("s", |it| it.deadline = minute).unwrap();
    story.work_to(59, &["a"]);
    story.is(running, "running on a, attempt 1");
    story.work_to(60, &["a"]);
    story.is(running, "expired: the deadline passed while it ran");
    story.is(waiting, "expired: the deadline passed while it waited");
    story.work_to(65, &["a"]);
    assert!(story.hand("a").held.is_empty(), "it was told to stop");
    assert_eq!(story.news("job:failed"), ["job:failed a", "job:failed"]);
}
