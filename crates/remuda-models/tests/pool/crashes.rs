//! Memory after a thousand deaths of thread copies; `tests/kills.rs` covers processes.

use super::fixture::{PoolFixture, fixture, resident};

const WEIGHTS: u64 = 1 << 20;

/// Both copies answer, then both are killed by one text.
fn kill_both(fixture: &PoolFixture) {
    fixture.embed("one").unwrap();
    fixture.embed("other").unwrap();
    fixture.embed("!broken").unwrap_err();
    fixture.all_ready(2);
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 2 * WEIGHTS);
}

/// The accounting matches reality: less than a twentieth of the dead copies' memory is left behind, and none in the
/// accounting.
#[test]
fn a_thousand_deaths_leave_no_memory_behind() {
    let fixture = fixture();
    fixture.embedding(2, &format!("memory_bytes = {WEIGHTS}\nweights_bytes = {WEIGHTS}"));
    for _ in 0..50 {
        kill_both(&fixture);
    }
    let before = resident(std::process::id(), "VmRSS");
    for _ in 50..500 {
        kill_both(&fixture);
    }
    let died = fixture.model().deaths["poisoned"];
    assert_eq!(died, 1000);
    let left = resident(std::process::id(), "VmRSS").saturating_sub(before);
    assert!(left < 900 * WEIGHTS / 20, "{left} bytes were leaked");
}
