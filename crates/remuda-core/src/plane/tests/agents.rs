//! Agents that die, return, double, lie and forget (rows A of the fault catalogue).

use super::*;

/// Faults: A1.
#[test]
fn restarted_worker_keeps_attempt_it_still_holds() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.to(10);
    story.rejoin("a");
    story.is(job, "running on a, attempt 1");
    assert_eq!(story.complete("a", job), "recorded");
    story.is(job, "completed by a");
}

/// Faults: A1.
#[test]
fn what_a_new_process_still_holds_is_taken_over_before_it_gets_anything_new() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    let (lost, kept) = (story.submit("s"), story.submit("t"));
    let (next, last) = (story.submit("u"), story.submit("v"));
    story.poll("a");
    story.hand("a").held.remove(&lost);
    let held = story.hand("a").held.values().cloned().collect();
    story.join_with("a", |join| (join.slots, join.held) = (2, held));
    story.is(kept, "running on a, attempt 1");
    story.is(next, "running on a, attempt 1");
    story.are(&[last, lost], "queued");
}

/// Faults: A16, V11. World 1400013798: a worker whose service had become sick joined again, and was sent an order that it had to
/// turn down.
#[test]
fn order_that_was_never_sent_does_not_go_to_a_process_without_a_slot_for_it() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    story.beat("a").unwrap();
    let jobs = [story.submit("s"), story.submit("t")];
    story.are(&jobs, "running on a, attempt 1");
    story.join_with("a", |join| join.slots = 1);
    story.is(jobs[0], "running on a, attempt 1");
    story.is(jobs[1], "queued");
    story.join_with("b", |join| join.slots = 0);
    story.beat("b").unwrap();
    let order = story.submit_with("u", |it| it.job.needs.pin = Some(id("b"))).unwrap();
    story.is(order, "queued");
    story.join_with("b", |join| join.slots = 1);
    story.is(order, "running on b, attempt 1");
}

/// Faults: A2.
#[test]
fn the_job_of_a_dead_worker_starts_elsewhere_when_its_lease_is_over() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(29, &["b"]);
    story.is(job, "running on a, attempt 1");
    story.work_to(32, &["b"]);
    story.is(job, "running on b, attempt 2");
    assert_eq!(story.kept.status(job).attempts[0].message, "worker a fell silent: no beat for 30 s");
}

/// Faults: A3, N2.
#[test]
fn a_worker_that_wakes_after_its_lease_is_refused_and_told_to_stop() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(40, &["b"]);
    let reply = story.beat("a").unwrap();
    let told: Vec<_> = reply.cancel.iter().map(|cancel| (cancel.job, cancel.attempt)).collect();
    assert_eq!(told, [(job, Attempt(1))]);
    let verdict = story.report_attempt("a", job, Attempt(1), AttemptOutcome::Completed, None);
    assert_eq!(verdict, "this attempt is no longer the job's current one");
    story.is(job, "running on b, attempt 2");
    assert_eq!(story.plane.refusals.stale_attempts, 1);
}

/// Faults: A4.
#[test]
fn a_second_completion_changes_nothing_and_is_counted() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(40, &["b"]);
    story.complete("b", job);
    let verdict = story.complete("a", job);
    assert_eq!(verdict, "the job is already completed, and an outcome never changes");
    story.is(job, "completed by b");
    assert_eq!(story.plane.refusals.stale_attempts, 1);
}

/// Faults: A5, N3.
#[test]
fn an_order_that_never_arrives_is_repeated_and_then_given_up_for_a_new_attempt() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    story.to(4);
    assert_eq!(story.beat("a").unwrap().start.len(), 1, "the reply may have been lost");
    story.is(job, "running on a, attempt 1");
    story.to(5);
    assert_eq!(story.beat("a").unwrap().start.len(), 1, "and one may have been overtaken");
    story.to(10);
    assert_eq!(story.beat("a").unwrap().start.len(), 1, "or two");
    story.beat("a").unwrap();
    story.hand("a").is_deaf = false;
    assert_eq!(story.kept.status(job).attempts[0].message, "worker a never received it");
    story.to(12);
    story.poll("a");
    story.is(job, "running on a, attempt 2");
    assert_eq!(story.complete("a", job), "recorded");
    assert!(story.kept.blocks.is_empty(), "a lost order says nothing about the worker and the shape");
}

