//! Workers that are drained, leave, are given up and come back.

use super::*;
use crate::machine::WorkerState;

fn state(story: &Story, name: &str) -> WorkerState {
    story.plane.worker(&id(name)).unwrap().state()
}

#[test]
fn a_drain_is_told_at_the_next_beat_and_again_until_the_worker_says_that_it_drains() {
    let mut story = Story::new();
    story.join("a");
    story.drop_line("a").unwrap();
    story.drain("a").unwrap();
    let wait = |story: &mut Story, draining| {
        let beat = Beat { draining, ..story.beat_of("a") };
        let event = PlaneEvent::Beat {
            worker: id("a"),
            token_hash: Hash::digest(b"token"),
            beat: Box::new(beat),
            long_poll: true,
        };
        match story.step(event).unwrap() {
            PlaneAnswer::Reply(reply) => reply.drain,
            PlaneAnswer::Pending => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(wait(&mut story, false), "no beat waited when it was decided");
    assert!(!wait(&mut story, false), "not in circles");
    story.to(5);
    assert!(wait(&mut story, false), "the reply may have been lost");
    story.to(10);
    assert!(!wait(&mut story, true), "it knows");
}

#[test]
fn drain_reaches_open_long_poll_at_once() {
    let mut story = Story::new();
    story.join("a");
    let event = PlaneEvent::Drain { worker: id("a"), reason: "maintenance".to_owned(), within: None };
    story.plane.step(story.now, event);
    let step = story.plane.step(story.now, PlaneEvent::Flush);
    assert!(matches!(&step.effects[..], [PlaneEffect::SendOrders { reply, .. }] if reply.drain));
}

#[test]
fn a_drained_worker_is_terminated_by_the_cycle_and_one_that_takes_too_long_loses_its_job() {
    let mut story = Story::new();
    story.join("idle");
    story.drain("idle").unwrap();
    story.join("busy");
    let job = story.submit("s");
    story.drain("busy").unwrap();
    story.work_to(31, &["idle", "busy"]);
    assert_eq!(
        (state(&story, "idle"), state(&story, "busy")),
        (WorkerState::Terminated, WorkerState::Terminating)
    );
    story.work_to(600, &["idle", "busy"]);
    story.is(job, "running on busy, attempt 1");
    story.work_to(631, &["idle", "busy"]);
    assert_eq!(state(&story, "busy"), WorkerState::Terminated);
    story.is(job, "queued");
    assert!(story.hand("busy").held.is_empty(), "it was told to stop");
    assert!(story.kept.quarantine.is_empty(), "a drain says nothing about the shape");
}

#[test]
fn a_terminated_worker_that_beats_on_gets_nothing_and_is_told_to_go() {
    let mut story = Story::new();
    story.join("a");
    story.leave("a");
    let job = story.submit("s");
    assert!(story.beat("a").unwrap().drain);
    story.work_to(60, &["a"]);
    story.is(job, "queued");
    story.join("a");
    story.is(job, "running on a, attempt 1");
    assert_eq!(state(&story, "a"), WorkerState::Active);
}

#[test]
fn a_worker_that_leaves_twice_is_gone_once() {
    let mut story = Story::new();
    story.join("a");
    story.leave("a");
    story.news("");
    story.leave("a");
    assert_eq!(story.news("worker:"), [""; 0]);
}

#[test]
fn a_worker_that_was_given_up_for_its_silence_is_back_with_its_first_beat() {
    let mut story = Story::new();
    story.join_bystander();
    story.join("a");
    story.beat_to(100, &["z"]);
    let job = story.submit("s");
    story.beat_to(331, &["z"]);
    assert_eq!(state(&story, "a"), WorkerState::Error);
    let given_up: Vec<_> = story.news("worker:state");
    assert_eq!(given_up, ["worker:state a"]);
    story.poll("a");
    assert_eq!(state(&story, "a"), WorkerState::Active);
    assert_eq!(story.news("worker:"), ["worker:online a", "worker:state a"]);
    story.is(job, "running on a, attempt 1");
}

#[test]
fn a_silent_worker_is_not_given_up_while_nothing_waits() {
    let mut story = Story::new();
    story.join("a");
    story.to(1000);
    assert_eq!((state(&story, "a"), story.presence("a")), (WorkerState::Active, Presence::Offline));
}

#[test]
fn every_cycle_is_reported_and_kept() {
    let mut story = Story::new();
    story.to(95);
    assert_eq!(story.kept.reports.len(), 3);
    let report: crate::cycle::CycleReport = serde_json::from_str(story.kept.reports[0].get()).unwrap();
    assert_eq!(report.timestamp, "1970-01-01T00:00:30.000Z");
}

#[test]
fn progress_is_told_live_and_never_goes_back() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    for (progress, step) in [(0.25, 1), (f32::NAN, 2), (0.1, 3), (7.0, 4), (0.5, 4)] {
        let held = story.hand("a").held.get_mut(&job).unwrap();
        (held.progress, held.step) = (progress, step);
        story.poll("a");
    }
    assert_eq!(story.progress, [(job, 0.25), (job, 0.25), (job, 0.25), (job, 1.0)]);
}

#[test]
fn a_worker_that_forgets_what_it_held_has_lost_it() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.poll("a");
    story.hand("a").held.clear();
    story.poll("a");
    assert_eq!(story.kept.status(job).attempts[0].message, "worker a no longer holds it");
    assert!(story.kept.status(job).crashed_workers.is_empty());
}

#[test]
fn a_worker_that_talks_too_much_is_cut_short_everywhere() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    let mut beat = story.beat_of("a");
    let mut report = finished(job, Attempt(1), AttemptOutcome::Failed, Some(Cause::Job));
    report.message = "x".repeat(1 << 20);
    (beat.held, beat.finished) = (Vec::new(), vec![report]);
    story.send("a", beat, false).unwrap();
    let told = serde_json::to_string(&story.kept.events).unwrap();
    let kept = serde_json::to_string(&story.kept.blocks.values().collect::<Vec<_>>()).unwrap();
    assert!(told.len() < 10_000 && kept.len() < 10_000, "{} and {} bytes", told.len(), kept.len());
}
