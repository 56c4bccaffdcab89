//! Busy copies on a busy machine. `examples/soak.rs` does the same for any length of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remuda_models::ModelPoolSettings;

use super::fixture::{KINDS, fixture_with, settings};

/// Faults: T3.
#[test]
fn saturated_machine_kills_no_copy() {
    let limits = ModelPoolSettings { stall_max: Duration::from_secs(1), ..settings() };
    let enough = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..2)
        .map(|_| {
            let enough = Arc::clone(&enough);
            std::thread::spawn(move || while !enough.load(Ordering::Relaxed) {})
        })
        .collect();
    let (threads, processes) = (fixture_with(limits.clone()), fixture_with(limits));
    threads.embedding(2, KINDS[0]);
    processes.embedding(2, KINDS[1]);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let tickets: Vec<_> =
            [&threads, &processes].map(|fixture| fixture.ask("!busy 1500")).into_iter().collect();
        for fixture in [&threads, &processes] {
            assert!(fixture.pool.has_alive_workers("embed"));
            assert_eq!(fixture.pool.validate_workers("embed"), 0);
        }
        for pending in tickets {
            pending.wait().unwrap();
        }
    }
    enough.store(true, Ordering::Relaxed);
    for hog in hogs {
        hog.join().unwrap();
    }
    for fixture in [&threads, &processes] {
        assert!(fixture.model().deaths.is_empty(), "{:#?}", fixture.model());
    }
}
