//! Exhaustive small models: every order of events, up to a bound, for the protocols that must never be wrong. The worlds
//! of this crate draw long and wild runs at random; a model is tiny, and none of its runs is left out. Both step the real
//! `Plane` and the real `Agent`: there is no second implementation of a rule here, only of what surrounds them.
//!
//! | model | what it explores | rows of the fault catalogue |
//! |---|---|---|
//! | `attempts` | one job, two workers, one plane: fencing, adoption, cancellation, drain | V6, A3, A4, A5, A7, P17 |
//! | `rentals` | one fleet of one machine, and its provider: intents | P1, P2 |
//!
//! Explored are all orders in which messages that are on their way at the same time arrive, all orders with timers that are
//! due then, and a run at a service that ends at any point in between; and, within a budget, at every point: a message that
//! is lost or arrives at any later time, a copy of a call, a crash of the plane with what it had not stored or not sent, the
//! end or the pause of an agent process, a cancellation and a drain. The rules (`attempts::rules`) are checked at every
//! transition, and from every state the run without further faults has to settle (`search`).
//!
//! Left out, and why:
//! - Time moves in quanta, and timers fire at their ends: the rules depend on the order of deadlines, not on milliseconds.
//! - Budgets and a horizon, because beats have no end. The first fault falls into the first period of beats: without a
//!   fault every period is like the one before.
//! - Faults of a service other than being slow, service restarts, several jobs, blocks and quarantine, clocks: the worlds
//!   have them.
//! - A plane that stays away: it is the same as a crash and lost calls. Two planes at a time: the worlds have them (S9).
//! - Once the job has ended and every worker knows it, only messages that are late go on: nothing else can touch it.
//! - Workers on rented machines: `rentals` ends where the pod is there and recorded.
//!
//! A model breaks if it is sabotaged: `attempts::sabotage` and `RentalSabotage` forge what passes the border of the core, and
//! `tests` has one test for each. A violation is printed as the shortest trace, one line per action.

mod attempts;
mod fingerprint;
mod rentals;
mod search;
mod tests;
