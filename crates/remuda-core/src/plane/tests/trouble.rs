//! Clients that cancel, repeat themselves, flood and require what no worker has (rows C7, C16 to C18 and C22).

use super::*;
use crate::record::IdempotencyKey;

/// Faults: C7.
#[test]
fn a_full_plane_refuses_with_a_hint_and_workers_come_first() {
    let mut story = Story::with(Settings { open_jobs_max: 2, ..Settings::default() });
    story.join("a");
    let (first, _) = (story.submit("s"), story.submit("s"));
    let Err(Refusal::QueueFull { open_max: 2, retry_after }) = story.submit_with("s", |_| {}) else {
        panic!("it is full")
    };
    assert!(!retry_after.is_zero());
    assert_eq!(story.complete("a", first), "recorded");
    story.submit("s");
}

/// Faults: C16.
#[test]
fn a_cancel_counts_at_once_even_if_the_worker_cannot_be_reached() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.poll("a");
    story.hand("a").is_deaf = true;
    story.cancel(job).unwrap();
    story.is(job, "cancelled: no longer wanted");
    assert_eq!(story.cancel(job).unwrap_err(), Refusal::Ended { state: "cancelled" });
    story.hand("a").is_deaf = false;
    story.to(60);
    let reply = story.beat("a").unwrap();
    assert_eq!((reply.cancel[0].job, reply.cancel[0].reason.as_str()), (job, "no longer wanted"));
    assert!(story.news("job:").ends_with(&["job:cancelled a".to_owned()]));
}

#[test]
fn the_room_of_a_cancelled_attempt_is_free_when_the_worker_has_stopped_it() {
    let mut story = Story::new();
    story.join("a");
    let (unwanted, next) = (story.submit("s"), story.submit("t"));
    story.hand("a").is_deaf = true;
    story.cancel(unwanted).unwrap();
    story.beat("a").unwrap();
    story.is(next, "queued");
    assert_eq!(story.why(next), "all 1 matching workers are busy; 0 other jobs wait too (fair share)");
    story.hand("a").is_deaf = false;
    let verdict = story.report("a", unwanted, AttemptOutcome::Cancelled, None);
    assert_eq!(verdict, "the job is already cancelled, and an outcome never changes");
    story.is(next, "running on a, attempt 1");
}

#[test]
fn a_worker_that_takes_its_time_to_stop_is_asked_again_but_not_in_circles() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.poll("a");
    story.hand("a").is_deaf = true;
    story.cancel(job).unwrap();
    for (second, asked) in [(1, 0), (4, 0), (5, 1), (6, 0), (10, 1)] {
        story.to(second);
        assert_eq!(story.beat("a").unwrap().cancel.len(), asked, "at {second} s");
    }
}

fn key(key: &str, body: &[u8]) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { key: key.to_owned(), fingerprint: Hash::digest(body) })
}

/// Faults: C17.
#[test]
fn a_submission_that_is_sent_again_is_the_same_job_and_another_body_is_a_conflict() {
    let mut story = Story::new();
    let job = story.submit_with("s", |it| it.job.key = key("k", b"body")).unwrap();
    assert_eq!(story.submit_with("s", |it| it.job.key = key("k", b"body")), Ok(job));
    assert_eq!(
        story.submit_with("s", |it| it.job.key = key("k", b"other")),
        Err(Refusal::KeyConflict { job })
    );
    let foreign = story.submit_with("s", |it| {
        (it.job.key, it.job.tenant) = (key("k", b"other"), "another".parse().unwrap());
    });
    assert!(foreign.is_ok_and(|foreign| foreign != job), "keys belong to a tenant");
    story.restart();
    assert_eq!(story.submit_with("s", |it| it.job.key = key("k", b"body")), Ok(job));
    assert_eq!(story.plane.open_jobs(), 2);
}

/// Faults: C17.
#[test]
fn what_the_store_knows_of_a_key_counts_when_the_job_has_ended() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit_with("s", |it| it.job.key = key("k", b"body")).unwrap();
    story.complete("a", job);
    let known = Some(KnownKey { job, fingerprint: Hash::digest(b"body") });
    assert_eq!(story.submit_with("s", |it| (it.job.key, it.known) = (key("k", b"body"), known)), Ok(job));
    let other = story.submit_with("s", |it| (it.job.key, it.known) = (key("k", b"other"), known));
    assert_eq!(other, Err(Refusal::KeyConflict { job }));
    assert_eq!(story.plane.open_jobs(), 0);
}

