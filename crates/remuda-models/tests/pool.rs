//! The promises of the pool, tested with thread copies and with child process copies.
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

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
