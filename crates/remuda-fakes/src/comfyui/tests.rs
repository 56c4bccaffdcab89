//! Tests with a client of the fake server. They wait for messages or answers, never for time to pass.

mod faults;
mod harness;
mod runs;
