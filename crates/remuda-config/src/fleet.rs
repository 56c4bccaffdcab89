//! `[[fleet]]`: what its owner wrote becomes what the core decides by (`settings`) and what its provider is made from
//! (`source`). Where a fleet says nothing, `[scaling]` speaks for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::fleet::{FleetSettings, RentalLimits, ScalingPolicy};
use remuda_core::id::{FleetId, Hash, MachineId};
use remuda_core::money::Money;
use remuda_core::settings::Scaling;
use remuda_providers::process;
use remuda_providers::runpod::{RunPodSettings, Volume};
use serde_json::json;

use super::file::Section;
use super::key::Key;
use super::table::fleets::{FALLBACKS, GROUPS};
use super::{ConfigError, Origin, Resolved, nearest};
use remuda_net::secret::Secret;

/// A fleet, all of it legal and fitting together.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    pub settings: FleetSettings,
    pub source: Source,
    pub(super) policy: PolicyName,
    pub(super) wait_max: Duration,
    /// Where it begins, and each of its keys that was written.
    pub(super) began: Origin,
    pub(super) origins: BTreeMap<&'static str, Origin>,
}

/// Where a fleet's machines come from, and what they are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub provider: ProviderKind,
    pub start: Start,
    /// Where its machines reach the plane; nothing: where the plane listens.
    pub url: Option<String>,
    /// For whatever runs on its machines.
    pub env: BTreeMap<String, Secret>,
    /// A machine that has not reached the plane for this long stops itself.
    pub contact_timeout: Duration,
    pub contact_timeout_command: Option<String>,
    /// `fixed`: the machines there are.
    pub machines: Vec<String>,
    /// What is started, by `sh -c`, where the image does not say.
    pub command: Option<String>,
    pub ssh: Ssh,
    /// What an hour of one is said to cost, to rehearse budgets.
    pub price: Option<Money>,
    /// How long one may take to end by itself.
    pub stop_grace: Duration,
    pub runpod: Runpod,
}

/// How a worker is brought to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssh {
    pub user: Option<String>,
    /// A shell command that installs what is missing.
    pub setup: Option<String>,
    pub gpu_check: Option<String>,
    pub upload: bool,
}

/// What only `runpod` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runpod {
    pub image: Option<String>,
    /// The dearest to us first.
    pub gpus: Vec<String>,
    pub gpu_count: u32,
    pub data_centers: Vec<String>,
    pub clouds: Vec<String>,
    /// Of the container, in GB.
    pub disk_gb: u32,
    pub network_volume: Option<String>,
    pub mount_path: Option<String>,
    pub ports: Vec<String>,
    pub min_cuda: Option<String>,
    pub registry: Option<String>,
    pub base_url: Option<String>,
    /// From the environment only: the file is read by everybody who may look at the folder.
    pub api_key: Option<Secret>,
    pub api_key_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind {
    Fixed,
    Process,
    Runpod,
}

/// Who starts the worker on a rented machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Image,
    Ssh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyName {
    Queue,
    Latency,
}

/// A quarter of an hour: longer than a plane takes to come back, shorter than a bill takes to hurt.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A worker hands back what it holds, and goes.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Small ones failed to find a place, large ones find few.
const DISK_GB: u32 = 50;

/// For a provider that is this very machine: what it says is so, and at once.
pub(super) const OWN_LIMITS: RentalLimits = RentalLimits {
    list_every: Duration::from_secs(5),
    list_lag_max: Duration::from_secs(5),
    lost_create_timeout: Duration::from_secs(10),
    image_pull_timeout: Duration::from_secs(60),
    readiness_timeout: Duration::from_secs(600),
    orphan_grace: Duration::from_secs(30),
    return_timeout: Duration::from_secs(60),
    offer_cooldown: Duration::from_secs(60),
};

