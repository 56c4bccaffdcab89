//! What the pool promises, tried on copies that are threads and on copies that are child processes.
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

mod pool {
    mod closing;
    mod crashes;
    mod faults;
    mod fixture;
    mod images;
    mod memory;
    mod promises;
    mod resumed_streams;
    mod serving;
    mod soak;
    mod streams;
}
