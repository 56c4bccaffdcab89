//! S8: budgets, maxima and refused keys of fleets.

use std::time::Duration;

use remuda_core::money::Money;
use remuda_core::plane::Plane;
use remuda_core::rental::{Rental, RentalPhase};
use remuda_core::time::Timestamp;

use super::{DRAINED_WITHIN, SPENT_MARGIN};
use crate::law::Law;
use crate::laws::Laws;
use crate::provider::Account;
use crate::scenario::{FleetPlan, Scenario};

impl Laws {
    /// S8: no day costs more than allowed, except for what is spent until the plane notices. After a machine was given
    /// up, the delay is the provider's.
    pub(super) fn check_daily_budget(&mut self, at: u64, account: &Account, scenario: &Scenario) {
        for plan in &scenario.fleets {
            let Some(most) = plan.settings.day_max else { continue };
            let (mut spent, mut slack) = (Money::ZERO, Money::ZERO);
            for pod in account.pods.values().filter(|pod| pod.fleet.as_ref() == Some(&plan.settings.id)) {
                let given_up = self.pods.given_up.get(&pod.tag).copied().unwrap_or(at);
                let until = given_up.min(pod.gone_at.unwrap_or(at)).min(pod.stopped_at.unwrap_or(at));
                let price = plan.prices.get(&pod.offer).copied().unwrap_or_default();
                let is_unknown =
                    pod.is_created_by_old_plane || pod.is_unrecorded || self.pods.unseen.contains(&pod.tag);
                if is_unknown {
                    continue;
                }
                let while_up = Duration::from_millis(until.saturating_sub(pod.created_at));
                spent = spent.plus(price.over(while_up));
                // The mass-loss brake returns no machine, whatever it costs; nor does a plane that is down or paused:
                // what this machine cost in just that time is no one's decision.
                let away = self.pods.absence(pod.created_at, until);
                slack = slack.plus(price.over(SPENT_MARGIN + away));
            }
            if spent > most.plus(slack) {
                let what = format!("{} has cost {spent} today, {most} are allowed", plan.settings.id);
                return self.violated(Law::S8, at, what);
            }
        }
    }

    /// S8: a refused key is confirmed by a second call before it stops anything.
    pub(super) fn check_key(&mut self, at: u64, plane: &Plane, scenario: &Scenario) {
        for plan in &scenario.fleets {
            let id = &plan.settings.id;
            let is_confirmed = plane.fleet(id).key_refusal.is_some_and(|refusal| refusal.is_confirmed);
            let refusals = self.pods.refusals.get(id).copied().unwrap_or(0);
            let is_new = self.pods.confirmed.insert(id.clone(), is_confirmed) != Some(is_confirmed);
            if is_confirmed && is_new && refusals < 2 {
                let what = format!("{id} counts its key as refused after {refusals} refused calls");
                self.violated(Law::S8, at, what);
            }
        }
    }

    /// S8: what is above a lowered maximum is drained, busy or not.
    pub(super) fn check_maximum(&mut self, now: Timestamp, at: u64, plane: &Plane, scenario: &Scenario) {
        if !self.listens_for(now, DRAINED_WITHIN) {
            return;
        }
        let margin = DRAINED_WITHIN.as_millis() as u64;
        let long_lowered =
            |plan: &&FleetPlan| plan.lowered.is_some_and(|(lowered_at, _)| at > lowered_at + margin);
        for plan in scenario.fleets.iter().filter(long_lowered) {
            let is_staying = |rental: &&Rental| {
                let phase = rental.phase();
                rental.fleet == plan.settings.id
                    && matches!(
                        phase,
                        RentalPhase::Wanted | RentalPhase::Lost | RentalPhase::Made | RentalPhase::Up
                    )
            };
            let (staying, most) =
                (plane.rentals().filter(is_staying).count(), plan.settings.scaling.machines_max);
            if staying > most as usize {
                let what = format!("{} keeps {staying} machines, {most} are allowed", plan.settings.id);
                return self.violated(Law::S8, at, what);
            }
        }
    }
}
