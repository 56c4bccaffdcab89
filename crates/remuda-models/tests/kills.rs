//! A thousand killed processes. In its own test binary, because it counts the resources of the whole process.
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

#[path = "pool/fixture.rs"]
#[expect(dead_code, reason = "used by other tests")]
mod fixture;

use std::collections::BTreeSet;

use rustix::process::Signal;

use self::fixture::{KINDS, PoolFixture, fixture, kill, resident};

/// The memory a copy claims and takes.
const WEIGHTS: u64 = 16 << 20;

/// The resources in use once every killed copy was replaced.
#[derive(Clone, Debug)]
struct ResourceUse {
    reserved_bytes: u64,
    /// Of both copies, without the program's own pages, which all processes share.
    copies_bytes: u64,
    own_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl ResourceUse {
    /// Measures when two copies are ready and no other is left.
    fn of(fixture: &PoolFixture) -> Self {
        let model = fixture.all_ready(2);
        let pids: BTreeSet<u32> = model.copies.iter().map(|copy| copy.pid.unwrap()).collect();
        assert_eq!(children(), pids, "no zombie and no stray process");
        let count = |folder| std::fs::read_dir(folder).unwrap().count();
        ResourceUse {
            reserved_bytes: fixture.pool.snapshot().memory_reserved_bytes,
            copies_bytes: pids.iter().map(|pid| resident(*pid, "RssAnon")).sum(),
            own_bytes: resident(std::process::id(), "VmRSS"),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }
}

/// The child processes that were not reaped, alive or dead.
fn children() -> BTreeSet<u32> {
    let is_ours = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(std::process::id())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// Kills one of the two copies, busy or idle; waiting callers are answered by the other.
fn kill_one(fixture: &PoolFixture, round: usize) {
    let victim = fixture.all_ready(2).copies[round % 2].id;
    // A copy that has answered did not die of a failed start, so it is replaced at once.
    for text in ["one", "other"] {
        fixture.embed(text).unwrap();
    }
    let is_busy = round % 4 < 2;
    let asked = is_busy.then(|| ["!busy 5", "!busy 5"].map(|text| fixture.ask(text)));
    let seen =
        fixture.until("at work", |model| !is_busy || model.copies.iter().all(|copy| copy.in_flight > 0));
    kill(seen.copies.iter().find(|copy| copy.id == victim).unwrap().pid.unwrap(), Signal::KILL);
    for pending in asked.into_iter().flatten() {
        pending.wait().unwrap();
    }
    fixture.embed("well").unwrap();
    fixture.until("seen", |model| model.deaths.get("exited") == Some(&(round as u64 + 1)));
}

/// Faults: T1.
///
/// The accounting is exact, it matches the measured memory within a twentieth, and nothing grows: a thousand processes
/// of 16 MiB were loaded and killed, and a descriptor, a thread, a zombie or half a kilobyte left by each would be
/// noticed.
#[test]
fn a_thousand_killed_processes_leave_nothing_behind() {
    let fixture = fixture();
    fixture.embedding(2, &format!("{}\nmemory_bytes = {WEIGHTS}\nweights_bytes = {WEIGHTS}", KINDS[1]));
    let mut first = None;
    for hundred in 0..10 {
        for round in 0..100 {
            kill_one(&fixture, hundred * 100 + round);
        }
        let now = ResourceUse::of(&fixture);
        println!("{now:?}");
        // From here on everything that a death touches was touched once.
        let first = first.get_or_insert_with(|| now.clone());
        assert_eq!(now.reserved_bytes, 2 * WEIGHTS);
        assert!(is_within_a_twentieth(now.copies_bytes, now.reserved_bytes), "{now:?}");
        assert!(now.own_bytes <= first.own_bytes + first.own_bytes / 20, "{now:?} after {first:?}");
        assert_eq!((now.descriptors, now.threads), (first.descriptors, first.threads));
    }
}

fn is_within_a_twentieth(bytes: u64, accounted: u64) -> bool {
    bytes.abs_diff(accounted) <= accounted / 20
}
