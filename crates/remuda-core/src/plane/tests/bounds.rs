//! One worker that sends more than it may: it is refused, and no other pays for it.

use super::{Story, id};
use crate::id::{Attempt, Incarnation, JobId};
use crate::refusal::Refusal;
use crate::wire::HeldAttempt;

fn held(count: u32) -> Vec<HeldAttempt> {
    let attempt = |n: u32| HeldAttempt {
        job: JobId::from_u128(u128::from(n) + 1),
        attempt: Attempt(1),
        progress: 0.0,
        step: 0,
        phase: String::new(),
        service: None,
    };
    (0..count).map(attempt).collect()
}

fn bound(refused: &Result<impl Sized, Refusal>) -> Option<(&'static str, usize)> {
    match refused {
        Err(Refusal::OutOfBounds { what, max, .. }) => Some((what, *max)),
        _ => None,
    }
}

/// Faults: J18.
#[test]
fn beat_that_lists_more_attempts_than_the_worker_has_slots_is_refused() {
    let mut story = Story::new();
    story.join("a");
    let mut beat = story.beat_of("a");
    beat.held = held(80_000);
    assert_eq!(bound(&story.send("a", beat, false)), Some(("held attempts", 66)));
    // Nothing of it counts: not as a sign of life, and its attempts are not cancelled one by one.
    assert_eq!(story.plane.worker(&id("a")).unwrap().cancels.len(), 0);
    let mut beat = story.beat_of("a");
    beat.held = held(66);
    assert!(story.send("a", beat, false).is_ok());
}

/// Faults: J18.
#[test]
fn worker_never_gets_more_jobs_than_its_join_agreed_on() {
    let mut story = Story::new();
    story.join("a");
    for n in 0..20 {
        story.submit(&format!("s{n}"));
    }
    let mut beat = story.beat_of("a");
    beat.slots = Some(u32::MAX);
    story.send("a", beat, false).unwrap();
    story.poll("a");
    assert_eq!(story.plane.worker(&id("a")).unwrap().assignments.len(), 1);
}

/// A worker whose server is down joins with no slots and reports them when it is back, also after a restart of the plane.
#[test]
fn worker_that_joined_without_slots_reports_them_later() {
    let mut story = Story::new();
    story.join_with("a", |join| (join.slots, join.slots_max) = (0, Some(2)));
    story.restart();
    for name in ["s1", "s2", "s3"] {
        story.submit(name);
    }
    story.poll("a");
    let mut beat = story.beat_of("a");
    beat.slots = Some(2);
    story.send("a", beat, false).unwrap();
    assert_eq!(story.plane.worker(&id("a")).unwrap().assignments.len(), 2);
    let mut beat = story.beat_of("a");
    beat.slots = Some(3);
    story.send("a", beat, false).unwrap();
    assert_eq!(story.plane.worker(&id("a")).unwrap().slots, 2);
}

/// Faults: J18. The plane counts incarnations: a claim cannot use the numbers up, so that no later join would fit.
#[test]
fn claimed_incarnation_counts_only_as_far_as_a_restored_backup_explains_it() {
    let mut story = Story::new();
    story.join_with("a", |join| join.incarnation = Some(Incarnation(i64::MAX as u64 - 1)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(1));
    story.join_with("a", |join| join.incarnation = Some(Incarnation(u64::MAX)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(2));
    // The store was put back: the worker has joined forty times since.
    story.join_with("a", |join| join.incarnation = Some(Incarnation(42)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(43));
}
