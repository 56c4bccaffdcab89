//! The plane dies and another one goes on.

use super::*;

/// Faults: C1.
#[test]
fn nothing_is_requeued_for_the_planes_own_death() {
    let mut story = Story::new();
    story.join("a");
    let (job, waiting) = (story.submit("s"), story.submit("s"));
    story.work_to(10, &["a"]);
    story.now = secs(1000);
    story.restart();
    story.to(1020);
    story.is(job, "running on a, attempt 1");
    story.work_to(1060, &["a"]);
    story.is(job, "running on a, attempt 1");
    assert_eq!(story.complete("a", job), "recorded");
    story.is(waiting, "running on a, attempt 1");
}

/// Faults: C1.
#[test]
fn who_died_with_the_plane_is_found_out_within_a_minute_after_it_is_back() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(10, &["a", "b"]);
    story.now = secs(1000);
    story.restart();
    story.work_to(1029, &["b"]);
    story.is(job, "running on a, attempt 1");
    story.work_to(1060, &["b"]);
    story.is(job, "running on b, attempt 2");
}

/// Faults: C1, A5.
#[test]
fn an_order_the_old_plane_could_not_deliver_is_given_by_the_new_one() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    story.hand("a").is_deaf = false;
    story.restart();
    story.poll("a");
    assert!(story.hand("a").held.contains_key(&job));
    story.is(job, "running on a, attempt 1");
}

/// Faults: A5, C1, D8. The old plane's order never left it, because its commit failed. Two replies of the new plane come too late,
/// because its store is slow: beats with progress and with results overtook the ones that they answer.
#[test]
fn order_of_the_old_plane_is_no_evidence_that_the_worker_never_received_it() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    story.restart();
    let term = story.plane.term();
    story.hand("a").term = term;
    for second in [10, 15] {
        story.to(second);
        assert_eq!(story.beat("a").unwrap().start.len(), 1);
    }
    story.hand("a").is_deaf = false;
    story.to(20);
    story.poll("a");
    assert!(story.hand("a").held.contains_key(&job));
    story.is(job, "running on a, attempt 1");
}

#[test]
fn new_plane_assigns_waiting_jobs_to_beating_workers() {
    let mut story = Story::new();
    let job = story.submit("s");
    story.join_with("a", |join| join.slots = 0);
    story.restart();
    story.is(job, "queued");
    story.kept.workers.get_mut(&id("a")).unwrap().slots = 1;
    story.restart();
    story.is(job, "queued");
    story.poll("a");
    story.is(job, "running on a, attempt 1");
}

/// Worker `a` is blocked for a workflow, and a job of it waits.
fn blocked() -> (Story, JobId) {
    let mut story = Story::new();
    story.join("a");
    story.join_busy("y");
    let first = story.submit_same("s");
    story.fail("a", first, Cause::Service);
    story.cancel(first).unwrap();
    let job = story.submit_same("s");
    (story, job)
}

/// Faults: C15.
#[test]
fn a_block_outlives_the_plane() {
    let (mut story, job) = blocked();
    let both = ["a", "y"];
    story.work_to(30, &both);
    story.restart();
    story.work_to(59, &both);
    story.is(job, "queued");
    story.work_to(60, &both);
    story.is(job, "running on a, attempt 1");
    story.restart();
    both.iter().for_each(|worker| story.poll(worker));
    let other = story.submit_same("s");
    story.fail("a", job, Cause::Service);
    story.work_to(179, &both);
    story.is(other, "queued");
    assert_eq!(
        story.kept.blocks.values().next().unwrap().cooldown_millis,
        120_000,
        "still the trial, so it doubled"
    );
}

/// Faults: C15.
#[test]
fn block_that_ends_while_the_plane_is_down_is_announced_once() {
    let (mut story, job) = blocked();
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    story.now = secs(100);
    story.restart();
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a"]);
    story.poll("a");
    story.is(job, "running on a, attempt 1");
    story.restart();
    ["a", "y"].iter().for_each(|worker| story.poll(worker));
    assert_eq!(story.news("client:unblocked"), [""; 0]);
    story.fail("a", job, Cause::Service);
    assert_eq!(story.kept.blocks.values().next().unwrap().cooldown_millis, 120_000, "it was the trial");
}

