//! Settings of a fleet at RunPod.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::Url;

use super::offer::{Cloud, RunPodOffer};
use remuda_net::secret::Secret;

/// Creations take seconds; those that take longer mostly still succeed.
const CREATE_TIMEOUT: Duration = Duration::from_secs(120);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// With smaller disks the scheduler found no machine where it did with this one.
const DISK_GB: u32 = 20;

#[derive(Clone, Debug)]
pub struct RunPodSettings {
    /// `https://api.runpod.io/v2`
    pub url: String,
    pub key: Secret,
    /// Ids from the catalogue, most preferred first.
    pub gpus: Vec<String>,
    /// GPUs per machine.
    pub gpu_count: u32,
    /// Most preferred first; empty means any.
    pub data_centres: Vec<String>,
    /// Most preferred first.
    pub clouds: Vec<Cloud>,
    pub image: String,
    /// Size of the container disk.
    pub disk_gb: u32,
    /// As `22/tcp` or `8188/http`; no other port is exposed.
    pub ports: Vec<String>,
    /// For every machine, in addition to the worker's variables.
    pub environment: BTreeMap<String, String>,
    pub volume: Option<NetworkVolume>,
    /// Replaces the image's command: one text, or JSON with `entrypoint` and `command`.
    pub args: Option<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    /// The id of the registry credentials for the image.
    pub registry: Option<String>,
    /// As `12.8`: machines with an older driver are excluded.
    pub cuda_min: Option<String>,
    /// Accept a list without pagination fields as complete, as early versions of the API sent it.
    pub allows_unpaged: bool,
    pub create_max: Duration,
    pub read_max: Duration,
}

/// A network volume; it binds machines to its data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkVolume {
    pub id: String,
    pub path: String,
}

impl RunPodSettings {
    /// The required settings; all others have defaults.
    pub fn new(key: Secret, gpus: Vec<String>, image: String) -> RunPodSettings {
        RunPodSettings {
            url: "https://api.runpod.io/v2".to_owned(),
            key,
            gpus,
            gpu_count: 1,
            data_centres: Vec::new(),
            clouds: vec![Cloud::Secure],
            image,
            disk_gb: DISK_GB,
            ports: Vec::new(),
            environment: BTreeMap::new(),
            volume: None,
            args: None,
            entrypoint: Vec::new(),
            command: Vec::new(),
            registry: None,
            cuda_min: None,
            allows_unpaged: false,
            create_max: CREATE_TIMEOUT,
            read_max: READ_TIMEOUT,
        }
    }

    /// Every GPU in every data centre in every cloud, in order of preference.
    pub fn offers(&self) -> impl Iterator<Item = RunPodOffer> {
        let centres: Vec<_> = if self.data_centres.is_empty() {
            vec![None]
        } else {
            self.data_centres.iter().cloned().map(Some).collect()
        };
        self.gpus.iter().flat_map(move |gpu| {
            let centres = centres.clone();
            centres.into_iter().flat_map(move |data_centre| {
                let of = move |cloud: &Cloud| RunPodOffer {
                    gpu: gpu.clone(),
                    data_centre: data_centre.clone(),
                    cloud: *cloud,
                };
                self.clouds.iter().map(of)
            })
        })
    }

    /// Checks the settings at start, rather than when the first machine is rented.
    pub(super) fn check(&self) -> Result<(), ProviderError> {
        let is_offer = |offer: RunPodOffer| offer.to_string().parse() == Ok(offer);
        let wrong = if self.gpus.is_empty() || self.clouds.is_empty() {
            "set at least one GPU and one cloud"
        } else if self.gpu_count == 0 {
            "gpu_count must be at least 1"
        } else if !self.offers().all(is_offer) {
            "the id of a GPU or data centre has no '@' and no '/', and is not empty"
        } else if self.image.trim().is_empty() {
            "set the image"
        } else if self.disk_gb == 0 {
            "disk_gb must be at least 1"
        } else if self.args.is_some() && !(self.entrypoint.is_empty() && self.command.is_empty()) {
            "set either args, or entrypoint and command, not both"
        } else if self.args.as_deref().is_some_and(|args| args.trim().is_empty()) {
            "args must not be empty; leave it out to run the image's own command"
        } else if self.key.reveal().trim().is_empty() {
            "an API key is required"
        } else {
            return Ok(());
        };
        Err(ProviderError::new(ProviderErrorClass::Invalid, wrong))
    }

    /// The base URL, without a trailing `/`.
    pub(super) fn base(&self) -> Result<Url, ProviderError> {
        let bad = |why: &str| {
            ProviderError::new(ProviderErrorClass::Invalid, format!("invalid URL of RunPod's API: {why}"))
        };
        let url = Url::parse(self.url.trim()).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(bad("it begins with https://"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err(bad("it must have a host and a path, and nothing else"));
        }
        if url.scheme() == "http" && !url.host_str().is_some_and(is_loopback) {
            return Err(bad("the key would go over the network for everyone to read; use https://"));
        }
        Ok(url)
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
