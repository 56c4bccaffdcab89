//! Prices of offers, from RunPod's catalogue.

use std::collections::BTreeMap;

use remuda_core::money::Money;
use remuda_core::provider::{ProviderError, ProviderErrorClass};
use serde::Deserialize;

use super::api::Api;
use super::error;
use super::offer::Cloud;
use super::pod::price;
use super::settings::RunPodSettings;

#[derive(Deserialize)]
struct Catalogue {
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    id: String,
    /// Whether it is offered there at all; an unavailable one may still have a price.
    #[serde(default)]
    secure: Option<bool>,
    #[serde(default)]
    community: Option<bool>,
    #[serde(default)]
    price: Prices,
}

/// For one GPU; 0 where it is not offered.
#[derive(Default, Deserialize)]
struct Prices {
    #[serde(default)]
    secure: Option<f64>,
    #[serde(default)]
    community: Option<f64>,
}

impl Gpu {
    fn price(&self, cloud: Cloud, count: u32) -> Option<Money> {
        let (is_offered, dollars) = match cloud {
            Cloud::Secure => (self.secure, self.price.secure),
            Cloud::Community => (self.community, self.price.community),
        };
        price(dollars? * f64::from(count)).filter(|_| is_offered != Some(false))
    }
}

pub(super) async fn prices(
    api: &Api,
    settings: &RunPodSettings,
) -> Result<BTreeMap<String, Money>, ProviderError> {
    let answer = api.get(&["catalog", "gpus"], &[]).await?;
    let catalogue: Catalogue = error::read(&answer).map_err(|why| {
        ProviderError::new(ProviderErrorClass::Transient, format!("the catalogue was answered, but {why}"))
    })?;
    let gpus: BTreeMap<_, _> = catalogue.gpus.iter().map(|gpu| (gpu.id.as_str(), gpu)).collect();
    let priced = settings.offers().filter_map(|offer| {
        let price = gpus.get(offer.gpu.as_str())?.price(offer.cloud, settings.gpu_count)?;
        Some((offer.to_string(), price))
    });
    Ok(priced.collect())
}
