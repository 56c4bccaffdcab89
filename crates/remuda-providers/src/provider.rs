//! The trait that every provider implements.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use remuda_core::id::{MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderError};

/// What to rent, in addition to the settings of the fleet.
#[derive(Clone)]
pub struct RentOrder {
    pub machine: MachineId,
    /// The name of the pod.
    pub tag: String,
    /// One of the fleet's offers.
    pub offer: String,
    /// For the worker in the pod: the plane's address, the worker's name, its join token. Must never be logged.
    pub environment: BTreeMap<String, String>,
}

/// Prints only the names of the environment, because the values are secret.
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
    /// Creates a pod. One attempt, never repeated here. If it is unknown whether a pod was created, the error is
    /// `Ambiguous`.
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>>;

    /// Lists every pod of the account, including foreign ones. Returns a complete list or an error.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>>;

    /// Requests the deletion of a pod. `Ok` means that the provider accepted the request, not that the pod is gone.
    fn return_pod(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>>;

    /// The price of an hour, for each offer whose price is known.
    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>>;
}
