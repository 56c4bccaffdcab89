//! Providers of machines. A provider only translates: it makes each call once and expresses the result in the types of
//! `remuda_core::provider`. The core decides what to do about it.

#[cfg(test)]
mod contract;
pub mod fixed;
pub mod process;
mod provider;
pub mod runpod;
#[cfg(feature = "ssh")]
pub mod ssh;

pub use provider::{Provider, RentOrder};
