//! Lists of pods, and timed provider calls: lists, prices, returns.
//!
//! A pod that a list shows exists. A missing pod counts as gone after two lists in a row and a grace period; one that is
//! known from lists only (an orphan, or a machine that has not joined) after five. If most expected pods are missing at once, the list is doubted instead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Fleets;
use crate::fleet::FleetSettings;
use crate::id::{FleetId, MachineId};
use crate::orphan::Orphan;
use crate::plane::{FleetEvent, Outbox};
use crate::provider::{LISTS_MIN, LISTS_UNHEARD_MIN, Pod, PodTag, ProviderCall, ProviderError};
use crate::rental::{Rental, RentalState};
use crate::settings::Settings;
use crate::supervise::Backoff;
use crate::time::{Timestamp, humanize};

/// Interval between lists while machines are coming or going.
const LIST_BUSY: Duration = Duration::from_secs(5);
/// A call that takes longer counts as unanswered.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const PRICES_EVERY: Duration = Duration::from_secs(3600);
/// With a budget, nothing can be rented until the price is known.
const PRICES_MISSING: Duration = Duration::from_secs(60);
/// Lists in a row that must lack most expected pods before they are believed.
const DOUBTS_MAX: u32 = 5;
/// A single missing pod is normal.
const MISSING_MIN: usize = 2;

/// What a fleet's provider has answered since this plane started.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    asked_at: Option<Timestamp>,
    answered_at: Option<Timestamp>,
    /// A worker's connection dropped: the next list is due soon.
    is_urgent: bool,
    /// Failed lists in a row; they make lists less frequent.
    failed: u32,
    /// Since when every list was answered, and none was missing: before that our own link may have been down.
    steady_since: Option<Timestamp>,
    /// The last list was complete.
    pub(super) is_known: bool,
    /// Complete lists so far.
    complete: u32,
    /// Lists in a row that lacked most expected pods.
    pub(super) doubtful: u32,
    priced_at: Option<Timestamp>,
}

impl Lists {
    /// Whether the provider's pods are known. A restored plane needs several complete lists, because a single one may
    /// omit any pod.
    pub(super) fn tell_all(&self, is_restored: bool) -> bool {
        self.is_known && (!is_restored || self.complete >= LISTS_MIN)
    }
}

impl Fleets {
    /// Takes note of the answer to a list call, made `every` so often; returns when it was requested.
    pub(in crate::plane) fn list_answered(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        is_complete: bool,
        every: Duration,
    ) -> Option<Timestamp> {
        let lists = self.lists.entry(id.clone()).or_default();
        let asked_at = lists.asked_at.take();
        let has_gap = lists.answered_at.is_none_or(|before| now.since(before) >= (every * 2).max(ANSWER_MAX));
        lists.steady_since = match lists.steady_since {
            _ if !is_complete => None,
            Some(since) if !has_gap => Some(since),
            Some(_) | None => Some(now),
        };
        lists.answered_at = Some(now);
        lists.is_known = is_complete;
        lists.complete = lists.complete.saturating_add(u32::from(is_complete));
        lists.failed = if is_complete { 0 } else { lists.failed.saturating_add(1) };
        asked_at
    }

    /// Whether its provider has answered every list for this long: our link works, and every worker that could be heard was.
    pub(in crate::plane) fn is_listed_steadily(
        &self,
        now: Timestamp,
        id: &FleetId,
        within: Duration,
    ) -> bool {
        let since = self.lists.get(id).and_then(|lists| lists.steady_since);
        since.is_some_and(|since| now.since(since) >= within)
    }

    /// A machine costs more than its offer was said to: the prices have changed since they were asked for.
    pub(in crate::plane) fn expire_prices(&mut self, id: &FleetId) {
        self.lists.entry(id.clone()).or_default().priced_at = None;
    }

    /// The provider refused the key. The next list confirms that, or shows that it was a mistake.
    pub(in crate::plane) fn key_refused(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        fault: &ProviderError,
        list_asked_at: Option<Timestamp>,
    ) {
        let since = self.states.get(id).and_then(|fleet| fleet.key_refusal.as_ref()).map(|it| it.since);
        let is_later = list_asked_at.zip(since).is_some_and(|(asked_at, since)| asked_at >= since);
        self.state_mut(id).key_refused(now, &fault.message, is_later);
        self.lists.entry(id.clone()).or_default().is_urgent = true;
    }

