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

/// A tenant's jobs of a bad shape have failed on three workers; one runs as the trial, and three more wait.
fn quarantined() -> (Story, Vec<JobId>) {
    let mut story = fleet();
    for _ in 0..4 {
        story.submit("bad");
    }
    for worker in ["a", "b", "c"] {
        let job = *story.hand(worker).held.keys().next().unwrap();
        story.fail(worker, job, Cause::Job);
    }
    while fail_all(&mut story, "bad") > 0 {}
    let jobs: Vec<_> = (0..4).map(|_| story.submit("bad")).collect();
    (story, jobs)
}

fn running(story: &Story, jobs: &[JobId]) -> usize {
    jobs.iter().filter(|job| story.kept.state(**job).starts_with("running")).count()
}

/// Faults: C12.
#[test]
fn a_shape_that_fails_on_three_workers_runs_one_at_a_time_and_other_shapes_at_once() {
    let (mut story, jobs) = quarantined();
    assert!(story.kept.blocks.is_empty(), "one bad workflow cannot close a fleet");
    assert!(story.news("workflow:").contains(&"workflow:quarantined".to_owned()));
    assert_eq!(running(&story, &jobs), 1, "the trial");
    let good: Vec<_> = (0..3).map(|_| story.submit("good")).collect();
    story.are(&good, "running");
    let waiting = *jobs.iter().find(|job| story.kept.state(**job) == "queued").unwrap();
    assert!(story.why(waiting).starts_with("its shape failed on several workers and is quarantined: job"));
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
fn each_job_of_a_quarantined_shape_is_tried_and_told_its_own_error() {
    let (mut story, jobs) = quarantined();
    let late = story.submit("bad");
    let mut trials = 0;
    while running(&story, &jobs) + running(&story, &[late]) > 0 {
        assert_eq!(fail_all(&mut story, "bad"), 1, "one trial at a time");
        trials += 1;
    }
    assert_eq!(trials, 5);
    story.are(&jobs, "failed: boom");
    story.is(late, "failed: boom");
    assert!(story.now == Timestamp::ZERO, "nobody waits to hear of an error");
}

/// Faults: C12.
#[test]
fn a_trial_that_succeeds_clears_the_shape() {
    let (mut story, jobs) = quarantined();
    let trial = *jobs.iter().find(|job| story.kept.state(**job).starts_with("running")).unwrap();
    let worker = story.kept.status(trial).state.worker().unwrap().to_string();
    story.news("");
    story.complete(&worker, trial);
    assert_eq!(story.news("workflow:"), ["workflow:released"]);
    assert!(story.kept.quarantine.is_empty());
    assert_eq!(running(&story, &jobs), 3);
}

#[test]
fn a_person_may_release_a_shape() {
    let (mut story, jobs) = quarantined();
    story.step(PlaneEvent::ReleaseShape { shape: shape("bad") }).unwrap();
    assert_eq!(running(&story, &jobs), 4, "on every worker");
    assert_eq!(story.news("workflow:").last().unwrap(), "workflow:released");
}

#[test]
fn a_quarantine_outlives_the_plane() {
    let (mut story, jobs) = quarantined();
    story.restart();
    FLEET.iter().for_each(|worker| story.poll(worker));
    assert_eq!(running(&story, &jobs), 1);
    assert_eq!(story.kept.quarantine.len(), 1);
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
    story.is(job, "stopped: 5 attempts failed for reasons outside the job, the last: boom");
    let mut own = Story::with(Settings { max_failures_before_block: 99, ..Settings::default() });
    own.join("a");
    let job = own.submit_with("s", |it| it.job.attempts_max = Some(3)).unwrap();
    for attempt in 1..=3 {
        own.fail("a", job, Cause::Job);
        own.beat_to(attempt * 40, &["a"]);
    }
    own.is(job, "failed: boom");
}
