//! Whose fault a failure is: errors that no further attempt can change are told at once, and no tenant pays for another
//! tenant's bad input (rows J6 to J10, J13).

use super::*;
use crate::service::{FailingNode, ServiceFault};
use crate::wire::FinishedAttempt;

pub(super) fn of(tenant: &'static str) -> impl Fn(&mut JobSubmission) {
    move |it| it.job.tenant = tenant.parse().unwrap()
}

impl Story {
    /// The worker reports that a node raised this exception.
    pub(super) fn raise(&mut self, worker: &str, job: JobId, node: &str, exception: &str) {
        self.fault(worker, job, ServiceFault::Node, |it| {
            it.node = Some(Box::new(FailingNode {
                id: node.to_owned(),
                class: None,
                exception: Some(exception.to_owned()),
            }));
        });
    }

    pub(super) fn fault(
        &mut self,
        worker: &str,
        job: JobId,
        fault: ServiceFault,
        change: impl FnOnce(&mut FinishedAttempt),
    ) {
        let held = self.hand(worker).held.remove(&job).expect("it holds the job");
        let mut it = finished(job, held.attempt, AttemptOutcome::Failed, Some(fault.cause()));
        it.fault = Some(fault);
        change(&mut it);
        let mut beat = self.beat_of(worker);
        beat.finished = vec![it];
        self.send(worker, beat, false).expect("a member may report");
        self.poll(worker);
    }

    pub(super) fn worker_of(&self, job: JobId) -> String {
        self.kept.status(job).state.worker().expect("it runs").to_string()
    }
}

/// Faults: J7.
#[test]
fn error_on_the_only_worker_is_told_at_once() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.raise("a", job, "4", "ValueError");
    story.is(job, "failed: boom");
    let again = story.submit_with("s", |it| it.job.workflow_hash = story_hash(job)).unwrap();
    story.is(again, "running on a, attempt 1");
}

/// The exact workflow of a job of a story.
fn story_hash(job: JobId) -> Hash {
    Hash::digest(&job.as_u128().to_be_bytes())
}

/// Faults: J7, C12.
#[test]
fn error_is_tried_once_more_elsewhere_and_then_told_and_the_third_worker_is_spared() {
    for fleet in [&["a", "b"][..], &["a", "b", "c"]] {
        let mut story = Story::new();
        fleet.iter().for_each(|worker| story.join(worker));
        let job = story.submit("s");
        let first = story.worker_of(job);
        story.raise(&first, job, "4", "ValueError");
        story.is(job, "running");
        let second = story.worker_of(job);
        assert_ne!(first, second);
        story.raise(&second, job, "4", "ValueError");
        story.is(job, "failed: boom");
        assert_eq!(story.kept.status(job).attempt, Attempt(2));
        assert!(story.kept.blocks.is_empty(), "it was the workflow's fault");
    }
}

#[test]
fn different_error_elsewhere_is_tried_again() {
    let mut story = Story::new();
    ["a", "b", "c"].iter().for_each(|worker| story.join(worker));
    let job = story.submit("s");
    for (exception, attempt) in [("ValueError", 2), ("KeyError", 3)] {
        let worker = story.worker_of(job);
        story.raise(&worker, job, "4", exception);
        assert_eq!(story.kept.status(job).attempt, Attempt(attempt));
    }
    let worker = story.worker_of(job);
    story.raise(&worker, job, "4", "OSError");
    story.is(job, "failed: boom");
}

/// Faults: J7.
#[test]
fn error_is_told_at_once_while_the_others_are_busy() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.submit("video");
    story.raise("a", job, "4", "ValueError");
    story.is(job, "failed: boom");
}

#[test]
fn worker_that_alone_fails_a_shape_fails_no_job_while_the_others_are_busy() {
    let mut story = Story::new();
    story.join("b");
    let done = story.submit("s");
    story.complete("b", done);
    story.submit("video");
    story.join("a");
    let job = story.submit("s");
    story.raise("a", job, "4", "ImportError");
    story.is(job, "queued");
}

#[test]
fn job_that_asks_for_more_attempts_gets_them() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit_with("s", |it| it.job.attempts_max = Some(3)).unwrap();
    for attempt in 1..=3 {
        story.is(job, &format!("running on a, attempt {attempt}"));
        story.raise("a", job, "4", "ValueError");
        story.wait(5);
        story.poll("a");
    }
    story.is(job, "failed: boom");
}

