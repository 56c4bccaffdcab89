//! What the worlds of `remuda-sim` found, as stories.

use super::*;
use crate::record::IdempotencyKey;

/// Faults: D8, D17. The order waited for the store, and so did the beats that do not name the job.
#[test]
fn an_order_that_our_own_absence_held_up_is_not_late() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    for _ in 0..4 {
        story.be_away(20);
        story.beat("a").unwrap();
        story.beat("a").unwrap();
    }
    story.is(job, "running on a, attempt 1");
    story.hand("a").is_deaf = false;
    story.poll("a");
    assert_eq!(story.complete("a", job), "recorded");
}

/// Faults: C17. The store was asked about the key before the job was in it.
#[test]
fn a_key_is_known_after_its_job_has_ended_even_if_the_store_was_asked_too_early() {
    let key = || Some(IdempotencyKey { key: "k".to_owned(), fingerprint: Hash::digest(b"body") });
    let mut story = Story::new();
    let job = story.submit_with("s", |it| it.job.key = key()).unwrap();
    story.cancel(job).unwrap();
    assert_eq!(story.submit_with("s", |it| (it.job.key, it.known) = (key(), None)), Ok(job));
}

/// Faults: D17. While the store is away a worker joins again and again, and is given work each time.
#[test]
fn undelivered_order_survives_rejoin() {
    let mut story = Story::new();
    let job = story.submit("s");
    for _ in 0..6 {
        let join = JoinRequest {
            worker: id("a"),
            machine: None,
            fleet: None,
            services: ["exec".parse().unwrap()].into(),
            slots: 1,
            slots_max: None,
            offer: Capabilities::default(),
            incarnation: None,
            stale_after_millis: None,
            nonce: None,
            process: None,
            join_number: 0,
            held: Vec::new(),
        };
        let event = PlaneEvent::Join {
            join: Box::new(join),
            token_hash: Hash::digest(b"unheard"),
            proof: JoinProof::JoinToken,
        };
        story.step(event).unwrap();
    }
    story.is(job, "running on a, attempt 1");
    assert_eq!(story.kept.status(job).infra_failures, 0);
}

/// Faults: C1. It may be at the end of a line that leads to the plane before us.
#[test]
fn a_new_plane_gives_nothing_to_those_it_has_not_heard() {
    let mut story = Story::new();
    story.join("a");
    story.restart();
    let job = story.submit("s");
    story.to(40);
    story.is(job, "queued");
    assert_eq!(story.kept.status(job).infra_failures, 0);
    story.poll("a");
    story.is(job, "running on a, attempt 1");
}

/// Faults: A11, C1. The plane before us heard it named.
#[test]
fn poison_is_recognised_over_a_restart_of_the_plane() {
    let mut story = Story::new();
    let job = story.submit("s");
    for worker in ["a", "b", "c"] {
        story.join(worker);
        story.work_to(story.now.as_millis() / 1000 + 5, &[worker]);
        story.restart();
        story.join_with(worker, |join| join.slots = 0);
        story.wait(70);
    }
    story.is(job, "stopped: poison: it crashed a and b and c");
}

/// Faults: M1.
#[test]
fn a_dead_worker_that_is_drained_goes_offline_like_any_other() {
    let mut story = Story::new();
    story.join("a");
    story.drain("a").unwrap();
    story.to(200);
    assert_eq!(story.presence("a"), Presence::Offline);
}

/// Faults: N5. The first worker to return must not cause verdicts against those on their way.
#[test]
fn the_first_to_return_from_a_long_cut_does_not_doom_the_others() {
    let fleet = ["a", "b", "c", "d"];
    let mut story = Story::new();
    fleet.iter().for_each(|worker| story.join(worker));
    let jobs: Vec<_> = fleet.iter().map(|_| story.submit("s")).collect();
    story.work_to(10, &fleet);
    story.to(200);
    story.poll("a");
    story.to(205);
    story.work_to(300, &fleet);
    for (job, worker) in jobs.iter().zip(fleet) {
        story.is(*job, &format!("running on {worker}, attempt 1"));
    }
}

/// Faults: N2. It was given something and lost it again before anyone noticed that it is silent.
#[test]
fn work_that_came_and_went_is_no_sign_of_life_either() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    story.to(40);
    story.hand("a").is_deaf = true;
    let first = story.submit("s");
    story.is(first, "running on a, attempt 1");
    story.cancel(first).unwrap();
    story.to(60);
    let second = story.submit("s");
    story.is(second, "queued");
}

