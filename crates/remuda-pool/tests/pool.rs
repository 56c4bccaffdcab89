//! What the pool promises, tried on copies that are threads and on copies that are child processes.

mod pool {
    mod faults;
    mod herd;
    mod serving;
}
