//! Where machines come from. A provider translates: each call is made once, and what came back is said in the words of
//! `remuda_core::provider`; what to do about it is decided there.

#[cfg(test)]
mod contract;
pub mod fixed;
pub mod process;
pub mod runpod;
#[cfg(feature = "ssh")]
pub mod ssh;

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use remuda_core::id::{MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderError};

/// What a machine is made from, beside what its fleet's settings say.
#[derive(Clone)]
pub struct RentOrder {
    pub machine: MachineId,
    /// The pod's name.
    pub tag: String,
    /// One of the fleet's offers.
    pub offer: String,
    /// What the worker in it is to know: where the plane is, who it is, its join token. Never to be logged.
    pub environment: BTreeMap<String, String>,
}

/// Of the environment only the names: the rest is secret.
impl fmt::Debug for RentOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RentOrder")
            .field("machine", &self.machine)
            .field("tag", &self.tag)
            .field("offer", &self.offer)
            .field("environment", &self.environment.keys())
            .finish()
    }
}

pub trait Provider: fmt::Debug + Send + Sync {
    /// One creation, never repeated in here. Whatever leaves in doubt whether a pod was made is `Ambiguous`.
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>>;

    /// Every pod there is, whoever made it: complete, or a fault.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>>;

    /// Asks for the end of a pod. `Ok` means that this was heard, not that it is gone.
    fn give_back(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>>;

    /// What an hour of each offer costs, where that is known.
    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>>;
}
