//! Virtual time: one heap of things to come, taken in order. What happens to whom is decided in the other files; here it
//! is only handed on.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use remuda_core::id::{Attempt, JobId, Tenant};
use remuda_core::plane::Plane;
use remuda_core::rental::RentalPhase;
use remuda_core::service::ServiceIncarnation;
use remuda_core::time::Timestamp;
use serde_json::value::RawValue;

use crate::client::Client;
use crate::driver::Driver;
use crate::happening::{Entry, Happening};
use crate::host::Host;
use crate::laws::Laws;
use crate::provider::{Account, Trouble};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::scene::Scene;
use crate::service::{self, Key};
use crate::store::Store;
use crate::{Outcome, WorldSettings};

/// A seed, lived through.
pub struct World<'t> {
    pub(crate) now: u64,
    heap: BinaryHeap<Entry>,
    serial: u64,
    calls: u64,
    pub(crate) random: Random,
    pub(crate) scene: Scene,
    pub(crate) store: Store,
    /// Every plane there ever was; those that ended are nothing.
    pub(crate) drivers: Vec<Option<Box<Driver>>>,
    /// The one at the address that everyone knows.
    pub(crate) lead: Option<usize>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) account: Account,
    pub(crate) laws: Laws,
    pub(crate) sabotage: Option<Sabotage>,
    /// For saboteurs: the store one batch ago, and reports that were called recorded.
    pub(crate) earlier: Option<Box<Store>>,
    pub(crate) forgotten: Vec<Key>,
    /// In which life of its service each attempt was taken in.
    pub(crate) taken_in: BTreeMap<Key, ServiceIncarnation>,
    pub(crate) is_calm: bool,
    pub(crate) foul_until: u64,
    pub(crate) slow_until: u64,
    pub(crate) slow_commit: u64,
    pub(crate) away_until: u64,
    pub(crate) failing_until: u64,
    /// Since when there has been nothing left to do.
    quiet_since: Option<u64>,
    pub(crate) result: Arc<RawValue>,
    pub(crate) steps: u64,
    pub(crate) attempts: u64,
    pub(crate) executions: u64,
    hash: u64,
    trace: Option<&'t mut dyn FnMut(&str)>,
}

/// How often the world as a whole is looked at.
const LOOK_EVERY: u64 = 5000;
/// A world is over when nothing has been left to do for this long: time enough for everyone to notice the dead.
const QUIET: u64 = 130_000;
/// The longest way from the calm to the last job's end: a quarantine is tried every ten minutes at worst, the mass-loss
/// brake holds for fifteen, and a fleet works off its queue in between.
const CALM_MAX: u64 = 4 * 3_600_000;

impl<'t> World<'t> {
    pub fn new(seed: u64, settings: &WorldSettings) -> Self {
        let mut random = Random::new(seed);
        let scene = Scene::draw(&mut random, settings);
        let mut world = World {
            now: 0,
            heap: BinaryHeap::new(),
            serial: 0,
            calls: 0,
            random,
            store: Store::with_affinities(&scene),
            drivers: Vec::new(),
            lead: None,
            hosts: scene.hosts.iter().cloned().map(Host::new).collect(),
            clients: vec![Client::default(); scene.jobs.len()],
            account: Account::new(scene.offers(), scene.troubles.clone()),
            laws: Laws::new(&scene),
            sabotage: settings.sabotage,
            earlier: None,
            forgotten: Vec::new(),
            taken_in: BTreeMap::new(),
            is_calm: false,
            foul_until: 0,
            slow_until: 0,
            slow_commit: 0,
            away_until: 0,
            failing_until: 0,
            quiet_since: None,
            result: service::result(),
            steps: 0,
            attempts: 0,
            executions: 0,
            hash: seed,
            trace: None,
            scene,
        };
        world.set_out();
        world
    }

    fn set_out(&mut self) {
        self.schedule(0, Happening::PlaneStart { jump: 0 });
        for host in 0..self.hosts.len() {
            let at = self.random.below(2000);
            self.schedule(at, Happening::Begin { host });
        }
        for client in 0..self.clients.len() {
            self.schedule(self.scene.jobs[client].at, Happening::Submit { client, is_changed: false });
        }
        for index in 0..self.scene.faults.len() {
            self.schedule(self.scene.faults[index].at, Happening::Fault { index });
        }
        if self.scene.troubles.chance(Trouble::Strangers) > 0 {
            let fleets: Vec<_> = self.scene.fleets.iter().map(|plan| plan.settings.id.clone()).collect();
            self.account.settle_strangers(&mut self.random, &fleets);
        }
        self.schedule(self.scene.storm_end, Happening::Calm);
        self.schedule(LOOK_EVERY, Happening::Look);
    }