impl Fleet {
    /// With nothing but its name: everything else as `[scaling]` and the defaults say.
    pub(super) fn new(id: FleetId, began: Origin, scaling: Scaling) -> Fleet {
        Fleet {
            settings: FleetSettings { scaling, ..FleetSettings::new(id, true) },
            source: Source {
                provider: ProviderKind::Process,
                start: Start::Image,
                url: None,
                env: BTreeMap::new(),
                contact_timeout: CONTACT_TIMEOUT,
                contact_timeout_command: None,
                machines: Vec::new(),
                command: None,
                ssh: Ssh { user: None, setup: None, gpu_check: Some("built-in".to_owned()), upload: true },
                price: None,
                stop_grace: STOP_GRACE,
                runpod: Runpod {
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
            began,
            origins: BTreeMap::new(),
        }
    }

    /// What is written under one `[[fleet]]`.
    pub(super) fn read(
        section: &Section,
        resolved: &Resolved,
        api_key: Option<&Secret>,
    ) -> Result<Fleet, ConfigError> {
        let began = section.origin();
        let nameless = "fleet".parse().expect("it is a name");
        let mut fleet = Fleet::new(nameless, began, resolved.settings.scaling.clone());
        if section.pairs().iter().any(|pair| pair.is("provider", "process")) {
            fleet.settings.limits = OWN_LIMITS;
        }
        for pair in section.pairs() {
            let origin = section.at(pair.line);
            if pair.name == "api_key" {
                let why = "a key in here is read by everybody who may read the file; set RUNPOD_API_KEY, or name a file \
                           that only the plane may read with `api_key_file`";
                let (key, value) = (pair.name.clone(), "***".to_owned());
                return Err(ConfigError::Illegal { key, value, origin, why: why.to_owned() });
            }
            let entry = fleet_key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(entry, pair)?;
            entry.key.write(&mut fleet, entry.value);
            fleet.origins.insert(entry.key.name, entry.origin);
        }
        fleet.source.runpod.api_key = api_key.cloned();
        fleet.check()?;
        fleet.settle(resolved.serve.start_worker);
        Ok(fleet)
    }

    /// What follows from the rest.
    fn settle(&mut self, start_worker: bool) {
        let kind = self.source.provider;
        self.settings.can_rent = kind != ProviderKind::Fixed;
        // Whoever is on one of them belongs to the fleet, whether it says so or not.
        self.settings.machines = self.source.machines.iter().filter_map(|name| name.parse().ok()).collect();
        self.settings.policy = match self.policy {
            PolicyName::Queue => ScalingPolicy::Queue,
            PolicyName::Latency => ScalingPolicy::Latency { wait_max: self.wait_max },
        };
        self.settings.needs_bootstrap = self.source.start == Start::Ssh && start_worker;
        self.settings.offers = self.source.offers();
        self.settings.revision = self.source.revision(&self.settings);
    }

    fn check(&self) -> Result<(), ConfigError> {
        for needed in ["name", "provider"] {
            if !self.origins.contains_key(needed) {
                return Err(self.conflict(&format!("has no `{needed}`: give it one")));
            }
        }
        let kind = self.source.provider;
        for group in GROUPS.iter().filter(|group| !group.of.contains(&kind)) {
            if let Some(key) = group.keys.iter().find(|key| self.origins.contains_key(key.name)) {
                let (key, kind) = (key.name, kind.as_str());
                return Err(self.conflict(&format!("has `{key}`, which means nothing to provider `{kind}`")));
            }
        }
        let Source { machines, command, runpod, url, .. } = &self.source;
        let needed: &[(&str, bool)] = match kind {
            ProviderKind::Fixed => &[("machines", machines.is_empty())],
            ProviderKind::Process => &[("command", command.is_none())],
            ProviderKind::Runpod => {
                &[("image", runpod.image.is_none()), ("gpus", runpod.gpus.is_empty()), ("url", url.is_none())]
            }
        };
        if let Some(bad) = machines.iter().find(|name| name.parse::<MachineId>().is_err()) {
            return Err(self.conflict(&format!("names a machine {bad:?}, which is no name of a machine")));
        }
        if let Some((key, _)) = needed.iter().find(|(_, is_missing)| *is_missing) {
            let kind = kind.as_str();
            return Err(self.conflict(&format!("has no `{key}`, and provider `{kind}` needs it")));
        }
        let scaling = &self.settings.scaling;
        if scaling.machines_min > scaling.machines_max {
            let (min, max) = (scaling.machines_min, scaling.machines_max);
            let told = format!(
                "has a `machines_min` of {min} ({}) and a `machines_max` of {max} ({})",
                self.told("machines_min"),
                self.told("machines_max")
            );
            return Err(self.conflict(&format!("{told}: there is no number between them")));
        }
        if let Some(cloud) =
            runpod.clouds.iter().find(|cloud| !["secure", "community"].contains(&cloud.as_str()))
        {
            return Err(self
                .conflict(&format!("has {cloud:?} among its `clouds`: there are `secure` and `community`")));
        }
        if runpod.network_volume.is_some() && runpod.mount_path.is_none() {
            return Err(self.conflict("has a `network_volume` and no `mount_path` to mount it at"));
        }
        Ok(())
    }

    /// That the key it needs, if it needs one, can be had.
    pub fn check_key(&self) -> anyhow::Result<()> {
        match self.source.provider {
            ProviderKind::Fixed | ProviderKind::Process => Ok(()),
            ProviderKind::Runpod => self.source.runpod.api_key().map(drop),
        }
    }

    /// Where a value came from, as far as the fleet itself says.
    fn told(&self, key: &str) -> String {
        self.origins.get(key).map_or_else(|| "as `[scaling]` says".to_owned(), ToString::to_string)
    }

    fn conflict(&self, what: &str) -> ConfigError {
        let name = if self.origins.contains_key("name") {
            format!("fleet {}", self.settings.id)
        } else {
            "a fleet".to_owned()
        };
        ConfigError::Conflict(format!("{name} ({}) {what}", self.began))
    }

    /// Where the value of a key came from.
    pub(super) fn origin(&self, key: &str, resolved: &Resolved) -> Origin {
        let general =
            || FALLBACKS.iter().find(|(own, _)| *own == key).map(|(_, general)| resolved.origin(general));
        self.origins.get(key).cloned().or_else(general).unwrap_or(Origin::Default)
    }
}

impl Source {
    /// What may be rented, in the provider's words.
    fn offers(&self) -> Vec<String> {
        match self.provider {
            ProviderKind::Fixed => Vec::new(),
            ProviderKind::Process => vec![process::OFFER.to_owned()],
            ProviderKind::Runpod => self.runpod.offers(),
        }
    }

    /// Changes when machines would be made differently.
    fn revision(&self, settings: &FleetSettings) -> String {
        let runpod = &self.runpod;
        let env: BTreeMap<_, _> = self.env.iter().map(|(name, value)| (name, value.reveal())).collect();
        let made_from = json!([
            self.provider.as_str(),
            self.start == Start::Ssh,
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

impl Runpod {
    /// Every GPU in every data centre in every cloud, in the order of preference.
    fn offers(&self) -> Vec<String> {
        let no_key = Secret::new("");
        let least = RunPodSettings::new(no_key, self.gpus.clone(), String::new());
        let clouds = self.clouds.iter().filter_map(|cloud| cloud.parse().ok()).collect();
        let settings = RunPodSettings { data_centres: self.data_centers.clone(), clouds, ..least };
        settings.offers().map(|offer| offer.to_string()).collect()
    }

    /// The network volume, if there is one.
    pub fn volume(&self) -> Option<Volume> {
        let (id, path) = self.network_volume.clone().zip(self.mount_path.clone())?;
        Some(Volume { id, path })
    }

    /// The key to RunPod's API.
    pub fn api_key(&self) -> anyhow::Result<Secret> {
        match (&self.api_key_file, &self.api_key) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {} (api_key_file)", path.display()))?;
                Ok(Secret::new(text.trim()))
            }
            (None, Some(key)) => Ok(key.clone()),
            (None, None) => anyhow::bail!(
                "there is no key to its API: set RUNPOD_API_KEY, or name a file that only the plane may read with \
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

/// Every key of a fleet.
pub(super) fn keys() -> impl Iterator<Item = &'static Key<Fleet>> {
    GROUPS.iter().flat_map(|group| group.keys)
}

/// Those that mean something to this provider.
pub(super) fn keys_of(kind: ProviderKind) -> impl Iterator<Item = &'static Key<Fleet>> {
    GROUPS.iter().filter(move |group| group.of.contains(&kind)).flat_map(|group| group.keys)
}

fn fleet_key(name: &str) -> Option<&'static Key<Fleet>> {
    keys().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    match nearest(written, keys().map(|key| key.name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "docs/configuration.md lists the keys of a fleet".to_owned(),
    }
}

/// No two fleets share a name.
pub(super) fn check_names(fleets: &[Fleet]) -> Result<(), ConfigError> {
    for (at, fleet) in fleets.iter().enumerate() {
        if let Some(other) = fleets[..at].iter().find(|other| other.settings.id == fleet.settings.id) {
            return Err(
                fleet.conflict(&format!("has the name of another ({}): choose a new one", other.began))
            );
        }
    }
    Ok(())
}
