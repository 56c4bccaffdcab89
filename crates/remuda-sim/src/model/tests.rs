//! Explores the models; with each saboteur the search must find the rule that it breaks.

use std::fmt::Debug;

use super::attempts::{AttemptSabotage, Attempts, FaultBudget};
use super::rentals::{RentalSabotage, Rentals};
use super::search::{Model, explore};
use crate::law::Law;

/// Explores everything: no rule is broken, and the model is not empty by mistake.
fn hold(model: &impl Model, states_min: usize) {
    let found = explore(model);
    println!("{}", found.summary());
    if let Some(violation) = found.violation {
        panic!("{}", violation.report());
    }
    assert!(found.states >= states_min, "only {} states were explored", found.states);
}

/// The shortest violation that a saboteur makes possible.
fn catch(sabotage: impl Debug, model: &impl Model, law: Law) {
    let found = explore(model);
    println!("{sabotage:?}: {}", found.summary());
    let violation = found.violation.unwrap_or_else(|| panic!("{sabotage:?} was not caught"));
    println!("{}", violation.report());
    assert_eq!(violation.broken.law, law, "{}", violation.report());
}

fn faults(total: u8) -> FaultBudget {
    FaultBudget { total, ..FaultBudget::default() }
}

/// Faults: A5, A7, V6.
#[test]
fn every_fault_alone_breaks_no_rule() {
    let (late, copies, crashes) = (1, 1, 1);
    let (kills, pauses, cancels, drains) = (1, 1, 1, 1);
    let each = FaultBudget { total: 1, late, copies, crashes, kills, pauses, cancels, drains };
    hold(&Attempts::new(each, 6, None), 10_000);
}

/// Faults: A5.
#[test]
fn lost_late_and_copied_messages_around_a_plane_restart_break_no_rule() {
    let budget = FaultBudget { late: 1, copies: 1, crashes: 1, ..faults(2) };
    hold(&Attempts::new(budget, 2, None), 10_000);
}

/// Faults: A1, V2, C1.
#[test]
fn restarts_of_agent_and_plane_adopt_what_runs() {
    let budget = FaultBudget { kills: 1, crashes: 1, ..faults(2) };
    hold(&Attempts::new(budget, 1, None), 10_000);
}

/// Faults: A3, A4.
#[test]
fn zombie_beside_the_next_attempt_changes_nothing() {
    hold(&Attempts::new(faults(0), 6, None).with_zombie(), 5000);
}

/// Faults: A3, A4.
#[test]
fn zombie_with_a_lost_message_changes_nothing() {
    let budget = FaultBudget { late: 1, ..faults(1) };
    hold(&Attempts::new(budget, 2, None).with_zombie(), 10_000);
}

/// Faults: A7, V6.
#[test]
fn completion_and_cancel_have_one_outcome() {
    let budget = FaultBudget { cancels: 1, late: 1, copies: 1, ..faults(3) };
    hold(&Attempts::new(budget, 3, None), 10_000);
}

/// Faults: P17.
#[test]
fn drain_and_claim_exclude_each_other() {
    let budget = FaultBudget { drains: 1, late: 1, ..faults(2) };
    hold(&Attempts::new(budget, 4, None), 10_000);
}

/// Faults: P1, P2.
#[test]
fn one_intent_makes_one_pod() {
    hold(&Rentals::new(2, 1, 12, None), 10_000);
}

fn catch_attempts(budget: FaultBudget, horizon: u64, sabotage: AttemptSabotage, law: Law) {
    catch(sabotage, &Attempts::new(budget, horizon, Some(sabotage)), law);
}

#[test]
fn dropped_fence_is_caught() {
    let budget = FaultBudget { pauses: 1, ..faults(1) };
    catch_attempts(budget, 9, AttemptSabotage::DropFence, Law::S3);
}

#[test]
fn accepting_any_attempt_number_is_caught() {
    let sabotage = AttemptSabotage::AnyAttemptNumber;
    let budget = FaultBudget { late: 1, ..faults(1) };
    catch(sabotage, &Attempts::new(budget, 6, Some(sabotage)).pinned().with_zombie(), Law::S3);
}

#[test]
fn accepting_stale_beats_is_caught() {
    let budget = FaultBudget { copies: 1, ..faults(1) };
    catch_attempts(budget, 6, AttemptSabotage::AcceptStaleBeats, Law::S3);
}

#[test]
fn order_before_its_commit_is_caught() {
    catch_attempts(faults(0), 6, AttemptSabotage::OrdersBeforeCommit, Law::S5);
}

#[test]
fn prompt_id_recorded_after_submission_is_caught() {
    let budget = FaultBudget { kills: 1, ..faults(1) };
    catch_attempts(budget, 6, AttemptSabotage::RecordIdAfterSubmission, Law::S6);
}

#[test]
fn requeue_on_timeout_is_caught() {
    let budget = FaultBudget { late: 1, ..faults(1) };
    catch_attempts(budget, 8, AttemptSabotage::RequeueOnTimeout, Law::S6);
}

#[test]
fn history_read_before_the_queue_is_caught() {
    catch_attempts(faults(0), 6, AttemptSabotage::HistoryBeforeQueue, Law::S6);
}

#[test]
fn ignored_inventory_is_caught() {
    let budget = FaultBudget { late: 1, ..faults(1) };
    catch_attempts(budget, 7, AttemptSabotage::IgnoreInventory, Law::L1);
}

#[test]
fn ignored_drain_is_caught() {
    let budget = FaultBudget { drains: 1, kills: 1, ..faults(2) };
    catch_attempts(budget, 6, AttemptSabotage::IgnoreDrain, Law::S4);
}

fn catch_rentals(sabotage: RentalSabotage, law: Law) {
    catch(sabotage, &Rentals::new(2, 1, 12, Some(sabotage)), law);
}

#[test]
fn pod_created_before_its_intent_is_caught() {
    catch_rentals(RentalSabotage::CreateBeforeIntent, Law::S5);
}

#[test]
fn repeated_creation_is_caught() {
    catch_rentals(RentalSabotage::CreateAgain, Law::S5);
}

#[test]
fn trust_in_an_early_list_is_caught() {
    catch_rentals(RentalSabotage::TrustEarlyLists, Law::S8);
}
