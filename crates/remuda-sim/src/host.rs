//! The state of a host: an agent process, the link to the plane, and a service that outlives the agent. `rented` has what
//! differs on a rented machine.

mod rented;

use remuda_core::agent::{Agent, AgentSettings, AgentTimeouts};
use remuda_core::id::{Hash, PodId, WorkerId};
use remuda_core::service::ServiceIncarnation;
use remuda_core::service::incarnation::{IncarnationCheck, IncarnationTracker};
use remuda_core::time::Timestamp;

use crate::event_queue::SimEvent;
use crate::net::Link;
use crate::scenario::{HostPlan, Quirk};
use crate::service::{Key, Service};

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) agent: Option<Agent>,
    /// Number of the current agent process; events for an older one are dropped.
    pub(crate) process: u32,
    /// The call under way. An answer to any other call is ignored.
    pub(crate) call: Option<u64>,
    pub(crate) token: Hash,
    /// A worker of this name has joined from this host before.
    pub(crate) has_joined: bool,
    pub(crate) paused_until: u64,
    /// Events that arrived while the agent was paused.
    pub(crate) deferred: Vec<SimEvent>,
    pub(crate) timer_at: u64,
    pub(crate) service: Service,
    /// What the connector of this process knows about restarts of the service.
    pub(crate) incarnations: IncarnationTracker,
    /// Submissions on their way to the service.
    pub(crate) in_flight: Vec<Key>,
    /// Until when the service does not answer normally.
    pub(crate) disturbed_until: u64,
    /// Since when the agent reports that it takes no work.
    pub(crate) unavailable_since: Option<u64>,
    /// When this agent process started.
    pub(crate) started_at: u64,
    pub(crate) link: Link,
    pub(crate) is_removed: bool,
    pub(crate) is_twin: bool,
    /// No fault has ever touched this host or its link.
    pub(crate) is_pristine: bool,
    /// When the agent last died.
    pub(crate) dead_since: Option<u64>,
    /// For the law on load: calls made, attempts submitted, progress and answers received from the service, and long
    /// polls that the plane ended without an order because it wants a beat.
    pub(crate) calls: u64,
    pub(crate) runs: u64,
    pub(crate) signals: u64,
    pub(crate) questions: u64,
    /// The pod that this host runs in.
    pub(crate) pod: Option<PodId>,
    /// When it last had an answer from a plane.
    pub(crate) last_contact_at: u64,
    /// When its models are loaded; it can run nothing before.
    pub(crate) ready_at: u64,
    /// The GPU fails its start check.
    pub(crate) has_bad_gpu: bool,
    /// The machine is not what was ordered.
    pub(crate) is_wrong_machine: bool,
}

impl Host {
    pub(crate) fn new(plan: HostPlan) -> Self {
        Host {
            is_pristine: plan.quirk == Quirk::None,
            service: Service::new(plan.service),
            incarnations: IncarnationTracker::default(),
            in_flight: Vec::new(),
            disturbed_until: 0,
            unavailable_since: None,
            started_at: 0,
            plan,
            agent: None,
            process: 0,
            call: None,
            token: Hash::from_bytes([0; 32]),
            paused_until: 0,
            deferred: Vec::new(),
            timer_at: u64::MAX,
            link: Link::default(),
            is_removed: false,
            is_twin: false,
            dead_since: None,
            calls: 0,
            runs: 0,
            signals: 0,
            questions: 0,
            has_joined: false,
            pod: None,
            last_contact_at: 0,
            ready_at: 0,
            has_bad_gpu: false,
            is_wrong_machine: false,
        }
    }

    pub(crate) fn name(&self) -> &WorkerId {
        &self.plan.name
    }

    /// The machine that it is on; one of its own unless it shares one.
    pub(crate) fn machine(&self) -> String {
        self.plan.shared_machine.as_ref().map_or_else(|| self.plan.name.to_string(), ToString::to_string)
    }

    /// No agent runs, or the service is up, healthy and taking work.
    pub(crate) fn is_well(&self, now: u64) -> bool {
        let is_well = self.service.is_up(now) && !self.service.is_sick() && self.unavailable_since.is_none();
        self.agent.is_none() || is_well
    }

    /// The incarnation of the service as the connector knows it; queries the history if a restart is suspected.
    pub(crate) fn confirm_incarnation(&mut self) -> ServiceIncarnation {
        match self.incarnations.check() {
            IncarnationCheck::Certain(incarnation) => incarnation,
            IncarnationCheck::AskFor(anchor) => {
                let is_known = self.service.is_in_history(&anchor);
                self.incarnations.anchor_checked(&anchor, is_known)
            }
        }
    }

    /// The service ran a small prompt, which its history has until a restart.
    pub(crate) fn self_tested(&mut self) {
        let id = self.service.run_self_test();
        self.incarnations.set_anchor(&id);
    }

    /// The longest silence before the agent probes, in true time.
    pub(crate) fn inactivity(&self) -> u64 {
        self.plan.inactivity.as_millis() as u64 * 1000 / self.plan.clock_speed + 1
    }

    /// Since when nothing has disturbed the agent and its service.
    pub(crate) fn undisturbed_since(&self) -> u64 {
        self.started_at.max(self.disturbed_until).max(self.paused_until)
    }

    /// The host's clock: off by years and slightly fast or slow. Only timestamps of one host are ever compared.
    pub(crate) fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_millis(self.plan.clock_offset + now * self.plan.clock_speed / 1000)
    }

    /// The true time at which the host's clock shows `at`.
    pub(crate) fn when(&self, at: Timestamp) -> u64 {
        let millis = at.as_millis().saturating_sub(self.plan.clock_offset);
        (millis.saturating_mul(1000)).div_ceil(self.plan.clock_speed)
    }

    pub(crate) fn settings(&self) -> AgentSettings {
        AgentSettings {
            worker: self.plan.name.clone(),
            machine: self.plan.machine.clone().or_else(|| self.plan.shared_machine.clone()),
            fleet: self.plan.fleet.clone(),
            services: self.plan.services.clone(),
            slots: self.plan.slots,
            offer: self.plan.offer.clone(),
            inactivity: self.plan.inactivity,
            timeouts: AgentTimeouts::default(),
            deadlines: Default::default(),
        }
    }
}
