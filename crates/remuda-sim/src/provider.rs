//! The model of a provider of machines: an account with pods of ours and of others, and everything that is known to go
//! wrong with one. It knows what really is; whoever asks may be told something else, or nothing.
//!
//! ```text
//!  plane ──rent, list, return──▶ line of its fleet ──one at a time──▶ account ──▶ answer, error, or silence
//!                                                                       │
//!                     pod: made ──pull──▶ runs ──boot──▶ agent joins ───┤
//!                           └─ never    └─ stops, vanishes, dies        └─ goes, or says so and stays
//! ```
//!
//! | part | what it plays |
//! |---|---|
//! | `trouble` | what can go wrong, and how much of it there is |
//! | `pod` | one pod, as it is and as it is shown |
//! | `answers` | what is said to a call, and what is done |
//! | `machine` | the machine inside a pod: its agent, its end |

mod answers;
mod machine;
mod pod;
pub(crate) mod trouble;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remuda_core::id::{FleetId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{ProviderCall, ProviderEvent};

use crate::happening::Happening;
use crate::net::{self, Ask, Caller};
use crate::random::Random;
use crate::world::World;

pub(crate) use pod::SimPod;
pub(crate) use trouble::{Trouble, Troubles};

/// An account at the provider. Pods that are gone stay here, for whoever counts.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) pods: BTreeMap<PodId, SimPod>,
    /// What an hour of each costs.
    pub(crate) offers: BTreeMap<String, Money>,
    /// The offers whose price each fleet was last told.
    told_prices: BTreeMap<FleetId, BTreeSet<String>>,
    pub(crate) troubles: Troubles,
    /// Until when each spell lasts, and each offer has nothing.
    spells: BTreeMap<Trouble, u64>,
    empty: BTreeMap<String, u64>,
    /// How often each trouble was met.
    pub(crate) met: BTreeMap<Trouble, u64>,
    lines: BTreeMap<(usize, FleetId), Line>,
    made: u64,
}

/// The calls of a fleet are made in order, one at a time.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<ProviderCall>,
    under_way: Option<u64>,
}

/// Physical hosts that the provider has; few, so that a bad one comes again.
const HOSTS: u64 = 8;
/// Those of them that are bad where some are.
const BAD_HOSTS: u64 = 2;

impl Account {
    pub(crate) fn new(offers: BTreeMap<String, Money>, troubles: Troubles) -> Account {
        Account { offers, troubles, ..Account::default() }
    }

    /// Ours that somebody pays for.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &SimPod> {
        self.pods.values().filter(|pod| pod.is_ours() && pod.is_alive())
    }

    pub(crate) fn with_tag(&self, tag: &str) -> impl Iterator<Item = &SimPod> {
        self.pods.values().filter(move |pod| pod.tag == tag && pod.is_alive())
    }

    fn is_under(&self, spell: Trouble, now: u64) -> bool {
        self.spells.get(&spell).is_some_and(|until| now < *until)
    }

    pub(crate) fn meet(&mut self, trouble: Trouble) {
        *self.met.entry(trouble).or_default() += 1;
    }

    /// Others who have pods here, too: people, and another deployment of ours that has fleets of the same names.
    pub(crate) fn settle_strangers(&mut self, random: &mut Random, fleets: &[FleetId]) {
        for n in 0..random.between(1, 6) {
            let tag = match fleets.first().filter(|_| random.permille(600)) {
                Some(fleet) => format!("remuda-{STRANGER}-{fleet}-{n}"),
                None => format!("somebodys-pod-{n}"),
            };
            let price = Money::from_micros(random.between(100_000, 3_000_000));
            let pod = SimPod {
                tag,
                fleet: None,
                offer: String::new(),
                kind: "H100".to_owned(),
                price,
                told_price: Some(price),
                runs_at: Some(0),
                ..self.new_pod(0, random)
            };
            self.meet(Trouble::Strangers);
            self.pods.insert(pod.id.clone(), pod);
        }
    }

    fn new_pod(&mut self, now: u64, random: &mut Random) -> SimPod {
        self.made += 1;
        let host = random.below(HOSTS);
        SimPod {
            id: format!("pod{:04}", self.made).parse().expect("a short name is a name"),
            tag: String::new(),
            fleet: None,
            offer: String::new(),
            kind: String::new(),
            place: format!("dc-{}", random.below(3)),
            host: format!("host-{host}"),
            price: Money::ZERO,
            told_price: None,
            made_at: now,
            shows_from: now,
            runs_at: None,
            stopped_at: None,
            gone_at: None,
            is_dead: false,
            fate: (host < BAD_HOSTS && self.troubles.chance(Trouble::BadHosts) > 0)
                .then_some(Trouble::BadHosts),
            sim_host: None,
            is_stray: false,
            is_unrecorded: false,
        }
    }
}

