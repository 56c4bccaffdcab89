//! Stories of jobs, and the table of their life.

use super::*;
use crate::id::Hash;
use crate::service::ServiceState;
use crate::verdict::CrashEvidence;
use crate::wire::ServiceStatus;

fn worker(name: &str) -> WorkerId {
    name.parse().unwrap()
}

fn start(name: &str) -> JobEvent {
    JobEvent::Start { worker: worker(name), incarnation: Incarnation(1), price: None }
}

fn fence(attempt: u32) -> Fence {
    Fence { job: JobId::from_u128(1), attempt: Attempt(attempt), incarnation: Incarnation(1) }
}

fn fail(attempt: u32, cause: Cause) -> JobEvent {
    fail_with(attempt, cause, (cause == Cause::Worker).then_some(CrashEvidence::Direct))
}

fn fail_with(attempt: u32, cause: Cause, took_down: Option<CrashEvidence>) -> JobEvent {
    JobEvent::Fail {
        fence: fence(attempt),
        failure: AttemptFailure { took_down, ..AttemptFailure::new(AttemptVerdict::Failed, cause, "boom") },
        retry_class: RetryClass::Retry,
    }
}

fn job() -> Job {
    let tenant = "default".parse().unwrap();
    Job::new(JobId::from_u128(1), Timestamp::ZERO, tenant, 0, JobKind::for_tests(Hash::digest(b"shape")))
}

/// Tells the story (second, turn) and compares how it ends and what was refused on the way.
fn check(story: &[(u64, JobEvent)], end: &str, refused: &[Refusal]) -> Job {
    let mut job = job();
    let mut refusals = Vec::new();
    for (second, event) in story {
        let now = Timestamp::from_millis(second * 1000);
        if let Err(refusal) = job.apply(now, event.clone(), &Settings::default()) {
            refusals.push(refusal);
        }
    }
    assert_eq!(job.status(Timestamp::ZERO).state.name(), end);
    assert_eq!(refusals, refused);
    job
}

#[test]
fn a_late_result_of_a_lost_attempt_is_refused() {
    let story = [
        (0, start("a")),
        (90, fail(1, Cause::Worker)),
        (95, start("b")),
        (96, JobEvent::Complete { fence: fence(1), recovery: None }),
        (97, JobEvent::Complete { fence: fence(2), recovery: None }),
    ];
    check(&story, "completed", &[Refusal::StaleAttempt]);
}

#[test]
fn an_outcome_never_changes() {
    let ended = |state| Refusal::Ended { state };
    let cancel = || JobEvent::Cancel { message: "no longer wanted".to_owned() };
    check(
        &[
            (0, start("a")),
            (1, JobEvent::Complete { fence: fence(1), recovery: None }),
            (2, cancel()),
            (3, fail(1, Cause::Job)),
            (4, start("b")),
        ],
        "completed",
        &[ended("completed"), ended("completed"), ended("completed")],
    );
    check(
        &[(0, start("a")), (1, cancel()), (2, JobEvent::Complete { fence: fence(1), recovery: None })],
        "cancelled",
        &[ended("cancelled")],
    );
}

#[test]
fn only_the_jobs_own_failures_use_up_its_attempts() {
    let mut story = Vec::new();
    for attempt in 1..=4 {
        story.push((u64::from(attempt) * 100, start("a")));
        story.push((u64::from(attempt) * 100 + 1, fail(attempt, Cause::Service)));
    }
    check(&story, "queued", &[]);
    story.push((500, start("a")));
    story.push((501, fail(5, Cause::Service)));
    let job = check(&story, "failed", &[]);
    assert!(matches!(job.status(Timestamp::ZERO).state, StateRow::Failed { was_stopped: true, .. }));

    let own: Vec<_> = (1..=3)
        .flat_map(|n| [(u64::from(n) * 100, start("a")), (u64::from(n) * 100 + 1, fail(n, Cause::Job))])
        .collect();
    let job = check(&own, "failed", &[]);
    assert!(matches!(job.status(Timestamp::ZERO).state, StateRow::Failed { was_stopped: false, .. }));
}

#[test]
fn a_job_that_took_down_two_workers_never_gets_a_third() {
    let story = [
        (0, start("a")),
        (30, fail(1, Cause::Worker)),
        (60, start("b")),
        (90, fail(2, Cause::Worker)),
        (120, start("c")),
    ];
    let job = check(&story, "failed", &[Refusal::Ended { state: "failed" }]);
    let StateRow::Failed { message, was_stopped, .. } = job.status(Timestamp::ZERO).state else { panic!() };
    assert!(was_stopped && message.contains("crashed a and b"), "{message}");
}

/// Faults: J8, A11.
#[test]
fn circumstantial_evidence_is_decided_by_a_third_isolated_trial() {
    let lost = |attempt| fail_with(attempt, Cause::Worker, Some(CrashEvidence::Circumstantial));
    let story = [(0, start("a")), (30, lost(1)), (60, start("b")), (90, lost(2)), (120, start("c"))];
    let job = check(&story, "running", &[]);
    assert!(job.needs_isolation(&Settings::default()));
    let crash = (150, fail_with(3, Cause::Worker, Some(CrashEvidence::Direct)));
    let story = [&story[..], &[crash]].concat();
    let job = check(&story, "failed", &[]);
    let StateRow::Failed { message, .. } = job.status(Timestamp::ZERO).state else { panic!() };
    assert!(message.contains("crashed a and b and c"), "{message}");
}

#[test]
fn the_same_worker_twice_is_not_two_workers() {
    let story =
        [(0, start("a")), (30, fail(1, Cause::Worker)), (60, start("a")), (90, fail(2, Cause::Worker))];
    check(&story, "queued", &[]);
}

