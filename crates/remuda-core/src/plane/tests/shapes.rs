//! Workflows that fail wherever they run (row C12), and jobs that wear out everyone's patience.

use super::*;

const FLEET: [&str; 4] = ["a", "b", "c", "d"];

fn fleet() -> Story {
    let mut story = Story::new();
    FLEET.iter().for_each(|worker| story.join(worker));
    story
}

/// Lets every job of the shape that is under way fail; how many were.
fn fail_all(story: &mut Story, bad: &str) -> usize {
    let mut failed = 0;
    for worker in FLEET {
        let mut held: Vec<_> = story.hand(worker).held.keys().copied().collect();
        held.retain(|job| story.kept.jobs[job].0.shape == shape(bad));
        failed += held.len();
        held.into_iter().for_each(|job| drop(story.fail(worker, job, Cause::Job)));
    }
    failed
}

/// Three jobs of a bad shape have failed on three workers.
fn quarantined() -> (Story, Vec<JobId>) {
    let mut story = fleet();
    let jobs: Vec<_> = (0..3).map(|_| story.submit("bad")).collect();
    fail_all(&mut story, "bad");
    (story, jobs)
}

/// Faults: C12.
#[test]
fn a_shape_that_fails_on_three_workers_is_quarantined_and_the_workers_are_cleared() {
    let (mut story, jobs) = quarantined();
    assert!(story.kept.blocks.is_empty(), "one bad workflow cannot close a fleet");
    let quarantine = ["client:blocked_workflow a", "client:blocked_workflow b"];
    let cleared = ["client:unblocked_workflow a", "client:unblocked_workflow b", "workflow:quarantined"];
    let news = story.news("");
    let news: Vec<_> =
        news.iter().filter(|name| name.starts_with("client:") || name.starts_with("workflow:")).collect();
    assert_eq!(news, quarantine.iter().chain(&cleared).collect::<Vec<_>>());
    story.beat_to(30, &FLEET);
    story.are(&jobs, "queued");
    assert!(
        story
            .why(jobs[0])
            .starts_with("its shape failed on several workers and is quarantined: next trial at")
    );
    let good: Vec<_> = (0..4).map(|_| story.submit("good")).collect();
    story.are(&good, "running");
}

/// Faults: J11.
#[test]
fn losses_of_workers_alone_never_quarantine_a_shape() {
    let mut story = fleet();
    for _ in 0..100 {
        let job = story.submit("good");
        let worker = FLEET.into_iter().find(|name| story.hand(name).held.contains_key(&job)).unwrap();
        story.complete(worker, job);
    }
    let jobs: Vec<_> = (0..4).map(|_| story.submit("good")).collect();
    story.work_to(10, &FLEET);
    story.work_to(80, &FLEET[..1]);
    for worker in &FLEET[1..] {
        assert_eq!(story.presence(worker), Presence::Offline);
    }
    assert_eq!(story.news("workflow:"), [""; 0]);
    assert!(
        story.plane.quarantine().iter().next().is_none(),
        "three lost workers say nothing about the shape"
    );
    for job in jobs {
        while !story.hand("a").held.contains_key(&job) {
            let held: Vec<_> = story.hand("a").held.keys().copied().collect();
            held.into_iter().for_each(|job| drop(story.complete("a", job)));
            story.wait(5);
            story.poll("a");
        }
        story.complete("a", job);
        story.is(job, "completed by a");
    }
}

/// Faults: C12, C14.
#[test]
fn one_trial_after_the_other_fails_and_then_what_waits_fails() {
    let (mut story, jobs) = quarantined();
    let late = story.submit("bad");
    let mut trials = Vec::new();
    for second in 1..600 {
        story.beat_to(second, &FLEET);
        let failed = fail_all(&mut story, "bad");
        assert!(failed <= 1, "one trial at a time");
        if failed == 1 {
            trials.push(second);
        }
    }
    assert_eq!(trials, [60, 180, 420], "further and further apart");
    let ended: Vec<_> = jobs.iter().chain([&late]).map(|job| story.kept.state(*job)).collect();
    let quarantined = ended.iter().filter(|state| state.starts_with("quarantined: its shape"));
    assert!(quarantined.count() >= 2, "{ended:?}");
    assert!(
        ended[3].contains("failed on workers a, b, c and in every trial since; last failure: boom"),
        "{ended:?}"
    );
}

/// Faults: C12.
#[test]
fn a_trial_that_succeeds_clears_the_shape() {
    let (mut story, jobs) = quarantined();
    story.beat_to(60, &FLEET);
    let trial = *jobs.iter().find(|job| story.kept.state(**job).starts_with("running")).unwrap();
    let worker = story.kept.status(trial).state.worker().unwrap().to_string();
    story.news("");
    story.complete(&worker, trial);
    assert_eq!(story.news("workflow:"), ["workflow:released"]);
    assert!(story.kept.quarantine.is_empty());
    story.are(&jobs.into_iter().filter(|job| *job != trial).collect::<Vec<_>>(), "running");
}

#[test]
fn a_person_may_release_a_shape() {
    let (mut story, jobs) = quarantined();
    story.to(5);
    story.are(&jobs, "queued");
    story.step(PlaneEvent::ReleaseShape { shape: shape("bad") }).unwrap();
    story.are(&jobs, "running");
    assert_eq!(story.news("workflow:").last().unwrap(), "workflow:released");
}

#[test]
fn a_trial_that_is_cancelled_makes_room_for_the_next() {
    let (mut story, jobs) = quarantined();
    story.beat_to(60, &FLEET);
    let trial = *jobs.iter().find(|job| story.kept.state(**job).starts_with("running")).unwrap();
    let worker = story.kept.status(trial).state.worker().unwrap().to_string();
    story.drain(&worker).unwrap();
    story.cancel(trial).unwrap();
    let running = jobs.iter().filter(|job| story.kept.state(**job).starts_with("running")).count();
    assert_eq!(running, 1, "another worker tries");
}

#[test]
fn attempts_running_at_quarantine_start_block_no_worker() {
    let mut story = fleet();
    let jobs: Vec<_> = (0..4).map(|_| story.submit("bad")).collect();
    for (worker, job) in FLEET.iter().zip(jobs) {
        story.fail(worker, job, Cause::Job);
    }
    assert!(story.kept.blocks.is_empty());
}

#[test]
fn a_quarantine_outlives_the_plane() {
    let (mut story, jobs) = quarantined();
    story.restart();
    story.beat_to(59, &FLEET);
    story.are(&jobs, "queued");
    story.beat_to(60, &FLEET);
    let running = jobs.iter().filter(|job| story.kept.state(**job).starts_with("running")).count();
    assert_eq!(running, 1);
}

#[test]
fn mishaps_have_a_cap_of_their_own() {
    let settings = Settings { max_failures_before_block: 99, probation_after: 99, ..Settings::default() };
    let mut story = Story::with(settings);
    story.join("a");
    let job = story.submit("s");
    for attempt in 1..=5 {
        story.is(job, &format!("running on a, attempt {attempt}"));
        story.fail("a", job, Cause::Service);
        story.beat_to(attempt * 40, &["a"]);
    }
    story.is(job, "quarantined: 5 attempts failed for reasons outside the job, the last: boom");
    let mut own = Story::with(Settings { max_failures_before_block: 99, ..Settings::default() });
    own.join("a");
    let job = own.submit("s");
    for attempt in 1..=3 {
        own.fail("a", job, Cause::Job);
        own.beat_to(attempt * 40, &["a"]);
    }
    own.is(job, "failed: boom");
}
