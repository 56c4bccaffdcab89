//! The machine inside a pod. It starts once its image is pulled, runs an agent, and stops when the pod ends, when the
//! plane says that the machine is retired, or when it has had no contact with the plane for too long.

use std::time::Duration;

use remuda_core::id::{FleetId, PodId};

use crate::event_queue::SimEvent;
use crate::host::Host;
use crate::provider::SimPod;
use crate::scenario::{HostPlan, Quirk};
use crate::service::ServicePlan;
use crate::trouble::Trouble;
use crate::world::World;

impl World<'_> {
    /// Schedules when the pod runs, and when it ends by itself.
    pub(super) fn plan_start(&mut self, pod: &mut SimPod) {
        if pod.fate == Some(Trouble::NeverRuns) {
            return;
        }
        let image_pull_timeout = self.limit(pod.fleet.as_ref(), |fleet| fleet.limits.image_pull_timeout);
        let is_cold = self.random.permille(150);
        let pull =
            if is_cold { self.random.between(120_000, 780_000) } else { self.random.between(15_000, 90_000) };
        let runs_at = self.now + pull.min(image_pull_timeout * 3 / 4);
        pod.runs_at = Some(runs_at);
        self.schedule(runs_at, SimEvent::PodStart { pod: pod.id.clone() });
        if matches!(pod.fate, Some(Trouble::PodExits | Trouble::PodVanishes | Trouble::HostDies)) {
            let ends_at = runs_at + self.random.between(1000, 900_000);
            self.schedule(ends_at, SimEvent::PodFate { pod: pod.id.clone() });
        }
    }

    fn limit(
        &self,
        fleet: Option<&FleetId>,
        limit: impl Fn(&remuda_core::fleet::FleetSettings) -> Duration,
    ) -> u64 {
        let plans = &self.scenario.fleets;
        let its = plans.iter().find(|plan| Some(&plan.settings.id) == fleet);
        its.map_or(0, |plan| limit(&plan.settings).as_millis() as u64)
    }

    pub(in crate::world) fn pod_started(&mut self, id: &PodId) {
        let Some(pod) = self.account.pods.get(id).filter(|pod| pod.is_up()) else { return };
        let (fate, Some(fleet), Some(machine)) = (pod.fate, pod.fleet.clone(), pod.machine()) else { return };
        let quoted = self.account.quoted_offers.get(&fleet);
        let has_price = quoted.is_some_and(|offers| offers.contains(&pod.offer));
        let boot = match fate {
            Some(Trouble::NoAgent) => return,
            Some(Trouble::LateAgent) => {
                let given_up = self.limit(Some(&fleet), |fleet| fleet.scaling.spawning_timeout);
                given_up + self.random.between(0, 300_000)
            }
            _ => self.random.between(1000, 15_000),
        };
        let Some(plan) = self.scenario.fleets.iter().find(|plan| plan.settings.id == fleet) else { return };
        let labels = plan.settings.labels.clone();
        let plan = HostPlan {
            name: machine.as_str().parse().expect("a machine id is a valid worker id"),
            machine: Some(machine),
            shared_machine: None,
            fleet: Some(fleet),
            services: plan.services.clone(),
            slots: plan.slots,
            offer: remuda_core::need::Capabilities { labels, ..Default::default() },
            quirk: Quirk::None,
            clock_offset: self.random.below(10 * 365 * 86_400_000) + self.scenario.clock_shift,
            clock_speed: self.random.between(950, 1050),
            inactivity: Duration::from_secs(self.random.between(5, 30)),
            keeps_polls: true,
            service: ServicePlan {
                slots: plan.slots as usize,
                is_owned: true,
                reports_outcome: self.random.permille(200),
                lists_finished_as_running: self.random.permille(500),
            },
        };
        let mut host = Host::new(plan);
        host.pod = Some(id.clone());
        host.last_contact_at = self.now + boot;
        host.ready_at = match fate {
            Some(Trouble::SlowModels) => self.now + boot + self.random.between(30_000, 500_000),
            _ => self.now + boot + self.random.between(0, 5000),
        };
        host.has_bad_gpu = matches!(fate, Some(Trouble::BadGpu | Trouble::BadHosts));
        // A pod can only be pricier than an agreed price.
        host.is_wrong_machine = match fate {
            Some(Trouble::PricierPod) => has_price,
            other => other == Some(Trouble::WrongGpu),
        };
        let contact_timeout = self.contact_timeout_of(&host);
        self.hosts.push(host);
        let host = self.hosts.len() - 1;
        if let Some(pod) = self.account.pods.get_mut(id) {
            pod.sim_host = Some(host);
        }
        self.at(boot, SimEvent::AgentStart { host });
        self.at(boot + contact_timeout, SimEvent::ContactTimeout { host });
    }

    /// The pod ends by itself: it stops, vanishes or dies.
    pub(in crate::world) fn pod_fate(&mut self, id: &PodId) {
        let Some(pod) = self.account.pods.get_mut(id).filter(|pod| pod.is_up()) else { return };
        let fate = pod.fate;
        match fate {
            Some(Trouble::PodExits) => pod.stopped_at = Some(self.now),
            Some(Trouble::PodVanishes) => pod.gone_at = Some(self.now),
            _ => pod.is_dead = true,
        }
        self.note("pod ends", fate.map_or(0, |fate| fate as u64), 0);
        self.end_machine(id);
    }

    /// Deletes the pod and its machine.
    pub(in crate::world) fn delete_pod(&mut self, id: &PodId) {
        let now = self.now;
        let Some(pod) = self.account.pods.get_mut(id).filter(|pod| pod.is_alive()) else { return };
        pod.gone_at = Some(now);
        self.note("pod gone", now, 0);
        self.end_machine(id);
    }

    fn end_machine(&mut self, id: &PodId) {
        let host = self.account.pods.get(id).and_then(|pod| pod.sim_host);
        if let Some(host) = host {
            self.kill_agent(host, false, "its pod ended");
            self.hosts[host].is_removed = true;
        }
    }

    /// The machine stops itself because it is retired or has no contact; the pod still has to be returned.
    pub(in crate::world) fn stop_machine(&mut self, host: usize, why: &'static str) {
        let Some(id) = self.hosts[host].pod.clone() else { return };
        self.note(why, host as u64, 0);
        let is_stubborn = self.account.pods.get(&id).is_some_and(|pod| pod.fate == Some(Trouble::NoSelfStop));
        if let Some(pod) = self.account.pods.get_mut(&id).filter(|pod| pod.is_up() && !is_stubborn) {
            pod.stopped_at = Some(self.now);
        }
        self.end_machine(&id);
    }

    fn contact_timeout_of(&self, host: &Host) -> u64 {
        self.limit(host.plan.fleet.as_ref(), |fleet| fleet.limits.contact_timeout)
    }

    /// Stops a machine that has had no contact for too long.
    pub(in crate::world) fn contact_timeout(&mut self, host: usize) {
        let it = &self.hosts[host];
        if it.is_removed {
            return;
        }
        let due = it.last_contact_at + self.contact_timeout_of(it);
        if self.now >= due {
            return self.stop_machine(host, "contact timeout");
        }
        self.schedule(due, SimEvent::ContactTimeout { host });
    }
}
