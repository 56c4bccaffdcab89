//! Owns all state and the virtual time, and dispatches events in order. The submodules handle the events of one actor
//! each.

mod agents;
mod clients;
mod faults;
mod network;
mod operators;
mod plane;
mod provider;
mod sabotage;
mod service;

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use remuda_core::id::{Attempt, JobId, Tenant};
use remuda_core::plane::Plane;
use remuda_core::rental::RentalPhase;
use remuda_core::service::ServiceIncarnation;
use remuda_core::time::Timestamp;
use remuda_core::verdict::AttemptVerdict;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::driver::Driver;
use crate::event_queue::{QueuedEvent, SimEvent};
use crate::host::Host;
use crate::laws::Laws;
use crate::outcome::Outcome;
use crate::provider::Account;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::scenario::{ClockShift, Scenario};
use crate::service::{Key, job_result};
use crate::settings::WorldSettings;
use crate::store::Store;
use crate::trouble::Trouble;

/// One seed, being run.
pub struct World<'t> {
    pub(crate) now: u64,
    heap: BinaryHeap<QueuedEvent>,
    serial: u64,
    calls: u64,
    pub(crate) random: Random,
    pub(crate) scenario: Scenario,
    pub(crate) store: Store,
    /// Every plane that ever ran; `None` for those that ended.
    pub(crate) drivers: Vec<Option<Box<Driver>>>,
    /// The plane at the public address.
    pub(crate) lead: Option<usize>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) account: Account,
    pub(crate) laws: Laws,
    pub(crate) sabotage: Option<Sabotage>,
    /// For sabotage: the store before the last batch, and reports that were confirmed but dropped.
    pub(crate) previous_store: Option<Box<Store>>,
    pub(crate) falsely_settled: Vec<Key>,
    /// The service incarnation in which each attempt was accepted.
    pub(crate) accepted_in: BTreeMap<Key, ServiceIncarnation>,
    pub(crate) is_calm: bool,
    pub(crate) degraded_until: u64,
    pub(crate) slow_until: u64,
    pub(crate) slow_commit: u64,
    pub(crate) store_down_until: u64,
    pub(crate) failing_until: u64,
    /// Since when there is nothing left to do.
    quiet_since: Option<u64>,
    pub(crate) result: Arc<RawValue>,
    pub(crate) steps: u64,
    pub(crate) attempts: u64,
    pub(crate) executions: u64,
    faults: u64,
    /// By how much the wall clock of the plane's host was set since the plane started. `remuda serve` reads that clock
    /// once, at its start; only a sabotage looks at it again.
    pub(crate) wall_jump: i64,
    hash: u64,
    trace: Option<&'t mut dyn FnMut(&str)>,
}

/// How often the world as a whole is checked.
const INSPECT_EVERY: u64 = 5000;
/// A world is over when nothing has been left to do for this long: enough to detect every dead worker.
const QUIET_FOR: u64 = 130_000;
/// The longest time from the end of the storm to the end of the last job: a quarantine is tried every ten minutes at
/// worst, the mass-loss brake holds for fifteen, and a fleet works off its queue in between.
const CALM_MAX: u64 = 4 * 3_600_000;

impl<'t> World<'t> {
    pub fn new(seed: u64, settings: &WorldSettings) -> Self {
        World::with_clocks(seed, settings, ClockShift::None)
    }

    /// The same world; with another shift every wall clock shows another time, and is set differently while it runs.
    pub(crate) fn with_clocks(seed: u64, settings: &WorldSettings, shift: ClockShift) -> Self {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(&mut random, settings);
        scenario.shift_clocks(shift);
        let mut world = World {
            now: 0,
            heap: BinaryHeap::new(),
            serial: 0,
            calls: 0,
            random,
            store: Store::with_affinities(&scenario),
            drivers: Vec::new(),
            lead: None,
            hosts: scenario.hosts.iter().cloned().map(Host::new).collect(),
            clients: vec![Client::default(); scenario.jobs.len()],
            account: Account::new(scenario.offers(), scenario.troubles.clone()),
            laws: Laws::new(&scenario),
            sabotage: settings.sabotage,
            previous_store: None,
            falsely_settled: Vec::new(),
            accepted_in: BTreeMap::new(),
            is_calm: false,
            degraded_until: 0,
            slow_until: 0,
            slow_commit: 0,
            store_down_until: 0,
            failing_until: 0,
            quiet_since: None,
            result: job_result(),
            steps: 0,
            attempts: 0,
            executions: 0,
            faults: 0,
            wall_jump: 0,
            hash: seed,
            trace: None,
            scenario,
        };
        world.schedule_start();
        world
    }

