//! Stories of clients that meet a stand-in. Time goes by hand: a story stands where it wants to stand.

mod faults;
mod harness;
mod lists;
mod pods;
mod requests;
