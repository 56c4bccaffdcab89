//! Reads `[[fleet]]` sections into [`FleetConfig`]s. A setting that a fleet omits is taken from `[scaling]`.

use remuda_core::fleet::ScalingPolicy;
use remuda_core::id::MachineId;
use remuda_net::secret::Secret;

use super::file::Section;
use super::fleet::{FleetConfig, MachineSource, PROCESS_LIMITS, PolicyName, ProviderKind, WorkerStart};
use super::key::Key;
use super::table::fleets::{FALLBACKS, GROUPS, keys};
use super::{ConfigError, ResolvedConfig, ValueOrigin, suggest};

impl FleetConfig {
    /// Reads one `[[fleet]]` section.
    pub(super) fn read(
        section: &Section,
        resolved: &ResolvedConfig,
        api_key: Option<&Secret>,
    ) -> Result<FleetConfig, ConfigError> {
        let declared_at = section.origin();
        let placeholder = "fleet".parse().expect("a valid name");
        let mut fleet = FleetConfig::new(placeholder, declared_at, resolved.settings.scaling.clone());
        if section.pairs().iter().any(|pair| pair.is("provider", "process")) {
            fleet.settings.limits = PROCESS_LIMITS;
        }
        for pair in section.pairs() {
            let origin = section.at(pair.line);
            if pair.name == "api_key" {
                let why = "every user who can read this file would see the key; set RUNPOD_API_KEY, or name a file that \
                           only the plane can read with `api_key_file`";
                let (key, value) = (pair.name.clone(), "***".to_owned());
                return Err(ConfigError::Invalid { key, value, origin, why: why.to_owned() });
            }
            let entry = fleet_key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(entry, pair)?;
            entry.key.write(&mut fleet, entry.value);
            fleet.origins.insert(entry.key.name, entry.origin);
        }
        fleet.source.runpod.api_key = api_key.cloned();
        fleet.check()?;
        fleet.derive_settings(resolved.serve.start_worker);
        Ok(fleet)
    }

    /// Fills in the fields of `settings` that follow from other fields.
    fn derive_settings(&mut self, start_worker: bool) {
        let kind = self.source.provider;
        self.settings.can_rent = kind != ProviderKind::Fixed;
        // A worker on one of these machines belongs to the fleet even if it does not name the fleet.
        self.settings.machines = self.source.machines.iter().filter_map(|name| name.parse().ok()).collect();
        self.settings.policy = match self.policy {
            PolicyName::Queue => ScalingPolicy::Queue,
            PolicyName::Latency => ScalingPolicy::Latency { wait_max: self.wait_max },
        };
        self.settings.needs_bootstrap = self.source.start == WorkerStart::Ssh && start_worker;
        self.settings.offers = self.source.offers();
        self.settings.revision = self.source.revision(&self.settings);
    }

    fn check(&self) -> Result<(), ConfigError> {
        for needed in ["name", "provider"] {
            if !self.origins.contains_key(needed) {
                return Err(self.conflict(&format!("has no `{needed}`, which is required")));
            }
        }
        let kind = self.source.provider;
        for group in GROUPS.iter().filter(|group| !group.providers.contains(&kind)) {
            if let Some(key) = group.keys.iter().find(|key| self.origins.contains_key(key.name)) {
                let (key, kind) = (key.name, kind.as_str());
                return Err(self.conflict(&format!("has `{key}`, which does not apply to provider `{kind}`")));
            }
        }
        let MachineSource { machines, command, runpod, url, .. } = &self.source;
        let needed: &[(&str, bool)] = match kind {
            ProviderKind::Fixed => &[("machines", machines.is_empty())],
            ProviderKind::Process => &[("command", command.is_none())],
            ProviderKind::Runpod => {
                &[("image", runpod.image.is_none()), ("gpus", runpod.gpus.is_empty()), ("url", url.is_none())]
            }
        };
        if let Some(bad) = machines.iter().find(|name| name.parse::<MachineId>().is_err()) {
            return Err(self.conflict(&format!("lists {bad:?}, which is not a valid machine name")));
        }
        if let Some((key, _)) = needed.iter().find(|(_, is_missing)| *is_missing) {
            let kind = kind.as_str();
            return Err(self.conflict(&format!("has no `{key}`, which provider `{kind}` requires")));
        }
        let scaling = &self.settings.scaling;
        if scaling.machines_min > scaling.machines_max {
            let (min, max) = (scaling.machines_min, scaling.machines_max);
            let bounds = format!(
                "has `machines_min = {min}` ({}) and `machines_max = {max}` ({})",
                self.origin_text("machines_min"),
                self.origin_text("machines_max")
            );
            return Err(self.conflict(&format!("{bounds}: the minimum is above the maximum")));
        }
        if let Some(cloud) =
            runpod.clouds.iter().find(|cloud| !["secure", "community"].contains(&cloud.as_str()))
        {
            return Err(
                self.conflict(&format!("lists {cloud:?} in `clouds`; known are `secure` and `community`"))
            );
        }
        if runpod.network_volume.is_some() && runpod.mount_path.is_none() {
            return Err(self.conflict("has a `network_volume` but no `mount_path`"));
        }
        Ok(())
    }

    /// Where a value came from, for error messages.
    fn origin_text(&self, key: &str) -> String {
        self.origins.get(key).map_or_else(|| "from `[scaling]`".to_owned(), ToString::to_string)
    }

    fn conflict(&self, what: &str) -> ConfigError {
        let name = if self.origins.contains_key("name") {
            format!("fleet {}", self.settings.id)
        } else {
            "a fleet".to_owned()
        };
        ConfigError::Conflict(format!("{name} ({}) {what}", self.declared_at))
    }

    /// Where the value of a setting came from.
    pub(super) fn origin(&self, key: &str, resolved: &ResolvedConfig) -> ValueOrigin {
        let general =
            || FALLBACKS.iter().find(|(own, _)| *own == key).map(|(_, general)| resolved.origin(general));
        self.origins.get(key).cloned().or_else(general).unwrap_or(ValueOrigin::Default)
    }
}

fn fleet_key(name: &str) -> Option<&'static Key<FleetConfig>> {
    keys().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    match suggest::closest_name(written, keys().map(|key| key.name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "docs/configuration.md lists the settings of a fleet".to_owned(),
    }
}

/// Fleet names must be unique.
pub(super) fn check_names(fleets: &[FleetConfig]) -> Result<(), ConfigError> {
    for (at, fleet) in fleets.iter().enumerate() {
        if let Some(other) = fleets[..at].iter().find(|other| other.settings.id == fleet.settings.id) {
            return Err(fleet.conflict(&format!(
                "has the same name as another fleet ({}): choose a different one",
                other.declared_at
            )));
        }
    }
    Ok(())
}
