//! Runs many worlds in which no law may be violated. A failing seed is printed; `cargo sim SEED` replays it.

use remuda_sim::{Weather, WorldSettings, replay, run};

/// Runs at services per hundred jobs: more than a hundred because lost, failed and cancelled work is repeated.
const EXECUTIONS_MAX: u64 = 115;

/// Runs worlds from seed `first` on until they have had `jobs` jobs.
fn check(first: u64, jobs: u64, settings: &WorldSettings) {
    let (mut seed, mut done, mut executions) = (first, 0, 0);
    while done < jobs {
        let outcome = run(seed, settings);
        let violations: Vec<_> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "seed {seed}: {}", violations.join("\n"));
        assert!(outcome.jobs > 0, "seed {seed} had no jobs");
        (seed, done, executions) = (seed + 1, done + outcome.jobs, executions + outcome.executions);
    }
    assert!(executions * 100 <= done * EXECUTIONS_MAX, "{executions} executions for {done} jobs");
}

/// Each weather has its own range of seeds, so that a change in one leaves the others as they were.
fn check_weather(weather: Weather, first: u64) {
    check(first, 49_000, &WorldSettings { weather: Some(weather), ..WorldSettings::default() });
}

#[test]
fn fair_worlds_keep_the_laws() {
    check_weather(Weather::Fair, 1_000_000);
}

#[test]
fn worlds_with_dying_agents_keep_the_laws() {
    check_weather(Weather::Agents, 2_000_000);
}

#[test]
fn worlds_with_a_bad_network_keep_the_laws() {
    check_weather(Weather::Network, 3_000_000);
}

#[test]
fn worlds_with_faulty_services_keep_the_laws() {
    check_weather(Weather::Service, 7_000_000);
}

#[test]
fn worlds_with_dying_planes_keep_the_laws() {
    check_weather(Weather::Plane, 4_000_000);
}

#[test]
fn worlds_with_a_slow_store_keep_the_laws() {
    check_weather(Weather::Store, 5_000_000);
}

#[test]
fn worlds_with_mass_losses_keep_the_laws() {
    check_weather(Weather::Losses, 9_000_000);
}

#[test]
fn wild_worlds_keep_the_laws() {
    check_weather(Weather::Wild, 6_000_000);
}

/// Each of these worlds covers hours, so there are fewer.
#[test]
fn worlds_with_rented_machines_keep_the_laws() {
    check(8_000_000, 7000, &WorldSettings { weather: Some(Weather::Fleet), ..WorldSettings::default() });
}

#[test]
fn seed_determines_the_world() {
    let settings = WorldSettings::default();
    for seed in 0..20 {
        let (first, second) = (run(seed, &settings), run(seed, &settings));
        let mut lines = 0;
        let traced = replay(seed, &settings, &mut |_| lines += 1);
        assert_eq!(first, second, "seed {seed}");
        assert_eq!(first, traced, "seed {seed}");
        assert!(lines > 100, "the replay of seed {seed} has only {lines} lines");
    }
    assert_ne!(run(1, &settings).trace_hash, run(2, &settings).trace_hash);
}

#[test]
fn world_has_the_requested_size() {
    let settings =
        WorldSettings { jobs: Some(40), workers: Some(5), faults: false, ..WorldSettings::default() };
    let outcome = run(7, &settings);
    assert_eq!((outcome.jobs, outcome.violations.len()), (40, 0));
}
