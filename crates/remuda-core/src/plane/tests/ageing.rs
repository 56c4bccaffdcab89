//! Priorities age: nothing waits for ever, and nothing urgent is shut out.

use super::*;

/// One step of priority for each minute.
fn story() -> Story {
    Story::with(Settings { priority_ageing: Duration::from_secs(60), ..Settings::default() })
}

fn submit(story: &mut Story, tenant: &str, priority: i8) -> JobId {
    let change =
        |it: &mut JobSubmission| (it.job.tenant, it.job.priority) = (tenant.parse().unwrap(), priority);
    story.submit_with("s", change).unwrap()
}

/// The worker completes what it holds, and says what it got then.
fn next(story: &mut Story, done: JobId) -> JobId {
    assert_eq!(story.complete("a", done), "recorded");
    story.hand("a").held.keys().next().copied().expect("work waits")
}

/// Two urgent jobs always wait and one runs; returns after how many minutes `job` runs.
fn minutes_until_started(story: &mut Story, job: JobId, priority: i8) -> Option<u64> {
    let mut runs = submit(story, "urgent", priority);
    story.join("a");
    submit(story, "urgent", priority);
    for minute in 0..60 {
        for _ in 0..6 {
            submit(story, "urgent", priority);
            story.work_to(story.now.as_millis() / 1000 + 10, &["a"]);
            runs = next(story, runs);
            if runs == job {
                return Some(minute);
            }
        }
    }
    None
}

/// Faults: C18.
#[test]
fn low_priority_job_starts_under_constant_load_of_high_priority() {
    let mut story = story();
    let low = submit(&mut story, "patient", 0);
    // Nine steps of a minute, and as long as an urgent job itself waits.
    assert_eq!(minutes_until_started(&mut story, low, 9), Some(9));
}

#[test]
fn priorities_do_not_age_when_that_is_switched_off() {
    let mut story = Story::with(Settings { priority_ageing: Duration::ZERO, ..Settings::default() });
    let low = submit(&mut story, "patient", 0);
    assert_eq!(minutes_until_started(&mut story, low, 9), None);
}

#[test]
fn fresh_job_of_high_priority_is_not_overtaken_by_a_barely_older_one() {
    for (waited, expected) in [(59, 1), (60, 0)] {
        let mut story = story();
        let low = submit(&mut story, "x", 0);
        story.to(waited);
        let high = submit(&mut story, "x", 1);
        story.join("a");
        let first = story.hand("a").held.keys().next().copied();
        assert_eq!(first, Some([low, high][expected]), "after {waited} s");
    }
}

/// A job of high priority that waits ages as well.
#[test]
fn older_job_of_high_priority_keeps_its_lead() {
    let mut story = story();
    let high = submit(&mut story, "x", 1);
    submit(&mut story, "x", 0);
    story.to(3600);
    story.join("a");
    assert!(story.hand("a").held.contains_key(&high));
}

/// Faults: C18.
#[test]
fn aged_backlog_gets_every_other_slot_at_most_and_tenants_still_take_turns() {
    let mut story = story();
    let backlog: Vec<_> = (0..4).map(|_| submit(&mut story, "batch", 0)).collect();
    let other = submit(&mut story, "other", 0);
    story.to(3600);
    let urgent: Vec<_> = (0..3).map(|_| submit(&mut story, "urgent", 5)).collect();
    story.join("a");
    let mut order = vec![*story.hand("a").held.keys().next().unwrap()];
    while order.len() < 8 {
        let last = order[order.len() - 1];
        order.push(next(&mut story, last));
    }
    let expected = [backlog[0], urgent[0], other, urgent[1], backlog[1], urgent[2], backlog[2], backlog[3]];
    assert_eq!(order, expected);
}
