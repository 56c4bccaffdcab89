//! Scenario tests of the supervisor, and randomised worlds in which any event may happen at any time.

mod gpu_memory;
mod laws;
mod lifecycle;
mod stories;
mod worlds;
