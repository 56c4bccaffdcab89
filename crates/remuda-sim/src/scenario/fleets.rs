//! Draws the fleets of a world: their settings, their offers, and how the load varies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::fleet::{FleetSettings, RentalLimits, ScalingPolicy};
use remuda_core::id::Service;
use remuda_core::money::Money;
use remuda_core::settings::Scaling;

use super::{SERVICES, ZONES};
use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct FleetPlan {
    /// The correct settings, even if a sabotage changes those of the plane.
    pub(crate) settings: FleetSettings,
    pub(crate) services: BTreeSet<Service>,
    pub(crate) slots: u32,
    pub(crate) prices: BTreeMap<String, Money>,
    /// When an operator last lowered the maximum, and from what.
    pub(crate) lowered: Option<(u64, u32)>,
}

/// Creations that were requested before a limit was lowered have ended by then: two calls that hang.
const UNDER_WAY_MAX: u64 = 130_000;

impl FleetPlan {
    pub(crate) fn lower_maximum(&mut self, now: u64, machines_max: u32) {
        self.lowered = Some((now, self.maximum(now)));
        let scaling = &mut self.settings.scaling;
        (scaling.machines_min, scaling.machines_max) = (scaling.machines_min.min(machines_max), machines_max);
    }

    /// How many pods may be created. A lowered maximum counts once nothing from before it is under way.
    pub(crate) fn maximum(&self, now: u64) -> u32 {
        let former = self.lowered.filter(|(at, _)| now < at + UNDER_WAY_MAX).map(|(_, former)| former);
        former.unwrap_or(0).max(self.settings.scaling.machines_max)
    }
}

const FLEETS: [&str; 2] = ["big-gpus", "small"];
const OFFERS: [&str; 3] = ["4090", "A6000", "L40S"];

/// With `is_sole_fleet` no other worker can do the work, so no limit may forbid machines altogether.
pub(super) fn draw(random: &mut Random, is_sole_fleet: bool) -> Vec<FleetPlan> {
    let count = if random.permille(300) { 2 } else { 1 };
    (0..count).map(|n| fleet(random, n, is_sole_fleet)).collect()
}

fn fleet(random: &mut Random, n: usize, is_sole_fleet: bool) -> FleetPlan {
    let seconds = |random: &mut Random, from: &[u64]| Duration::from_secs(random.pick(from));
    let offers = random.between(1, 3) as usize;
    let prices: BTreeMap<String, Money> = (0..offers)
        .map(|at| (format!("{}-{n}", OFFERS[at]), Money::from_micros(random.between(200_000, 2_000_000))))
        .collect();
    let dearest = prices.values().copied().max().unwrap_or_default();
    let machines_min = random.pick(&[0, 0, 0, 1, 2]);
    let mut settings = FleetSettings::new(FLEETS[n].parse().expect("a short name is a valid id"), true);
    settings.labels = BTreeMap::from([("zone".to_owned(), ZONES[n].to_owned())]);
    settings.offers = prices.keys().cloned().collect();
    settings.scaling = Scaling {
        machines_min,
        machines_max: machines_min + random.between(1, 5) as u32,
        jobs_per_worker: random.between(1, 5) as u32,
        spawning_timeout: seconds(random, &[60, 120, 300]),
        drain_timeout: seconds(random, &[30, 120, 600]),
        reversal_cooldown: seconds(random, &[60, 300, 600]),
        uptime_min: seconds(random, &[60, 300, 600]),
        ..Scaling::default()
    };
    if random.permille(300) {
        settings.policy = ScalingPolicy::Latency { wait_max: seconds(random, &[20, 60, 300]) };
    }
    settings.price_max = random.permille(500).then(|| dearest.plus(Money::from_micros(1)));
    // At least one machine, and often fewer than the maximum.
    let affordable = random.between(1, 5);
    settings.hour_max =
        random.permille(500).then(|| Money::from_micros((dearest.as_micros() + 2) * affordable));
    // Enough for some minutes of one machine. Only where other workers exist, so that no job waits for the next day.
    settings.day_max = (!is_sole_fleet && random.permille(300))
        .then(|| Money::from_micros(dearest.as_micros() * random.between(20, 120) / 60));
    settings.limits = RentalLimits {
        list_every: seconds(random, &[10, 30]),
        list_lag_max: seconds(random, &[30, 60]),
        lost_create_timeout: seconds(random, &[120, 600]),
        image_pull_timeout: seconds(random, &[300, 1800]),
        offer_cooldown: seconds(random, &[120, 600]),
        ..RentalLimits::default()
    };
    FleetPlan {
        settings,
        services: SERVICES.iter().filter_map(|name| name.parse().ok()).collect(),
        slots: random.between(1, 2) as u32,
        prices,
        lowered: None,
    }
}

/// When a job is submitted: in waves, with quiet times in between.
pub(super) fn arrival(random: &mut Random, storm_end: u64, waves: &[u64]) -> u64 {
    match waves.is_empty() || random.permille(200) {
        true => random.below(storm_end),
        false => (random.pick(waves) + random.below(90_000)).min(storm_end),
    }
}

pub(super) fn waves(random: &mut Random, storm_end: u64) -> Vec<u64> {
    (0..random.between(1, 5)).map(|_| random.below(storm_end)).collect()
}

/// Long enough to be worth a machine.
pub(super) fn duration(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => random.between(60_000, 250_000),
        1..=3 => random.between(15_000, 60_000),
        _ => random.between(500, 15_000),
    }
}
