//! Configuration of a fleet: what the core uses (`settings`) and what the provider is created from (`source`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::fleet::{CONTACT_TIMEOUT, FleetSettings, RentalLimits};
use remuda_core::id::{FleetId, Hash};
use remuda_core::money::Money;
use remuda_core::settings::Scaling;
use remuda_providers::process;
use remuda_providers::runpod::{NetworkVolume, RunPodSettings};
use serde_json::json;

use super::ValueOrigin;
use remuda_net::secret::Secret;

/// The checked configuration of a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetConfig {
    pub settings: FleetSettings,
    pub source: MachineSource,
    pub(super) policy: PolicyName,
    pub(super) wait_max: Duration,
    /// Where the section begins.
    pub(super) declared_at: ValueOrigin,
    /// Origins of the settings that are not defaults.
    pub(super) origins: BTreeMap<&'static str, ValueOrigin>,
}

/// Where a fleet's machines come from and how they are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSource {
    pub provider: ProviderKind,
    pub start: WorkerStart,
    /// URL at which the machines reach the plane; by default the address that the plane listens on.
    pub url: Option<String>,
    /// Additional environment variables on the machines.
    pub env: BTreeMap<String, Secret>,
    /// A machine stops itself after this long without contact with the plane.
    pub contact_timeout_command: Option<String>,
    /// `fixed`: names of the machines.
    pub machines: Vec<String>,
    /// Command to start, by `sh -c`, if the image does not define one.
    pub command: Option<String>,
    pub ssh: SshConfig,
    /// `process`: pretended hourly price, to rehearse budgets.
    pub price: Option<Money>,
    /// `process`: time to exit before it is killed.
    pub stop_grace: Duration,
    pub runpod: RunpodConfig,
}

/// How a worker is started over SSH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshConfig {
    pub user: Option<String>,
    /// Shell command that installs what the worker needs.
    pub setup: Option<String>,
    pub gpu_check: Option<String>,
    pub upload: bool,
}

/// Settings that only `runpod` uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunpodConfig {
    pub image: Option<String>,
    /// In order of preference.
    pub gpus: Vec<String>,
    pub gpu_count: u32,
    pub data_centers: Vec<String>,
    pub clouds: Vec<String>,
    /// Disk of the container.
    pub disk_gb: u32,
    pub network_volume: Option<String>,
    pub mount_path: Option<String>,
    pub ports: Vec<String>,
    pub min_cuda: Option<String>,
    pub registry: Option<String>,
    pub base_url: Option<String>,
    /// From the environment only: the configuration file may be readable by other users.
    pub api_key: Option<Secret>,
    pub api_key_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind {
    Fixed,
    Process,
    Runpod,
}

/// What starts the worker on a rented machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStart {
    Image,
    Ssh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyName {
    Queue,
    Latency,
}

const WAIT_MAX: Duration = Duration::from_secs(60);
/// Enough for a worker to hand back its attempts and exit.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Enough for common images; larger disks are available on fewer hosts.
const DISK_GB: u32 = 50;

/// Limits of `process` fleets: the local process table is never late or wrong.
pub(super) const PROCESS_LIMITS: RentalLimits = RentalLimits {
    list_every: Duration::from_secs(5),
    list_lag_max: Duration::from_secs(5),
    lost_create_timeout: Duration::from_secs(10),
    image_pull_timeout: Duration::from_secs(60),
    readiness_timeout: Duration::from_secs(600),
    orphan_grace: Duration::from_secs(30),
    return_timeout: Duration::from_secs(60),
    offer_cooldown: Duration::from_secs(60),
    contact_timeout: CONTACT_TIMEOUT,
};

