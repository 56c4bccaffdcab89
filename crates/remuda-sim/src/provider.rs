//! The state of a provider of machines: an account with our pods and with foreign ones. This is the truth; what the
//! provider answers may differ (`world::provider`).
//!
//! ```text
//!  plane ──rent, list, return──▶ queue of its fleet ──one at a time──▶ account ──▶ answer, error, or silence
//!                                                                        │
//!                     pod: created ──pull──▶ runs ──boot──▶ agent joins ─┤
//!                           └─ never       └─ stops, vanishes, dies      └─ deleted, or confirmed and still there
//! ```

mod pod;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remuda_core::id::{FleetId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::ProviderCall;

use crate::random::Random;
use crate::trouble::{Trouble, Troubles};

pub(crate) use pod::SimPod;

/// An account at the provider. Deleted pods stay here, because the laws count them.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) pods: BTreeMap<PodId, SimPod>,
    /// The price of an hour, by offer.
    pub(crate) offers: BTreeMap<String, Money>,
    /// The offers whose price each fleet was last told.
    pub(crate) quoted_offers: BTreeMap<FleetId, BTreeSet<String>>,
    pub(crate) troubles: Troubles,
    /// Until when each trouble lasts, and until when each offer has no capacity.
    pub(crate) active: BTreeMap<Trouble, u64>,
    pub(crate) empty: BTreeMap<String, u64>,
    /// How often each trouble occurred.
    pub(crate) trouble_counts: BTreeMap<Trouble, u64>,
    pub(crate) call_queues: BTreeMap<(usize, FleetId), CallQueue>,
    pub(crate) pods_created: u64,
    /// The last call was refused by mistake.
    pub(crate) has_hiccuped: bool,
    /// A call was refused by mistake since the last list.
    pub(crate) was_refused: bool,
}

/// Calls of one fleet: sent in order, one at a time.
#[derive(Debug, Default)]
pub(crate) struct CallQueue {
    pub(crate) waiting: VecDeque<ProviderCall>,
    pub(crate) under_way: Option<u64>,
}

/// Physical hosts of the provider; few, so that a bad one is assigned again.
const HOSTS: u64 = 8;
/// How many of them are bad in worlds with `Trouble::BadHosts`.
const BAD_HOSTS: u64 = 2;

impl Account {
    pub(crate) fn new(offers: BTreeMap<String, Money>, troubles: Troubles) -> Account {
        Account { offers, troubles, ..Account::default() }
    }

    /// Our pods that are billed.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &SimPod> {
        self.pods.values().filter(|pod| pod.is_ours() && pod.is_alive())
    }

    pub(crate) fn with_tag(&self, tag: &str) -> impl Iterator<Item = &SimPod> {
        self.pods.values().filter(move |pod| pod.tag == tag && pod.is_alive())
    }

    pub(crate) fn is_active(&self, trouble: Trouble, now: u64) -> bool {
        self.active.get(&trouble).is_some_and(|until| now < *until)
    }

    pub(crate) fn count_trouble(&mut self, trouble: Trouble) {
        *self.trouble_counts.entry(trouble).or_default() += 1;
    }

    /// Adds pods that are not ours: other people's, and those of another deployment with fleets of the same names.
    pub(crate) fn add_foreign_pods(&mut self, random: &mut Random, fleets: &[FleetId]) {
        for n in 0..random.between(1, 6) {
            let tag = match fleets.first().filter(|_| random.permille(600)) {
                Some(fleet) => format!("remuda-{OTHER_DEPLOYMENT}-{fleet}-{n}"),
                None => format!("foreign-pod-{n}"),
            };
            let price = Money::from_micros(random.between(100_000, 3_000_000));
            let pod = SimPod {
                tag,
                fleet: None,
                offer: String::new(),
                kind: "H100".to_owned(),
                price,
                quoted_price: Some(price),
                runs_at: Some(0),
                ..self.new_pod(0, random)
            };
            self.count_trouble(Trouble::ForeignPods);
            self.pods.insert(pod.id.clone(), pod);
        }
    }

    pub(crate) fn new_pod(&mut self, now: u64, random: &mut Random) -> SimPod {
        self.pods_created += 1;
        let host = random.below(HOSTS);
        SimPod {
            id: format!("pod{:04}", self.pods_created).parse().expect("a short name is a valid id"),
            tag: String::new(),
            fleet: None,
            offer: String::new(),
            kind: String::new(),
            datacenter: format!("dc-{}", random.below(3)),
            host: format!("host-{host}"),
            price: Money::ZERO,
            quoted_price: None,
            created_at: now,
            listed_from: now,
            runs_at: None,
            stopped_at: None,
            gone_at: None,
            is_dead: false,
            fate: (host < BAD_HOSTS && self.troubles.permille_for(Trouble::BadHosts) > 0)
                .then_some(Trouble::BadHosts),
            sim_host: None,
            is_created_by_old_plane: false,
            is_unrecorded: false,
        }
    }
}

/// The names of this deployment and of the other one.
pub(crate) const DEPLOYMENT: &str = "0a1b2c3d";
pub(crate) const OTHER_DEPLOYMENT: &str = "ffee9988";
