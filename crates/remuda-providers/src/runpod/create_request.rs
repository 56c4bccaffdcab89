//! The body of a creation request. It contains every field that matters, even where the API has a default, and no
//! unknown field, because the API refuses those.

use std::collections::BTreeMap;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use serde::Serialize;

use super::offer::{Cloud, RunPodOffer};
use super::settings::RunPodSettings;
use crate::provider::RentOrder;

/// The API refuses more variables than this.
const VARIABLES_MAX: usize = 50;
/// The API refuses larger bodies.
const BYTES_MAX: usize = 102_400;
/// Names up to this length are known to work.
const NAME_CHARS_MAX: usize = 191;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateRequest<'a> {
    name: &'a str,
    image: &'a str,
    gpu: Gpu<'a>,
    cloud: Cloud,
    disk: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ports: &'a [String],
    env: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_center_ids: Option<[&'a str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mounts: Option<Mounts<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    entrypoint: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cmd: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    registry: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Gpu<'a> {
    id: &'a str,
    /// Without it the scheduler finds no machine, despite the documented default.
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_cuda_version: Option<&'a str>,
}

#[derive(Serialize)]
struct Mounts<'a> {
    network: [Network<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Network<'a> {
    volume_id: &'a str,
    path: &'a str,
}

impl<'a> CreateRequest<'a> {
    pub(super) fn new(
        settings: &'a RunPodSettings,
        order: &'a RentOrder,
        offer: &'a RunPodOffer,
    ) -> Result<CreateRequest<'a>, ProviderError> {
        let invalid = |why: String| Err(ProviderError::new(ProviderErrorClass::Invalid, why));
        if order.tag.is_empty() || order.tag.chars().count() > NAME_CHARS_MAX {
            return invalid(format!("a pod's name has 1 to {NAME_CHARS_MAX} characters"));
        }
        // The worker's variables override those of the fleet.
        let all = settings.environment.iter().chain(&order.environment);
        let env: BTreeMap<_, _> = all.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if env.len() > VARIABLES_MAX {
            return invalid(format!(
                "a pod takes {VARIABLES_MAX} variables, this one has {}: take some out",
                env.len()
            ));
        }
        let volume = settings.volume.as_ref();
        Ok(CreateRequest {
            name: &order.tag,
            image: &settings.image,
            gpu: Gpu {
                id: &offer.gpu,
                count: settings.gpu_count,
                min_cuda_version: settings.cuda_min.as_deref(),
            },
            cloud: offer.cloud,
            disk: settings.disk_gb,
            ports: &settings.ports,
            env,
            data_center_ids: offer.data_centre.as_deref().map(|centre| [centre]),
            mounts: volume
                .map(|volume| Mounts { network: [Network { volume_id: &volume.id, path: &volume.path }] }),
            args: settings.args.as_deref(),
            entrypoint: &settings.entrypoint,
            cmd: &settings.command,
            registry: settings.registry.as_deref(),
        })
    }

    pub(super) fn into_body(self) -> Result<Vec<u8>, ProviderError> {
        let body = serde_json::to_vec(&self).map_err(|_| {
            ProviderError::new(ProviderErrorClass::Invalid, "the create request cannot be serialised")
        })?;
        if body.len() > BYTES_MAX {
            let why = format!(
                "the create request has {} bytes, at most {BYTES_MAX} are allowed; shorten the environment",
                body.len()
            );
            return Err(ProviderError::new(ProviderErrorClass::Invalid, why));
        }
        Ok(body)
    }
}
