//! Supervision: how anything that can fail is watched, repaired, rested and tried again. It is written once; workers,
//! services, machines, fleets, shapes, webhook targets and retries are instances of these types with numbers.
//!
//! ```text
//!                       any signal
//!            ┌──────────────┴─────────────┐
//!            ▼                            │
//!  Watch   alive ──silence_max──▶ probe ──┴──verdict_max──▶ silent ──▶ remedy
//!
//!  Budget  remedy 1 ──failed──▶ remedy 2 ──failed──▶ … ──spent──▶ escalate to the level above
//!             └──── it works again: the budget is full ────┘          (`WindowedBudget`: or time has passed)
//!
//!  Breaker closed ──failures_max in a row──▶ open until T ──T──▶ half open ──▶ one trial ──success──▶ closed
//!                                               ▲                                 │
//!                                               └───── failure: twice as long ────┘
//!
//!  Backoff base, 2·base, 4·base, … max; jitter comes in from outside
//! ```
//!
//! # The rule
//!
//! Silence is not death. A watched thing that is silent is *probed* first, and only a second limit makes the silence a
//! verdict. Only the thing's own signal resets the watch: a remedy is our doing and proves nothing, and time in which
//! *we* did not listen (a pause, a slow store) is credited to the watched thing by `extend_deadline`.
//!
//! A remedy that failed is not repeated for ever. The `Budget` bounds it; then the level above acts, which can do more:
//! model copy → service → worker → machine → fleet → a person.
//!
//! What keeps failing is rested. The `Breaker` stops new work after a count of failures and, after a cooldown, lets *one*
//! trial find out. The trial's failure doubles the cooldown; its success closes the breaker and forgets everything.
//! Failures of work that was already in flight when the breaker opened belong to the same incident and lengthen nothing
//! (`probation` differs on purpose).
//!
//! ```
//! use std::time::Duration;
//! use remuda_core::supervise::{Backoff, Breaker, BreakerLimits, BreakerState};
//! use remuda_core::time::Timestamp;
//!
//! let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
//! let cooldown = Backoff::new(Duration::from_secs(60), Duration::from_secs(600));
//! let limits = BreakerLimits { failures_max: 3, cooldown };
//! let mut breaker = Breaker::<u8>::default();
//! for _ in 0..3 {
//!     breaker.fail(at(0), &limits);
//! }
//! assert_eq!(breaker.state(at(59)), BreakerState::Open { until: at(60) });
//! assert!(breaker.start(at(60), 7), "number 7 is the trial");
//! assert_eq!(breaker.state(at(61)), BreakerState::Trial(7), "and nothing else starts meanwhile");
//! breaker.fail(at(61), &limits);
//! assert_eq!(breaker.state(at(61)), BreakerState::Open { until: at(61 + 120) });
//! ```
//!
//! # Its weakness
//!
//! A fixed `silence_max` is either late for a fast worker or early for a slow one; a worker that signals and does
//! nothing is never silent (attempts therefore carry a progress counter, see `worker/assignment.rs`). One trial at a time recovers
//! slowly: a fleet of many machines waits for one of them. A success forgets the whole history, so a thing that fails
//! every second time never opens its breaker for long (`reliability` measures those).
//!
//! # Rejected
//!
//! - *Phi-accrual failure detection* instead of two limits: its threshold cannot be explained to an operator, and a
//!   worker that loads a model looks dead to any learned distribution.
//! - *Failure rates over a sliding window* instead of failures in a row: with one job per minute and worker there is
//!   nothing to take a rate of.
//! - *A random number generator inside*: decisions would not replay. The caller passes `random`.
//! - *A clock inside*: the same.
//! - *A crate of its own*: `remuda-models` needs little of this, and the core is small enough to depend on.
//! - *A breaker for the provider account*: the provider's error class says how long to pause (rate limit, refused key, no
//!   credit), and listing must continue meanwhile, because it proves that machines are gone. See `fleet.rs`.

mod backoff;
mod breaker;
mod budget;
mod panic_message;
mod watch;

pub use self::backoff::Backoff;
pub use self::breaker::{Breaker, BreakerLimits, BreakerState};
pub use self::budget::{Budget, BudgetVerdict, WindowedBudget};
pub use self::panic_message::panic_message;
pub use self::watch::{Watch, WatchLimits, WatchVerdict};
