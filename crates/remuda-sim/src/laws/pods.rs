//! Laws about what is asked of a provider, held against what really is in its account: never more pods than allowed nor
//! dearer ones, none without a record, nobody else's touched, no storm of calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use remuda_core::id::{FleetId, MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::plane::Plane;
use remuda_core::provider::{Pod, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use remuda_core::rental::{Rental, RentalPhase};
use remuda_core::time::Timestamp;

use super::Laws;
use crate::law::Law;
use crate::provider::{Account, SimPod};
use crate::scenario::Scenario;
use crate::store::Store;
use crate::trouble::Trouble;

/// What the laws know of pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Records of machines, as they are stored.
    pub(super) rentals: BTreeMap<String, Rental>,
    /// Tags of machines that were given up at some time, and when.
    pub(super) given_up: BTreeMap<String, u64>,
    /// Tags under which a pod was asked for.
    asked: BTreeMap<String, u32>,
    /// In how many lists in a row each of ours was missing, fleet by fleet.
    pub(super) omitted: BTreeMap<(FleetId, PodId), u32>,
    /// Tags of pods that nobody could know of: two lists in a row lacked them, or our store was put back to a time
    /// before them and no list has shown them since.
    pub(super) unseen: BTreeSet<String>,
    /// When each fleet last asked, as far as that is looked at.
    calls: BTreeMap<FleetId, VecDeque<u64>>,
    /// Until when each fleet was told to be silent.
    quiet_until: BTreeMap<FleetId, u64>,
    /// When each fleet first saw a list in the calm.
    calm_list: BTreeMap<FleetId, u64>,
    /// Since when something about a pod is not as it should be.
    odd_since: BTreeMap<(PodId, &'static str), u64>,
    /// Since when a record is of no pod.
    empty_since: BTreeMap<String, u64>,
    /// Since when there is work and no machine for it.
    idle_since: Option<u64>,
    /// When a person last ordered a fleet about.
    pub(super) ordered_at: BTreeMap<FleetId, u64>,
    /// Machines that a person drained.
    pub(super) drained: BTreeSet<MachineId>,
    /// How many machines in a row came to nothing.
    pub(super) failures: BTreeMap<FleetId, u32>,
    /// Tags that were asked for after too many of them, and when a fleet last got one of those.
    trials: BTreeSet<String>,
    tried_at: BTreeMap<FleetId, u64>,
    /// Which way each fleet last turned, and when.
    pub(super) turned: BTreeMap<FleetId, (bool, u64)>,
}

/// Calls that a fleet may make in ten minutes, whatever happens: a list every five seconds while something is on its way,
/// twice over, and what its machines need.
const CALLS_MAX: usize = 260;
const WINDOW: u64 = 600_000;
/// How long a key that is refused is left alone, without what a person may order.
const REFUSED_WAIT: u64 = 290_000;
/// Untracked pods, and records of none, are sorted out this long after the calm.
const SORTED_WITHIN: u64 = 360_000;
/// The longest wait of a creation brake, and the way to a machine that works.
const COMES_WITHIN: u64 = 50 * 60_000;
/// After so many machines in a row that came to nothing, one is tried at a time, and not before this.
const FAILURES_MAX: u32 = 3;
const BRAKE_MIN: u64 = 50_000;
/// What is spent is seen by the next cycle, and a plane may be away.
const SPENT_MARGIN: Duration = Duration::from_secs(60);

impl Laws {
    /// S5: what a plane decides to request for is stored. L5: who was told to be silent is.
    pub(crate) fn asks(
        &mut self,
        at: u64,
        fleet: &FleetId,
        call: &ProviderCall,
        is_late: bool,
        store: &Store,
    ) {
        if let Some(until) = self.pods.quiet_until.get(fleet).filter(|until| at < **until) {
            let what = format!("{fleet} was told to be silent until {until} ms and asks {call:?}");
            self.violated(Law::L5, at, what);
        }
        let ProviderCall::Rent { machine, tag, .. } = call else { return };
        if self.pods.failures.get(fleet).is_some_and(|failures| *failures >= FAILURES_MAX) {
            self.pods.trials.insert(tag.clone());
        }
        let is_stored = store.machine(machine.as_str()).is_some_and(|rental| rental.tag == *tag);
        if !is_stored && !is_late {
            self.violated(
                Law::S5,
                at,
                format!("a pod called {tag} is asked for, and nobody wrote that down"),
            );
        }
    }

    /// S8: after three that came to nothing the next is waited with, and tried alone.
    pub(crate) fn pod_made(&mut self, at: u64, fleet: &FleetId, tag: &str) {
        if !self.pods.trials.contains(tag) {
            return;
        }
        let before = self.pods.tried_at.insert(fleet.clone(), at);
        if before.is_some_and(|before| at < before + BRAKE_MIN) {
            let what = format!("machine after machine of {fleet} came to nothing, and it goes on");
            self.violated(Law::S8, at, what);
        }
    }

    /// S5: no name is asked for twice. L5: no storm of calls.
    pub(crate) fn called(&mut self, at: u64, fleet: &FleetId, call: &ProviderCall) {
        let calls = self.pods.calls.entry(fleet.clone()).or_default();
        calls.push_back(at);
        while calls.front().is_some_and(|first| first + WINDOW < at) {
            calls.pop_front();
        }
        if calls.len() > CALLS_MAX {
            let what = format!("{fleet} asked its provider {} times in ten minutes", calls.len());
            calls.clear();
            self.violated(Law::L5, at, what);
        }
        let ProviderCall::Rent { tag, .. } = call else { return };
        let asked = self.pods.asked.entry(tag.clone()).or_default();
        *asked += 1;
        if *asked > 1 {
            self.violated(Law::S5, at, format!("a pod called {tag} is asked for once more"));
        }
    }

    /// What an answer asks of whoever hears it.
    pub(crate) fn answered(&mut self, at: u64, fleet: &FleetId, news: &ProviderEvent) {
        let fault = match news {
            ProviderEvent::Rented { result, .. } => result.as_ref().err(),
            ProviderEvent::Listed { result } => result.as_ref().err(),
            ProviderEvent::Returned { result, .. } => result.as_ref().err(),
            ProviderEvent::Priced { result } => result.as_ref().err(),
            ProviderEvent::Prepared { .. } => None,
        };
        let until = match fault {
            Some(ProviderError { class: ProviderErrorClass::RateLimited, wait: Some(wait), .. }) => {
                at + wait.as_millis() as u64
            }
            Some(ProviderError { class: ProviderErrorClass::Auth, .. }) => at + REFUSED_WAIT,
            _ => 0,
        };
        self.pods.quiet_until.insert(fleet.clone(), until);
    }

    /// A plane that starts over has not heard what was not stored.
    pub(crate) fn forgot_waits(&mut self) {
        self.pods.quiet_until.clear();
    }

    pub(crate) fn listed(
        &mut self,
        at: u64,
        fleet: &FleetId,
        listed: &[Pod],
        is_calm: bool,
        account: &Account,
    ) {
        if is_calm {
            self.pods.calm_list.entry(fleet.clone()).or_insert(at);
        }
        for pod in account.ours() {
            if pod.is_unrecorded && listed.iter().any(|it| it.id == pod.id) {
                self.pods.unseen.remove(&pod.tag);
            }
            let omitted = self.pods.omitted.entry((fleet.clone(), pod.id.clone())).or_default();
            *omitted = if listed.iter().any(|it| it.id == pod.id) { 0 } else { *omitted + 1 };
        }
    }

    /// S8: nobody else's; and ours only when that is stored, or when it is nobody's for long enough.
    pub(crate) fn returned(&mut self, at: u64, id: &PodId, account: &Account, grace: u64) {
        let Some(pod) = account.pods.get(id) else {
            return self.violated(Law::S8, at, format!("{id} is returned, and never was"));
        };
        if !pod.is_ours() {
            return self.violated(Law::S8, at, format!("{} is returned, which is not ours", pod.tag));
        }
        let rental = self.pods.rentals.values().find(|rental| rental.tag == pod.tag);
        match rental.map(|rental| rental.phase) {
            Some(RentalPhase::Returning) => {}
            Some(phase) => {
                let what = format!("{} is returned, and is stored as {}", pod.tag, phase.as_str());
                self.violated(Law::S5, at, what);
            }
            None if at < pod.created_at + grace
                && pod.is_alive()
                && !self.pods.given_up.contains_key(&pod.tag) =>
            {
                let age = (at - pod.created_at) / 1000;
                self.violated(Law::S8, at, format!("{} is returned as nobody's after {age} s", pod.tag));
            }
            None => {}
        }
    }

    /// S8: not one more than allowed, in number or in money, whenever one is made. Not later: one that nobody could know
    /// of may come to light again.
    pub(crate) fn pods_changed(&mut self, at: u64, fleet: &FleetId, account: &Account, scenario: &Scenario) {
        for plan in scenario.fleets.iter().filter(|plan| plan.settings.id == *fleet) {
            let settings = &plan.settings;
            let is_its = |pod: &&SimPod| pod.fleet.as_ref() == Some(&settings.id) && pod.is_up();
            let is_known = |pod: &&SimPod| !pod.is_created_by_old_plane && !self.is_unseen(&settings.id, pod);
            let there: Vec<_> = account.ours().filter(is_its).filter(is_known).collect();
            let (count, most) = (there.len(), settings.scaling.machines_max as usize);
            // What costs more than was agreed is sent back as soon as that is seen.
            let agreed = |pod: &&SimPod| plan.prices.get(&pod.offer).copied().unwrap_or_default();
            let price: Money = there.iter().map(agreed).sum();
            if count > most {
                self.violated(Law::S8, at, format!("{} has {count} pods, {most} are allowed", settings.id));
            }
            if let Some(most) = settings.hour_max.filter(|most| price > *most) {
                let what = format!("{} costs {price} an hour, {most} are allowed", settings.id);
                self.violated(Law::S8, at, what);
            }
        }
        let mut tags: Vec<_> = account.ours().map(|pod| &pod.tag).collect();
        tags.sort_unstable();
        if let Some(two) = tags.windows(2).find(|two| two[0] == two[1]) {
            self.violated(Law::S5, at, format!("there are two pods called {}", two[0]));
        }
    }

    /// Nobody could know of it.
    fn is_unseen(&self, fleet: &FleetId, pod: &SimPod) -> bool {
        let omitted = self.pods.omitted.get(&(fleet.clone(), pod.id.clone())).copied();
        let is_lost = pod.is_unrecorded && omitted.is_some_and(|omitted| omitted >= 2);
        is_lost || self.pods.unseen.contains(&pod.tag)
    }

    /// L4 and S8: in the calm every pod of ours is somebody's, every record is of a pod, and what goes goes.
    pub(crate) fn check_pods(
        &mut self,
        at: u64,
        plane: Option<(&Plane, Timestamp)>,
        account: &Account,
        scenario: &Scenario,
        is_calm: bool,
    ) {
        let Some((plane, now)) = plane else { return };
        if scenario.fleets.is_empty() {
            return;
        }
        self.draining_ends(now, at, plane, scenario);
        self.day_is_paid(at, account, scenario);
        if !is_calm {
            return;
        }
        self.every_pod_is_somebodys(at, plane, account);
        self.every_record_is_of_a_pod(at, plane, account);
        self.somebody_comes(at, plane, account, scenario);
    }

    /// S8: no day costs more than allowed, but for what it duration to see that. From the moment at which a machine was given
    /// up it is the provider who duration his time.
    fn day_is_paid(&mut self, at: u64, account: &Account, scenario: &Scenario) {
        // While the mass-loss brake holds nobody is sent away, whatever it costs; nor while nobody is there to do it.
        if self.braked_at > Timestamp::ZERO || account.trouble_counts.contains_key(&Trouble::PlaneDies) {
            return;
        }
        for plan in &scenario.fleets {
            let Some(most) = plan.settings.day_max else { continue };
            let (mut spent, mut slack) = (Money::ZERO, Money::ZERO);
            for pod in account.pods.values().filter(|pod| pod.fleet.as_ref() == Some(&plan.settings.id)) {
                let given_up = self.pods.given_up.get(&pod.tag).copied().unwrap_or(at);
                let until = given_up.min(pod.gone_at.unwrap_or(at)).min(pod.stopped_at.unwrap_or(at));
                let price = plan.prices.get(&pod.offer).copied().unwrap_or_default();
                let is_unknown =
                    pod.is_created_by_old_plane || pod.is_unrecorded || self.pods.unseen.contains(&pod.tag);
                if is_unknown {
                    continue;
                }
                let while_up = Duration::from_millis(until.saturating_sub(pod.created_at));
                spent = spent.plus(price.over(while_up));
                slack = slack.plus(price.over(SPENT_MARGIN));
            }
            if spent > most.plus(slack) {
                let what = format!("{} has cost {spent} today, {most} are allowed", plan.settings.id);
                return self.violated(Law::S8, at, what);
            }
        }
    }

    fn every_pod_is_somebodys(&mut self, at: u64, plane: &Plane, account: &Account) {
        let mut odd = BTreeMap::new();
        let mut found = None;
        for pod in account.ours() {
            let rental = pod.machine().and_then(|machine| plane.rental(&machine));
            let what = match rental.map(|rental| rental.phase) {
                None => "nobody's",
                Some(RentalPhase::Returning) => "to be returned",
                Some(_) if pod.is_dead || pod.stopped_at.is_some() => "dead",
                Some(_) => continue,
            };
            let since = self.pods.odd_since.get(&(pod.id.clone(), what)).copied().unwrap_or(at);
            odd.insert((pod.id.clone(), what), since);
            let listed = pod.fleet.as_ref().and_then(|fleet| self.pods.calm_list.get(fleet));
            // A machine whose worker is silent may be out of reach; it would stop itself after a quarter of an hour.
            let bound = if what == "dead" { SORTED_WITHIN + 900_000 } else { SORTED_WITHIN };
            if listed.is_some_and(|listed| at > since.max(*listed) + bound) {
                found = Some(format!("{} is {what} since {since} ms", pod.tag));
            }
        }
        self.pods.odd_since = odd;
        if let Some(what) = found {
            self.violated(Law::L4, at, what);
        }
    }

    fn every_record_is_of_a_pod(&mut self, at: u64, plane: &Plane, account: &Account) {
        let mut empty = BTreeMap::new();
        let mut found = None;
        for rental in plane.rentals() {
            let is_made = matches!(
                rental.phase,
                RentalPhase::Made | RentalPhase::Up | RentalPhase::Draining | RentalPhase::Returning
            );
            if !is_made || account.with_tag(&rental.tag).next().is_some() {
                continue;
            }
            let since = self.pods.empty_since.get(&rental.tag).copied().unwrap_or(at);
            empty.insert(rental.tag.clone(), since);
            let listed = self.pods.calm_list.get(&rental.fleet);
            if listed.is_some_and(|listed| at > since.max(*listed) + SORTED_WITHIN) {
                found = Some(format!("{} is {} and gone", rental.tag, rental.phase.as_str()));
            }
        }
        self.pods.empty_since = empty;
        if let Some(what) = found {
            self.violated(Law::L4, at, what);
        }
    }

    /// P16: work that only a fleet can do brings a machine.
    fn somebody_comes(&mut self, at: u64, plane: &Plane, account: &Account, scenario: &Scenario) {
        let waits = plane.ready_jobs() > 0 && scenario.hosts.is_empty();
        if !waits || account.ours().any(SimPod::is_up) {
            self.pods.idle_since = None;
            return;
        }
        let since = *self.pods.idle_since.get_or_insert(at);
        if at > since + COMES_WITHIN {
            self.pods.idle_since = None;
            self.violated(Law::L1, at, format!("work waits since {since} ms, and no machine comes"));
        }
    }
}
