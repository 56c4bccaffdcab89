//! Settings of one fleet: its provider's offers, scaling, budgets and the limits of each phase of a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Scaling;
use crate::id::{FleetId, MachineId, Service};
use crate::money::Money;

/// A fleet's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetSettings {
    pub id: FleetId,
    /// Whether its provider rents machines; without that the fleet is a fixed list.
    pub can_rent: bool,
    /// The machines of a fixed list.
    #[serde(default)]
    pub machines: BTreeSet<MachineId>,
    /// The services of its workers; empty means any.
    #[serde(default)]
    pub services: BTreeSet<Service>,
    /// Given to its workers; jobs that require other labels are not counted for this fleet.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub scaling: Scaling,
    #[serde(default)]
    pub policy: ScalingPolicy,
    /// What may be rented, most preferred first; each is a name that the provider understands.
    #[serde(default)]
    pub offers: Vec<String>,
    /// The most an hour of one machine may cost; also its assumed price while the provider reports none.
    #[serde(default)]
    pub price_max: Option<Money>,
    /// Budgets for all its machines together, by the hour and by calendar day (UTC).
    #[serde(default)]
    pub hour_max: Option<Money>,
    #[serde(default)]
    pub day_max: Option<Money>,
    #[serde(default)]
    pub limits: RentalLimits,
    /// Replaces the plane's `stale_after` for its workers.
    #[serde(default)]
    pub stale_after: Option<Duration>,
    /// Its image starts no worker: one is bootstrapped over SSH.
    #[serde(default)]
    pub needs_bootstrap: bool,
    /// Changes when new machines would be created differently; machines of another revision are replaced one by one.
    #[serde(default)]
    pub revision: String,
}

impl FleetSettings {
    /// A fleet with defaults.
    pub fn new(id: FleetId, can_rent: bool) -> FleetSettings {
        FleetSettings {
            id,
            can_rent,
            machines: BTreeSet::new(),
            services: BTreeSet::new(),
            labels: BTreeMap::new(),
            scaling: Scaling::default(),
            policy: ScalingPolicy::Queue,
            offers: if can_rent { vec!["any".to_owned()] } else { Vec::new() },
            price_max: None,
            hour_max: None,
            day_max: None,
            limits: RentalLimits::default(),
            stale_after: None,
            needs_bootstrap: false,
            revision: String::new(),
        }
    }
}

impl FleetSettings {
    /// A fleet that was removed from the settings and still has machines: it only shrinks.
    pub fn removed(id: FleetId) -> FleetSettings {
        let scaling = Scaling {
            machines_min: 0,
            machines_max: 0,
            reversal_cooldown: Duration::ZERO,
            uptime_min: Duration::ZERO,
            ..Scaling::default()
        };
        FleetSettings { scaling, offers: Vec::new(), ..FleetSettings::new(id, true) }
    }
}

/// How the target number of machines is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingPolicy {
    /// By waiting jobs per worker.
    #[default]
    Queue,
    /// Enough that no job waits longer than this, by the measured run times.
    Latency { wait_max: Duration },
}

/// Longer than a restart of the plane takes, short enough to bound the cost of a lost machine.
pub const CONTACT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// How long each phase of a machine may take before it is given up. They are separate because each has a different
/// cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RentalLimits {
    /// How often the provider's machines are listed.
    pub list_every: Duration,
    /// How long a new pod may be missing from lists.
    pub list_lag_max: Duration,
    /// How long a pod is looked for after the reply to its creation was lost.
    pub lost_create_timeout: Duration,
    /// From creation until it runs: image pull and boot.
    pub image_pull_timeout: Duration,
    /// From its worker's registration until it is ready: start check and model loading.
    pub readiness_timeout: Duration,
    /// How long an unknown pod with our tag is left alone: another plane may be about to record it.
    pub orphan_grace: Duration,
    /// A return that takes longer raises an alarm.
    pub return_timeout: Duration,
    /// How long an offer is avoided after a bad machine or no capacity.
    pub offer_cooldown: Duration,
    /// A machine without contact to the plane for this long stops itself, so after that it cannot come back.
    pub contact_timeout: Duration,
}

impl Default for RentalLimits {
    fn default() -> Self {
        RentalLimits {
            list_every: Duration::from_secs(30),
            // One client had to widen its window to 16 s; others look three times within 6 s.
            list_lag_max: Duration::from_secs(60),
            lost_create_timeout: Duration::from_secs(600),
            // Cold pulls take 5 to 13 minutes; what is not running after twice that never will be.
            image_pull_timeout: Duration::from_secs(30 * 60),
            readiness_timeout: Duration::from_secs(600),
            orphan_grace: Duration::from_secs(300),
            return_timeout: Duration::from_secs(600),
            offer_cooldown: Duration::from_secs(600),
            contact_timeout: CONTACT_TIMEOUT,
        }
    }
}
