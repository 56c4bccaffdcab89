//! The `remuda` program as a library: the command line, and the plane embedded in another Rust program (`Pool`).

pub mod cli;
#[cfg(feature = "models")]
pub mod models;
pub mod pool;

pub use self::pool::Pool;
