//! Laws about calls to a provider, compared with its account: no more pods than allowed and none above the price limit,
//! none without a record, no foreign pod touched, no call storm.

mod limits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use remuda_core::document::Document;
use remuda_core::fleet::Fleet;
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

/// What the laws know about pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Records of machines, as committed.
    pub(super) rentals: BTreeMap<String, Rental>,
    /// Tags of machines that were given up, and when.
    pub(super) given_up: BTreeMap<String, u64>,
    /// How often a pod was requested under each tag.
    requested: BTreeMap<String, u32>,
    /// In how many consecutive lists of a fleet each of our pods was missing.
    pub(super) omitted: BTreeMap<(FleetId, PodId), u32>,
    /// Tags of pods that the plane could not know of: two consecutive lists lacked them, or the store was restored to a
    /// time before them and no list of any fleet has shown them since.
    pub(super) unseen: BTreeSet<String>,
    /// Recent calls of each fleet.
    calls: BTreeMap<FleetId, VecDeque<u64>>,
    /// Until when each fleet must not call.
    quiet_until: BTreeMap<FleetId, u64>,
    /// Until when it need not call. After a failed commit the plane may know of a wait, or may not.
    quiet_allowed_until: BTreeMap<FleetId, u64>,
    /// The last wait that each fleet was told.
    told_until: BTreeMap<FleetId, u64>,
    /// Whether the plane counts the key of a fleet as refused.
    confirmed: BTreeMap<FleetId, bool>,
    /// Calls that were refused for the key since the last one that succeeded.
    refusals: BTreeMap<FleetId, u32>,
    /// The same before the last success, until that success is stored.
    stored_refusals: BTreeMap<FleetId, u32>,
    /// When the return of each pod was last requested.
    return_requested: BTreeMap<PodId, u64>,
    /// Since when each machine is to be returned, as long as the plane listens.
    returning_since: BTreeMap<PodId, u64>,
    /// When pods were last checked, and the times since when and until when no plane decided about them.
    checked_at: u64,
    away: Vec<(u64, u64)>,
    /// When each fleet first got a list after the storm.
    calm_list: BTreeMap<FleetId, u64>,
    /// Since when a pod is in a wrong state.
    wrong_since: BTreeMap<(PodId, &'static str), u64>,
    /// Since when a record has no pod.
    empty_since: BTreeMap<String, u64>,
    /// Since when jobs wait and no machine exists.
    idle_since: Option<u64>,
    /// The number of machines that an operator ordered, as committed, until the order is withdrawn.
    pub(super) ordered: BTreeMap<FleetId, u32>,
    /// When an operator last gave a fleet an order.
    pub(super) ordered_at: BTreeMap<FleetId, u64>,
    /// Machines drained by an operator.
    pub(super) drained: BTreeSet<MachineId>,
    /// Consecutive failed creations.
    pub(super) failures: BTreeMap<FleetId, u32>,
    /// Tags requested while the creation brake was on, and when a fleet last created one of those.
    trials: BTreeSet<String>,
    trial_created_at: BTreeMap<FleetId, u64>,
    /// In which direction each fleet last scaled, and when.
    pub(super) reversed: BTreeMap<FleetId, (bool, u64)>,
}

/// Calls that a fleet may make in ten minutes in any case: a list every five seconds while something is under way,
/// twice over, and the calls for its machines.
const CALLS_MAX: usize = 260;
const WINDOW: u64 = 600_000;
/// Pods without a record, and records without a pod, are resolved within this time after the storm.
const RESOLVED_WITHIN: u64 = 360_000;
/// The longest wait of the creation brake plus the start of a working machine.
const CREATED_WITHIN: u64 = 50 * 60_000;
/// After this many consecutive failures machines are created one at a time, `BRAKE_MIN` apart.
const FAILURES_MAX: u32 = 3;
const BRAKE_MIN: u64 = 50_000;
/// How long a fleet waits after a rate limit that names no time.
const RATE_WAIT: u64 = 60_000;
/// Spending is noticed by the next cycle.
const SPENT_MARGIN: Duration = Duration::from_secs(60);
/// A return is requested every minute until the pod is gone, whatever else the provider refuses; clocks differ.
const RETURN_REPEATED_WITHIN: u64 = 90_000;
/// Machines above a lowered maximum are drained by the next cycle.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// What is known from lists alone exists until so many in a row lack it.
pub(super) const LISTS_UNHEARD_MIN: u32 = 5;
/// The same for a machine whose worker has joined.
pub(super) const LISTS_MIN: u32 = 2;

