//! Rows of the fault catalogue, each in worlds in which it happens again and again and nothing else does. Besides the laws,
//! which hold in every world, each test states what its row requires and that the fault really had its effect.

use remuda_sim::{FaultFocus, Outcome, Sabotage, WorldSettings, run};

/// Worlds for each row: enough that the fault hits idle, starting, running and ending attempts.
const WORLDS: u64 = 40;

fn settings(focus: FaultFocus) -> WorldSettings {
    WorldSettings { focus: Some(focus), ..WorldSettings::default() }
}

/// Runs worlds from seed `first` on and adds up their outcomes. No law may be violated.
fn check(first: u64, settings: &WorldSettings) -> Outcome {
    let mut sum: Option<Outcome> = None;
    for seed in first..first + WORLDS {
        let outcome = run(seed, settings);
        let violations: Vec<_> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "seed {seed}: {}", violations.join("\n"));
        sum = Some(match sum {
            None => outcome,
            Some(sum) => Outcome {
                jobs: sum.jobs + outcome.jobs,
                attempts: sum.attempts + outcome.attempts,
                executions: sum.executions + outcome.executions,
                faults: sum.faults + outcome.faults,
                silent: sum.silent + outcome.silent,
                stuck: sum.stuck + outcome.stuck,
                ..sum
            },
        });
    }
    let sum = sum.expect("there are worlds");
    assert!(sum.jobs > 0, "{sum:?}");
    sum
}

/// How many attempts the sabotaged plane took from silent workers in the same worlds.
fn silent_with(sabotage: Sabotage, first: u64, focus: FaultFocus) -> u64 {
    let settings = WorldSettings { sabotage: Some(sabotage), ..settings(focus) };
    (first..first + WORLDS).map(|seed| run(seed, &settings).silent).sum()
}

/// Faults: N5. Nothing is requeued although every worker was silent for longer than its lease.
#[test]
fn cut_of_every_link_takes_no_attempt_from_anyone() {
    let outcome = check(20_000_000, &settings(FaultFocus::MassCut));
    assert_eq!((outcome.faults, outcome.silent), (2 * WORLDS, 0), "{outcome:?}");
    let without_brake = silent_with(Sabotage::NoMassLossBrake, 20_000_000, FaultFocus::MassCut);
    assert!(without_brake > 0, "these cuts would pass unnoticed without a brake, too");
}

/// Faults: N6, C8. The last cut heals when the storm ends: from then on law L5 counts the calls of every agent, and no
/// agent may make more than twice as many as usual in any minute.
#[test]
fn fleet_that_returns_at_once_calls_no_more_than_usual() {
    let settings = WorldSettings { workers: Some(60), ..settings(FaultFocus::MassCut) };
    let outcome = check(20_100_000, &settings);
    assert_eq!(outcome.silent, 0, "{outcome:?}");
}

/// Faults: N7. Every worker lives through the whole storm, so each attempt that is taken from a silent one is a false death.
#[test]
fn network_that_loses_a_third_declares_no_worker_dead() {
    let outcome = check(20_200_000, &settings(FaultFocus::LossyNetwork));
    assert_eq!((outcome.faults, outcome.silent), (WORLDS, 0), "{outcome:?}");
}

/// Faults: K1. Four jumps of an hour in each world, in both directions.
#[test]
fn clock_that_jumps_an_hour_costs_no_lease_and_no_timer() {
    let outcome = check(20_300_000, &settings(FaultFocus::ClockJump));
    assert_eq!((outcome.faults, outcome.silent, outcome.stuck), (4 * WORLDS, 0, 0), "{outcome:?}");
    let by_wall_clock = silent_with(Sabotage::WallClockLeases, 20_300_000, FaultFocus::ClockJump);
    assert!(by_wall_clock > 0, "these jumps would cost nothing if leases went by the wall clock, too");
}

/// Faults: D17. The store is away for one to ten minutes, longer than any lease.
#[test]
fn store_that_is_away_for_minutes_costs_no_worker_its_attempt() {
    let outcome = check(20_400_000, &settings(FaultFocus::StoreOutage));
    assert_eq!((outcome.faults, outcome.silent, outcome.stuck), (WORLDS, 0, 0), "{outcome:?}");
}

/// Faults: V9. What was cleared is run again, and only that: a service that was asked once is not believed.
#[test]
fn cleared_history_repeats_what_was_lost_and_nothing_else() {
    let outcome = check(20_500_000, &settings(FaultFocus::ClearedHistory));
    assert_eq!(outcome.faults, 20 * WORLDS, "{outcome:?}");
    assert!(outcome.executions * 100 <= outcome.jobs * 115, "{outcome:?}");
}

/// Faults: A9. The agent beats and its service answers, and nothing runs: law L1 bounds how long a job may wait there.
#[test]
fn service_that_runs_nothing_is_found_although_its_agent_beats() {
    let outcome = check(20_600_000, &settings(FaultFocus::DeadExecutor));
    assert_eq!(outcome.faults, 4 * WORLDS, "{outcome:?}");
    assert!(outcome.attempts > outcome.jobs, "no attempt was ever repeated: {outcome:?}");
}

/// Faults: C18. One tenant submits more than half of all jobs at once; the law of fair shares says that no other tenant is
/// passed over again and again.
#[test]
fn flood_of_one_tenant_holds_up_no_other() {
    let flooded = WorldSettings { jobs: Some(300), workers: Some(2), ..settings(FaultFocus::Flood) };
    let outcome = check(20_700_000, &flooded);
    assert_eq!(outcome.jobs, 300 * WORLDS, "{outcome:?}");
    let without_shares = WorldSettings { sabotage: Some(Sabotage::OneTenant), ..flooded };
    let is_unfair = |seed: u64| !run(seed, &without_shares).violations.is_empty();
    assert!((20_700_000..20_700_010).any(is_unfair), "the flood would pass unnoticed without shares, too");
}