    fn schedule_start(&mut self) {
        self.schedule(0, SimEvent::PlaneStart { jump: 0 });
        for host in 0..self.hosts.len() {
            let at = self.random.below(2000);
            self.schedule(at, SimEvent::AgentStart { host });
        }
        for client in 0..self.clients.len() {
            self.schedule(
                self.scenario.jobs[client].at,
                SimEvent::ClientSubmit { client, is_changed: false },
            );
        }
        for index in 0..self.scenario.faults.len() {
            self.schedule(self.scenario.faults[index].at, SimEvent::Fault { index });
        }
        if self.scenario.troubles.permille_for(Trouble::ForeignPods) > 0 {
            let fleets: Vec<_> = self.scenario.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            self.account.add_foreign_pods(&mut self.random, &fleets);
        }
        self.schedule(self.scenario.storm_end, SimEvent::StormEnd);
        self.schedule(INSPECT_EVERY, SimEvent::Inspect);
    }

    /// Passes a line per event to `trace`.
    pub fn trace(&mut self, trace: &'t mut dyn FnMut(&str)) {
        self.trace = Some(trace);
    }

    pub fn run(mut self) -> Outcome {
        while let Some(entry) = self.heap.pop() {
            self.now = entry.at;
            self.dispatch(entry.what);
            if self.is_over() {
                break;
            }
        }
        self.final_check();
        for violation in self.laws.violations.clone() {
            self.trace_line(&format!("VIOLATED {violation}"));
        }
        Outcome {
            faults: self.faults,
            silent: self.store.ended_by(AttemptVerdict::WorkerSilent),
            stuck: self.store.ended_by(AttemptVerdict::Stuck),
            jobs: self.store.jobs.len() as u64,
            attempts: self.attempts,
            executions: self.executions,
            steps: self.steps,
            pods: self.account.pods.values().filter(|pod| pod.is_ours()).count() as u64,
            trouble_counts: self.account.trouble_counts,
            violations: self.laws.violations,
            trace_hash: self.hash,
        }
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.quiet_since.is_some_and(|since| self.now >= since + QUIET_FOR);
        is_quiet
            || self.laws.is_full()
            || self.is_calm && self.now > self.scenario.storm_end + CALM_MAX + self.scenario.long_work()
    }

    fn dispatch(&mut self, what: SimEvent) {
        match what {
            SimEvent::CallArrives(call) => self.arrive(*call),
            SimEvent::PlaneStep { driver, at } => self.step_plane(driver, at),
            SimEvent::CommitDone { driver } => self.committed(driver),
            SimEvent::PollTimeout { at, worker, call } => self.poll_timeout(at, &worker, call),
            SimEvent::ConnectionClosed { worker, call } => self.connection_closed(&worker, call),
            SimEvent::PlaneStart { jump } => self.plane_start(jump),
            SimEvent::PlaneResume { driver } => self.resume_plane(driver),
            SimEvent::AgentStart { host } => self.start_agent(host),
            SimEvent::AgentResume { host } => self.resume_agent(host),
            SimEvent::TwinStop { host } => {
                self.kill_agent(host, false, "twin ends");
                self.hosts[host].is_removed = true;
            }
            SimEvent::ProviderCallArrives { driver, fleet, number, call } => {
                self.provider_call_arrives(driver, fleet, number, &call);
            }
            SimEvent::ProviderAnswer { driver, fleet, number, news } => {
                self.provider_answer(driver, fleet, number, news);
            }
            SimEvent::PodStart { pod } => self.pod_started(&pod),
            SimEvent::PodFate { pod } => self.pod_fate(&pod),
            SimEvent::PodDelete { pod } => self.delete_pod(&pod),
            SimEvent::ContactTimeout { host } => self.contact_timeout(host),
            SimEvent::SubmissionArrives { host, submission } => self.submission_arrived(host, submission),
            SimEvent::PromptDue { host, mark } => self.prompt_due(host, mark),
            SimEvent::StopPrompt { host, key, is_ours } => self.stop_prompt(host, key, is_ours),
            SimEvent::ClientSubmit { client, is_changed } => self.submit(client, is_changed),
            SimEvent::ClientResponse { client, call, response } => {
                self.client_response(client, call, response);
            }
            SimEvent::ClientTimeout { client, call } => self.client_timeout(client, call),
            SimEvent::ClientRetry { client } => self.client_retry(client),
            SimEvent::ClientCancel { client } => self.client_cancel(client),
            SimEvent::Fault { index } => {
                let fault = self.scenario.faults[index].fault;
                self.note("fault", index as u64, 0);
                self.faults += 1;
                self.trace_line(&format!("fault {fault:?}"));
                self.apply_fault(fault);
            }
            SimEvent::StormEnd => {
                self.note("calm", 0, 0);
                self.end_storm();
            }
            SimEvent::Inspect => self.inspect(),
            to_agent => self.dispatch_to_agent(to_agent),
        }
    }

