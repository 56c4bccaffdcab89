//! Tests with a client of the fake provider, in manual time.

mod faults;
mod harness;
mod lists;
mod pods;
mod requests;
