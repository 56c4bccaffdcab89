//! What a job on a worker with a sick service waits for.

use super::*;
use crate::random::Random;
use crate::service::{Defect, Prompt};
use crate::settings::WorldSettings;

const FIRST: Key = (JobId::from_u128(1), Attempt(1));
const SECOND: Key = (JobId::from_u128(2), Attempt(1));

/// A worker whose service runs one of our jobs for an hour and has another one queued.
fn host(defect: Defect) -> Host {
    let scenario = Scenario::draw(
        &mut Random::new(1),
        &WorldSettings { weather: Some(crate::Weather::Fair), ..WorldSettings::default() },
    );
    let mut host = Host::new(scenario.hosts[0].clone());
    host.service.defect = defect;
    host.service.running.push(Prompt::new(Some(FIRST), 1, 3_600_000, 1000));
    host.service.pending.push(Prompt::new(Some(SECOND), 2, 1000, 1000));
    host
}

fn reasons(host: &Host) -> [Reason; 2] {
    [FIRST, SECOND].map(|key| run_reason(60_000, host, key))
}

#[test]
fn job_behind_a_long_run_waits_for_that_run_while_no_run_shows_the_broken_device() {
    for defect in [Defect::None, Defect::Device, Defect::Disk] {
        assert_eq!(reasons(&host(defect)), [Reason::Run; 2], "{defect:?}");
    }
}

#[test]
fn job_at_a_service_that_stands_still_or_is_known_to_be_sick_waits_for_its_repair() {
    assert_eq!(reasons(&host(Defect::Executor)), [Reason::Repair; 2]);

    let mut hanging = host(Defect::Device);
    hanging.service.running[0].end = PromptEnd::Hangs;
    assert_eq!(reasons(&hanging), [Reason::Repair; 2]);

    let mut known = host(Defect::Device);
    known.unavailable_since = Some(50_000);
    assert_eq!(reasons(&known), [Reason::Repair; 2]);

    let mut down = host(Defect::Device);
    down.service.down_until = 70_000;
    assert_eq!(reasons(&down), [Reason::Repair; 2]);
}

#[test]
fn job_behind_a_foreign_run_at_a_sick_service_has_the_bound_of_that_run() {
    let mut host = host(Defect::Device);
    host.service.running[0].key = None;
    assert_eq!(run_reason(60_000, &host, SECOND), Reason::ForeignRun);
}