impl Pods {
    /// No plane decided in this time.
    fn add_absence(&mut self, from: u64, to: u64) {
        match self.away.last_mut().filter(|last| last.1 == from) {
            Some(last) => last.1 = to,
            None => self.away.push((from, to)),
        }
    }

    /// For how much of this time no plane decided.
    fn absence(&self, from: u64, to: u64) -> Duration {
        let common = |(began, ended): &(u64, u64)| (*ended).min(to).saturating_sub((*began).max(from));
        Duration::from_millis(self.away.iter().map(common).sum())
    }
}

impl Laws {
    /// Until when a fleet must not call, if it must wait at all.
    pub(crate) fn quiet_until(&self, at: u64, fleet: &FleetId) -> Option<u64> {
        self.pods.quiet_until.get(fleet).copied().filter(|until| at < *until)
    }

    /// S5: a request for a pod is committed first. L5: a fleet that must wait decides on no calls; `quiet_until` is the
    /// wait that it was told before it decided. One that it is told while the decision is being committed comes too late.
    pub(crate) fn provider_call_queued(
        &mut self,
        at: u64,
        fleet: &FleetId,
        call: &ProviderCall,
        quiet_until: Option<u64>,
        is_late: bool,
        store: &Store,
    ) {
        if let Some(until) = quiet_until {
            let what = format!("{fleet} must wait until {until} ms and calls {call:?}");
            self.violated(Law::L5, at, what);
        }
        if let ProviderCall::Return { pod } = call {
            self.pods.return_requested.insert(pod.clone(), at);
        }
        let ProviderCall::Rent { machine, tag, .. } = call else { return };
        if self.pods.failures.get(fleet).is_some_and(|failures| *failures >= FAILURES_MAX) {
            self.pods.trials.insert(tag.clone());
        }
        let is_stored = store.machine(machine.as_str()).is_some_and(|rental| rental.tag == *tag);
        if !is_stored && !is_late {
            self.violated(Law::S5, at, format!("pod {tag} was requested before that was stored"));
        }
    }

    /// S8: after three failed machines the next one is delayed and tried alone.
    pub(crate) fn pod_created(&mut self, at: u64, fleet: &FleetId, tag: &str) {
        if !self.pods.trials.contains(tag) {
            return;
        }
        let before = self.pods.trial_created_at.insert(fleet.clone(), at);
        if before.is_some_and(|before| at < before + BRAKE_MIN) {
            let what =
                format!("the machines of {fleet} keep failing, and it creates the next without a delay");
            self.violated(Law::S8, at, what);
        }
    }

    /// S5: no tag is requested twice. L5: no call storm.
    pub(crate) fn provider_call_sent(&mut self, at: u64, fleet: &FleetId, call: &ProviderCall) {
        let calls = self.pods.calls.entry(fleet.clone()).or_default();
        calls.push_back(at);
        while calls.front().is_some_and(|first| first + WINDOW < at) {
            calls.pop_front();
        }
        if calls.len() > CALLS_MAX {
            let what =
                format!("{fleet} provider_call_sent its provider {} times in ten minutes", calls.len());
            calls.clear();
            self.violated(Law::L5, at, what);
        }
        let ProviderCall::Rent { tag, .. } = call else { return };
        let requests = self.pods.requested.entry(tag.clone()).or_default();
        *requests += 1;
        if *requests > 1 {
            self.violated(Law::S5, at, format!("pod {tag} was requested twice"));
        }
    }