    /// A worker's connection dropped: if its machine is rented, the provider may know why. False if it is not.
    pub(in crate::plane) fn expedite_list(&mut self, machine: &MachineId) -> bool {
        let Some(fleet) = self.rentals.get(machine).map(|rental| rental.fleet.clone()) else { return false };
        self.lists.entry(fleet).or_default().is_urgent = true;
        true
    }

    /// Makes the calls that are due at a fleet's provider; returns when to look again.
    pub(in crate::plane) fn call_provider(
        &mut self,
        now: Timestamp,
        settings: &FleetSettings,
        outbox: &mut Outbox,
    ) -> Timestamp {
        let quiet = self.states.get(&settings.id).and_then(|fleet| fleet.quiet_until.as_ref());
        if let Some(quiet) = quiet.filter(|quiet| !quiet.is_over(now)) {
            return quiet.until;
        }
        let list = self.request_list(now, settings, outbox);
        let prices = self.request_prices(now, settings, outbox);
        list.min(prices).min(self.request_returns(now, settings, outbox))
    }

    /// Splits pods into those of this fleet's machines and strays: duplicates, and pods with our tag but without a
    /// record.
    pub(in crate::plane) fn split_pods(
        &self,
        id: &FleetId,
        pods: Vec<Pod>,
        settings: &Settings,
    ) -> (BTreeMap<MachineId, Pod>, Vec<Pod>) {
        let (mut ours, mut strays) = (BTreeMap::<MachineId, Pod>::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for pod in pods.into_iter().filter(|pod| seen.insert(pod.id.clone())) {
            let Some(tag) = PodTag::parse(&pod.tag) else { continue };
            if Some(tag.deployment) != self.deployment.as_deref() {
                continue;
            }
            let is_own = tag.fleet == id.as_str();
            // No other fleet looks after the pods of a fleet that was removed from the settings.
            let is_left = settings.fleets.iter().all(|fleet| fleet.id.as_str() != tag.fleet);
            if !is_own && !is_left {
                continue;
            }
            let machine = format!("{}-{}", tag.fleet, tag.number).parse::<MachineId>().ok();
            let machine = machine.filter(|machine| self.rentals.contains_key(machine));
            match machine {
                // Of two pods with the same tag, the known one counts, else the one created first: lists begin with
                // the newest.
                Some(machine) => {
                    let known = self.rentals.get(&machine).and_then(|rental| rental.pod()).map(|pod| &pod.id);
                    match ours.remove(&machine) {
                        Some(other) if known == Some(&other.id) => {
                            strays.push(pod);
                            ours.insert(machine, other);
                        }
                        Some(other) => {
                            strays.push(other);
                            ours.insert(machine, pod);
                        }
                        None => drop(ours.insert(machine, pod)),
                    }
                }
                None => strays.push(pod),
            }
        }
        (ours, strays)
    }

    /// Fleets may share an account: a pod that this list shows and that belongs to another fleet exists. If it has no
    /// record, the other fleet counts it as an orphan, unless enough lists of its own have told it what it has.
    pub(in crate::plane) fn note_orphans_of_others(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        pods: &[Pod],
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let mut changed = BTreeSet::new();
        for pod in pods {
            let tag =
                PodTag::parse(&pod.tag).filter(|tag| Some(tag.deployment) == self.deployment.as_deref());
            let Some(tag) = tag.filter(|tag| tag.fleet != id.as_str()) else { continue };
            let Some(owner) = settings.fleets.iter().map(|it| &it.id).find(|it| it.as_str() == tag.fleet)
            else {
                continue;
            };
            let machine = format!("{}-{}", tag.fleet, tag.number).parse::<MachineId>();
            let has_record = machine.is_ok_and(|machine| self.rentals.contains_key(&machine));
            let is_told = self.lists.get(owner).is_some_and(|lists| lists.complete >= LISTS_UNHEARD_MIN);
            if has_record || is_told || self.state_mut(owner).orphans.contains_key(&pod.id) {
                continue;
            }
            self.state_mut(owner).orphans.insert(pod.id.clone(), Orphan::new(now, pod));
            changed.insert(owner);
        }
        changed.into_iter().for_each(|owner| self.store_fleet(owner, outbox));
    }

    /// Whether so many pods are missing at once that the list is more likely wrong than true.
    pub(in crate::plane) fn check_list(
        &mut self,
        now: Timestamp,
        settings: &FleetSettings,
        ours: &BTreeMap<MachineId, Pod>,
        outbox: &mut Outbox,
    ) -> bool {
        let is_expected = |rental: &&Rental| {
            let seen_at = rental.pod().map(|pod| pod.seen_at);
            let long_made = seen_at.is_some_and(|at| now.since(at) >= settings.limits.list_lag_max);
            !rental.is_returning() && long_made
        };
        let expected: Vec<_> = self.of_fleet(&settings.id).filter(is_expected).collect();
        let missing = expected.iter().filter(|rental| !ours.contains_key(&rental.machine)).count();
        let total = expected.len();
        let is_too_much = missing >= MISSING_MIN && missing * 2 > total;
        let lists = self.lists.entry(settings.id.clone()).or_default();
        lists.doubtful = if is_too_much { lists.doubtful + 1 } else { 0 };
        let is_doubtful = is_too_much && lists.doubtful <= DOUBTS_MAX;
        if is_doubtful && lists.doubtful == 1 {
            let reason = format!(
                "its provider's list lacks {missing} of {total} machines: the list is ignored for now"
            );
            outbox.publish(now, FleetEvent::Doubt { fleet: &settings.id, reason });
        }
        is_doubtful
    }

    /// Notes for every machine of the fleet whether the list shows its pod; a doubtful list proves no absence.
    pub(in crate::plane) fn match_pods(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        (ours, is_doubtful): (&BTreeMap<MachineId, Pod>, bool),
        settings: &Settings,
        outbox: &mut Outbox,
    ) {
        let machines: Vec<_> = self.of_fleet(id).map(|rental| rental.machine.clone()).collect();
        for machine in machines {
            if let Some(pod) = ours.get(&machine) {
                self.book_repriced(now, &machine, pod, settings, outbox);
            }
            let Some(rental) = self.rentals.get_mut(&machine) else { continue };
            let before = rental.clone();
            let has_moved = match ours.get(&machine) {
                Some(pod) => rental.seen(now, pod),
                None => {
                    if !is_doubtful {
                        rental.was_missed();
                    }
                    false
                }
            };
            if *rental != before {
                self.store_rental(&machine, outbox);
            }
            if has_moved {
                self.publish_phase(now, &machine, outbox);
            }
        }
    }

    /// Pods with our tag and without a record are returned after a grace period. Until then, and until they are known to
    /// be gone, they take capacity and money.
    pub(in crate::plane) fn track_orphans(
        &mut self,
        now: Timestamp,
        settings: &FleetSettings,
        mut strays: Vec<Pod>,
        all: &Settings,
        outbox: &mut Outbox,
    ) {
        let id = &settings.id;
        // The pods of a fleet that was removed appear in the lists of all others: the first one looks after them.
        strays.retain(|pod| {
            let others = self.states.iter().filter(|(other, _)| *other != id && all.fleet(other).is_some());
            !others.into_iter().any(|(_, fleet)| fleet.orphans.contains_key(&pod.id))
        });
        let can_call_provider = self.state(id).can_call_provider(now);
        let fleet = self.state_mut(id);
        let before = fleet.orphans.clone();
        fleet.track_orphans(now, settings, &strays);
        for pod in &strays {
            let is_due = fleet.orphans.get(&pod.id).is_some_and(|orphan| orphan.is_due(now, settings));
            if is_due && can_call_provider {
                orphan_returned(now, id, pod, outbox);
            }
        }
        if fleet.orphans != before {
            self.store_fleet(id, outbox);
        }
    }

    fn request_list(&mut self, now: Timestamp, settings: &FleetSettings, outbox: &mut Outbox) -> Timestamp {
        let is_moving = self.of_fleet(&settings.id).any(|rental| match rental.state() {
            RentalState::Lost { .. } | RentalState::Returning { .. } => true,
            RentalState::Made { .. } => {
                rental.missed() > 0 || rental.running_at().is_none() || settings.needs_bootstrap
            }
            RentalState::Up { .. } | RentalState::Draining { .. } => {
                rental.missed() > 0 || rental.pod().is_some_and(|pod| pod.ended() > 0)
            }
            RentalState::Wanted => false,
        });
        let has_orphans = self.orphans(&settings.id) > 0;
        let (every, is_restored) = (settings.limits.list_every, self.is_restored);
        let lists = self.lists.entry(settings.id.clone()).or_default();
        // Connections drop often; they never make lists more frequent than this.
        let is_new = is_restored && lists.complete < LISTS_MIN;
        let is_busy = is_moving || has_orphans || is_new || lists.is_urgent;
        let every = if is_busy { every.min(LIST_BUSY) } else { every };
        let due = match (lists.asked_at, lists.answered_at) {
            (Some(asked_at), _) => asked_at.plus(ANSWER_MAX),
            (None, Some(answered_at)) => {
                let delay_max = every.saturating_mul(16).min(every.max(ANSWER_MAX));
                answered_at.plus(Backoff::new(every, delay_max).delay(lists.failed))
            }
            (None, None) => now,
        };
        if now < due {
            return due;
        }
        lists.is_urgent = false;
        lists.asked_at = Some(now);
        outbox.call_provider(&settings.id, ProviderCall::List);
        now.plus(ANSWER_MAX)
    }

    fn request_prices(&mut self, now: Timestamp, settings: &FleetSettings, outbox: &mut Outbox) -> Timestamp {
        let known = self.states.get(&settings.id).map(|fleet| &fleet.prices);
        let is_known = settings.offers.iter().all(|offer| known.is_some_and(|it| it.contains_key(offer)));
        let is_needed = settings.hour_max.is_some() || settings.day_max.is_some();
        let every = if is_needed && !is_known { PRICES_MISSING } else { PRICES_EVERY };
        let lists = self.lists.entry(settings.id.clone()).or_default();
        let due = lists.priced_at.map_or(now, |at| at.plus(every));
        if now < due {
            return due;
        }
        lists.priced_at = Some(now);
        outbox.call_provider(&settings.id, ProviderCall::Price);
        now.plus(every)
    }

    /// Repeats return calls until the pod is proven gone, and raises an alert when that takes long.
    fn request_returns(
        &mut self,
        now: Timestamp,
        settings: &FleetSettings,
        outbox: &mut Outbox,
    ) -> Timestamp {
        let returning = self.of_fleet(&settings.id).filter(|rental| rental.is_returning());
        let machines: Vec<_> = returning.map(|rental| rental.machine.clone()).collect();
        let mut next = Timestamp::NEVER;
        for machine in machines {
            self.request_return(now, &machine, outbox);
            let Some(rental) = self.rentals.get_mut(&machine) else { continue };
            let alarm_at = rental.since.plus(settings.limits.return_timeout);
            if rental.take_return_alarm(now, settings.limits.return_timeout) {
                let reason = slow_return(rental, settings.limits.return_timeout);
                outbox.publish(now, FleetEvent::MachineAlarm { rental, reason });
                self.store_rental(&machine, outbox);
            } else if now < alarm_at {
                next = next.min(alarm_at);
            }
            if let Some(at) = self.rentals.get(&machine).and_then(|rental| rental.return_progress()?.next_at)
            {
                next = next.min(at);
            }
        }
        next
    }
}

fn orphan_returned(now: Timestamp, id: &FleetId, pod: &Pod, outbox: &mut Outbox) {
    let reason = format!("pod {} is called {} and has no record here", pod.id, pod.tag);
    outbox.publish(now, FleetEvent::MachineOrphan { fleet: id, pod, reason });
    outbox.call_provider(id, ProviderCall::Return { pod: pod.id.clone() });
}

/// For an operator: only the provider's console can tell more.
fn slow_return(rental: &Rental, limit: Duration) -> String {
    let pod = rental.pod();
    let pod = pod.map_or("a pod that was never seen".to_owned(), |pod| format!("pod {}", pod.id));
    format!(
        "{pod} was to be returned {} ago and is still not gone, after {} requests: check your provider's console",
        humanize(limit),
        rental.return_progress().map_or(0, |progress| progress.requests)
    )
}
