//! Stories of clients that meet a stand-in. A story waits for a message or an answer, never for time to pass.

mod faults;
mod harness;
mod runs;