    /// An agent gets events only while its process runs.
    fn dispatch_to_agent(&mut self, what: SimEvent) {
        let (SimEvent::AgentTimer { host, .. }
        | SimEvent::AgentResponse { host, .. }
        | SimEvent::AgentCallTimeout { host, .. }
        | SimEvent::SubmitAnswered { host, .. }
        | SimEvent::ReadQueue { host, .. }
        | SimEvent::ReadHistory { host, .. }
        | SimEvent::Probed { host, .. }
        | SimEvent::OutputsFetched { host, .. }
        | SimEvent::SocketMessage { host, .. }
        | SimEvent::SocketOpen { host, .. }
        | SimEvent::SocketClosed { host, .. }
        | SimEvent::RemedyDone { host, .. }
        | SimEvent::CheckDone { host, .. }) = what
        else {
            return;
        };
        if self.defer_if_paused(host, &what) {
            return;
        }
        match what {
            SimEvent::AgentTimer { host, process, at } if self.hosts[host].process == process => {
                self.agent_timer(host, at);
            }
            SimEvent::AgentResponse { host, process, call, answer } => {
                self.agent_response(host, process, call, *answer);
            }
            SimEvent::AgentCallTimeout { host, process, call } => {
                self.agent_call_timeout(host, process, call);
            }
            from_service => self.dispatch_from_service(from_service),
        }
    }

    /// An answer of a service goes to the process that sent the request.
    fn dispatch_from_service(&mut self, what: SimEvent) {
        match what {
            SimEvent::SubmitAnswered { host, process, key, life, answer } => {
                self.submitted(host, process, key, life, answer);
            }
            SimEvent::ReadQueue { host, process, key, was_known } => {
                self.read_queue(host, process, key, was_known);
            }
            SimEvent::ReadHistory { host, process, key, was_known } => {
                self.read_history(host, process, key, was_known);
            }
            SimEvent::Probed { host, process, key, life, seen } => {
                self.probed(host, process, key, life, *seen);
            }
            SimEvent::OutputsFetched { host, process, key, life } => {
                self.outputs_fetched(host, process, key, life);
            }
            SimEvent::SocketMessage { host, process, message } => self.socket_message(host, process, message),
            SimEvent::SocketOpen { host, process, number } => self.socket_opens(host, process, number),
            SimEvent::SocketClosed { host, process, number } => self.socket_closed(host, process, number),
            SimEvent::RemedyDone { host, process, remedy, problem } => {
                self.remedy_done(host, process, remedy, problem);
            }
            SimEvent::CheckDone { host, process, began_in, problem } => {
                self.check_done(host, process, began_in, problem);
            }
            _ => {}
        }
    }

    /// Periodically compares the world as a whole with the plane's view of it.
    fn inspect(&mut self) {
        self.at(INSPECT_EVERY, SimEvent::Inspect);
        self.maybe_forge_ghost_beats();
        self.maybe_lift_brakes();
        if self.is_calm {
            self.withdraw_operator_orders();
        }
        self.repair_abandoned_services();
        if self.is_calm {
            self.laws.check_load(self.now, &self.hosts);
        }
        let driver = self.lead.and_then(|at| self.drivers[at].as_deref());
        let plane = driver.map(|driver| (&driver.plane, driver.clock(self.now)));
        self.laws.check_plane(self.now, plane, &self.hosts, self.is_calm);
        self.laws.check_liveness(self.now, plane, &self.hosts, &self.scenario, self.is_calm);
        self.laws.check_pods(self.now, plane, &self.account, &self.scenario, self.is_calm);
        self.laws.check_services(self.now, self.is_calm.then_some(self.scenario.storm_end), &self.hosts);
        let is_idle = driver.is_some_and(Driver::is_idle) && self.store.open == 0;
        let is_well = self.hosts.iter().all(|host| host.is_well(self.now));
        let is_settled = driver.is_some_and(|driver| self.is_settled(&driver.plane));
        let is_well = is_well && is_settled;
        let is_quiet = self.is_calm && is_idle && is_well && self.clients.iter().all(|client| client.is_done);
        match (is_quiet, self.quiet_since) {
            (true, None) => {
                self.note("quiet", 0, 0);
                self.quiet_since = Some(self.now);
            }
            (true, Some(_)) => {}
            (false, _) => self.quiet_since = None,
        }
    }