/// Faults: C18.
#[test]
fn one_tenants_flood_does_not_hold_up_another() {
    let mut story = Story::new();
    let tenant = |name: &'static str| move |it: &mut JobSubmission| it.job.tenant = name.parse().unwrap();
    for _ in 0..50 {
        story.submit_with("s", tenant("flood")).unwrap();
    }
    let quiet = [0, 1].map(|_| story.submit_with("s", tenant("quiet")).unwrap());
    story.join("a");
    let mut order = Vec::new();
    for _ in 0..4 {
        let job = *story.hand("a").held.keys().next().unwrap();
        order.push(quiet.contains(&job));
        story.complete("a", job);
    }
    assert_eq!(order, [false, true, false, true], "they take turns");
}

/// Faults: C22.
#[test]
fn unrunnable_job_says_so_and_runs_once_a_worker_can() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit_with("s", |it| it.job.service = "comfyui".parse().unwrap()).unwrap();
    assert_eq!(story.why(job), "unschedulable: no worker offers service comfyui");
    story.join_with("b", |join| join.services = ["comfyui".parse().unwrap()].into());
    story.is(job, "running on b, attempt 1");
}

#[test]
fn what_is_unknown_is_refused_and_nothing_breaks() {
    let mut story = Story::new();
    let missing = JobId::from_u128(77);
    assert_eq!(story.cancel(missing).unwrap_err(), Refusal::UnknownJob(missing));
    for event in [
        PlaneEvent::Leave { worker: id("x"), token_hash: None, reason: String::new() },
        PlaneEvent::Drain { worker: id("x"), reason: String::new(), within: None },
        PlaneEvent::ConnectionDropped { worker: id("x"), seq: 1 },
    ] {
        assert_eq!(story.step(event).unwrap_err(), Refusal::UnknownWorker(id("x")));
    }
    let short = shape("s").short();
    for (event, refused) in [
        (
            PlaneEvent::LiftBlock { worker: id("x"), hash: shape("s") },
            format!("there is no block of worker x for workflow or shape {short}"),
        ),
        (PlaneEvent::ReleaseShape { shape: shape("s") }, format!("there is no quarantine of shape {short}")),
    ] {
        assert_eq!(story.step(event).unwrap_err().to_string(), refused);
    }
    story.join("a");
    let token_hash = Some(Hash::digest(b"guessed"));
    let leave = PlaneEvent::Leave { worker: id("a"), token_hash, reason: String::new() };
    assert_eq!(story.step(leave).unwrap_err(), Refusal::WrongToken);
    let verdict = story.report_attempt("a", missing, Attempt(1), AttemptOutcome::Completed, None);
    assert_eq!(verdict, format!("job {missing} is unknown or has ended"));
}

/// Faults: X4.
#[test]
fn only_who_runs_the_newest_attempt_may_speak_for_it() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("thief");
    let token = |story: &mut Story, name: &str| Hash::digest(story.hand(name).token.as_bytes());
    let (of_a, of_thief, guessed) =
        (token(&mut story, "a"), token(&mut story, "thief"), Hash::digest(b"guessed"));
    let check = |story: &Story, worker: &str, token, attempt, expected: Result<(), Refusal>| {
        let answer = story.plane.running_job(&id(worker), token, job, Attempt(attempt)).map(drop);
        assert_eq!(answer, expected, "{worker} {attempt}");
    };
    check(&story, "a", of_a, 1, Ok(()));
    check(&story, "a", guessed, 1, Err(Refusal::WrongToken));
    check(&story, "thief", of_thief, 1, Err(Refusal::StaleAttempt));
    check(&story, "a", of_a, 2, Err(Refusal::StaleAttempt));
    check(&story, "nobody", of_a, 1, Err(Refusal::UnknownWorker(id("nobody"))));
    story.cancel(job).unwrap();
    check(&story, "a", of_a, 1, Err(Refusal::Ended { state: "cancelled" }));
}

/// Faults: X4.
#[test]
fn a_worker_cannot_end_a_job_that_another_one_runs() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("thief");
    for outcome in [
        AttemptOutcome::Completed,
        AttemptOutcome::Failed,
        AttemptOutcome::Cancelled,
        AttemptOutcome::Rejected,
    ] {
        let verdict = story.report_attempt("thief", job, Attempt(1), outcome, None);
        assert_eq!(verdict, "this attempt is no longer the job's current one");
    }
    story.is(job, "running on a, attempt 1");
    assert!(story.kept.blocks.is_empty());
}
