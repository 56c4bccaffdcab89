//! Remuda as a program and a library: the loop around the core, what carries its decisions out, HTTP, the agent's
//! shell and the command line. It translates and does; whatever it decides stands in `remuda-core`.

pub mod audit;
pub mod carry_out;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dial;
pub mod drive;
pub mod fleets;
pub mod http;
pub mod intake;
pub mod keyring;
pub mod live;
#[cfg(feature = "models")]
pub mod models;
pub mod pool;
pub mod previews;
pub mod secret;
pub mod serve;
pub mod tls;
pub mod webhooks;
pub mod worker;

pub use self::pool::Pool;
