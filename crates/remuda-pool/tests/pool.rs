//! What the pool promises, tried on copies that are threads and on copies that are child processes.

mod pool {
    mod closing;
    mod faults;
    mod herd;
    mod kills;
    mod promises;
    mod room;
    mod serving;
    mod soak;
    mod streams;
}
