//! Fleets at a provider that gets one thing wrong at a time: each is met, and no law is broken. What the laws trace_line about
//! pods stands in `laws`: never more than allowed nor dearer, none without a record, none left over, nobody else's
//! touched, no work before a machine can do it and none for whoever is on the way out, no storm of calls.

use std::collections::BTreeMap;

use remuda_sim::{Outcome, Trouble, Weather, WorldSettings, run};

/// Worlds for each trouble: enough that it is met in many ways.
const WORLDS: u64 = 6;

/// Worlds with only these troubles, from `first` on; how often each was met, and all outcomes.
fn check(first: u64, troubles: &[Trouble]) -> Vec<Outcome> {
    let settings = WorldSettings {
        weather: Some(Weather::Fleet),
        troubles: Some(troubles.to_vec()),
        ..WorldSettings::default()
    };
    let outcomes: Vec<_> = (first..first + WORLDS).map(|seed| (seed, run(seed, &settings))).collect();
    let mut met = BTreeMap::<Trouble, u64>::new();
    for (seed, outcome) in &outcomes {
        let broken: Vec<_> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "seed {seed}: {}", broken.join("\n"));
        outcome.trouble_counts.iter().for_each(|(trouble, times)| *met.entry(*trouble).or_default() += times);
    }
    for trouble in troubles {
        assert!(met.contains_key(trouble), "{trouble:?} was never met: {met:?}");
    }
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn pods(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|outcome| outcome.pods).sum()
}

/// Faults: M1.
#[test]
fn machines_that_die_or_vanish_are_replaced_and_their_records_reconciled() {
    check(100, &[Trouble::HostDies, Trouble::PodVanishes]);
}

/// Faults: M1.
#[test]
fn machines_that_stop_by_themselves_are_returned() {
    check(200, &[Trouble::PodExits]);
}

/// Faults: M2.
#[test]
fn a_pod_that_never_runs_is_given_up() {
    check(300, &[Trouble::NeverRuns]);
}

/// Faults: M3.
#[test]
fn a_pod_on_which_nobody_registers_is_given_up() {
    check(400, &[Trouble::NoAgent]);
}

/// Faults: M4.
#[test]
fn whoever_registers_after_it_was_given_up_is_sent_away_and_never_both() {
    check(500, &[Trouble::LateAgent, Trouble::ReturnIgnored, Trouble::ReturnFails]);
}

/// Faults: M5.
#[test]
fn a_gpu_that_does_not_compute_is_returned_before_it_gets_work() {
    check(600, &[Trouble::BadGpu, Trouble::BadHosts]);
}

/// Faults: M6.
#[test]
fn nothing_is_given_to_a_machine_whose_models_are_still_on_their_way() {
    check(700, &[Trouble::SlowModels]);
}

/// Faults: P1.
#[test]
fn a_creation_whose_answer_is_lost_is_looked_for_and_never_repeated() {
    check(800, &[Trouble::AnswerLost, Trouble::ErrorThoughMade, Trouble::ErrorNotMade, Trouble::CreateHangs]);
}

/// Faults: P2.
#[test]
fn a_pod_that_lists_do_not_show_yet_is_not_gone() {
    check(900, &[Trouble::ListedLate, Trouble::ListOmits]);
}

/// Faults: P3.
#[test]
fn nothing_follows_from_a_list_that_is_empty_or_cut_short() {
    check(1000, &[Trouble::ListEmpty, Trouble::ListCut]);
}

/// Faults: P3, P8.
#[test]
fn nothing_follows_from_a_list_that_failed() {
    check(1100, &[Trouble::ListFails]);
}

/// Faults: P4.
#[test]
fn a_return_that_is_said_to_be_done_is_asked_for_until_it_is() {
    check(1200, &[Trouble::ReturnIgnored]);
}

/// Faults: P5.
#[test]
fn what_is_gone_already_is_returned() {
    check(1300, &[Trouble::ErrorThoughReturned, Trouble::ReturnFails]);
}

/// Faults: P6.
#[test]
fn who_is_told_to_wait_waits() {
    check(1400, &[Trouble::RateLimit]);
}

/// Faults: P7.
#[test]
fn where_nothing_is_free_the_next_offer_is_tried_and_then_time() {
    check(1500, &[Trouble::NoCapacity]);
}

/// Faults: P8.
#[test]
fn while_the_provider_is_away_the_fleet_serves_on() {
    check(1600, &[Trouble::Outage]);
}

/// Faults: P9.
#[test]
fn a_key_that_is_refused_and_an_empty_purse_make_no_storm() {
    check(1700, &[Trouble::KeyRefused, Trouble::NoCredit]);
}

/// Faults: P10.
#[test]
fn pods_that_a_store_from_a_backup_does_not_know_are_swept_up_within_the_maximum() {
    check(1800, &[Trouble::StoreRolledBack]);
}

/// Faults: P11.
#[test]
fn other_peoples_pods_and_those_of_another_deployment_are_never_touched() {
    check(1900, &[Trouble::ForeignPods, Trouble::StoreRolledBack]);
}

/// Faults: P13.
#[test]
fn machines_that_nothing_ends_by_itself_are_returned_all_the_same() {
    check(2000, &[Trouble::NoSelfStop, Trouble::PlaneDies]);
}

/// Faults: P14.
#[test]
fn a_load_that_swings_makes_no_fleet_swing() {
    assert!(pods(&check(2100, &[])) > WORLDS, "there was something to rent");
}

/// Faults: P15.
#[test]
fn when_machine_after_machine_comes_to_nothing_the_next_is_waited_with() {
    check(2200, &[Trouble::NeverRuns, Trouble::NoAgent, Trouble::BadGpu]);
}

/// Faults: P16.
#[test]
fn an_empty_fleet_gets_a_machine_as_soon_as_something_waits() {
    let outcomes = check(2300, &[Trouble::NoCapacity, Trouble::AnswerLost]);
    assert!(outcomes.iter().all(|outcome| outcome.jobs > 0));
}

/// Faults: P17.
#[test]
fn who_is_drained_gets_nothing_more_and_goes_in_time() {
    check(2400, &[Trouble::Operators]);
}

/// Faults: P18.
#[test]
fn what_is_dearer_than_agreed_or_something_else_never_works_for_us() {
    check(2500, &[Trouble::PricierPod, Trouble::WrongGpu, Trouble::NoPrice]);
}

/// Faults: C1, P1.
#[test]
fn a_plane_that_dies_or_cannot_store_loses_no_machine_and_makes_none_twice() {
    check(2600, &[Trouble::PlaneDies, Trouble::CommitsFail, Trouble::AnswerLost]);
}