/// The name of this deployment, and of the other one.
pub(crate) const DEPLOYMENT: &str = "0a1b2c3d";
pub(crate) const STRANGER: &str = "ffee9988";

impl World<'_> {
    /// Something goes wrong at the provider, or begins to.
    pub(crate) fn meets(&mut self, trouble: Trouble) -> bool {
        let chance = self.account.troubles.chance(trouble);
        let is_met = !self.is_calm && self.random.permille(chance);
        if is_met {
            self.account.meet(trouble);
            self.note("trouble", trouble as u64, 0);
            self.say(&format!("trouble {trouble:?}"));
        }
        is_met
    }

    pub(crate) fn begin_spell(&mut self, trouble: Trouble, lasts: u64) {
        let until = (self.now + lasts).min(self.scene.storm_end);
        self.account.meet(trouble);
        if trouble == Trouble::NoCapacity {
            let offers: Vec<_> = self.account.offers.keys().cloned().collect();
            for offer in offers {
                if self.random.permille(700) {
                    self.account.empty.insert(offer, until);
                }
            }
            return;
        }
        self.account.spells.insert(trouble, until);
    }

    pub(crate) fn calm_provider(&mut self) {
        self.account.spells.clear();
        self.account.empty.clear();
    }

    /// A plane has something to ask of a fleet's provider.
    pub(crate) fn ask_provider(&mut self, driver: usize, fleet: FleetId, call: ProviderCall) {
        let is_late = self.lead != Some(driver);
        self.laws.asks(self.now, &fleet, &call, is_late, &self.store);
        let line = self.account.lines.entry((driver, fleet.clone())).or_default();
        line.waiting.push_back(call);
        self.make_call(driver, fleet);
    }

    fn make_call(&mut self, driver: usize, fleet: FleetId) {
        let number = self.next_call();
        let Some(line) = self.account.lines.get_mut(&(driver, fleet.clone())) else { return };
        if line.under_way.is_some() {
            return;
        }
        let Some(call) = line.waiting.pop_front() else { return };
        line.under_way = Some(number);
        if self.is_traced() {
            self.say(&format!("call {number} for {fleet}: {call:?}"));
        }
        let delay = self.random.between(5, 300);
        let call = Box::new(call);
        self.at(delay, Happening::AtProvider { driver, fleet, number, call });
    }

    /// A call reaches the provider, if whoever made it got that far.
    pub(crate) fn at_provider(&mut self, driver: usize, fleet: FleetId, number: u64, call: &ProviderCall) {
        let is_gone = self.drivers[driver].is_none();
        if is_gone && self.random.permille(500) {
            return;
        }
        self.note("provider", number, driver as u64);
        self.laws.called(self.now, &fleet, call);
        let (mut news, mut delay) = self.answer_to(driver, &fleet, call);
        if self.is_repeated(&news) {
            self.laws.called(self.now, &fleet, call);
            (news, delay) = self.answer_to(driver, &fleet, call);
        }
        if self.is_traced() {
            self.say(&format!("call {number}: {news:?} in {delay} ms"));
        }
        self.at(delay, Happening::FromProvider { driver, fleet, number, news: Box::new(news) });
    }

    pub(crate) fn hear_provider(
        &mut self,
        driver: usize,
        fleet: FleetId,
        number: u64,
        news: Box<ProviderEvent>,
    ) {
        let Some(line) = self.account.lines.get_mut(&(driver, fleet.clone())) else { return };
        if line.under_way != Some(number) {
            return;
        }
        line.under_way = None;
        self.laws.answered(self.now, &fleet, &news);
        if let ProviderEvent::Listed { result: Ok(listed) } = &*news {
            self.laws.listed(self.now, &fleet, listed, self.is_calm, &self.account);
        }
        for news in self.forged_news(*news) {
            let id = self.next_call();
            let ask = Ask::News { fleet: fleet.clone(), news: Box::new(news) };
            self.deliver(driver, net::Call { from: Caller::Nobody, id, ask });
        }
        self.make_call(driver, fleet);
    }

    /// With a plane goes all that it was about to ask, and everyone who would have heard the answers.
    pub(crate) fn drop_lines(&mut self, driver: usize) {
        self.account.lines.retain(|(of, _), _| *of != driver);
    }

    /// A plane that starts over may forget what it was about to ask; what is under way is answered to it.
    pub(crate) fn maybe_drop_waiting(&mut self, driver: usize) {
        if self.random.permille(500) {
            let lines = self.account.lines.iter_mut().filter(|((of, _), _)| *of == driver);
            lines.for_each(|(_, line)| line.waiting.clear());
        }
    }
}
