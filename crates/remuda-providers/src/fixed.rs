//! Machines that are simply there: somebody set them up and starts a worker on each. Nothing is rented, nothing is
//! given back, and what they cost is between their owner and the electricity company.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{self, BoxFuture, FutureExt as _};
use remuda_core::id::{MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, ProviderError, ProviderErrorClass};

use super::{Provider, RentOrder};

#[derive(Clone, Debug)]
pub struct Fixed {
    machines: BTreeSet<MachineId>,
}

impl Fixed {
    pub fn new(machines: impl IntoIterator<Item = MachineId>) -> Fixed {
        Fixed { machines: machines.into_iter().collect() }
    }

    fn pods(&self) -> Result<Vec<Pod>, ProviderError> {
        self.machines
            .iter()
            .map(|machine| {
                // Both are names, by the same rule.
                let id = machine.as_str().parse();
                let id = id.map_err(|error: remuda_core::id::BadId| {
                    ProviderError::new(ProviderErrorClass::Invalid, error.to_string())
                })?;
                Ok(Pod {
                    id,
                    tag: machine.to_string(),
                    // Nobody says otherwise: whether a worker is on it, its beats tell.
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

impl Provider for Fixed {
    fn rent(&self, _: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        let fault = ProviderError::new(
            ProviderErrorClass::Capacity,
            "a fixed fleet does not grow: name more machines in it",
        );
        future::ready(Err(fault)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        future::ready(self.pods()).boxed()
    }

    fn give_back(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        let fault = if self.machines.iter().any(|machine| machine.as_str() == pod.as_str()) {
            ProviderError::new(
                ProviderErrorClass::Conflict,
                format!("{pod} is of a fixed fleet: take it out of the settings"),
            )
        } else {
            ProviderError::new(
                ProviderErrorClass::NotFound,
                format!("there is no machine {pod} in this fleet"),
            )
        };
        future::ready(Err(fault)).boxed()
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        future::ready(Ok(BTreeMap::new())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fixed_fleet_has_what_it_has() {
        let fleet = Fixed::new(["attic", "cellar", "attic"].map(|name| name.parse().unwrap()));
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
        let fault = fleet.give_back("attic".parse().unwrap()).await.unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::Conflict);
        let fault = fleet.give_back("roof".parse().unwrap()).await.unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::NotFound);
        assert_eq!(fleet.list().await.unwrap().len(), 2);
        assert!(fleet.prices().await.unwrap().is_empty());
    }
}