    /// Tells every line of what happens to `tell`.
    pub fn trace(&mut self, tell: &'t mut dyn FnMut(&str)) {
        self.trace = Some(tell);
    }

    pub fn run(mut self) -> Outcome {
        while let Some(entry) = self.heap.pop() {
            self.now = entry.at;
            self.happen(entry.what);
            if self.is_over() {
                break;
            }
        }
        self.look_back();
        for violation in self.laws.violations.clone() {
            self.say(&format!("BROKEN {violation}"));
        }
        Outcome {
            jobs: self.store.jobs.len() as u64,
            attempts: self.attempts,
            executions: self.executions,
            steps: self.steps,
            pods: self.account.pods.values().filter(|pod| pod.is_ours()).count() as u64,
            met: self.account.met,
            violations: self.laws.violations,
            trace_hash: self.hash,
        }
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.quiet_since.is_some_and(|since| self.now >= since + QUIET);
        is_quiet || self.laws.is_enough() || self.is_calm && self.now > self.scene.storm_end + CALM_MAX
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrive(call) => self.arrive(*call),
            Happening::Step { driver, at } => self.step_plane(driver, at),
            Happening::Committed { driver } => self.committed(driver),
            Happening::PollOver { at, worker, call } => self.poll_over(at, &worker, call),
            Happening::HungUp { worker, call } => self.hung_up(&worker, call),
            Happening::PlaneStart { jump } => self.plane_starts(jump),
            Happening::PlaneResume { driver } => self.resume_plane(driver),
            Happening::Begin { host } => self.begin_agent(host),
            Happening::Resume { host } => self.resume_agent(host),
            Happening::TwinEnds { host } => {
                self.kill_agent(host, false, "twin ends");
                self.hosts[host].is_gone = true;
            }
            Happening::AtProvider { driver, fleet, number, call } => {
                self.at_provider(driver, fleet, number, &call);
            }
            Happening::FromProvider { driver, fleet, number, news } => {
                self.hear_provider(driver, fleet, number, news);
            }
            Happening::PodRuns { pod } => self.pod_runs(&pod),
            Happening::PodEnds { pod } => self.pod_ends(&pod),
            Happening::PodGoes { pod } => self.pod_goes(&pod),
            Happening::ContactTimeout { host } => self.contact_timeout(host),
            Happening::HandedIn { host, arrival } => self.handed_in(host, arrival),
            Happening::PromptDue { host, mark } => self.prompt_due(host, mark),
            Happening::Stop { host, key, is_ours } => self.stop_prompt(host, key, is_ours),
            Happening::Submit { client, is_changed } => self.submit(client, is_changed),
            Happening::ToClient { client, call, told } => self.told_client(client, call, told),
            Happening::ClientGaveUp { client, call } => self.client_gave_up(client, call),
            Happening::TryAgain { client } => self.client_tries_again(client),
            Happening::ChangeMind { client } => self.change_mind(client),
            Happening::Fault { index } => {
                let fault = self.scene.faults[index].fault;
                self.note("fault", index as u64, 0);
                self.say(&format!("fault {fault:?}"));
                self.befall(fault);
            }
            Happening::Calm => {
                self.note("calm", 0, 0);
                self.calm();
            }
            Happening::Look => self.look(),
            to_agent => self.happen_to_agent(to_agent),
        }
    }

    /// What reaches an agent reaches it only while its process runs.
    fn happen_to_agent(&mut self, what: Happening) {
        let (Happening::Wake { host, .. }
        | Happening::Answer { host, .. }
        | Happening::GaveUp { host, .. }
        | Happening::Submitted { host, .. }
        | Happening::ReadQueue { host, .. }
        | Happening::ReadHistory { host, .. }
        | Happening::Probed { host, .. }
        | Happening::Collected { host, .. }
        | Happening::Heard { host, .. }
        | Happening::SocketOpens { host, .. }
        | Happening::SocketClosed { host, .. }
        | Happening::Treated { host, .. }
        | Happening::Checked { host, .. }) = what
        else {
            return;
        };
        if self.keep_for_later(host, &what) {
            return;
        }
        match what {
            Happening::Wake { host, process, at } if self.hosts[host].process == process => {
                self.wake_agent(host, at);
            }
            Happening::Answer { host, process, call, answer } => self.answered(host, process, call, *answer),
            Happening::GaveUp { host, process, call } => self.gave_up(host, process, call),
            from_service => self.happen_from_service(from_service),
        }
    }

    /// What a service says reaches the process it was said to.
    fn happen_from_service(&mut self, what: Happening) {
        match what {
            Happening::Submitted { host, process, key, life, answer } => {
                self.submitted(host, process, key, life, answer);
            }
            Happening::ReadQueue { host, process, key, was_known } => {
                self.read_queue(host, process, key, was_known);
            }
            Happening::ReadHistory { host, process, key, was_known } => {
                self.read_history(host, process, key, was_known);
            }
            Happening::Probed { host, process, key, life, seen } => {
                self.probed(host, process, key, life, *seen);
            }
            Happening::Collected { host, process, key, life } => self.collected(host, process, key, life),
            Happening::Heard { host, process, message } => self.heard(host, process, message),
            Happening::SocketOpens { host, process, number } => self.socket_opens(host, process, number),
            Happening::SocketClosed { host, process, number } => self.socket_closed(host, process, number),
            Happening::Treated { host, process, remedy, problem } => {
                self.treated(host, process, remedy, problem);
            }
            Happening::Checked { host, process, problem } => self.checked(host, process, problem),
            _ => {}
        }
    }

    /// Now and then the world as a whole is held against the plane's view of it.
    fn look(&mut self) {
        self.at(LOOK_EVERY, Happening::Look);
        self.maybe_beat_for_the_dead();
        self.maybe_lift_brakes();
        if self.is_calm {
            self.people_let_go();
        }
        self.look_after_services();
        let driver = self.lead.and_then(|at| self.drivers[at].as_deref());
        let plane = driver.map(|driver| (&driver.plane, driver.clock(self.now)));
        self.laws.look(self.now, plane, &self.hosts);
        self.laws.look_at_pods(self.now, plane, &self.account, &self.scene, self.is_calm);
        self.laws.look_at_services(self.now, self.is_calm.then_some(self.scene.storm_end), &self.hosts);
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
            (true, Some(since)) if self.now >= since + QUIET / 2 => {
                self.laws.count_calls(self.now, &self.hosts);
            }
            (true, Some(_)) => {}
            (false, _) => self.quiet_since = None,
        }
    }

    /// Every machine is at work, and there are no more of them than without any work.
    fn is_settled(&self, plane: &Plane) -> bool {
        let is_up = plane.rentals().all(|rental| rental.phase == RentalPhase::Up);
        let are_known = self.account.ours().filter(|pod| pod.is_well()).count() == plane.rentals().count();
        is_up
            && are_known
            && self.scene.fleets.iter().all(|plan| {
                let its = plane.rentals().filter(|rental| rental.fleet == plan.settings.id).count();
                its <= plan.settings.scaling.machines_min as usize
            })
    }

    fn look_back(&mut self) {
        let driver = self.lead.and_then(|at| self.drivers[at].as_deref());
        let is_quiet = self.quiet_since.is_some();
        let clock = driver.map(|driver| driver.clock(self.now));
        self.laws.look_back(self.now, is_quiet, driver.map(|it| &it.plane), clock, &self.hosts, &self.store);
    }

    pub(crate) fn at(&mut self, delay: u64, what: Happening) {
        self.schedule(self.now + delay, what);
    }

    pub(crate) fn schedule(&mut self, at: u64, what: Happening) {
        self.serial += 1;
        self.heap.push(Entry { at, serial: self.serial, what });
    }

    pub(crate) fn next_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    pub(crate) fn plane_clock(&self, driver: &Driver) -> Timestamp {
        driver.clock(self.now)
    }

    pub(crate) fn tenant_of(&self, client: usize) -> Tenant {
        if self.is_sabotaged(Sabotage::OneTenant) {
            return self.scene.jobs[0].tenant.clone();
        }
        self.scene.jobs[client].tenant.clone()
    }

    pub(crate) fn is_sabotaged(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// A line for whoever replays.
    pub(crate) fn say(&mut self, line: &str) {
        if let Some(tell) = &mut self.trace {
            let (seconds, millis) = (self.now / 1000, self.now % 1000);
            tell(&format!("{seconds:>5}.{millis:03} {line}"));
        }
    }

    /// Something happened; it becomes part of the hash, whether or not anyone looks on.
    pub(crate) fn note(&mut self, what: &'static str, a: u64, b: u64) {
        let what_number =
            what.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        for part in [self.now, what_number, a, b] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        if self.trace.is_some() && what != "step" {
            self.say(&format!("{what} {a} {b}"));
        }
    }

    pub(crate) fn note_job(&mut self, what: &'static str, job: JobId, attempt: Attempt, host: usize) {
        self.attempts += 1;
        if self.is_traced() {
            self.say(&format!("{what} {job} attempt {attempt} on host {host}"));
        }
        self.note(what, job.as_u128() as u64, u64::from(attempt.0) << 8 | host as u64);
    }

    pub(crate) fn note_prompt(&mut self, what: &'static str, (job, attempt): Key, host: usize) {
        if self.is_traced() {
            self.say(&format!("host {host}: its service: {what} {job} attempt {attempt}"));
        }
        self.note(what, job.as_u128() as u64, u64::from(attempt.0) << 8 | host as u64);
    }
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("steps", &self.steps).finish_non_exhaustive()
    }
}
