//! What counts as passing a tenant over.

use super::*;
use crate::random::Random;
use crate::settings::WorldSettings;

/// The first two jobs are Ada's, all others Bob's, and every worker could take each of them.
fn share() -> FairShare {
    let settings = WorldSettings { weather: Some(Weather::Fair), ..WorldSettings::default() };
    let mut scenario = Scenario::draw(&mut Random::new(1), &settings);
    let first = scenario.jobs[0].clone();
    for (number, plan) in scenario.jobs.iter_mut().enumerate() {
        let tenant = if number < 2 { "ada" } else { "bob" };
        *plan = JobPlan { tenant: tenant.parse().expect("a valid name"), ..first.clone() };
    }
    let mut share = FairShare::new(&scenario).expect("the weather is fair");
    (0..30).for_each(|number| share.waits(job(number)));
    share
}

fn job(number: u128) -> JobId {
    JobId::from_u128(number)
}

/// After how many starts of Bob's jobs Ada was passed over too often; `between` happens after each of them.
fn starved_after(share: &mut FairShare, mut between: impl FnMut(&mut FairShare, JobId)) -> Option<u32> {
    for (starts, number) in (1..).zip(2..30) {
        if share.runs(job(number), Attempt(1)).is_some() {
            return Some(starts);
        }
        between(share, job(number));
    }
    None
}

#[test]
fn tenant_is_starved_by_starts_of_others() {
    assert_eq!(starved_after(&mut share(), |_, _| ()), Some(PASSED_MAX + 1));
}

#[test]
fn progress_of_a_running_job_passes_no_one_over() {
    let progress = |share: &mut FairShare, job| assert_eq!(share.runs(job, Attempt(1)), None);
    assert_eq!(starved_after(&mut share(), progress), Some(PASSED_MAX + 1));
}

#[test]
fn progress_of_a_running_job_does_not_serve_its_tenant_again() {
    let mut share = share();
    assert_eq!(share.runs(job(0), Attempt(1)), None);
    let progress = |share: &mut FairShare, _| assert_eq!(share.runs(job(0), Attempt(1)), None);
    assert_eq!(starved_after(&mut share, progress), Some(PASSED_MAX + 1));
}

#[test]
fn next_attempt_of_a_job_is_a_start() {
    let mut share = share();
    let starts = (1..=20).map(|attempt| share.runs(job(2), Attempt(attempt)).is_some());
    assert_eq!(starts.take_while(|is_starved| !is_starved).count(), PASSED_MAX as usize);
}
