//! A thousand killed processes. In a process of its own, as it counts everything that this process has.
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

#[path = "pool/fixture.rs"]
#[expect(dead_code, reason = "what other tests say to it")]
mod fixture;

use std::collections::BTreeSet;

use rustix::process::Signal;

use self::fixture::{KINDS, PoolFixture, fixture, kill, resident};

/// What a copy says that it takes, and takes.
const WEIGHTS: u64 = 16 << 20;

/// What is there once everybody who was killed has been replaced.
#[derive(Clone, Debug)]
struct Belongings {
    reserved_bytes: u64,
    /// Of both, without the program itself, which all processes share.
    copies_bytes: u64,
    own_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl Belongings {
    /// Looks when two copies are ready and nobody else is left.
    fn of(fixture: &PoolFixture) -> Self {
        let model = fixture.all_ready(2);
        let pids: BTreeSet<u32> = model.copies.iter().map(|copy| copy.pid.unwrap()).collect();
        assert_eq!(children(), pids, "neither a zombie nor a stray");
        let count = |folder| std::fs::read_dir(folder).unwrap().count();
        Belongings {
            reserved_bytes: fixture.pool.snapshot().memory_reserved_bytes,
            copies_bytes: pids.iter().map(|pid| resident(*pid, "RssAnon")).sum(),
            own_bytes: resident(std::process::id(), "VmRSS"),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }
}

/// The processes that this one started and has not reaped, living or dead.
fn children() -> BTreeSet<u32> {
    let is_ours = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(std::process::id())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// One of both is killed, at its work or between; whoever waits is answered by the other.
fn kill_one(fixture: &PoolFixture, round: usize) {
    let victim = fixture.all_ready(2).copies[round % 2].id;
    // Whoever has answered something did not die of how it was started, and is replaced at once.
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
/// The books are exact, they say within a twentieth what is there, and nothing grows: a thousand processes of 16 MiB were
/// loaded and killed, and a descriptor, a thread, a zombie or half a kilobyte left by each would be seen.
#[test]
fn a_thousand_killed_processes_are_reaped_and_replaced_and_leave_nothing_behind() {
    let fixture = fixture();
    fixture.embedding(2, &format!("{}\nmemory_bytes = {WEIGHTS}\nweights_bytes = {WEIGHTS}", KINDS[1]));
    let mut first = None;
    for hundred in 0..10 {
        for round in 0..100 {
            kill_one(&fixture, hundred * 100 + round);
        }
        let now = Belongings::of(&fixture);
        println!("{now:?}");
        // From here on everything has been touched once that is touched by a death.
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
