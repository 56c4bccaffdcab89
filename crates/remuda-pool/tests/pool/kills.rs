//! Memory after a thousand deaths.

use rustix::process::Signal;

use super::faults::kill;
use super::herd::{Herd, KINDS, herd};

const WEIGHTS: u64 = 1 << 20;

/// Resident, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

fn two_ready(herd: &Herd) {
    herd.until("two copies", |model| {
        model.copies.len() == 2 && model.copies.iter().all(|copy| copy.state == "ready")
    });
}

/// Both copies are of use, then both are killed by one text.
fn kill_both(herd: &Herd) {
    herd.embed("one").unwrap();
    herd.embed("other").unwrap();
    herd.embed("!broken").unwrap_err();
    two_ready(herd);
    assert_eq!(herd.pool.snapshot().memory_reserved_bytes, 2 * WEIGHTS);
}

/// What is accounted is what is there: less than a twentieth of what died is left behind, and nothing in the books.
#[test]
fn a_thousand_deaths_leave_no_memory_behind() {
    let herd = herd();
    herd.embedding(2, &format!("memory_bytes = {WEIGHTS}\nweights_bytes = {WEIGHTS}"));
    for _ in 0..50 {
        kill_both(&herd);
    }
    let before = resident();
    for _ in 50..500 {
        kill_both(&herd);
    }
    let died = herd.model().deaths["poisoned"];
    assert_eq!(died, 1000);
    let left = resident().saturating_sub(before);
    assert!(left < 900 * WEIGHTS / 20, "{left} bytes are left behind");
}

/// A killed process is seen, reaped and replaced, every time, and leaves no zombie.
#[test]
fn killed_processes_are_reaped_and_replaced() {
    let herd = herd();
    herd.embedding(2, KINDS[1]);
    let mut killed = Vec::new();
    for round in 0..100 {
        two_ready(&herd);
        for text in ["one", "other"] {
            herd.embed(text).unwrap();
        }
        let pid = herd.model().copies[round % 2].pid.unwrap();
        kill(pid, Signal::KILL);
        killed.push(pid);
        herd.embed("well").unwrap();
        herd.until("seen", |model| model.deaths.get("exited") == Some(&(round as u64 + 1)));
    }
    two_ready(&herd);
    assert_eq!(herd.pool.snapshot().memory_reserved_bytes, 2 << 20);
    let status = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let zombies = killed.iter().filter(|pid| status(pid).contains("State:\tZ")).count();
    assert_eq!(zombies, 0);
}