    /// Notes how long the fleet must wait after this answer.
    pub(crate) fn answered(&mut self, at: u64, fleet: &FleetId, news: &ProviderEvent) {
        let fault = match news {
            ProviderEvent::Rented { result, .. } => result.as_ref().err(),
            ProviderEvent::Listed { result } => result.as_ref().err(),
            ProviderEvent::Returned { result, .. } => result.as_ref().err(),
            ProviderEvent::Priced { result } => result.as_ref().err(),
            ProviderEvent::Bootstrapped { .. } => None,
        };
        match fault {
            // Without a hint it is a minute.
            Some(ProviderError { class: ProviderErrorClass::RateLimited, wait, .. }) => {
                let wait = wait.map_or(RATE_WAIT, |wait| wait.as_millis() as u64);
                self.pods.quiet_until.insert(fleet.clone(), at + wait);
                self.pods.quiet_allowed_until.insert(fleet.clone(), at + wait);
                self.pods.told_until.insert(fleet.clone(), at + wait);
            }
            None | Some(ProviderError { class: ProviderErrorClass::NotFound, .. }) => {
                self.pods.quiet_until.remove(fleet);
                self.pods.quiet_allowed_until.remove(fleet);
            }
            // Other errors end no wait.
            Some(_) => {}
        }
        let refusals = self.pods.refusals.entry(fleet.clone()).or_default();
        match fault.map(|fault| fault.class) {
            Some(ProviderErrorClass::Auth) => *refusals += 1,
            None | Some(ProviderErrorClass::NotFound) => {
                let refusals = std::mem::take(refusals);
                if refusals > 0 {
                    self.pods.stored_refusals.insert(fleet.clone(), refusals);
                }
            }
            // Other errors say nothing about the key.
            Some(_) => {}
        }
    }

    /// The state of a fleet is stored: if no refusal is in it, a plane that reloads knows of none.
    pub(super) fn fleet_stored(&mut self, document: &Document) {
        let fleet = serde_json::from_str::<Fleet>(document.body.get()).ok();
        let Some((id, fleet)) = document.id.parse::<FleetId>().ok().zip(fleet) else { return };
        if fleet.key_refusal.is_none() {
            self.pods.stored_refusals.remove(&id);
        }
        match fleet.machines {
            Some(machines) => self.pods.ordered.insert(id, machines),
            None => self.pods.ordered.remove(&id),
        };
    }

    /// A reloaded plane does not know of waits that were not committed, nor of an answer that ended one; it does know of
    /// what was committed.
    pub(crate) fn forget_waits(&mut self) {
        self.pods.quiet_allowed_until.clone_from(&self.pods.told_until);
        self.pods.quiet_until.clear();
    }

