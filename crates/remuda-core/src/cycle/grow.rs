//! Phase six: more machines for waiting jobs, within the maximum, the budget and the provider's health.

use super::{Cycle, CycleAction, FleetSnapshot, WorkerView};
use crate::machine::WorkerState;
use crate::scale::{self, ScalingDirection};

impl Cycle<'_> {
    pub(super) fn grow(&mut self) {
        let scaling = &self.settings.scaling;
        let capacity = self.count(WorkerState::Active) + self.count(WorkerState::Spawning) + self.spawned;
        let wanted = self.wanted();
        let is_closed = self.snapshot.ordered == Some(0) || scaling.machines_max == 0;
        if is_closed && self.queued > 0 && self.snapshot.can_rent {
            let jobs = self.queued;
            self.held_back.push(format!("{jobs} jobs wait, but the fleet is scaled to 0 machines"));
        }
        let Some(why) = self.shortage(capacity) else { return };
        let missing = scale::missing(wanted, capacity);
        if missing == 0 {
            if capacity >= scaling.machines_max {
                self.held_back
                    .push(format!("{why}, but the maximum of {} machines is reached", scaling.machines_max));
            }
            return;
        }
        let reason = format!("{why}: {missing} more wanted");
        if let Some(forbidden) = self.forbidden(capacity) {
            return self.held_back.push(format!("{reason}, but {forbidden}"));
        }
        let allowed = self.allowed(missing, &reason);
        if allowed > 0 {
            self.spawn(allowed, reason);
        }
    }

    /// Why there should be more than `capacity`; `None` if there should not.
    fn shortage(&self, capacity: u32) -> Option<String> {
        let FleetSnapshot { ordered, policy_target, can_rent, .. } = self.snapshot;
        let (queued, scaling) = (self.queued, &self.settings.scaling);
        if let Some(ordered) = ordered {
            return (capacity < *ordered)
                .then(|| format!("{ordered} machines were ordered, {capacity} exist or are starting"));
        }
        if let Some((wanted, why)) = policy_target.as_ref().filter(|(wanted, _)| capacity < *wanted) {
            return Some(format!("{why}: {wanted} machines wanted, {capacity} exist or are starting"));
        }
        let is_short = policy_target.is_none() && scale::is_short(queued, capacity, scaling.jobs_per_worker);
        if is_short {
            return Some(format!("{queued} jobs wait for {capacity} workers"));
        }
        // The minimum is kept even without waiting jobs.
        let is_below = *can_rent && capacity < scaling.machines_min.min(scaling.machines_max);
        is_below.then(|| format!("a capacity of {capacity} is below the minimum of {}", scaling.machines_min))
    }

    /// What forbids every new machine now.
    fn forbidden(&self, capacity: u32) -> Option<String> {
        let FleetSnapshot { heading, can_rent, paused, spent, creation_hold, ordered, .. } = self.snapshot;
        let scaling = &self.settings.scaling;
        if !can_rent {
            return Some("there is no provider to rent from".to_owned());
        }
        if let Some(reason) = paused {
            return Some(format!("the fleet is paused: {reason}"));
        }
        if let Some(reason) = spent.as_ref().or(creation_hold.as_ref()) {
            return Some(reason.clone());
        }
        let free_at = heading.allowed_at(ScalingDirection::Up, scaling.reversal_cooldown);
        // The reversal cooldown is for oscillating load, not for a fleet below its minimum and not for manual orders.
        let is_damped = self.now < free_at && capacity >= scaling.machines_min.max(1) && ordered.is_none();
        is_damped.then(|| format!("the fleet shrank recently and may not grow before {free_at}"))
    }

    /// How many of the missing machines may be created, by maximum, budget and creation brake.
    fn allowed(&mut self, missing: u32, reason: &str) -> u32 {
        let FleetSnapshot { creation, affordable, .. } = self.snapshot;
        let mut allowed = missing.min(self.room());
        if allowed < missing {
            self.held_back.push(format!(
                "{reason}, but only {allowed} fit under the maximum: machines being returned still count"
            ));
        }
        if let Some((count, why)) = affordable.as_ref().filter(|(count, _)| *count < allowed) {
            self.held_back.push(format!("{reason}, but the budget allows only {count}: {why}"));
            allowed = *count;
        }
        let trials = creation.creations_max(self.now, self.count(WorkerState::Spawning) + self.spawned);
        if let Some(brake) = creation.reason(self.now).filter(|_| trials < allowed) {
            self.held_back.push(format!("{reason}, but only {trials} may be created now: {brake}"));
            allowed = trials;
        }
        allowed
    }

    pub(super) fn spawn(&mut self, count: u32, reason: String) {
        self.spawned += count;
        self.actions.push(CycleAction::Spawn { count, reason });
    }

    /// How many more machines may exist. A machine being returned is billed until it is gone, so it counts until then.
    pub(super) fn room(&self) -> u32 {
        let counts = |worker: &&WorkerView| worker.counts_against_max;
        let counted = self.snapshot.workers.iter().filter(counts).count();
        let counted = u32::try_from(counted).unwrap_or(u32::MAX).saturating_add(self.snapshot.orphans);
        self.settings.scaling.machines_max.saturating_sub(counted.saturating_add(self.spawned))
    }
}
