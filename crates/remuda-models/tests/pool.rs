//! What the pool promises, tried on copies that are threads and on copies that are child processes.
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

mod pool {
    mod anew;
    mod closing;
    mod deaths;
    mod faults;
    mod herd;
    mod pictures;
    mod promises;
    mod room;
    mod serving;
    mod soak;
    mod streams;
}