impl FleetConfig {
    /// A fleet with the given name, `[scaling]` and defaults.
    pub(super) fn new(id: FleetId, declared_at: ValueOrigin, scaling: Scaling) -> FleetConfig {
        FleetConfig {
            settings: FleetSettings { scaling, ..FleetSettings::new(id, true) },
            source: MachineSource {
                provider: ProviderKind::Process,
                start: WorkerStart::Image,
                url: None,
                env: BTreeMap::new(),
                contact_timeout_command: None,
                machines: Vec::new(),
                command: None,
                ssh: SshConfig {
                    user: None,
                    setup: None,
                    gpu_check: Some("built-in".to_owned()),
                    upload: true,
                },
                price: None,
                stop_grace: STOP_GRACE,
                runpod: RunpodConfig {
                    image: None,
                    gpus: Vec::new(),
                    gpu_count: 1,
                    data_centers: Vec::new(),
                    clouds: vec!["secure".to_owned()],
                    disk_gb: DISK_GB,
                    network_volume: None,
                    mount_path: None,
                    ports: Vec::new(),
                    min_cuda: None,
                    registry: None,
                    base_url: None,
                    api_key: None,
                    api_key_file: None,
                },
            },
            policy: PolicyName::Queue,
            wait_max: WAIT_MAX,
            declared_at,
            origins: BTreeMap::new(),
        }
    }

    /// Checks that the API key can be read, if the provider needs one.
    pub fn check_api_key(&self) -> anyhow::Result<()> {
        match self.source.provider {
            ProviderKind::Fixed | ProviderKind::Process => Ok(()),
            ProviderKind::Runpod => self.source.runpod.api_key().map(drop),
        }
    }
}

impl MachineSource {
    /// Offers that may be rented, in the provider's notation.
    pub(super) fn offers(&self) -> Vec<String> {
        match self.provider {
            ProviderKind::Fixed => Vec::new(),
            ProviderKind::Process => vec![process::OFFER.to_owned()],
            ProviderKind::Runpod => self.runpod.offers(),
        }
    }

    /// Hash of everything a machine is created from; if it changes, machines are replaced.
    pub(super) fn revision(&self, settings: &FleetSettings) -> String {
        let runpod = &self.runpod;
        let env: BTreeMap<_, _> = self.env.iter().map(|(name, value)| (name, value.reveal())).collect();
        let made_from = json!([
            self.provider.as_str(),
            self.start == WorkerStart::Ssh,
            self.url,
            env,
            self.command,
            self.ssh.setup,
            settings.labels,
            settings.services,
            runpod.image,
            runpod.gpus,
            runpod.gpu_count,
            runpod.data_centers,
            runpod.clouds,
            runpod.disk_gb,
            runpod.network_volume,
            runpod.mount_path,
            runpod.ports,
            runpod.min_cuda,
            runpod.registry,
        ]);
        Hash::digest(made_from.to_string().as_bytes()).short()
    }
}

impl RunpodConfig {
    /// Every GPU in every data center in every cloud, in order of preference.
    fn offers(&self) -> Vec<String> {
        let no_key = Secret::new("");
        let least = RunPodSettings::new(no_key, self.gpus.clone(), String::new());
        let clouds = self.clouds.iter().filter_map(|cloud| cloud.parse().ok()).collect();
        let settings = RunPodSettings { data_centres: self.data_centers.clone(), clouds, ..least };
        settings.offers().map(|offer| offer.to_string()).collect()
    }

    /// The network volume, if one is configured.
    pub fn volume(&self) -> Option<NetworkVolume> {
        let (id, path) = self.network_volume.clone().zip(self.mount_path.clone())?;
        Some(NetworkVolume { id, path })
    }

    /// The RunPod API key.
    pub fn api_key(&self) -> anyhow::Result<Secret> {
        match (&self.api_key_file, &self.api_key) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {} (api_key_file)", path.display()))?;
                Ok(Secret::new(text.trim()))
            }
            (None, Some(key)) => Ok(key.clone()),
            (None, None) => anyhow::bail!(
                "there is no RunPod API key: set RUNPOD_API_KEY, or name a file that only the plane can read with \
                 `api_key_file`"
            ),
        }
    }
}

impl ProviderKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ProviderKind::Fixed => "fixed",
            ProviderKind::Process => "process",
            ProviderKind::Runpod => "runpod",
        }
    }
}
