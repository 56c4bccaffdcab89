//! Fleets at a provider with one kind of trouble at a time: each trouble occurs, and no law is violated. `laws` says what
//! must hold for pods.

use std::collections::BTreeMap;

use remuda_sim::{Outcome, Trouble, Weather, WorldSettings, run};

/// Worlds per test, enough for each trouble to occur in many situations.
const WORLDS: u64 = 6;

/// Runs worlds with only these troubles, starting at seed `first`. Each trouble must occur.
fn check(first: u64, troubles: &[Trouble]) -> Vec<Outcome> {
    let settings = WorldSettings {
        weather: Some(Weather::Fleet),
        troubles: Some(troubles.to_vec()),
        ..WorldSettings::default()
    };
    let outcomes: Vec<_> = (first..first + WORLDS).map(|seed| (seed, run(seed, &settings))).collect();
    let mut counts = BTreeMap::<Trouble, u64>::new();
    for (seed, outcome) in &outcomes {
        let violations: Vec<_> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "seed {seed}: {}", violations.join("\n"));
        outcome
            .trouble_counts
            .iter()
            .for_each(|(trouble, times)| *counts.entry(*trouble).or_default() += times);
    }
    for trouble in troubles {
        assert!(counts.contains_key(trouble), "{trouble:?} never occurred: {counts:?}");
    }
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn pods(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|outcome| outcome.pods).sum()
}

/// Faults: M1.
#[test]
fn dead_and_vanished_machines_are_replaced() {
    check(100, &[Trouble::HostDies, Trouble::PodVanishes]);
}

/// Faults: M1.
#[test]
fn stopped_machines_are_returned() {
    check(200, &[Trouble::PodExits]);
}

/// Faults: M2.
#[test]
fn pod_that_never_runs_is_given_up() {
    check(300, &[Trouble::NeverRuns]);
}

/// Faults: M3.
#[test]
fn pod_without_an_agent_is_given_up() {
    check(400, &[Trouble::NoAgent]);
}

/// Faults: M4.
#[test]
fn machine_that_was_given_up_may_not_join() {
    check(500, &[Trouble::LateAgent, Trouble::ReturnIgnored, Trouble::ReturnFails]);
}

/// Faults: M5.
#[test]
fn machine_with_a_bad_gpu_is_returned_before_it_gets_work() {
    check(600, &[Trouble::BadGpu, Trouble::BadHosts]);
}

/// Faults: M6.
#[test]
fn machine_without_its_models_gets_no_work() {
    check(700, &[Trouble::SlowModels]);
}

/// Faults: P1.
#[test]
fn creation_without_an_answer_is_searched_and_never_repeated() {
    check(800, &[Trouble::AnswerLost, Trouble::ErrorThoughMade, Trouble::ErrorNotMade, Trouble::CreateHangs]);
}

/// Faults: P2.
#[test]
fn pod_missing_from_early_lists_is_not_gone() {
    check(900, &[Trouble::ListedLate, Trouble::ListOmits]);
}

/// Faults: P3.
#[test]
fn empty_or_truncated_list_has_no_effect() {
    check(1000, &[Trouble::ListEmpty, Trouble::ListCut]);
}

/// Faults: P3, P8.
#[test]
fn failed_list_has_no_effect() {
    check(1100, &[Trouble::ListFails]);
}

/// Faults: P4.
#[test]
fn return_is_repeated_until_the_pod_is_gone() {
    check(1200, &[Trouble::ReturnIgnored]);
}

/// Faults: P5.
#[test]
fn return_of_a_missing_pod_counts_as_returned() {
    check(1300, &[Trouble::ErrorThoughReturned, Trouble::ReturnFails]);
}

/// Faults: P6.
#[test]
fn rate_limit_is_respected() {
    check(1400, &[Trouble::RateLimit]);
}

/// Faults: P7.
#[test]
fn without_capacity_the_next_offer_is_tried() {
    check(1500, &[Trouble::NoCapacity]);
}

/// Faults: P8.
#[test]
fn fleet_keeps_working_during_a_provider_outage() {
    check(1600, &[Trouble::Outage]);
}

/// Faults: P9.
#[test]
fn refused_key_and_missing_credit_cause_no_call_storm() {
    check(1700, &[Trouble::KeyRefused, Trouble::NoCredit]);
}

/// Faults: J16.
#[test]
fn single_refused_calls_stop_neither_creations_nor_returns() {
    check(2700, &[Trouble::KeyHiccup, Trouble::Operators]);
}

/// Faults: J15.
#[test]
fn machines_above_a_lowered_maximum_are_drained() {
    check(2800, &[Trouble::LimitsLowered]);
}

/// Faults: J17, P10.
#[test]
fn orphans_found_by_a_plane_that_dies_are_returned_within_the_limits() {
    check(2900, &[Trouble::StoreRolledBack, Trouble::PlaneDies, Trouble::ListOmits]);
}

/// Faults: D16, P10.
#[test]
fn pods_unknown_to_a_restored_store_are_returned_within_the_limits() {
    check(1800, &[Trouble::StoreRolledBack]);
}

/// Faults: P11.
#[test]
fn foreign_pods_are_never_touched() {
    check(1900, &[Trouble::ForeignPods, Trouble::StoreRolledBack]);
}

/// Faults: P13.
#[test]
fn machines_that_do_not_stop_themselves_are_returned() {
    check(2000, &[Trouble::NoSelfStop, Trouble::PlaneDies]);
}

/// Faults: P14.
#[test]
fn varying_load_does_not_make_a_fleet_oscillate() {
    assert!(pods(&check(2100, &[])) > WORLDS, "no world rented a machine");
}

/// Faults: P15.
#[test]
fn creation_is_delayed_after_repeated_failures() {
    check(2200, &[Trouble::NeverRuns, Trouble::NoAgent, Trouble::BadGpu]);
}

/// Faults: P16.
#[test]
fn empty_fleet_gets_a_machine_when_a_job_waits() {
    let outcomes = check(2300, &[Trouble::NoCapacity, Trouble::AnswerLost]);
    assert!(outcomes.iter().all(|outcome| outcome.jobs > 0));
}

/// Faults: P17.
#[test]
fn drained_machine_gets_no_work_and_is_returned_in_time() {
    check(2400, &[Trouble::Operators]);
}

/// Faults: P18.
#[test]
fn overpriced_or_wrong_machine_never_gets_work() {
    check(2500, &[Trouble::PricierPod, Trouble::WrongGpu, Trouble::NoPrice]);
}

/// Faults: C1, P1.
#[test]
fn plane_crash_or_failed_commit_loses_and_duplicates_no_machine() {
    check(2600, &[Trouble::PlaneDies, Trouble::CommitsFail, Trouble::AnswerLost]);
}