/// Faults: A5.
#[test]
fn an_order_whose_reply_was_lost_is_taken_on_when_it_comes_again() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    story.hand("a").is_deaf = false;
    story.to(3);
    story.beat("a").unwrap();
    assert!(story.hand("a").held.contains_key(&job));
    story.work_to(60, &["a"]);
    story.is(job, "running on a, attempt 1");
}

/// Faults: A6.
#[test]
fn a_completion_that_is_reported_again_is_recorded_already() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.complete("a", job);
    let again =
        |story: &mut Story| story.report_attempt("a", job, Attempt(1), AttemptOutcome::Completed, None);
    assert_eq!(again(&mut story), "this outcome is already recorded");
    assert_eq!(story.plane.refusals.already_recorded, 1);
    story.restart();
    assert_eq!(
        again(&mut story),
        format!("job {job} is unknown or has ended"),
        "a definite answer all the same"
    );
}

/// Faults: A7.
#[test]
fn of_a_completion_and_a_cancel_the_first_one_counts() {
    let mut story = Story::new();
    story.join("a");
    let (completed, cancelled) = (story.submit("s"), story.submit("s"));
    story.complete("a", completed);
    assert_eq!(story.cancel(completed).unwrap_err(), Refusal::Ended { state: "completed" });
    story.hand("a").is_deaf = true;
    story.cancel(cancelled).unwrap();
    assert_eq!(story.complete("a", cancelled), "the job is already cancelled, and an outcome never changes");
    story.is(completed, "completed by a");
    story.is(cancelled, "cancelled: no longer wanted");
}

/// Faults: A8.
#[test]
fn of_two_workers_with_one_name_the_newer_counts() {
    let mut story = Story::new();
    story.join("a");
    let old = story.hand("a").clone();
    story.join("a");
    let new = story.hand("a").clone();
    *story.hand("a") = old;
    assert_eq!(story.beat("a").unwrap_err(), Refusal::StaleIncarnation { current: Incarnation(2) });
    assert_eq!(story.plane.refusals.old_incarnations, 1);
    *story.hand("a") = Hand { token: "stolen", ..new.clone() };
    assert_eq!(story.beat("a").unwrap_err(), Refusal::WrongToken);
    *story.hand("a") = new;
    let job = story.submit("s");
    story.is(job, "running on a, attempt 1");
}

/// Faults: A9.
#[test]
fn beats_without_progress_do_not_save_a_stuck_attempt() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.beat_to(299, &["a", "b"]);
    story.is(job, "running on a, attempt 1");
    story.beat_to(310, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
    assert!(story.hand("a").held.is_empty(), "it was told to stop");
    let verdict = &story.kept.status(job).attempts[0].message;
    assert_eq!(verdict, "stuck: no progress for 5 min on worker a");
}

/// Faults: A9, A11, V22.
#[test]
fn a_job_that_stands_still_on_two_workers_is_not_given_a_third() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.join("c");
    story.beat_to(650, &["a", "b", "c"]);
    story.is(job, "stopped: poison: it crashed a and b");
}

/// Faults: A9.
#[test]
fn an_hour_of_progress_is_no_reason_to_stop() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("video");
    story.work_to(3600, &["a"]);
    story.is(job, "running on a, attempt 1");
}

/// Faults: A11.
#[test]
fn a_job_that_takes_two_workers_down_gets_one_isolated_trial_and_the_fourth_stays_up() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    ["b", "c", "d"].iter().for_each(|worker| story.join(worker));
    story.work_to(5, &["a", "b", "c", "d"]);
    story.work_to(45, &["b", "c", "d"]);
    story.is(job, "running on b, attempt 2");
    story.work_to(90, &["c", "d"]);
    story.is(job, "running on c, attempt 3");
    story.work_to(130, &["d"]);
    story.is(job, "stopped: poison: it crashed a and b and c");
    assert_eq!(story.presence("d"), Presence::Online);
}

/// Faults: A11, M1.
#[test]
fn workers_that_were_dead_before_they_heard_of_a_job_were_not_taken_down_by_it() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    story.beat_to(29, &["z"]);
    story.join("b");
    story.hand("b").is_deaf = true;
    story.beat_to(100, &["z"]);
    story.join("c");
    story.work_to(120, &["c"]);
    story.is(job, "running on c, attempt 3");
    assert!(story.kept.status(job).crashed_workers.is_empty());
}

