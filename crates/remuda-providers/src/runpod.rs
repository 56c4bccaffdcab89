//! Machines rented from RunPod, over its REST API v2.
//!
//! ```text
//!  rent ──▶ POST /pods, once ──▶ 201: the pod │ refused: why │ anything else: ambiguous, search for the tag
//!  list ──▶ GET /pods, page by page ──▶ all pods, or an error
//!  return ──▶ DELETE /pods/ID ──▶ accepted; only a list shows that the pod is gone
//!  prices ──▶ GET /catalog/gpus
//! ```
//!
//! Observed behaviour of the API that shapes this module: a failed creation can leave a pod that is billed; names are
//! not unique; `RUNNING` does not mean that the container runs; a list can be truncated; a pod contains its
//! environment, so no response body may appear in a log or an error.

mod api;
mod catalogue;
mod create_request;
mod error;
mod listing;
mod logs;
mod offer;
mod pod;
mod rate_limit;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderError, ProviderErrorClass};
use reqwest::ClientBuilder;

use crate::provider::{Provider, RentOrder};
use api::Api;
use create_request::CreateRequest;
pub use offer::{Cloud, RunPodOffer};
use pod::PodView;
pub use settings::{NetworkVolume, RunPodSettings};

/// Can be used concurrently: calls share connections and the known rate limit.
#[derive(Debug)]
pub struct RunPodProvider {
    settings: RunPodSettings,
    api: Api,
}

impl RunPodProvider {
    /// `http` has the program's client settings (proxy, certificates); this adds the key, the timeouts and the user
    /// agent.
    pub fn new(settings: RunPodSettings, http: ClientBuilder) -> Result<RunPodProvider, ProviderError> {
        settings.check()?;
        let api = Api::new(&settings, http)?;
        Ok(RunPodProvider { settings, api })
    }

    /// All offers, most preferred first.
    pub fn offers(&self) -> Vec<String> {
        self.settings.offers().map(|offer| offer.to_string()).collect()
    }

    async fn create(&self, order: RentOrder) -> Result<Pod, ProviderError> {
        let offer: RunPodOffer = order.offer.parse()?;
        let body = CreateRequest::new(&self.settings, &order, &offer)?.into_body()?;
        let result = match self.api.create(body).await {
            Ok(answer) => read_created_pod(&answer, &order.tag),
            Err(error) => Err(error),
        };
        // A refusal may quote the request.
        result.map_err(|error| redact(error, &order.environment, &self.settings.environment))
    }
}

impl Provider for RunPodProvider {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        Box::pin(self.create(order))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        Box::pin(listing::list_all(&self.api, self.settings.allows_unpaged))
    }

    fn return_pod(&self, pod: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(async move { self.api.delete(&["pods", path_part(&pod)?]).await })
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        Box::pin(catalogue::prices(&self.api, &self.settings))
    }
}

/// The pod in the answer to a creation. If it cannot be read, a pod may still exist.
fn read_created_pod(answer: &[u8], tag: &str) -> Result<Pod, ProviderError> {
    let ambiguous = |why: String| {
        ProviderError::new(ProviderErrorClass::Ambiguous, format!("the creation was answered, but {why}"))
    };
    let view: PodView = error::read(answer).map_err(ambiguous)?;
    let pod = view.into_pod().map_err(ambiguous)?;
    let pod = pod.ok_or_else(|| ambiguous("with a pod that no longer exists".to_owned()))?;
    if pod.tag != tag {
        return Err(ambiguous("with a pod that has another name".to_owned()));
    }
    Ok(pod)
}

/// An id that is safe in a URL path: an empty one or one of dots would address the whole collection.
fn path_part(pod: &PodId) -> Result<&str, ProviderError> {
    let id = pod.as_str();
    if id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        Ok(id)
    } else {
        Err(ProviderError::new(ProviderErrorClass::NotFound, format!("{id} is not a valid RunPod pod id")))
    }
}

/// Shorter values are not secrets, and redacting them would make errors unreadable.
const SECRET_CHARS_MIN: usize = 8;

fn redact(
    mut error: ProviderError,
    environment: &BTreeMap<String, String>,
    fleet_environment: &BTreeMap<String, String>,
) -> ProviderError {
    for value in
        environment.values().chain(fleet_environment.values()).filter(|value| value.len() >= SECRET_CHARS_MIN)
    {
        error.message = error.message.replace(value.as_str(), "***");
    }
    error
}
