//! Everything the provider knows of one account: pods, ledger, faults. Every request is answered here; `advance`
//! applies what happens as time passes.

mod act;
mod create;
mod list;
mod settle;

pub use create::Capacity;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use remuda_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::FakeRunpodOptions;
use super::answer::Answer;
use super::catalog::{Cloud, Gpu};
use super::clock::Clock;
use super::faults::{Luck, Occasion, RunpodFault, RunpodFaults};
use super::ledger::{Books, Line};
use super::order::Order;
use super::plan::Plan;
use super::pod::{Boot, Container, Life, Pod};
use super::process::Word;
use crate::dice::Dice;

/// Characters of a pod id.
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const ID_LENGTH: usize = 14;

#[derive(Debug)]
pub(super) struct Account {
    pub(super) options: Arc<FakeRunpodOptions>,
    pub(super) clock: Arc<Clock>,
    pub(super) luck: Luck,
    pub(super) books: Books,
    /// Public keys that `startSsh` installs in pods.
    pub(super) ssh_keys: Vec<String>,
    pub(super) requests: BTreeMap<String, u64>,
    /// Oldest first.
    pub(super) pods: Vec<Pod>,
    number: u64,
    is_closed: bool,
    pub(super) capacity: Vec<Capacity>,
    /// Offers without capacity, and until when.
    exhausted: BTreeMap<(&'static str, String, Cloud), Timestamp>,
    /// Offers that this account never gets.
    denied: BTreeSet<(&'static str, Cloud)>,
    words: mpsc::Sender<Word>,
    /// Containers that have not ended.
    living: watch::Sender<usize>,
}

impl Account {
    pub(super) fn new(
        options: Arc<FakeRunpodOptions>,
        clock: Arc<Clock>,
        words: mpsc::Sender<Word>,
        living: watch::Sender<usize>,
    ) -> Account {
        let luck = Luck::new(options.seed, options.faults.clone());
        let (foreign, capacity) = (options.foreign, options.capacity.clone());
        let mut account = Account {
            options,
            clock,
            luck,
            books: Books::default(),
            ssh_keys: Vec::new(),
            requests: BTreeMap::new(),
            pods: Vec::new(),
            number: 0,
            is_closed: false,
            capacity,
            exhausted: BTreeMap::new(),
            denied: BTreeSet::new(),
            words,
            living,
        };
        (0..foreign).for_each(|_| account.make_foreign());
        account
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Replaces the faults; offers denied by a removed fault become available again.
    pub(super) fn set_faults(&mut self, faults: RunpodFaults) {
        if !faults.iter().any(|(fault, _)| fault == RunpodFault::Denied) {
            self.denied.clear();
        }
        self.luck.faults = faults;
    }

    /// The pod with this id, if clients can see it yet.
    fn found(&mut self, id: &str) -> Option<&mut Pod> {
        let now = self.now();
        self.pods.iter_mut().find(|pod| pod.id == id && pod.is_found(now))
    }

    pub(super) fn show(&mut self, id: &str) -> Answer {
        let Some(at) = self.found(id).map(|pod| pod.number) else { return Answer::not_found() };
        Answer::ok(self.picture(at))
    }

    pub(super) fn follow(&mut self, id: &str) -> Option<&super::logs::Logs> {
        self.found(id).map(|pod| &pod.logs)
    }

    /// A pod as a client sees it now, which may be wrong.
    fn picture(&mut self, number: u64) -> Value {
        let now = self.now();
        let drawn = self.luck.draw(Occasion::Show);
        let Some(pod) = self.pods.iter().find(|pod| pod.number == number) else { return Value::Null };
        let is_flickering = pod.boot.ready.is_some() && self.luck.strikes(&drawn, RunpodFault::Flicker);
        pod.to_json(now, is_flickering)
    }

    /// State that only the fake can know.
    pub(super) fn insides(&self) -> Value {
        let now = self.now();
        let pod = |pod: &Pod| {
            let pid = match &pod.container {
                Container::Up { process: Some(process), .. } => Some(process.pid),
                Container::Up { process: None, .. } | Container::Absent | Container::Down { .. } => None,
            };
            json!({
                "id": pod.id, "name": pod.name, "status": pod.status(now).name(), "pid": pid,
                "containers": pod.runs, "is_foreign": pod.is_foreign, "created": pod.created.to_string(),
            })
        };
        self.pods.iter().map(pod).collect()
    }

    /// Creates a pod at this location.
    fn make(&mut self, order: Order, gpu: &'static Gpu, place: Place, drawn: &BTreeSet<RunpodFault>) -> u64 {
        self.number += 1;
        let now = self.now();
        let mut dice = self.luck.dice(self.number);
        let plan = if place.is_foreign {
            Plan::plain(&self.clock, self.options.pull)
        } else {
            Plan::draw(&self.clock, self.options.pull, drawn, &mut self.luck, &mut dice)
        };
        let count = order.count.unwrap_or(1);
        let price = gpu.price(order.cloud).unwrap_or_default();
        let mut micros = price.as_micros() * u64::from(count);
        if !place.is_foreign && self.luck.strikes(drawn, RunpodFault::Dearer) {
            micros += micros / 2;
        }
        let rate = remuda_core::money::Money::from_micros(micros);
        let id = word(&mut dice, ID_LENGTH);
        let is_local = self.options.ssh_port.is_some() || self.options.exec.is_some();
        let host =
            if is_local { "127.0.0.1".to_owned() } else { format!("203.0.113.{}", 1 + dice.below(254)) };
        let boot = Boot::new(now, true, &order.ports, self.options.ssh_port, &mut dice);
        self.books.made(Line {
            id: id.clone(),
            name: order.name.clone(),
            gpu: gpu.id,
            gpu_count: count,
            data_center: place.centre.clone(),
            cloud: order.cloud.name(),
            rate,
            created: now,
            deleted: None,
            is_foreign: place.is_foreign,
            runs: vec![(now, None)],
        });
        let pod = Pod {
            number: self.number,
            proxy_user: format!("{id}-{:08x}", dice.below(1 << 32)),
            id,
            name: order.name.clone(),
            gpu,
            count,
            centre: place.centre,
            rate,
            created: now,
            life: Life::Up,
            boot,
            container: Container::Absent,
            runs: 0,
            exits_at: plan.exits_after.map(|after| now.plus(after)),
            gone_at: plan.vanishes_after.map(|after| now.plus(after)),
            plan,
            is_locked: false,
            is_foreign: place.is_foreign,
            host,
            logs: super::logs::Logs::default(),
            order,
        };
        pod.logs.say(now, super::logs::Source::System, "create pod network");
        pod.logs.say(now, super::logs::Source::System, format!("pulling image {}", pod.order.image));
        self.pods.push(pod);
        self.number
    }

    /// Creates a foreign pod.
    fn make_foreign(&mut self) {
        let gpu = Gpu::find("NVIDIA A40").unwrap_or(&super::catalog::GPUS[0]);
        let order = Order::foreign(gpu, self.number + 1);
        let place = Place { centre: "US-KS-2".to_owned(), is_foreign: true };
        self.make(order, gpu, place, &BTreeSet::new());
    }
}

/// The location of a pod.
struct Place {
    centre: String,
    is_foreign: bool,
}

fn word(dice: &mut Dice, length: usize) -> String {
    let letter = |_| char::from(LETTERS[dice.below(LETTERS.len() as u64) as usize]);
    (0..length).map(letter).collect()
}
