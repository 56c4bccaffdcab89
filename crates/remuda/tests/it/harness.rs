//! Starts planes and workers, asks them, and waits until something is so.

mod client;
mod hand;
mod plane;
mod process;
mod raw;
mod stream;
mod worker;

use std::fmt::Debug;
use std::time::{Duration, Instant};

pub(crate) use self::client::{Client, answered};
pub(crate) use self::hand::Hand;
pub(crate) use self::plane::{Plan, Plane, free_address};
pub(crate) use self::process::{Process, remuda};
pub(crate) use self::raw::Raw;
pub(crate) use self::stream::{Event, Stream};
pub(crate) use self::worker::{Gate, Worker};

/// Seconds where people would have minutes, in the same proportions.
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

/// Nothing here takes this long, not even on two busy cores: past it, something is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until there is something to see.
pub(crate) async fn wait_until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        let_pass(LOOK_EVERY).await;
    }
}

/// Lets the world go on for a while: for faults that last, and between two tries. Never to wait for something.
pub(crate) async fn let_pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Where chance comes from in a test; the seed is printed when the test fails.
#[derive(Debug)]
pub(crate) struct Luck(u64);

impl Luck {
    pub(crate) fn new() -> Luck {
        let clock = std::time::UNIX_EPOCH.elapsed().unwrap();
        let seed = std::env::var("IT_SEED").map_or(clock.as_nanos() as u64, |seed| seed.parse().unwrap());
        eprintln!("luck: IT_SEED={seed}");
        Luck(seed)
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

/// That `text` has every one of `parts` in it.
pub(crate) fn has_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// That a future does not end within `time`.
pub(crate) async fn stays_open<T: Debug>(time: Duration, future: impl Future<Output = T>) {
    if let Ok(ended) = tokio::time::timeout(time, future).await {
        panic!("it should have stayed open, and ended with {ended:?}");
    }
}