/// Faults: J6, V17.
#[test]
fn bad_workflow_of_one_tenant_never_delays_another_of_the_same_shape() {
    let mut story = Story::new();
    ["a", "b"].iter().for_each(|worker| story.join(worker));
    for round in 0..6 {
        let bad = story.submit_with("s", of("careless")).unwrap();
        let good = story.submit_with("s", of("careful")).unwrap();
        story.are(&[bad, good], "running");
        let worker = story.worker_of(good);
        story.complete(&worker, good);
        for _ in 0..2 {
            if story.plane.job(bad).is_some() {
                let worker = story.worker_of(bad);
                story.raise(&worker, bad, "1", "FileNotFoundError");
            }
        }
        story.is(bad, "failed: boom");
        story.wait(1);
        ["a", "b"].iter().for_each(|worker| story.poll(worker));
        assert_eq!(story.kept.status(good).attempt, Attempt(1), "round {round}");
    }
}

/// Faults: J6.
#[test]
fn quarantine_fails_no_job_that_was_not_tried_and_holds_only_its_tenant() {
    let fleet = ["a", "b", "c", "d"];
    let mut story = Story::new();
    fleet.iter().for_each(|worker| story.join(worker));
    let bad: Vec<_> = (0..20).map(|_| story.submit_with("s", of("careless")).unwrap()).collect();
    let mut failed = 0;
    for _ in 0..200 {
        let held = fleet.iter().find_map(|name| {
            let job = *story.hands[*name].held.keys().find(|job| bad.contains(job))?;
            Some((*name, job))
        });
        let Some((name, job)) = held else { break };
        story.raise(name, job, "4", "ValueError");
        failed += 1;
    }
    story.are(&bad, "failed: boom");
    assert!(bad.iter().all(|job| story.kept.status(*job).attempt.0 >= 1), "each was tried");
    assert!(failed >= 20);
    let good = story.submit_with("s", of("careful")).unwrap();
    story.is(good, "running");
}

/// Faults: J9.
#[test]
fn workflow_that_breaks_devices_is_poison_after_two_and_the_third_is_spared() {
    let mut story = Story::new();
    ["a", "b", "c"].iter().for_each(|worker| story.join(worker));
    let job = story.submit("s");
    for second in [5, 10] {
        let worker = story.worker_of(job);
        story.fault(&worker, job, ServiceFault::Device, |_| {});
        story.beat_to(second, &["a", "b", "c"]);
    }
    story.is(job, "stopped: poison: it crashed");
    assert_eq!(story.kept.status(job).attempt, Attempt(2));
}

/// Faults: J9.
#[test]
fn broken_device_is_weaker_evidence_against_a_job_that_ran_beside_another() {
    let mut story = Story::new();
    for worker in ["a", "b", "c"] {
        story.join_with(worker, |join| join.slots = 2);
        let video = story.submit_with("video", |it| it.job.needs.pin = Some(id(worker))).unwrap();
        story.poll(worker);
        story.hand(worker).held.get_mut(&video).unwrap().progress = 0.1;
    }
    story.beat_to(2, &["a", "b", "c"]);
    let job = story.submit("s");
    for second in [5, 10] {
        let worker = story.worker_of(job);
        story.fault(&worker, job, ServiceFault::Device, |_| {});
        story.beat_to(second, &["a", "b", "c"]);
    }
    story.is(job, "queued");
    assert_eq!(story.kept.status(job).crashed_workers.len(), 2, "it is tried once more, alone");
}

/// Faults: J8.
#[test]
fn server_that_an_operator_kills_twice_makes_no_poison() {
    let mut story = Story::new();
    ["a", "b", "c"].iter().for_each(|worker| story.join(worker));
    let job = story.submit("s");
    for second in [5, 10] {
        let worker = story.worker_of(job);
        story.fault(&worker, job, ServiceFault::Killed, |_| {});
        story.beat_to(second, &["a", "b", "c"]);
    }
    story.is(job, "running");
    assert!(story.kept.status(job).crashed_workers.is_empty());
}

/// Faults: J8, A11.
#[test]
fn job_whose_workers_vanish_is_tried_alone_before_it_is_poison() {
    let mut story = Story::new();
    ["a", "b"].iter().for_each(|worker| story.join(worker));
    let job = story.submit("s");
    for second in [40, 80] {
        let worker = story.worker_of(job);
        let other = if worker == "a" { "b" } else { "a" };
        story.work_to(second, &[other]);
        story.join_with("c", |join| join.slots = 2);
        if second == 40 {
            story.leave("c");
        }
    }
    story.is(job, "running on c, attempt 3");
    let beside = story.submit_with("t", |it| it.job.needs.pin = Some(id("c"))).unwrap();
    story.work_to(85, &["c"]);
    story.is(beside, "queued");
    story.complete("c", job);
    story.is(beside, "running on c");
}

