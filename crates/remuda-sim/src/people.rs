//! People who mean well: they pause fleets, order so and so many machines, drain what they like, put a store back from a
//! backup. When the storm is over they take back what they ordered.

use remuda_core::fleet::FleetOrder;
use remuda_core::id::FleetId;

use crate::net::{Ask, Call, Caller};
use crate::provider::Trouble;
use crate::sabotage::Sabotage;
use crate::world::World;

impl World<'_> {
    pub(crate) fn somebody_orders(&mut self) {
        if self.scene.fleets.is_empty() {
            return;
        }
        let at = self.random.index(self.scene.fleets.len());
        let settings = &self.scene.fleets[at].settings;
        let (fleet, most) = (settings.id.clone(), u64::from(settings.scaling.machines_max) + 2);
        self.account.meet(Trouble::People);
        let order = match self.random.below(10) {
            0 | 1 => FleetOrder::Pause { reason: "maintenance".to_owned() },
            2 => FleetOrder::Resume,
            3 | 4 => FleetOrder::Scale { machines: Some(self.random.below(most) as u32) },
            5 => FleetOrder::Scale { machines: None },
            6 => FleetOrder::LiftBrake,
            _ => return self.somebody_drains(),
        };
        self.order(fleet, order);
    }

    fn order(&mut self, fleet: FleetId, order: FleetOrder) {
        self.laws.ordered_about(self.now, &fleet);
        let id = self.next_call();
        self.arrive(Call { from: Caller::Nobody, id, ask: Ask::Order { fleet, order } });
    }

    fn somebody_drains(&mut self) {
        let machines: Vec<_> = self.account.ours().filter_map(crate::provider::SimPod::machine).collect();
        if machines.is_empty() {
            return;
        }
        let machine = machines[self.random.index(machines.len())].clone();
        let within = self.random.permille(500).then(|| self.random.between(5000, 120_000));
        let id = self.next_call();
        self.arrive(Call { from: Caller::Nobody, id, ask: Ask::DrainMachine { machine, within } });
    }

    /// In the calm nobody stands in the way.
    pub(crate) fn people_let_go(&mut self) {
        if self.is_sabotaged(Sabotage::StayAtZero) {
            let fleets: Vec<_> = self.scene.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            for fleet in fleets {
                self.order(fleet, FleetOrder::Pause { reason: "forgotten".to_owned() });
            }
            return;
        }
        let Some(driver) = self.lead.and_then(|at| self.drivers[at].as_deref()) else { return };
        let held = self.scene.fleets.iter().map(|plan| &plan.settings.id);
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

    /// The store is put back to a time before some of the machines.
    pub(crate) fn put_store_back(&mut self) {
        let machines: Vec<_> = self.store.machines().map(ToOwned::to_owned).collect();
        self.kill_plane(1, 0);
        for machine in machines {
            if self.random.permille(500) && self.store.put_back(&machine) {
                self.account.meet(Trouble::OldStore);
                self.laws.machine_put_back(&machine);
                let its = |pod: &&mut crate::provider::SimPod| {
                    pod.machine().is_some_and(|it| it.as_str() == machine)
                };
                self.account.pods.values_mut().filter(its).for_each(|pod| pod.is_unrecorded = true);
            }
        }
    }
}
