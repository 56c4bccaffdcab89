//! What the owner of a fleet at RunPod says about its machines.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::Url;

use super::offer::{Cloud, Offer};
use remuda_net::secret::Secret;

/// Creations take seconds, and those that take longer are mostly made all the same.
const CREATE_MAX: Duration = Duration::from_secs(120);
const READ_MAX: Duration = Duration::from_secs(30);

/// Smaller ones failed to find a place where this one did.
const DISK_GB: u32 = 20;

#[derive(Clone, Debug)]
pub struct RunPodSettings {
    /// `https://api.runpod.io/v2`
    pub url: String,
    pub key: Secret,
    /// Ids as the catalogue has them, the dearest to us first.
    pub gpus: Vec<String>,
    /// How many each machine has.
    pub gpu_count: u32,
    /// The dearest to us first; nothing: wherever there is one.
    pub data_centres: Vec<String>,
    /// The dearest to us first.
    pub clouds: Vec<Cloud>,
    pub image: String,
    /// Of the container.
    pub disk_gb: u32,
    /// As `22/tcp` or `8188/http`; there are none that were not asked for.
    pub ports: Vec<String>,
    /// What every machine is told besides what its worker needs to know.
    pub environment: BTreeMap<String, String>,
    pub volume: Option<Volume>,
    /// In place of the image's own command, as one text, or as `entrypoint` and `command`.
    pub args: Option<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    /// The id of the credentials that the image is pulled with.
    pub registry: Option<String>,
    /// As `12.8`: no machine with an older driver.
    pub cuda_min: Option<String>,
    /// Take a list that does not say whether there is more for a whole one, as the API had them at first.
    pub allows_unpaged: bool,
    pub create_max: Duration,
    pub read_max: Duration,
}

/// A network volume; it is where it is, and so are the machines that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub id: String,
    pub path: String,
}

impl RunPodSettings {
    /// The least that makes a machine; everything else has its default.
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
            create_max: CREATE_MAX,
            read_max: READ_MAX,
        }
    }

    /// Every GPU in every data centre in every cloud, in the order of preference.
    pub fn offers(&self) -> impl Iterator<Item = Offer> {
        let centres: Vec<_> = if self.data_centres.is_empty() {
            vec![None]
        } else {
            self.data_centres.iter().cloned().map(Some).collect()
        };
        self.gpus.iter().flat_map(move |gpu| {
            let centres = centres.clone();
            centres.into_iter().flat_map(move |data_centre| {
                let of = move |cloud: &Cloud| Offer {
                    gpu: gpu.clone(),
                    data_centre: data_centre.clone(),
                    cloud: *cloud,
                };
                self.clouds.iter().map(of)
            })
        })
    }

    /// Told at the start, and not by the first machine that is wanted.
    pub(super) fn check(&self) -> Result<(), ProviderError> {
        let is_offer = |offer: Offer| offer.to_string().parse() == Ok(offer);
        let wrong = if self.gpus.is_empty() || self.clouds.is_empty() {
            "name at least one GPU and one cloud"
        } else if self.gpu_count == 0 {
            "a machine has at least one GPU"
        } else if !self.offers().all(is_offer) {
            "the id of a GPU or data centre has no '@' and no '/', and is not empty"
        } else if self.image.trim().is_empty() {
            "name the image that machines are made from"
        } else if self.disk_gb == 0 {
            "a container has a disk of at least 1 GB"
        } else if self.args.is_some() && !(self.entrypoint.is_empty() && self.command.is_empty()) {
            "say what a machine runs as args, or as entrypoint and command, and not as both"
        } else if self.args.as_deref().is_some_and(|args| args.trim().is_empty()) {
            "leave args out: an empty text keeps the image from starting anything"
        } else if self.key.reveal().trim().is_empty() {
            "it needs an API key"
        } else {
            return Ok(());
        };
        Err(ProviderError::new(ProviderErrorClass::Invalid, wrong))
    }

    /// Where the API is, without `/` at its end.
    pub(super) fn base(&self) -> Result<Url, ProviderError> {
        let bad = |why: &str| {
            ProviderError::new(ProviderErrorClass::Invalid, format!("no address of RunPod's API: {why}"))
        };
        let url = Url::parse(self.url.trim()).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(bad("it begins with https://"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err(bad("it has a host and a path, and nothing else"));
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