/// Faults: J8, J2. The first of many to be judged is one of many, too.
#[test]
fn mass_loss_is_held_against_no_job() {
    let mut story = Story::new();
    let names: Vec<_> = (0..6).map(|n| format!("w{n}")).collect();
    names.iter().for_each(|name| story.join(name));
    let jobs: Vec<_> = names.iter().map(|_| story.submit("s")).collect();
    story.work_to(10, &names.iter().map(String::as_str).collect::<Vec<_>>());
    story.join_with("spare", |join| join.slots = 10);
    story.work_to(60, &["spare"]);
    for job in jobs {
        story.is(job, "running on spare, attempt 2");
        assert!(story.kept.status(job).crashed_workers.is_empty(), "{:?}", story.kept.status(job));
    }
}

/// Faults: J8. Workers that restart together were restarted by someone: also the first of them, which joins alone.
#[test]
fn restart_of_several_machines_is_held_against_no_job() {
    let mut story = Story::new();
    let names = ["w0", "w1", "w2", "w3"];
    names.iter().for_each(|name| story.join(name));
    let jobs = names.map(|name| story.submit_with(name, |it| it.job.needs.pin = Some(id(name))).unwrap());
    story.work_to(10, &names);
    names.iter().for_each(|name| story.join(name));
    for job in jobs {
        let status = story.kept.status(job);
        assert!(status.crashed_workers.is_empty(), "{status:?}");
        assert!(status.attempts.iter().all(|past| past.took_down.is_none()), "{status:?}");
    }
}

/// A job that took down `a` and `b` as far as is known, and is tried alone on `c`, while `d` and `e` run other things.
fn tried_alone() -> (Story, JobId) {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    ["b", "c", "d", "e"].iter().for_each(|worker| story.join(worker));
    for worker in ["d", "e"] {
        story.submit_with(worker, |it| it.job.needs.pin = Some(id(worker))).unwrap();
    }
    story.work_to(5, &["a", "b", "c", "d", "e"]);
    story.work_to(45, &["b", "c", "d", "e"]);
    story.work_to(90, &["c", "d", "e"]);
    story.is(job, "running on c, attempt 3");
    (story, job)
}

/// Faults: J8, A11. World 1400044097: machines that went down together come back one after the other, so the first one is judged
/// while the others are still silent.
#[test]
fn trial_that_goes_down_with_other_machines_decides_nothing() {
    let (mut story, job) = tried_alone();
    story.to(115);
    story.join("c");
    story.work_to(125, &["c"]);
    story.is(job, "running on c, attempt 4");
    assert_eq!(story.kept.status(job).crashed_workers.len(), 2);
    // They were restarted at once: none is late yet, but their connections are gone.
    let (mut story, job) = tried_alone();
    ["c", "d", "e"].iter().for_each(|worker| drop(story.drop_line(worker)));
    story.to(93);
    story.join("c");
    story.work_to(98, &["c"]);
    story.is(job, "running on c, attempt 4");
    // One other machine is no mass loss.
    let (mut story, job) = tried_alone();
    story.work_to(115, &["e"]);
    story.join("c");
    story.is(job, "stopped: poison: it crashed a and b and c");
}

/// Faults: J8, A11. World 1400044097: the others are back by the time when this one is judged.
#[test]
fn trial_that_is_judged_after_the_others_came_back_decides_nothing() {
    let (mut story, job) = tried_alone();
    story.to(100);
    ["d", "e"].iter().for_each(|worker| story.join(worker));
    story.work_to(170, &["d", "e"]);
    story.is(job, "queued");
    assert_eq!(story.kept.status(job).crashed_workers.len(), 2);
    // One other machine is no mass loss.
    let (mut story, job) = tried_alone();
    story.work_to(100, &["e"]);
    story.join("d");
    story.work_to(170, &["d", "e"]);
    story.is(job, "stopped: poison: it crashed a and b and c");
}

/// Faults: J8. Copies of one bad workflow crash several machines at once: that explains nothing.
#[test]
fn copies_of_one_workflow_that_crash_together_are_each_suspect() {
    let mut story = Story::new();
    let names = ["w0", "w1", "w2", "w3"];
    names.iter().for_each(|name| story.join(name));
    let jobs = names.map(|name| story.submit_with("bad", |it| it.job.needs.pin = Some(id(name))).unwrap());
    story.work_to(10, &names);
    names.iter().for_each(|name| story.join(name));
    for job in jobs {
        assert_eq!(story.kept.status(job).crashed_workers.len(), 1);
    }
}

