//! Machines rented from RunPod, over its REST API v2.
//!
//! ```text
//!  rent ──▶ POST /pods, once ──▶ 201: the pod │ refused: why │ anything else: nobody knows, look for the tag
//!  list ──▶ GET /pods, page by page ──▶ all of them, or a fault
//!  give back ──▶ DELETE /pods/ID ──▶ heard; that it is gone only a list shows
//!  prices ──▶ GET /catalog/gpus
//! ```
//!
//! What the API really does was observed by others, and shapes this: a creation can fail and leave a pod that bills;
//! names are not unique; `RUNNING` says nothing; a list can be cut short; a pod that is read shows its environment, so
//! no body of theirs is ever put into a log or an error.

mod api;
mod catalogue;
mod fault;
mod listing;
mod logs;
mod offer;
mod order;
mod pace;
mod pod;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderError, ProviderErrorClass};
use reqwest::ClientBuilder;

use super::{Provider, RentOrder};
use api::Api;
pub use offer::{Cloud, Offer};
use order::Order;
use pod::Listed;
pub use settings::{RunPodSettings, Volume};

/// Cheap to ask from several places at once: they share connections and what is known of the rate limit.
#[derive(Debug)]
pub struct RunPod {
    settings: RunPodSettings,
    api: Api,
}

impl RunPod {
    /// `http` is how this program calls others; the key, the time limits and who we are come from here.
    pub fn new(settings: RunPodSettings, http: ClientBuilder) -> Result<RunPod, ProviderError> {
        settings.check()?;
        let api = Api::new(&settings, http)?;
        Ok(RunPod { settings, api })
    }

    /// What may be rented, the dearest to us first.
    pub fn offers(&self) -> Vec<String> {
        self.settings.offers().map(|offer| offer.to_string()).collect()
    }

    async fn create(&self, order: RentOrder) -> Result<Pod, ProviderError> {
        let offer: Offer = order.offer.parse()?;
        let body = Order::new(&self.settings, &order, &offer)?.into_body()?;
        let result = match self.api.create(body).await {
            Ok(answer) => made(&answer, &order.tag),
            Err(fault) => Err(fault),
        };
        // Whoever refuses a request may repeat it in the refusal.
        result.map_err(|fault| hidden(fault, &order.environment, &self.settings.environment))
    }
}

impl Provider for RunPod {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        Box::pin(self.create(order))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        Box::pin(listing::all(&self.api, self.settings.allows_unpaged))
    }

    fn give_back(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(async move { self.api.delete(&["pods", path_part(&pod)?]).await })
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        Box::pin(catalogue::prices(&self.api, &self.settings))
    }
}

/// The pod that an answer to a creation tells of. If it cannot be read, there is one all the same.
fn made(answer: &[u8], tag: &str) -> Result<Pod, ProviderError> {
    let unsure = |why: String| {
        ProviderError::new(ProviderErrorClass::Ambiguous, format!("the creation was answered, but {why}"))
    };
    let listed: Listed = fault::read(answer).map_err(unsure)?;
    let pod = listed.into_pod().map_err(unsure)?;
    let pod = pod.ok_or_else(|| unsure("with a pod that is gone".to_owned()))?;
    if pod.tag != tag {
        return Err(unsure("with a pod of another name".to_owned()));
    }
    Ok(pod)
}

/// An id that may stand in a path: one of nothing or of dots would name the whole collection.
fn path_part(pod: &PodId) -> Result<&str, ProviderError> {
    let id = pod.as_str();
    if id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        Ok(id)
    } else {
        Err(ProviderError::new(
            ProviderErrorClass::NotFound,
            format!("RunPod has no pods that are called like {id}"),
        ))
    }
}

/// Shorter values than this are no secrets, and hiding them would make errors unreadable.
const SECRET_CHARS_MIN: usize = 8;

fn hidden(
    mut fault: ProviderError,
    told: &BTreeMap<String, String>,
    also: &BTreeMap<String, String>,
) -> ProviderError {
    for value in told.values().chain(also.values()).filter(|value| value.len() >= SECRET_CHARS_MIN) {
        fault.message = fault.message.replace(value.as_str(), "***");
    }
    fault
}