#[test]
fn a_retry_waits_for_its_time() {
    let mut job = check(&[(0, start("a")), (1, fail(1, Cause::Job))], "queued", &[]);
    let JobState::Waiting { not_before } = *job.state() else { panic!() };
    assert!(not_before > Timestamp::from_millis(1000), "this job's luck gives it a wait");
    assert_eq!(
        job.apply(Timestamp::from_millis(1000), start("b"), &Settings::default()),
        Err(Refusal::TooEarly)
    );
    assert_eq!(job.apply(not_before, start("b"), &Settings::default()), Ok(()));
}

#[test]
fn a_new_incarnation_adopts_and_the_old_one_is_fenced() {
    let adopt = JobEvent::Adopt { attempt: Attempt(1), worker: worker("a"), incarnation: Incarnation(2) };
    let mut new_fence = fence(1);
    new_fence.incarnation = Incarnation(2);
    check(
        &[
            (0, start("a")),
            (5, adopt),
            (6, JobEvent::Complete { fence: fence(1), recovery: None }),
            (7, JobEvent::Complete { fence: new_fence, recovery: None }),
        ],
        "completed",
        &[Refusal::StaleAttempt],
    );
}

#[test]
fn a_life_goes_on_from_what_was_stored() {
    let before = check(&[(0, start("a")), (30, fail(1, Cause::Worker)), (60, start("b"))], "running", &[]);
    let mut after = job();
    after.restore_status(before.status(Timestamp::from_millis(60_000)));
    assert_eq!(after.status(Timestamp::ZERO), before.status(Timestamp::ZERO));
    assert_eq!(after.attempt(), Attempt(2));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let cut = truncated("ä".repeat(MESSAGE_BYTES_MAX));
    assert!(cut.len() <= MESSAGE_BYTES_MAX + '…'.len_utf8() && cut.ends_with('…'));
}

/// The table of `docs/lifecycles.md`: every state against everything that can happen.
pub(crate) fn life_table() -> String {
    let adopt = || JobEvent::Adopt { attempt: Attempt(1), worker: worker("a"), incarnation: Incarnation(2) };
    let stale = || JobEvent::Complete { fence: fence(9), recovery: None };
    let cancel = || JobEvent::Cancel { message: "cancelled".to_owned() };
    let turns: [(&str, JobEvent); 9] = [
        ("start", start("a")),
        ("adopt", adopt()),
        ("complete", JobEvent::Complete { fence: fence(1), recovery: None }),
        ("complete (old fence)", stale()),
        ("fail (job)", fail(1, Cause::Job)),
        ("lose (worker)", fail(1, Cause::Worker)),
        ("cancel", cancel()),
        ("deadline", JobEvent::Expire),
        ("start too early", start("a")),
    ];
    let states: [(&str, Vec<JobEvent>); 5] = [
        ("queued", vec![]),
        ("running", vec![start("a")]),
        ("completed", vec![start("a"), JobEvent::Complete { fence: fence(1), recovery: None }]),
        ("failed", vec![JobEvent::Expire]),
        ("cancelled", vec![cancel()]),
    ];
    let mut table =
        format!("| | {} |\n|---|", turns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" | "));
    table.push_str(&"---|".repeat(turns.len()));
    for (name, before) in &states {
        table.push_str(&format!("\n| **{name}** |"));
        for (turn_name, event) in &turns {
            let mut job = job();
            for event in before {
                job.apply(Timestamp::from_millis(1), event.clone(), &Settings::default()).unwrap();
            }
            if *turn_name == "start too early" && *name == "queued" {
                job.state = JobState::Waiting { not_before: Timestamp::from_millis(9) };
            }
            let cell = match job.apply(Timestamp::from_millis(2), event.clone(), &Settings::default()) {
                Ok(()) => job.status(Timestamp::ZERO).state.name().to_owned(),
                Err(refusal) => {
                    format!("*{}*", format!("{refusal:?}").split([' ', '{', '(']).next().unwrap_or(""))
                }
            };
            table.push_str(&format!(" {cell} |"));
        }
    }
    table
}

#[test]
fn ended_attempt_is_shown_as_it_ended_and_no_probe_came_before_its_submission() {
    let at = |second: u64| Timestamp::from_millis(second * 1000);
    let mut job = check(&[(0, start("a"))], "running", &[]);
    let status = |submitted, checked| ServiceStatus {
        status: ServiceState::Running,
        submitted_millis_ago: submitted,
        checked_millis_ago: checked,
    };
    job.note_service(at(10), &status(Some(1000), None));
    // The worker's clock runs faster than ours: by that, it asked before it submitted.
    job.note_service(at(20), &status(Some(12_000), Some(11_500)));
    let ended = |verdict, cause| JobEvent::Fail {
        fence: fence(1),
        failure: AttemptFailure::new(verdict, cause, "boom"),
        retry_class: RetryClass::Retry,
    };
    for (event, status, checked_at) in [
        (ended(AttemptVerdict::Failed, Cause::Job), ServiceState::Failed, at(30)),
        (ended(AttemptVerdict::WorkerSilent, Cause::Worker), ServiceState::Unknown, at(9)),
    ] {
        let mut job = job.clone();
        job.apply(at(30), event, &Settings::default()).unwrap();
        let service = job.attempts()[0].service.clone().unwrap();
        assert_eq!((service.service_status, service.service_submitted_at), (status, Some(at(9))));
        assert_eq!(service.last_service_check, Some(checked_at));
    }
}