/// An attempt that a restarted agent found at its service and the plane has lost.
fn stray() -> crate::wire::HeldAttempt {
    let (job, attempt) = (JobId::from_u128(99), Attempt(1));
    crate::wire::HeldAttempt { job, attempt, progress: 0.0, step: 0, phase: String::new(), service: None }
}

#[test]
fn who_has_no_room_because_of_what_it_is_to_stop_is_not_small_for_it() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    story.hand("a").is_deaf = true;
    let jobs = [story.submit("s"), story.submit("s")];
    let mut beat = story.beat_of("a");
    beat.held = vec![stray()];
    story.send("a", beat, false).unwrap();
    let mut beat = story.beat_of("a");
    beat.finished = vec![finished(jobs[1], Attempt(1), AttemptOutcome::Rejected, None)];
    story.send("a", beat, false).unwrap();
    assert_eq!(story.plane.worker(&id("a")).unwrap().slots_observed, Some(2));
}

#[test]
fn what_was_turned_down_is_forgotten_when_there_is_nothing_left_to_do() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    let jobs = [story.submit("s"), story.submit("s")];
    story.beat("a").unwrap();
    let seen = |story: &Story| story.plane.worker(&id("a")).unwrap().slots_observed;
    // What a former life left at its service took the room.
    story.hand("a").held.remove(&jobs[1]);
    let mut beat = story.beat_of("a");
    beat.finished = vec![finished(jobs[1], Attempt(1), AttemptOutcome::Rejected, None)];
    story.send("a", beat, false).unwrap();
    let next = story.submit("s");
    story.complete("a", jobs[0]);
    story.is(next, "running on a, attempt 1");
    story.work_to(30, &["a"]);
    assert_eq!(seen(&story), Some(1), "there was something to do all the time");
    story.complete("a", next);
    story.work_to(60, &["a"]);
    story.complete("a", jobs[1]);
    story.work_to(120, &["a"]);
    assert_eq!(seen(&story), None);
}

#[test]
fn what_was_turned_down_while_there_was_no_room_says_nothing_about_the_room_there_is() {
    let mut story = Story::new();
    story.join_with("a", |join| (join.slots, join.slots_max) = (2, Some(3)));
    let mut beat = story.beat_of("a");
    (beat.slots, beat.unavailable_reason) = (Some(0), Some("its service is sick".to_owned()));
    story.send("a", beat, false).unwrap();
    let mut beat = story.beat_of("a");
    beat.slots = Some(2);
    story.send("a", beat, false).unwrap();
    story.hand("a").is_deaf = true;
    let job = story.submit("s");
    let mut beat = story.beat_of("a");
    beat.slots = Some(3);
    beat.finished = vec![finished(job, Attempt(1), AttemptOutcome::Rejected, None)];
    story.send("a", beat, false).unwrap();
    let worker = story.plane.worker(&id("a")).unwrap();
    assert_eq!((worker.slots, worker.slots_observed), (3, None));
}

/// It takes its room until it has stopped.
#[test]
fn unknown_attempt_at_join_occupies_slot() {
    let mut story = Story::new();
    let job = story.submit("s");
    let stray = stray();
    story.join_with("a", |join| join.held = vec![stray.clone()]);
    story.is(job, "queued");
    assert!(story.hand("a").held.is_empty(), "it was told to stop");
    story.poll("a");
    story.is(job, "running on a, attempt 1");
    let next = story.submit("t");
    story.join_with("a", |join| join.held = vec![stray.clone()]);
    story.are(&[job, next], "queued");
    story.poll("a");
    story.is(next, "running on a, attempt 1");
}

/// Faults: A9. The cycle runs between the moment it is stuck and the next check.
#[test]
fn stuck_attempt_does_not_affect_others() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    let (stuck, other) = (story.submit("s"), story.submit("t"));
    while story.now < secs(295) {
        story.wait(5);
        if let Some(held) = story.hand("a").held.get_mut(&other) {
            held.step += 1;
        }
        story.poll("a");
    }
    story.to(299);
    story.now = secs(300);
    story.drop_line("a").unwrap();
    story.poll("a");
    story.step(PlaneEvent::Tick).unwrap();
    story.is(stuck, "queued");
    story.is(other, "running on a, attempt 1");
}