/// Faults: J6. What two careless tenants did at the same time keeps the third from no worker.
#[test]
fn bad_workflows_of_two_tenants_at_once_delay_no_third() {
    let mut story = Story::new();
    ["a", "b"].iter().for_each(|worker| story.join_with(worker, |join| join.slots = 3));
    for name in ["a", "b"] {
        let done = story.submit_with("s", |it| it.job.needs.pin = Some(id(name))).unwrap();
        story.complete(name, done);
    }
    let pinned = |tenant: &'static str| {
        move |it: &mut JobSubmission| {
            it.job.tenant = tenant.parse().unwrap();
            it.job.options.preferred = [id("a")].into();
        }
    };
    let bad: Vec<_> =
        ["anna", "bert"].into_iter().map(|it| story.submit_with("s", pinned(it)).unwrap()).collect();
    bad.iter().for_each(|job| story.raise("a", *job, "1", "FileNotFoundError"));
    bad.iter().for_each(|job| story.raise("b", *job, "1", "FileNotFoundError"));
    story.are(&bad, "failed: boom");
    assert!(story.kept.blocks.is_empty(), "the workflows were at fault: {:?}", story.kept.blocks);
    let good = story.submit_with("s", |it| it.job.needs.pin = Some(id("a"))).unwrap();
    story.is(good, "running on a, attempt 1");
}

/// Faults: J6, V17. A file that is missing for one tenant is no evidence for another, until that one misses it too.
#[test]
fn worker_that_lacks_something_is_kept_from_other_tenants_only_on_their_own_evidence() {
    let mut story = Story::new();
    story.join("a");
    let first = story.submit_with("s", of("anna")).unwrap();
    story.join_busy("y");
    story.fault("a", first, ServiceFault::Missing, |_| {});
    let again = story.submit_with("s", of("anna")).unwrap();
    story.is(again, "queued");
    let other = story.submit_with("s", of("bert")).unwrap();
    story.is(other, "running on a, attempt 1");
    story.fault("a", other, ServiceFault::Missing, |_| {});
    let third = story.submit_with("s", of("cara")).unwrap();
    story.is(third, "queued");
}

/// Faults: J7. The wait for another worker ends when the error comes back where it came from.
#[test]
fn error_is_told_when_it_comes_back_before_another_worker_was_free() {
    let mut story = Story::new();
    story.join("b");
    let done = story.submit("s");
    story.complete("b", done);
    story.submit("video");
    story.join("a");
    let job = story.submit("s");
    story.raise("a", job, "4", "ImportError");
    story.is(job, "queued");
    story.beat_to(70, &["a", "b"]);
    story.is(job, "running on a, attempt 2");
    story.raise("a", job, "4", "ImportError");
    story.is(job, "failed: boom");
}

/// Faults: J7, J1. An agent that ends its long poll to beat is still there.
#[test]
fn worker_between_two_polls_gets_the_second_attempt() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.drop_line("b").unwrap();
    story.raise("a", job, "4", "ValueError");
    story.is(job, "queued");
    story.poll("b");
    story.is(job, "running on b, attempt 2");
}

/// Faults: J7. A worker that lost the job has not said what it thinks of it.
#[test]
fn worker_that_lost_the_job_may_still_answer() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.fault("a", job, ServiceFault::Lost, |_| {});
    story.join("b");
    story.beat_to(5, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
    story.raise("b", job, "4", "ValueError");
    story.is(job, "running on a, attempt 3");
    story.raise("a", job, "4", "ValueError");
    story.is(job, "failed: boom");
}

struct VetoesB;

impl crate::strategy::FailoverStrategy for VetoesB {
    fn judge(
        &self,
        _: &crate::strategy::StrategyJob<'_>,
        worker: &crate::strategy::StrategyWorker<'_>,
    ) -> crate::strategy::StrategyVerdict {
        match worker.worker.as_str() {
            "b" => crate::strategy::StrategyVerdict::Veto,
            _ => crate::strategy::StrategyVerdict::NEUTRAL,
        }
    }
}

/// The error of a job is final if no other worker may try it: one that the program's own strategy refuses is none.
#[test]
fn vetoed_worker_is_no_other_worker_for_a_retry() {
    let strategy = crate::strategy::OwnStrategy::new(Arc::new(VetoesB));
    for (settings, expected) in
        [(Settings { strategy, ..Settings::default() }, "failed"), (Settings::default(), "running")]
    {
        let mut story = Story::with(settings);
        story.join("a");
        let job = story.submit("s");
        story.join("b");
        story.raise("a", job, "4", "ValueError");
        assert_eq!(story.kept.status(job).state.name(), expected);
    }
}
