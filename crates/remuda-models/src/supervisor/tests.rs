//! Stories of a supervisor, and many worlds in which anything may happen at any time.

mod gpu_memory;
mod laws;
mod stories;
mod worlds;
