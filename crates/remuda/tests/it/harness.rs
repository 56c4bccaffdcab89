//! Starts planes and workers, sends requests, and waits for conditions.

mod client;
mod line;
mod plane;
mod process;
mod raw;
mod scripted_worker;
mod stream;
mod worker;

use std::fmt::Debug;
use std::time::{Duration, Instant};

pub(crate) use self::client::{Client, answered};
pub(crate) use self::line::{Line, LineState};
pub(crate) use self::plane::{Plan, Plane, free_address};
pub(crate) use self::process::{Process, is_running, remuda};
pub(crate) use self::raw::Raw;
pub(crate) use self::scripted_worker::ScriptedWorker;
pub(crate) use self::stream::{Event, Stream};
pub(crate) use self::worker::{Gate, Worker};

/// Default timings scaled down to seconds, in the same proportions.
pub(crate) const QUICK: &[&str] = &[
    "lease=2s",
    "beat.busy=300ms",
    "beat.suspect_after=1s",
    "beat.idle=2s",
    "beat.stale_after=6s",
    "order_grace=1s",
    "plane_stall_max=1500ms",
    "retry.base=50ms",
    "retry.max=200ms",
    "block.cooldown=1s",
    "block.cooldown_max=10s",
];

/// No condition takes this long, not even on two busy cores.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Polls until `look` returns something.
pub(crate) async fn wait_until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited {WAIT_MAX:?} in vain until {what}");
        sleep_for(LOOK_EVERY).await;
    }
}

/// Lets a fault last, or paces two tries. Never a way to wait for a condition.
pub(crate) async fn sleep_for(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Random numbers of a test; the seed is printed when the test fails.
#[derive(Debug)]
pub(crate) struct TestRng(u64);

impl TestRng {
    pub(crate) fn new() -> TestRng {
        let clock = std::time::UNIX_EPOCH.elapsed().unwrap();
        let seed = std::env::var("IT_SEED").map_or(clock.as_nanos() as u64, |seed| seed.parse().unwrap());
        eprintln!("luck: IT_SEED={seed}");
        TestRng(seed)
    }

    /// A number below `bound` (splitmix64).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Fails unless `text` contains every one of `parts`.
pub(crate) fn assert_contains_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Fails if the future ends within `time`.
pub(crate) async fn assert_stays_open<T: Debug>(time: Duration, future: impl Future<Output = T>) {
    if let Ok(ended) = tokio::time::timeout(time, future).await {
        panic!("it should have stayed open, and ended with {ended:?}");
    }
}
