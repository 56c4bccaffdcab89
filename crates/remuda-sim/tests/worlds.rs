//! Many worlds, and not one law broken. A failing seed is printed; `cargo sim SEED` replays it.

use remuda_sim::{Weather, WorldSettings, replay, run};

/// What services may run for a hundred jobs: the rest was lost, failed or cancelled, and was done again.
const EXECUTIONS_MAX: u64 = 115;

/// Lives through worlds from `first` on until `lives` jobs have been lived.
fn check(first: u64, lives: u64, settings: &WorldSettings) {
    let (mut seed, mut lived, mut executions) = (first, 0, 0);
    while lived < lives {
        let outcome = run(seed, settings);
        let broken: Vec<_> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "seed {seed}: {}", broken.join("\n"));
        assert!(outcome.jobs > 0, "seed {seed} lived nothing");
        (seed, lived, executions) = (seed + 1, lived + outcome.jobs, executions + outcome.executions);
    }
    assert!(executions * 100 <= lived * EXECUTIONS_MAX, "{executions} executions for {lived} jobs");
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
fn worlds_with_odd_services_keep_the_laws() {
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
fn wild_worlds_keep_the_laws() {
    check_weather(Weather::Wild, 6_000_000);
}

/// Hours pass in each of these, so that there are fewer.
#[test]
fn worlds_with_rented_machines_keep_the_laws() {
    check(8_000_000, 7000, &WorldSettings { weather: Some(Weather::Fleet), ..WorldSettings::default() });
}

#[test]
fn a_seed_is_the_same_world_every_time_and_whoever_looks_on() {
    let settings = WorldSettings::default();
    for seed in 0..20 {
        let (first, second) = (run(seed, &settings), run(seed, &settings));
        let mut lines = 0;
        let watched = replay(seed, &settings, &mut |_| lines += 1);
        assert_eq!(first, second, "seed {seed}");
        assert_eq!(first, watched, "seed {seed}");
        assert!(lines > 100, "a replay of seed {seed} tells a story");
    }
    assert_ne!(run(1, &settings).trace_hash, run(2, &settings).trace_hash);
}

#[test]
fn a_world_is_as_large_as_it_is_asked_to_be() {
    let settings =
        WorldSettings { jobs: Some(40), workers: Some(5), faults: false, ..WorldSettings::default() };
    let outcome = run(7, &settings);
    assert_eq!((outcome.jobs, outcome.violations.len()), (40, 0));
}
