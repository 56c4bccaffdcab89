//! Operators mean well: they pause fleets, set machine counts, drain machines and restore the store from a backup. When
//! the storm is over they withdraw their orders.

use remuda_core::fleet::FleetOrder;
use remuda_core::id::FleetId;

use super::World;
use crate::net::{Caller, PlaneCall, PlaneRequest};
use crate::provider::SimPod;
use crate::sabotage::Sabotage;
use crate::trouble::Trouble;

impl World<'_> {
    pub(super) fn operator_order(&mut self) {
        if self.scenario.fleets.is_empty() {
            return;
        }
        let at = self.random.index(self.scenario.fleets.len());
        let settings = &self.scenario.fleets[at].settings;
        let (fleet, most) = (settings.id.clone(), u64::from(settings.scaling.machines_max) + 2);
        self.account.count_trouble(Trouble::Operators);
        let order = match self.random.below(10) {
            0 | 1 => FleetOrder::Pause { reason: "maintenance".to_owned() },
            2 => FleetOrder::Resume,
            3 | 4 => FleetOrder::Scale { machines: Some(self.random.below(most) as u32) },
            5 => FleetOrder::Scale { machines: None },
            6 => FleetOrder::ResetBrake,
            _ => return self.operator_drain(),
        };
        self.order(fleet, order);
    }

    fn order(&mut self, fleet: FleetId, order: FleetOrder) {
        self.laws.operator_ordered(self.now, &fleet);
        let id = self.next_call();
        self.arrive(PlaneCall { from: Caller::None, id, request: PlaneRequest::Order { fleet, order } });
    }

    /// Halves the maximum of a fleet, and reloads the settings of the plane.
    pub(super) fn lower_limits(&mut self) {
        if self.scenario.fleets.is_empty() {
            return;
        }
        let at = self.random.index(self.scenario.fleets.len());
        let plan = &mut self.scenario.fleets[at];
        let lowered = (plan.settings.scaling.machines_max / 2).max(1);
        plan.lower_maximum(self.now, lowered);
        let (id, scaling) = (plan.settings.id.clone(), plan.settings.scaling.clone());
        self.account.count_trouble(Trouble::LimitsLowered);
        self.laws.operator_ordered(self.now, &id);
        if self.is_sabotaged(Sabotage::IgnoreLoweredLimits) || self.is_sabotaged(Sabotage::NoMaximum) {
            return;
        }
        let fleets = self.scenario.core.fleets.iter_mut().filter(|fleet| fleet.id == id);
        fleets.for_each(|fleet| {
            (fleet.scaling.machines_min, fleet.scaling.machines_max) =
                (scaling.machines_min, scaling.machines_max);
        });
        let id = self.next_call();
        self.arrive(PlaneCall { from: Caller::None, id, request: PlaneRequest::Reload });
    }

    fn operator_drain(&mut self) {
        let machines: Vec<_> = self.account.ours().filter_map(SimPod::machine).collect();
        if machines.is_empty() {
            return;
        }
        let machine = machines[self.random.index(machines.len())].clone();
        let within = self.random.permille(500).then(|| self.random.between(5000, 120_000));
        let id = self.next_call();
        self.arrive(PlaneCall {
            from: Caller::None,
            id,
            request: PlaneRequest::DrainMachine { machine, within },
        });
    }

    /// After the storm no operator order stands in the way.
    pub(super) fn withdraw_operator_orders(&mut self) {
        if self.is_sabotaged(Sabotage::StayAtZero) {
            let fleets: Vec<_> = self.scenario.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            for fleet in fleets {
                self.order(fleet, FleetOrder::Pause { reason: "forgotten".to_owned() });
            }
            return;
        }
        let Some(driver) = self.lead.and_then(|at| self.drivers[at].as_deref()) else { return };
        let held = self.scenario.fleets.iter().map(|plan| &plan.settings.id);
        let held: Vec<_> = held
            .filter(|id| {
                let fleet = driver.plane.fleet(id);
                fleet.paused.is_some() || fleet.machines.is_some()
            })
            .cloned()
            .collect();
        for fleet in held {
            self.order(fleet.clone(), FleetOrder::Resume);
            self.order(fleet, FleetOrder::Scale { machines: None });
        }
    }

    /// Restores the store to a time before some of the machines.
    pub(super) fn roll_back_store(&mut self) {
        let machines: Vec<_> = self.store.machines().map(ToOwned::to_owned).collect();
        self.kill_plane(1, 0);
        for machine in machines {
            if self.random.permille(500) && self.store.roll_back(&machine) {
                self.account.count_trouble(Trouble::StoreRolledBack);
                self.laws.machine_rolled_back(&machine);
                let its = |pod: &&mut SimPod| pod.machine().is_some_and(|it| it.as_str() == machine);
                self.account.pods.values_mut().filter(its).for_each(|pod| pod.is_unrecorded = true);
            }
        }
    }
}