/// Faults: C1.
#[test]
fn a_plane_killed_after_any_step_tells_the_same_story() {
    let expected = tale(usize::MAX);
    for steps in 1..300 {
        assert_eq!(tale(steps), expected, "killed after step {steps}");
    }
    let ends = ["completed by a", "failed: boom", "cancelled: no longer wanted", "completed by b"];
    assert!(ends.iter().zip(&expected).all(|(end, found)| found.starts_with(end)), "{expected:?}");
}

/// One job completes, one fails for good, one is cancelled, one loses its worker; how they end. Whatever the plane
/// told just before it died does not arrive.
fn tale(steps: usize) -> Vec<String> {
    let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
    story.dies_after = steps;
    story.join("a");
    story.join("b");
    let only = |worker: &'static str| move |it: &mut JobSubmission| it.job.needs.pin = Some(id(worker));
    let done = story.submit_with("s", only("a")).unwrap();
    story.work_to(5, &["a", "b"]);
    story.complete("a", done);
    let bad = story
        .submit_with("bad", |it| (it.job.needs.pin, it.job.attempts_max) = (Some(id("a")), Some(3)))
        .unwrap();
    for round in 1..=3 {
        story.work_to(round * 40, &["a", "b"]);
        story.fail("a", bad, Cause::Job);
    }
    let unwanted = story.submit("s");
    story.cancel(unwanted).unwrap();
    let big = || [("gpu".to_owned(), "big".to_owned())].into();
    let moved = story.submit_with("s", |it| it.job.needs.labels = big()).unwrap();
    story.work_to(130, &["a", "b"]);
    for worker in ["a", "b"] {
        story.join_with(worker, |join| join.offer.labels = big());
        story.work_to(140, &["a"]);
    }
    story.leave("a");
    story.work_to(160, &["b"]);
    story.complete("b", moved);
    [done, bad, unwanted, moved].iter().map(|job| story.kept.state(*job)).collect()
}

/// Faults: D16.
#[test]
fn a_store_put_back_from_a_backup_gives_no_number_out_twice() {
    let mut story = Story::with(Settings { exempt_sole_worker: true, ..Settings::default() });
    story.join("a");
    let job = story.submit("s");
    story.is(job, "running on a, attempt 1");
    let backup = story.kept.clone();
    // After the backup: the worker starts again, the attempt fails, another begins.
    story.join("a");
    story.join("a");
    story.to(5);
    story.is(job, "running on a, attempt 2");
    let held = story.hand("a").held.values().cloned().collect::<Vec<_>>();
    let incarnation = story.hand("a").incarnation;
    assert_eq!((held[0].attempt, incarnation), (Attempt(2), Incarnation(3)));
    // Back to the backup: the plane believes in attempt 1 and the first incarnation.
    story.kept = backup;
    story.restart();
    assert_eq!(story.beat("a").unwrap_err(), Refusal::UnknownWorker(id("a")), "it is to join again");
    story.join_with("a", |join| {
        join.incarnation = Some(incarnation);
        join.held = held;
    });
    assert_eq!(story.hand("a").incarnation, Incarnation(4), "above all it ever had");
    story.work_to(10, &["a"]);
    story.is(job, "running on a, attempt 3");
}

#[test]
fn a_deadline_for_draining_outlives_the_plane() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    let (reason, within) = ("maintenance".to_owned(), Some(Duration::from_secs(20)));
    story.step(PlaneEvent::Drain { worker: id("a"), reason, within }).unwrap();
    story.restart();
    story.work_to(15, &["a"]);
    story.is(job, "running");
    story.work_to(25, &["a"]);
    story.is(job, "queued");
}