/// Faults: A12.
#[test]
fn a_flapping_worker_waits_before_it_gets_work_and_then_gets_one_job_at_a_time() {
    let mut story = Story::new();
    for second in [0, 5, 10, 15] {
        story.to(second);
        story.join_with("a", |join| join.slots = 4);
    }
    let jobs = [story.submit("s"), story.submit("t"), story.submit("u")];
    story.work_to(44, &["a"]);
    story.are(&jobs, "queued");
    assert!(story.why(jobs[0]).contains("1 is on probation; next: a trial at 1970-01-01T00:00:45.000Z"));
    story.work_to(60, &["a"]);
    story.is(jobs[0], "running");
    story.are(&jobs[1..], "queued");
    story.complete("a", jobs[0]);
    story.are(&jobs[1..], "running");
}

/// Faults: A13.
#[test]
fn a_draining_worker_finishes_what_it_holds_and_gets_nothing_new() {
    let mut story = Story::new();
    story.join("a");
    let (held, waiting) = (story.submit("s"), story.submit("s"));
    story.drain("a").unwrap();
    assert_eq!(story.drain("a").unwrap_err(), Refusal::Leaving(id("a")), "once is enough");
    assert!(story.beat("a").unwrap().drain);
    story.work_to(20, &["a"]);
    assert_eq!(story.complete("a", held), "recorded");
    story.is(waiting, "queued");
    assert_eq!(
        story.why(waiting),
        "no matching worker is ready: 1 is draining; next: start a worker that can run it"
    );
    story.join("b");
    story.is(waiting, "running on b, attempt 1");
}

/// Faults: A13.
#[test]
fn expired_notice_returns_job_without_blame() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.leave("a");
    assert_eq!(story.presence("a"), Presence::Offline);
    story.to(2);
    story.is(job, "running on b, attempt 2");
    let status = story.kept.status(job);
    assert_eq!((status.failures, status.attempts[0].cause), (0, Some(Cause::Provider)));
    assert!(status.crashed_workers.is_empty() && story.kept.blocks.is_empty());
}

/// Faults: A15.
#[test]
fn work_brought_back_after_a_long_partition_is_refused_and_may_be_dropped() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(40, &["b"]);
    story.complete("b", job);
    story.work_to(4000, &["b"]);
    story.restart();
    assert_eq!(story.complete("a", job), format!("job {job} is unknown or has ended"));
    story.is(job, "completed by b");
    assert_eq!(story.presence("a"), Presence::Online);
}

/// Faults: A16.
#[test]
fn a_worker_that_turns_work_down_is_given_no_more_than_it_took() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 4);
    let jobs = [story.submit("s"), story.submit("s"), story.submit("s"), story.submit("s")];
    story.hand("a").is_deaf = true;
    let mut beat = story.beat_of("a");
    beat.finished =
        jobs[1..].iter().map(|job| finished(*job, Attempt(1), AttemptOutcome::Rejected, None)).collect();
    story.beat("a").unwrap();
    beat.seq = story.hand("a").seq + 1;
    story.send("a", beat, false).unwrap();
    story.hand("a").is_deaf = false;
    story.work_to(30, &["a"]);
    story.is(jobs[0], "running on a, attempt 1");
    story.are(&jobs[1..], "queued");
    story.complete("a", jobs[0]);
    story.is(jobs[1], "running on a, attempt 2");
    story.are(&jobs[2..], "queued");
    assert!(story.kept.blocks.is_empty(), "that there was no room says nothing about the shape");
}

/// Faults: A17.
#[test]
fn a_black_hole_does_not_swallow_the_queue() {
    let mut story = Story::new();
    story.join("hole");
    let jobs: Vec<_> = (0..20).map(|n| story.submit(&format!("shape-{n}"))).collect();
    story.join("good");
    let mut swallowed = 0;
    for second in 1..30 {
        story.to(second);
        while let Some(job) = story.hand("hole").held.keys().next().copied() {
            story.fail("hole", job, Cause::Service);
            swallowed += 1;
        }
        if let Some(job) = story.hand("good").held.keys().next().copied() {
            story.complete("good", job);
        }
        story.poll("hole");
    }
    assert_eq!(swallowed, 3, "then it is on probation");
    story.are(&jobs, "completed by good");
    assert_eq!(story.news("worker:state"), ["worker:state hole"]);
    story.restart();
    assert!(story.plane.worker(&id("hole")).unwrap().probation.until().is_some(), "the next plane knows");
}
