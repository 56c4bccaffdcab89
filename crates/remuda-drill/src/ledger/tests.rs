//! Each complaint is made where it is right, and not where a fault explains what happened.

use serde_json::json;

use super::*;
use crate::schedule::FaultKind;

const LEASE: Duration = Duration::from_secs(6);
const ERROR: &str = "on request";

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn event(kind: EventKind, job: Option<&str>, worker: Option<&str>) -> ToldEvent {
    ToldEvent {
        kind,
        job: job.map(str::to_owned),
        worker: worker.map(str::to_owned),
        tenant: None,
        detail: json!({ "error": "failed on request" }),
    }
}

fn story(kind: WorkflowKind, events: &[(u64, EventKind)]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.acknowledge(at(0), "key", "j", kind);
    for (seconds, kind) in events {
        ledger.tell(at(*seconds), LEASE, event(*kind, Some("j"), Some("drill-0")));
    }
    ledger
}

fn fault(kind: FaultKind, worker: usize, begins: u64, ends: u64) -> (PlannedFault, Duration) {
    (PlannedFault { kind, worker, at: at(begins), length: at(ends - begins) }, at(ends))
}

fn cause(ledger: &mut Ledger, (fault, end): (PlannedFault, Duration)) {
    let index = ledger.begin_fault(fault);
    ledger.end_fault(index, end);
}

#[test]
fn completed_job_is_no_complaint_and_an_unended_one_is_lost() {
    let ledger = story(WorkflowKind::Good, &[(1, EventKind::JobStarted), (2, EventKind::JobCompleted)]);
    let findings = ledger.conclude(ERROR);
    assert_eq!((findings.completed, findings.complaints), (1, Complaints::default()));
    let findings = story(WorkflowKind::Good, &[(1, EventKind::JobStarted)]).conclude(ERROR);
    assert_eq!(findings.complaints.lost.len(), 1);
}

#[test]
fn second_outcome_second_id_and_unknown_job_are_doubled() {
    let twice = [(2, EventKind::JobCompleted), (3, EventKind::JobCompleted)];
    assert_eq!(story(WorkflowKind::Good, &twice).conclude(ERROR).complaints.doubled.len(), 1);
    let mut ledger = story(WorkflowKind::Good, &[(2, EventKind::JobCompleted)]);
    ledger.acknowledge(at(3), "key", "other", WorkflowKind::Good);
    assert_eq!(ledger.conclude(ERROR).complaints.doubled.len(), 1);
    let mut ledger = story(WorkflowKind::Good, &[(2, EventKind::JobCompleted)]);
    ledger.tell(at(3), LEASE, event(EventKind::JobQueued, Some("unknown"), None));
    assert_eq!(ledger.conclude(ERROR).complaints.doubled.len(), 1);
}

#[test]
fn events_that_overtake_the_acknowledgement_are_kept_for_it() {
    let mut ledger = Ledger::default();
    ledger.tell(at(1), LEASE, event(EventKind::JobCompleted, Some("j"), Some("drill-0")));
    ledger.acknowledge(at(2), "key", "j", WorkflowKind::Good);
    let findings = ledger.conclude(ERROR);
    assert_eq!((findings.completed, findings.complaints), (1, Complaints::default()));
}

#[test]
fn retry_needs_a_fault_of_its_own_worker() {
    let retried = [(10, EventKind::JobStarted), (20, EventKind::JobRetrying), (25, EventKind::JobStarted)];
    let needless = |faults: &[(PlannedFault, Duration)]| {
        let mut ledger = Ledger::default();
        faults.iter().for_each(|fault| cause(&mut ledger, *fault));
        ledger.acknowledge(at(0), "key", "j", WorkflowKind::Good);
        for (seconds, kind) in retried {
            ledger.tell(at(seconds), LEASE, event(kind, Some("j"), Some("drill-0")));
        }
        ledger.tell(at(30), LEASE, event(EventKind::JobCompleted, Some("j"), Some("drill-1")));
        let findings = ledger.conclude(ERROR);
        (findings.complaints.needless_retries.len(), findings.recoveries)
    };
    assert_eq!(needless(&[]), (1, vec![]));
    assert_eq!(needless(&[fault(FaultKind::WorkerKill, 0, 12, 15)]), (0, vec![at(13)]));
    assert_eq!(needless(&[fault(FaultKind::WorkerKill, 1, 12, 15)]).0, 1, "that was another worker");
    assert_eq!(needless(&[fault(FaultKind::PlaneKill, 0, 12, 13)]).0, 1, "a dead plane is no excuse");
    assert_eq!(needless(&[fault(FaultKind::AllLinesCut, 0, 12, 19)]).0, 1, "nor is one that hears no worker");
}

#[test]
fn good_job_that_fails_and_bad_job_that_does_not_are_false_verdicts() {
    let failed = [(1, EventKind::JobStarted), (2, EventKind::JobFailed)];
    assert_eq!(story(WorkflowKind::Good, &failed).conclude(ERROR).complaints.false_verdicts.len(), 1);
    let findings = story(WorkflowKind::Bad, &failed).conclude(ERROR);
    assert_eq!((findings.failed_as_expected, findings.complaints), (1, Complaints::default()));
    assert_eq!(story(WorkflowKind::Bad, &failed).conclude("another").complaints.false_verdicts.len(), 1);
    let completed = [(2, EventKind::JobCompleted)];
    assert_eq!(story(WorkflowKind::Bad, &completed).conclude(ERROR).complaints.false_verdicts.len(), 1);
    let cancelled = [(2, EventKind::JobCancelled)];
    assert_eq!(story(WorkflowKind::Good, &cancelled).conclude(ERROR).complaints.false_verdicts.len(), 1);
}

#[test]
fn worker_called_offline_needs_a_fault_of_its_own() {
    let verdicts = |faults: &[(PlannedFault, Duration)]| {
        let mut ledger = Ledger::default();
        faults.iter().for_each(|fault| cause(&mut ledger, *fault));
        ledger.tell(at(60), LEASE, event(EventKind::WorkerOffline, None, Some("drill-0")));
        ledger.tell(at(60), LEASE, event(EventKind::WorkerOffline, None, Some("hostile")));
        ledger.conclude(ERROR).complaints.false_verdicts.len()
    };
    assert_eq!(verdicts(&[]), 1);
    assert_eq!(verdicts(&[fault(FaultKind::LineCut, 0, 50, 58)]), 0);
    assert_eq!(verdicts(&[fault(FaultKind::LineCut, 0, 10, 12)]), 1, "too long ago");
    assert_eq!(verdicts(&[fault(FaultKind::PlanePause, 0, 50, 58)]), 1);
}
