//! What an agent can know of the defects of its service.

use super::*;

const KEY: Key = (JobId::from_u128(1), Attempt(1));

fn service_with_run(defect: Defect, end: PromptEnd) -> Service {
    let plan =
        ServicePlan { slots: 1, is_owned: true, reports_outcome: false, lists_finished_as_running: false };
    let mut service = Service::new(plan);
    service.defect = defect;
    service.running.push(Prompt { end, ..Prompt::new(Some(KEY), 1, 3_600_000, u64::MAX) });
    service
}

#[test]
fn stuck_attempt_is_evidence_only_where_nothing_moves() {
    for (defect, end, is_evidence) in [
        (Defect::None, PromptEnd::Succeeds, false),
        (Defect::Device, PromptEnd::Succeeds, false),
        (Defect::Disk, PromptEnd::Succeeds, false),
        (Defect::Executor, PromptEnd::Succeeds, true),
        (Defect::None, PromptEnd::Hangs, true),
        (Defect::Device, PromptEnd::Hangs, true),
    ] {
        let mut service = service_with_run(defect, end);
        service.was_stuck(300_000, KEY);
        assert_eq!(service.evidence_at.is_some(), is_evidence, "{defect:?}, {end:?}");
    }
}

#[test]
fn attempt_that_the_service_does_not_have_is_no_evidence() {
    let mut service = service_with_run(Defect::Executor, PromptEnd::Succeeds);
    service.was_stuck(300_000, (KEY.0, Attempt(2)));
    assert_eq!(service.evidence_at, None);
}
