//! Section 1 of the fault catalogue.

use std::time::{Duration, Instant};

use remuda_pool::{Failure, ModelSpec, PoolError};

use super::herd::{herd, herd_with, settings};

/// Faults: T1. The request that was in flight goes on elsewhere, until it is plain that it is the one that kills.
#[test]
fn a_panic_ends_the_copy_and_nothing_else() {
    let herd = herd();
    herd.embedding(2, "");
    let first = herd.model().copies[0].id;
    let killer = herd.ask("!panic");
    let others: Vec<_> = (0..20).map(|n| herd.ask(&format!("text {n}"))).collect();
    let Err(PoolError::Failed { failure: Failure::Engine(why), .. }) = killer.wait() else { panic!() };
    assert!(why.contains("2 copies died at it"), "{why}");
    for other in others {
        other.wait().unwrap();
    }
    let model = herd
        .until("two new copies", |model| model.copies.iter().filter(|it| it.state == "ready").count() == 2);
    assert_eq!(model.deaths["panicked"], 2);
    assert!(model.copies.iter().all(|copy| copy.id > first), "{model:#?}");
    assert_eq!(herd.pool.snapshot().memory_reserved_bytes, 2 << 20);
}

/// Faults: T2.
#[test]
fn a_model_that_fails_to_load_is_never_routable_and_its_callers_know_why() {
    let herd = herd_with(remuda_pool::PoolSettings { patience: Duration::ZERO, ..settings() });
    let mut escalations = herd.pool.escalations();
    let spec = herd.spec("embed", "text_embedding\nfailing_loads = 1000");
    herd.pool.add(ModelSpec { copies: 2, ..spec }).unwrap();
    let asked = Instant::now();
    let refused = herd.embed("text").unwrap_err();
    assert!(asked.elapsed() < Duration::from_secs(30), "nobody waits for the deadline");
    let PoolError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("could not be loaded"), "{why}");
    herd.until("given up", |model| model.deaths.get("load").is_some_and(|deaths| *deaths >= 10));
    assert_eq!(escalations.blocking_recv().unwrap().model, "embed");
    assert!(!herd.pool.has_alive_workers("embed"));
    assert!(matches!(herd.try_ask("text"), Err(PoolError::NoWorkers { .. })));
}

/// Faults: T2. Three loads fail and the fourth does not: whoever is patient is answered.
#[test]
fn a_load_that_works_at_last_serves_who_waited() {
    let herd = herd();
    let spec = herd.spec("embed", "text_embedding\nfailing_loads = 3");
    herd.pool.add(spec).unwrap();
    herd.embed("text").unwrap();
    assert_eq!(herd.model().deaths["load"], 3);
}

/// Faults: T10.
#[test]
fn when_the_last_copy_dies_for_good_everybody_who_waits_is_told() {
    let herd = herd_with(remuda_pool::PoolSettings { deaths_max: 1, ..settings() });
    herd.embedding(1, "");
    let killer = herd.ask("!panic");
    let waiting: Vec<_> = (0..10).map(|n| herd.ask(&format!("!busy {n}"))).collect();
    for ticket in waiting.into_iter().chain([killer]) {
        let refused = ticket.wait().unwrap_err();
        let PoolError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
        assert!(why.contains("a text asked for it"), "{why}");
    }
    assert!(
        matches!(herd.try_ask("text"), Err(PoolError::NoWorkers { .. })),
        "and so is who comes later, at once"
    );
}
