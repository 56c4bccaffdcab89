//! The first state: the plane runs, both workers have joined and wait for orders, and the job has just been accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::agent::{Agent, AgentEvent, AgentSettings, AgentTimeouts};
use remuda_core::id::Hash;
use remuda_core::need::Requirements;
use remuda_core::plane::{JobSubmission, Plane, PlaneEvent};
use remuda_core::record::{AcceptedJob, StateRow};
use remuda_core::service::ServiceEvent;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;

use super::actions::AttemptAction;
use super::plane::Occasion;
use super::{AttemptState, Attempts, FaultBudget, QUANTUM, WorkerHost};
use crate::model::fingerprint::Shared;
use crate::store::Store;

/// Far enough from zero that nothing saturates.
pub(super) const BEGIN: u64 = 1_000_000_000;

/// The rules do not depend on these numbers, only on their order: a busy worker beats more often than it is suspected,
/// and is suspected before its lease ends. Small multiples of the quantum keep the model small.
pub(super) fn settings() -> Settings {
    Settings {
        beat_idle: QUANTUM * 5,
        beat_busy: QUANTUM * 2,
        suspect_after: QUANTUM * 3,
        lease: QUANTUM * 6,
        order_grace: QUANTUM,
        // A tick comes with every quantum: only a plane that missed one was away.
        plane_stall_max: QUANTUM + Duration::from_secs(1),
        ..Settings::default()
    }
}

impl Attempts {
    pub(super) fn first_state(&self) -> AttemptState {
        let mut store = Store::default();
        let term = store.lead();
        let plane =
            Plane::restore(self.settings.clone(), term, Timestamp::from_millis(BEGIN), store.restore());
        let mut state = AttemptState {
            began_at: BEGIN,
            now: BEGIN,
            plane: Shared::new(plane),
            unstored: Vec::new(),
            store: Shared::new(store),
            hosts: [new_host(), new_host()],
            messages: Vec::new(),
            late: Vec::new(),
            faults: FaultBudget::default(),
            heard_at: [BEGIN; 2],
            newest_calls: [(0, 0); 2],
            drained: [false; 2],
            print: 0,
        };
        for host in 0..2 {
            self.start_agent(&mut state, host).expect("nothing is wrong at the start");
        }
        // Without faults and in the order of sending, until both wait for orders.
        while !state.messages.is_empty() {
            self.deliver(&mut state, 0, false).expect("nothing is wrong at the start");
            state.forget_pointless_messages();
        }
        let submit = PlaneEvent::Submit(Box::new(self.submission()));
        self.step_plane(&mut state, submit, Occasion::Client).expect("a job can be submitted");
        state.faults = self.faults;
        state.update_print();
        state
    }

    /// The first worker submits its attempt and is paused until the plane has given it up; now it resumes.
    pub(super) fn after_lost_lease(&self, mut state: AttemptState) -> AttemptState {
        state.faults = FaultBudget::default();
        let act = |state: &mut AttemptState, action| {
            self.act(state, action).expect("nothing is wrong before the search");
            state.forget_pointless_messages();
        };
        while let Some(action) = self.due_actions(&state).first() {
            act(&mut state, *action);
        }
        state.hosts[0].is_paused = true;
        let is_held = |state: &AttemptState| {
            let status = state.store.status(self.job);
            status.is_some_and(|status| matches!(status.state, StateRow::Running { .. }))
        };
        while is_held(&state) {
            let due = self.due_actions(&state).first().copied();
            act(&mut state, due.unwrap_or(AttemptAction::TimePasses));
        }
        // The wait before the next attempt.
        act(&mut state, AttemptAction::TimePasses);
        state.hosts[0].is_paused = false;
        (state.began_at, state.faults) = (state.now, self.faults);
        state.update_print();
        state
    }

    pub(super) fn start_agent(
        &self,
        state: &mut AttemptState,
        host: usize,
    ) -> Result<(), crate::model::search::BrokenRule> {
        let settings = AgentSettings {
            worker: self.workers[host].clone(),
            machine: None,
            fleet: None,
            services: BTreeSet::from(["comfyui".parse().expect("a valid name")]),
            slots: 1,
            offer: Default::default(),
            inactivity: QUANTUM * 20,
            timeouts: AgentTimeouts::default(),
            deadlines: Default::default(),
        };
        let found = self.find_attempts(&state.hosts[host]);
        let it = &mut state.hosts[host];
        (it.process, it.ticked_at, it.is_paused) = (it.process + 1, state.now, false);
        it.agent = Some(Shared::new(Agent::new(settings, Timestamp::from_millis(state.now))));
        let incarnation = remuda_core::service::ServiceIncarnation(1);
        self.step_agent(state, host, AgentEvent::Started { found, incarnation })?;
        self.step_agent(state, host, AgentEvent::Service(ServiceEvent::SocketOpened { incarnation }))
    }

    fn submission(&self) -> JobSubmission {
        let job = AcceptedJob {
            id: self.job,
            accepted_at: Timestamp::ZERO,
            tenant: "default".parse().expect("a valid name"),
            token: None,
            priority: 0,
            service: "comfyui".parse().expect("a valid name"),
            shape: Hash::digest(b"shape"),
            workflow_hash: Hash::digest(b"workflow"),
            needs: Requirements {
                pin: self.is_pinned.then(|| self.workers[0].clone()),
                ..Requirements::default()
            },
            deadline: None,
            attempts_max: None,
            options: Default::default(),
            key: None,
            labels: BTreeMap::new(),
            metadata: serde_json::Map::new(),
        };
        JobSubmission { job, deadline: None, known: None, workflow: self.workflow.clone(), stored_bytes: 0 }
    }
}

fn new_host() -> WorkerHost {
    WorkerHost {
        agent: None,
        process: 0,
        is_paused: false,
        has_stopped: false,
        ticked_at: BEGIN,
        token: Hash::from_bytes([0; 32]),
        call: None,
        calls: 0,
        parked: None,
        prompts: BTreeMap::new(),
    }
}
