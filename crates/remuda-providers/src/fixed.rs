//! Machines that already exist: an operator starts a worker on each. Nothing is rented or returned, and their costs are
//! not tracked.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{self, BoxFuture, FutureExt as _};
use remuda_core::id::{MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, ProviderError, ProviderErrorClass};

use crate::provider::{Provider, RentOrder};

#[derive(Clone, Debug)]
pub struct FixedProvider {
    machines: BTreeSet<MachineId>,
}

impl FixedProvider {
    pub fn new(machines: impl IntoIterator<Item = MachineId>) -> FixedProvider {
        FixedProvider { machines: machines.into_iter().collect() }
    }

    fn pods(&self) -> Result<Vec<Pod>, ProviderError> {
        self.machines
            .iter()
            .map(|machine| {
                // Machine and pod ids follow the same rules.
                let id = machine.as_str().parse();
                let id = id.map_err(|error: remuda_core::id::BadId| {
                    ProviderError::new(ProviderErrorClass::Invalid, error.to_string())
                })?;
                Ok(Pod {
                    id,
                    tag: machine.to_string(),
                    // Always: whether a worker runs on the machine is known from its beats.
                    status: PodStatus::Running,
                    kind: String::new(),
                    place: String::new(),
                    host: Some(machine.to_string()),
                    price: None,
                    ssh: None,
                    started: String::new(),
                })
            })
            .collect()
    }
}

impl Provider for FixedProvider {
    fn rent(&self, _: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        let error = ProviderError::new(
            ProviderErrorClass::Capacity,
            "a fixed fleet cannot rent machines; add them to its settings",
        );
        future::ready(Err(error)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        future::ready(self.pods()).boxed()
    }

    fn return_pod(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        let error = if self.machines.iter().any(|machine| machine.as_str() == pod.as_str()) {
            ProviderError::new(
                ProviderErrorClass::Conflict,
                format!("{pod} belongs to a fixed fleet; remove it from the settings"),
            )
        } else {
            ProviderError::new(ProviderErrorClass::NotFound, format!("machine {pod} is not in this fleet"))
        };
        future::ready(Err(error)).boxed()
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        future::ready(Ok(BTreeMap::new())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fixed_fleet_lists_its_machines_and_rents_none() {
        let fleet = FixedProvider::new(["attic", "cellar", "attic"].map(|name| name.parse().unwrap()));
        let pods = fleet.list().await.unwrap();
        assert_eq!(pods.iter().map(|pod| pod.tag.as_str()).collect::<Vec<_>>(), ["attic", "cellar"]);
        assert!(pods.iter().all(|pod| pod.status == PodStatus::Running && pod.price.is_none()));

        let order = RentOrder {
            machine: "roof".parse().unwrap(),
            tag: "remuda-a-f-1".to_owned(),
            offer: String::new(),
            environment: BTreeMap::new(),
        };
        assert_eq!(fleet.rent(order).await.unwrap_err().class, ProviderErrorClass::Capacity);
        let error = fleet.return_pod("attic".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::Conflict);
        let error = fleet.return_pod("roof".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.class, ProviderErrorClass::NotFound);
        assert_eq!(fleet.list().await.unwrap().len(), 2);
        assert!(fleet.prices().await.unwrap().is_empty());
    }
}
