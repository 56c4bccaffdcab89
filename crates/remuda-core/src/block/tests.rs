use super::*;
use crate::queue::JobKind;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// A job of shape `s`; its workflow is told apart by `workflow`.
pub(crate) fn job(id: u128, tenant: &str, workflow: &str) -> Job {
    let kind = JobKind::for_tests(Shape::digest(b"s"));
    let mut job = Job::new(JobId::from_u128(id), at(0), tenant.parse().unwrap(), 0, kind);
    job.workflow_hash = WorkflowHash::digest(workflow.as_bytes());
    job
}

fn evidence(job: &Job, completed_elsewhere: bool) -> BlockEvidence<'_> {
    BlockEvidence {
        job,
        cause: Cause::Job,
        reason: "boom",
        reach: FailureReach::Workflow,
        completed_elsewhere,
    }
}

enum Do {
    Fail,
    Start,
    Succeed,
    Release,
    Expire,
}
use Do::{Expire, Fail, Release, Start, Succeed};

/// Applies a story to one pair and compares its state afterwards.
fn check(failures_before_block: u32, story: &[(u64, Do)], expected: BlockState) {
    let settings = Settings { max_failures_before_block: failures_before_block, ..Settings::default() };
    let (worker, job) = ("a".parse().unwrap(), job(1, "t", "w"));
    let scope = BlockScope::Workflow(job.workflow_hash);
    let mut blocks = Blocks::default();
    for (second, what) in story {
        match what {
            Fail => drop(blocks.failed(at(*second), &worker, &evidence(&job, false), &settings)),
            Start => drop(blocks.started(&worker, &job)),
            Succeed => drop(blocks.lift(&worker, &scope)),
            Release => blocks.abandon_trial(&worker, &job),
            Expire => drop(blocks.expire(at(*second), &worker, &scope)),
        }
    }
    assert_eq!(blocks.state(&worker, &job), expected);
    assert_eq!(blocks.state(&"b".parse().unwrap(), &job), BlockState::Free, "never another pair");
}

#[test]
fn a_block_ends_by_event_and_one_trial_decides() {
    let blocked = |until| BlockState::Blocked { until: at(until) };
    let job = JobId::from_u128(1);
    check(1, &[(0, Fail)], blocked(60));
    check(1, &[(0, Fail), (59, Expire)], blocked(60));
    check(1, &[(0, Fail), (60, Expire)], BlockState::Free);
    check(1, &[(0, Fail), (60, Expire), (61, Start)], BlockState::TrialUnderWay { job });
    check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Fail)], blocked(190));
    check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Succeed)], BlockState::Free);
    check(1, &[(0, Fail), (60, Expire), (61, Start), (62, Release)], BlockState::Free);
}

#[test]
fn the_wait_doubles_up_to_its_limit() {
    let mut story = vec![(0, Fail)];
    for round in 1..=8 {
        story.extend([(round * 1000, Expire), (round * 1000, Start), (round * 1000, Fail)]);
    }
    check(1, &story, BlockState::Blocked { until: at(8600) });
}

#[test]
fn failures_below_the_limit_are_counted_and_not_forgotten_by_asking() {
    check(3, &[(0, Fail), (1, Fail)], BlockState::Free);
    check(3, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(62) });
}

#[test]
fn attempts_under_way_when_the_block_began_do_not_lengthen_it() {
    check(1, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(60) });
}

/// Faults: C13.
#[test]
fn block_widens_only_on_evidence_and_to_other_tenants_only_with_theirs() {
    let (settings, worker) = (Settings::default(), "a".parse().unwrap());
    let failed = |jobs: &[&Job], completed_elsewhere| {
        let mut blocks = Blocks::default();
        for job in jobs {
            blocks.failed(at(0), &worker, &evidence(job, completed_elsewhere), &settings);
        }
        blocks
    };
    let is_free = |blocks: &Blocks, job: &Job| blocks.state(&worker, job) == BlockState::Free;
    let (one, two) = (job(1, "t", "one"), job(2, "t", "two"));
    let (three, foreign) = (job(3, "t", "three"), job(4, "other", "four"));
    let alone = failed(&[&one], true);
    assert!(!is_free(&alone, &one) && is_free(&alone, &two) && is_free(&alone, &foreign));
    let unproved = failed(&[&one, &two], false);
    assert!(is_free(&unproved, &three), "the shape completed nowhere: no evidence against the worker");
    let tenant = failed(&[&one, &two], true);
    assert!(!is_free(&tenant, &three) && is_free(&tenant, &foreign), "one tenant's bad input");
    let both = failed(&[&one, &foreign], true);
    assert!(!is_free(&both, &three) && !is_free(&both, &job(5, "third", "five")));
}