    /// Every machine is up, and no fleet has more than its minimum.
    fn is_settled(&self, plane: &Plane) -> bool {
        let is_up = plane.rentals().all(|rental| rental.phase() == RentalPhase::Up);
        let are_known = self.account.ours().filter(|pod| pod.is_well()).count() == plane.rentals().count();
        is_up
            && are_known
            && self.scenario.fleets.iter().all(|plan| {
                let its = plane.rentals().filter(|rental| rental.fleet == plan.settings.id).count();
                its <= plan.settings.scaling.machines_min as usize
            })
    }

    fn final_check(&mut self) {
        let driver = self.lead.and_then(|at| self.drivers[at].as_deref());
        let is_quiet = self.quiet_since.is_some();
        let clock = driver.map(|driver| driver.clock(self.now));
        self.laws.final_check(
            self.now,
            is_quiet,
            driver.map(|it| &it.plane),
            clock,
            &self.hosts,
            &self.store,
        );
    }

    pub(crate) fn at(&mut self, delay: u64, what: SimEvent) {
        self.schedule(self.now + delay, what);
    }

    pub(crate) fn schedule(&mut self, at: u64, what: SimEvent) {
        self.serial += 1;
        self.heap.push(QueuedEvent { at, serial: self.serial, what });
    }

    pub(crate) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// The time that a plane is given: monotonic since its start. A sabotage gives it the wall clock.
    pub(crate) fn plane_clock(&self, driver: &Driver) -> Timestamp {
        let jump = if self.is_sabotaged(Sabotage::WallClockLeases) { self.wall_jump } else { 0 };
        driver.clock(self.now.saturating_add_signed(jump))
    }

    /// The true time at which a plane wants to be stepped again.
    pub(crate) fn wake_time(&self, driver: &Driver) -> u64 {
        let jump = if self.is_sabotaged(Sabotage::WallClockLeases) { self.wall_jump } else { 0 };
        driver.when(driver.plane.wake_at().0).saturating_add_signed(-jump)
    }

    pub(crate) fn tenant_of(&self, client: usize) -> Tenant {
        if self.is_sabotaged(Sabotage::OneTenant) {
            return self.scenario.jobs[0].tenant.clone();
        }
        self.scenario.jobs[client].tenant.clone()
    }

    pub(crate) fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// A line for a replay.
    pub(crate) fn trace_line(&mut self, line: &str) {
        if let Some(trace) = &mut self.trace {
            let (seconds, millis) = (self.now / 1000, self.now % 1000);
            trace(&format!("{seconds:>5}.{millis:03} {line}"));
        }
    }

    /// Adds an event to the trace hash, and to the trace if there is one.
    pub(crate) fn note(&mut self, what: &'static str, a: u64, b: u64) {
        let what_number =
            what.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        for part in [self.now, what_number, a, b] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        if self.trace.is_some() && what != "step" {
            self.trace_line(&format!("{what} {a} {b}"));
        }
    }

    pub(crate) fn note_job(&mut self, what: &'static str, job: JobId, attempt: Attempt, host: usize) {
        self.attempts += 1;
        if self.is_traced() {
            self.trace_line(&format!("{what} {job} attempt {attempt} on host {host}"));
        }
        self.note(what, job.as_u128() as u64, u64::from(attempt.0) << 8 | host as u64);
    }

    pub(crate) fn note_prompt(&mut self, what: &'static str, (job, attempt): Key, host: usize) {
        if self.is_traced() {
            self.trace_line(&format!("service {host}: {what} {job} attempt {attempt}"));
        }
        self.note(what, job.as_u128() as u64, u64::from(attempt.0) << 8 | host as u64);
    }
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("steps", &self.steps).finish_non_exhaustive()
    }
}