    /// A reloaded plane does not know of a success that was not committed: the refusals before it still count, each of
    /// them.
    pub(super) fn recall_refusals(&mut self, plane: &Plane) {
        for (fleet, refusals) in &mut self.pods.refusals {
            if plane.fleet(fleet).key_refusal.is_some() {
                let stored = self.pods.stored_refusals.get(fleet).copied().unwrap_or(1);
                *refusals = (*refusals).max(stored);
            }
        }
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

    /// S8: no foreign pod is returned; one of ours only if that is committed, or if it had no record for the grace
    /// period.
    pub(crate) fn returned(&mut self, at: u64, id: &PodId, account: &Account, grace: u64) {
        let Some(pod) = account.pods.get(id) else {
            return self.violated(Law::S8, at, format!("{id} was returned and never existed"));
        };
        if !pod.is_ours() {
            return self.violated(Law::S8, at, format!("foreign pod {} was returned", pod.tag));
        }
        let rental = self.pods.rentals.values().find(|rental| rental.tag == pod.tag);
        match rental.map(|rental| rental.phase()) {
            Some(RentalPhase::Returning) => {}
            Some(phase) => {
                let what = format!("{} was returned and is stored as {}", pod.tag, phase.as_str());
                self.violated(Law::S5, at, what);
            }
            None if at < pod.created_at + grace
                && pod.is_alive()
                && !self.pods.given_up.contains_key(&pod.tag) =>
            {
                let age = (at - pod.created_at) / 1000;
                self.violated(
                    Law::S8,
                    at,
                    format!("{} was returned as a pod without a record after {age} s", pod.tag),
                );
            }
            None => {}
        }
    }

    /// S8: no fleet exceeds its number of machines or its price per hour when a pod is created. Not checked later: a
    /// pod that the plane could not know of may reappear.
    pub(crate) fn pods_changed(&mut self, at: u64, fleet: &FleetId, account: &Account, scenario: &Scenario) {
        for plan in scenario.fleets.iter().filter(|plan| plan.settings.id == *fleet) {
            let settings = &plan.settings;
            let is_its = |pod: &&SimPod| pod.fleet.as_ref() == Some(&settings.id) && pod.is_up();
            let is_known = |pod: &&SimPod| !pod.is_created_by_old_plane && !self.is_unseen(&settings.id, pod);
            let there: Vec<_> = account.ours().filter(is_its).filter(is_known).collect();
            let (count, most) = (there.len(), plan.maximum(at) as usize);
            // A pod above the agreed price is returned as soon as the plane sees the price.
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
            self.violated(Law::S5, at, format!("there are two pods {}", two[0]));
        }
    }

    /// Whether the plane could not know of this pod.
    fn is_unseen(&self, fleet: &FleetId, pod: &SimPod) -> bool {
        let omitted = self.pods.omitted.get(&(fleet.clone(), pod.id.clone())).copied();
        let is_lost = pod.is_unrecorded && omitted.is_some_and(|omitted| omitted >= LISTS_UNHEARD_MIN);
        is_lost || self.pods.unseen.contains(&pod.tag)
    }

    /// L4 and S8: after the storm every pod of ours has a record, every record has a pod, and returned pods disappear.
    pub(crate) fn check_pods(
        &mut self,
        at: u64,
        plane: Option<(&Plane, Timestamp)>,
        account: &Account,
        scenario: &Scenario,
        is_calm: bool,
    ) {
        let checked_at = std::mem::replace(&mut self.pods.checked_at, at);
        if scenario.fleets.is_empty() {
            return;
        }
        let is_deciding = plane.is_some_and(|(plane, now)| {
            now.since(self.stepped_at) < self.rules.plane_stall_max && !plane.mass_loss().is_on()
        });
        if !is_deciding {
            self.pods.add_absence(checked_at, at);
        }
        let Some((plane, now)) = plane else { return };
        self.check_drains_end(now, at, plane, scenario);
        self.check_daily_budget(at, account, scenario);
        self.check_key(at, plane, scenario);
        self.check_maximum(now, at, plane, scenario);
        self.check_returns_go_on(now, at, plane);
        if !is_calm {
            return;
        }
        self.check_pods_have_records(at, plane, account);
        self.check_records_have_pods(now, at, plane, account, scenario);
        self.check_machine_comes(at, plane, account, scenario);
    }

    /// L4: the return of a machine is requested until it is gone, whatever else its provider refuses.
    fn check_returns_go_on(&mut self, now: Timestamp, at: u64, plane: &Plane) {
        let listens = self.listens_for(now, Duration::from_millis(RETURN_REPEATED_WITHIN));
        let mut returning = BTreeMap::new();
        let mut found = None;
        for rental in plane.rentals().filter(|rental| listens && rental.phase() == RentalPhase::Returning) {
            let Some(pod) = rental.pod() else { continue };
            let since = self.pods.returning_since.get(&pod.id).copied().unwrap_or(at);
            returning.insert(pod.id.clone(), since);
            let requested = self.pods.return_requested.get(&pod.id).copied().unwrap_or(0);
            let quiet = self.pods.quiet_allowed_until.get(&rental.fleet).copied().unwrap_or(0);
            if at > since.max(requested).max(quiet) + RETURN_REPEATED_WITHIN {
                found = Some(format!(
                    "{} is to be returned, and that was last requested at {requested} ms",
                    rental.tag
                ));
            }
        }
        self.pods.returning_since = returning;
        if let Some(what) = found {
            self.violated(Law::L4, at, what);
        }
    }

    fn check_pods_have_records(&mut self, at: u64, plane: &Plane, account: &Account) {
        let mut odd = BTreeMap::new();
        let mut found = None;
        for pod in account.ours() {
            let rental = pod.machine().and_then(|machine| plane.rental(&machine));
            let what = match rental.map(|rental| rental.phase()) {
                None => "without a record",
                Some(RentalPhase::Returning) => "to be returned",
                Some(_) if pod.is_dead || pod.stopped_at.is_some() => "dead",
                Some(_) => continue,
            };
            let since = self.pods.wrong_since.get(&(pod.id.clone(), what)).copied().unwrap_or(at);
            odd.insert((pod.id.clone(), what), since);
            let listed = pod.fleet.as_ref().and_then(|fleet| self.pods.calm_list.get(fleet));
            // A machine whose worker is silent may be unreachable; it stops itself after fifteen minutes.
            let bound = if what == "dead" { RESOLVED_WITHIN + 900_000 } else { RESOLVED_WITHIN };
            if listed.is_some_and(|listed| at > since.max(*listed) + bound) {
                found = Some(format!("{} is {what} since {since} ms", pod.tag));
            }
        }
        self.pods.wrong_since = odd;
        if let Some(what) = found {
            self.violated(Law::L4, at, what);
        }
    }

    /// A machine whose creation was not confirmed is looked for as long as its pod may still appear, whether it was given
    /// up meanwhile or not; only then has it to go.
    fn check_records_have_pods(
        &mut self,
        now: Timestamp,
        at: u64,
        plane: &Plane,
        account: &Account,
        scenario: &Scenario,
    ) {
        let mut empty = BTreeMap::new();
        let mut found = None;
        let is_looked_for = |rental: &Rental| {
            let plan = scenario.fleets.iter().find(|plan| plan.settings.id == rental.fleet);
            let limit = plan.map_or(Duration::ZERO, |plan| plan.settings.limits.lost_create_timeout);
            rental.pod().is_none() && now.since(rental.wanted_at) < limit
        };
        for rental in plane.rentals() {
            let is_made = matches!(
                rental.phase(),
                RentalPhase::Made | RentalPhase::Up | RentalPhase::Draining | RentalPhase::Returning
            );
            if !is_made || is_looked_for(rental) || account.with_tag(&rental.tag).next().is_some() {
                continue;
            }
            let since = self.pods.empty_since.get(&rental.tag).copied().unwrap_or(at);
            empty.insert(rental.tag.clone(), since);
            let listed = self.pods.calm_list.get(&rental.fleet);
            if listed.is_some_and(|listed| at > since.max(*listed) + RESOLVED_WITHIN) {
                found = Some(format!(
                    "{} is recorded as {} and its pod is gone",
                    rental.tag,
                    rental.phase().as_str()
                ));
            }
        }
        self.pods.empty_since = empty;
        if let Some(what) = found {
            self.violated(Law::L4, at, what);
        }
    }

    /// P16: jobs that only a fleet can run bring a machine.
    fn check_machine_comes(&mut self, at: u64, plane: &Plane, account: &Account, scenario: &Scenario) {
        let waits = plane.ready_jobs() > 0 && scenario.hosts.is_empty();
        if !waits || account.ours().any(SimPod::is_up) {
            self.pods.idle_since = None;
            return;
        }
        let since = *self.pods.idle_since.get_or_insert(at);
        if at > since + CREATED_WITHIN {
            self.pods.idle_since = None;
            self.violated(Law::L1, at, format!("jobs wait since {since} ms, and no machine was created"));
        }
    }
}
