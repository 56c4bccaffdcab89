//! Lists of pods, and timed provider calls: lists, prices, returns.
//!
//! A pod that a list shows exists. A missing pod counts as gone after two lists in a row and a grace period; an
//! orphan, known from lists only, after five. If most expected pods are missing at once, the list is doubted instead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::attempts::Blame;
use super::rentals::offered_kind;
use super::{DomainEvent, Plane};
use crate::alarm::Alarm;
use crate::fleet::{Fleet, FleetSettings};
use crate::id::{FleetId, MachineId, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::money::Money;
use crate::provider::{BootstrapError, Pod, PodStatus, PodTag, ProviderCall, ProviderError};
use crate::rental::{Bootstrap, LISTS_MIN, Rental, RentalPhase, Sighting};
use crate::supervise::Backoff;
use crate::time::{Timestamp, humanize};
use crate::verdict::AttemptVerdict;

/// Interval between lists while machines are coming or going.
const LIST_BUSY: Duration = Duration::from_secs(5);
/// A call that takes longer counts as unanswered.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const PRICES_EVERY: Duration = Duration::from_secs(3600);
/// With a budget, nothing can be rented until the price is known.
const PRICES_MISSING: Duration = Duration::from_secs(60);
/// Lists in a row that must lack most expected pods before they are believed; also for an orphan, which is known from
/// lists only. An orphan forgotten too early would free its budget while it still bills, and restart its grace
/// period.
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

/// A pod with our tag that has no record.
#[derive(Clone, Debug)]
pub(super) struct Orphan {
    pub(super) fleet: FleetId,
    kind: String,
    /// It bills until it is gone.
    price: Option<Money>,
    since: Timestamp,
    lists: u32,
    /// Lists in a row that did not show it.
    missed: u32,
}

impl Orphan {
    /// Its hourly price: as reported, else that of its kind, else the highest of the fleet.
    pub(super) fn price(&self, fleet: &Fleet, settings: &FleetSettings) -> Option<Money> {
        let its_kind = fleet.prices.iter().filter(|(offer, _)| offered_kind(offer) == self.kind);
        let likely = its_kind.map(|(_, price)| *price).max();
        self.price.or(likely).or_else(|| fleet.prices.values().copied().max()).or(settings.price_max)
    }
}

impl Plane {
    pub(super) fn apply_list(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        result: Result<Vec<Pod>, ProviderError>,
    ) {
        let lists = self.fleets.lists.entry(id.clone()).or_default();
        (lists.asked_at, lists.answered_at) = (None, Some(now));
        lists.is_known = result.is_ok();
        lists.complete = lists.complete.saturating_add(u32::from(lists.is_known));
        lists.failed = if lists.is_known { 0 } else { lists.failed.saturating_add(1) };
        let pods = match result {
            Ok(pods) => pods,
            Err(fault) => return self.provider_failed(now, id, "list", &fault),
        };
        self.provider_answered(id);
        let Some(settings) = self.fleet_settings(id).cloned() else { return };
        let (ours, strays) = self.split_pods(id, pods);
        let is_doubtful = self.check_list(now, &settings, &ours);
        self.match_pods(now, id, &ours, is_doubtful);
        if !is_doubtful {
            self.track_orphans(now, &settings, &strays);
        }
        self.judge_machines(now, &settings);
    }

    /// Splits pods into those of this fleet's machines and strays: duplicates, and pods with our tag but without a
    /// record.
    fn split_pods(&self, id: &FleetId, pods: Vec<Pod>) -> (BTreeMap<MachineId, Pod>, Vec<Pod>) {
        let (mut ours, mut strays) = (BTreeMap::<MachineId, Pod>::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for pod in pods.into_iter().filter(|pod| seen.insert(pod.id.clone())) {
            let Some(tag) = PodTag::parse(&pod.tag) else { continue };
            if Some(tag.deployment) != self.fleets.deployment.as_deref() {
                continue;
            }
            let is_own = tag.fleet == id.as_str();
            // No other fleet looks after the pods of a fleet that was removed from the settings.
            let is_left = self.settings.fleets.iter().all(|fleet| fleet.id.as_str() != tag.fleet);
            if !is_own && !is_left {
                continue;
            }
            let machine = format!("{}-{}", tag.fleet, tag.number).parse::<MachineId>().ok();
            let machine = machine.filter(|machine| self.fleets.rentals.contains_key(machine));
            match machine {
                // Of two pods with the same tag, the known one counts, else the one created first: lists begin with
                // the newest.
                Some(machine) => {
                    let known = self.fleets.rentals.get(&machine).and_then(|rental| rental.pod.clone());
                    match ours.remove(&machine) {
                        Some(other) if known.as_ref() == Some(&other.id) => {
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

    /// Whether so many pods are missing at once that the list is more likely wrong than true.
    fn check_list(
        &mut self,
        now: Timestamp,
        settings: &FleetSettings,
        ours: &BTreeMap<MachineId, Pod>,
    ) -> bool {
        let is_expected = |rental: &&Rental| {
            let long_made = rental.made_at.is_some_and(|at| now.since(at) >= settings.limits.list_lag_max);
            rental.phase != RentalPhase::Returning && long_made
        };
        let expected: Vec<_> = self.rentals_of(&settings.id).filter(is_expected).collect();
        let missing = expected.iter().filter(|rental| !ours.contains_key(&rental.machine)).count();
        let total = expected.len();
        let is_too_much = missing >= MISSING_MIN && missing * 2 > total;
        let lists = self.fleets.lists.entry(settings.id.clone()).or_default();
        lists.doubtful = if is_too_much { lists.doubtful + 1 } else { 0 };
        let is_doubtful = is_too_much && lists.doubtful <= DOUBTS_MAX;
        if is_doubtful && lists.doubtful == 1 {
            let reason = format!(
                "its provider's list lacks {missing} of {total} machines: the list is ignored for now"
            );
            self.outbox.publish(now, DomainEvent::FleetDoubt { fleet: &settings.id, reason });
        }
        is_doubtful
    }

    fn match_pods(
        &mut self,
        now: Timestamp,
        id: &FleetId,
        ours: &BTreeMap<MachineId, Pod>,
        is_doubtful: bool,
    ) {
        let machines: Vec<_> = self.rentals_of(id).map(|rental| rental.machine.clone()).collect();
        for machine in machines {
            let Some(rental) = self.fleets.rentals.get_mut(&machine) else { continue };
            let before = rental.clone();
            match ours.get(&machine) {
                Some(pod) => rental.seen(now, pod),
                None if !is_doubtful => rental.missed = rental.missed.saturating_add(1),
                None => {}
            }
            if *rental != before {
                let has_moved = rental.phase != before.phase;
                self.store_rental(&machine);
                if has_moved {
                    self.machine_state(now, &machine);
                }
            }
            if let Some(pod) = ours.get(&machine) {
                self.judge_pod(now, &machine, pod);
            }
        }
    }

    /// Pods with our tag and without a record are returned after a grace period.
    fn track_orphans(&mut self, now: Timestamp, settings: &FleetSettings, strays: &[Pod]) {
        let id = &settings.id;
        let there: BTreeSet<_> = strays.iter().map(|pod| pod.id.clone()).collect();
        // An orphan takes capacity and budget until it is known to be gone.
        self.fleets.orphans.retain(|pod, orphan| {
            if orphan.fleet == *id {
                orphan.missed = if there.contains(pod) { 0 } else { orphan.missed + 1 };
            }
            orphan.missed < DOUBTS_MAX
        });
        for pod in strays {
            let (fleet, kind) = (id.clone(), pod.kind.clone());
            let fresh = Orphan { fleet, kind, price: None, since: now, lists: 0, missed: 0 };
            let orphan = self.fleets.orphans.entry(pod.id.clone()).or_insert(fresh);
            orphan.lists += 1;
            orphan.price = pod.price.filter(|price| *price > Money::ZERO).or(orphan.price);
            let (since, lists) = (orphan.since, orphan.lists);
            let is_over = now.since(since) >= settings.limits.orphan_grace && lists >= 2;
            let can_call_provider =
                self.fleets.fleets.get(id).is_none_or(|fleet| fleet.can_call_provider(now));
            if is_over && can_call_provider {
                self.orphan_returned(now, id, pod, lists);
            }
        }
    }

    fn orphan_returned(&mut self, now: Timestamp, id: &FleetId, pod: &Pod, lists: u32) {
        let reason = format!("pod {} is called {} and has no record here", pod.id, pod.tag);
        self.outbox.publish(now, DomainEvent::MachineOrphan { fleet: id, pod, lists, reason });
        self.call(id, ProviderCall::Return { pod: pod.id.clone() });
    }

    /// Draws conclusions from pods seen and missed.
    fn judge_machines(&mut self, now: Timestamp, settings: &FleetSettings) {
        let machines: Vec<_> = self.rentals_of(&settings.id).map(|rental| rental.machine.clone()).collect();
        for machine in machines {
            let workers = self.workers_on(&machine);
            // After a restart no worker counts as silent yet; each gets time to beat.
            let silence_max = self.settings.beat_idle * 3 / 2;
            let is_heard = workers.iter().filter_map(|worker| self.workers.get(worker)).any(|worker| {
                worker.presence != Presence::Offline && worker.watch.silent_for(now) < silence_max
            });
            let Some(rental) = self.fleets.rentals.get(&machine) else { continue };
            let was_up = matches!(rental.phase, RentalPhase::Up | RentalPhase::Draining);
            // Ordered, searched for long enough and never seen. If it appears later, it is an orphan.
            let is_myth = rental.phase == RentalPhase::Returning
                && rental.made_at.is_none()
                && rental.missed >= 2
                && now.since(rental.wanted_at) >= settings.limits.lost_create_timeout;
            if is_myth {
                self.forget_rental(now, &machine, "never seen");
                continue;
            }
            match (rental.sighting(now, is_heard, settings.limits.list_lag_max), rental.phase) {
                (Sighting::Nothing, _) => {}
                (Sighting::Gone, RentalPhase::Returning) => self.forget_rental(now, &machine, "returned"),
                (Sighting::Gone, _) => {
                    self.give_up(now, &machine, AttemptVerdict::MachineLost, "its provider no longer has it");
                    self.forget_rental(now, &machine, "gone from its provider");
                }
                (Sighting::Ended, _) => {
                    let reason = if was_up { "its provider stopped it" } else { "it ended before it was up" };
                    self.give_up(now, &machine, AttemptVerdict::MachineLost, reason);
                }
            }
        }
    }

    /// Gives up a machine whatever its state; the attempts of its workers are requeued.
    pub(super) fn give_up(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        verdict: AttemptVerdict,
        reason: &str,
    ) {
        self.move_rental(now, machine, WorkerState::Error, reason);
        for worker in self.workers_on(machine) {
            let held: Vec<_> = self
                .workers
                .get(&worker)
                .map(|it| it.assignments.keys().copied().collect())
                .unwrap_or_default();
            for job in held {
                let why = format!("machine {machine} was given up: {reason}");
                self.lose(now, job, verdict, why, Blame::Unrelated);
            }
        }
    }

    /// Makes the provider calls that are due.
    pub(super) fn run_provider_calls(&mut self, now: Timestamp) {
        let fleets: Vec<_> = self.settings.fleets.iter().filter(|fleet| fleet.can_rent).cloned().collect();
        let mut next = Timestamp::NEVER;
        for settings in fleets {
            let fleet = self.fleet(&settings.id);
            if let Some(quiet) = fleet.quiet_until.filter(|quiet| !quiet.is_over(now)) {
                next = next.min(quiet.until);
                continue;
            }
            next = next.min(self.request_list(now, &settings)).min(self.request_prices(now, &settings));
            next = next.min(self.request_returns(now, &settings));
        }
        let due = self.cycle_due();
        if due <= now {
            self.cycle_soon(now);
        } else {
            next = next.min(due);
        }
        let next = Some(next.max(now.plus(super::TICK_MAX))).filter(|at| *at < Timestamp::NEVER);
        self.outbox.set_alarm(Alarm::Provider, next);
    }

    /// A worker's connection dropped: if its machine is rented, the provider may know why.
    pub(super) fn expedite_list(&mut self, now: Timestamp, id: &WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(fleet) = self.fleets.rentals.get(&worker.machine).map(|rental| rental.fleet.clone()) else {
            return;
        };
        self.fleets.lists.entry(fleet).or_default().is_urgent = true;
        self.outbox.set_alarm(Alarm::Provider, Some(now));
    }

    fn request_list(&mut self, now: Timestamp, settings: &FleetSettings) -> Timestamp {
        let is_moving = self.rentals_of(&settings.id).any(|rental| match rental.phase {
            RentalPhase::Lost | RentalPhase::Returning => true,
            RentalPhase::Made => rental.running_at.is_none() || settings.needs_bootstrap,
            RentalPhase::Up | RentalPhase::Draining => rental.ended > 0 || rental.missed > 0,
            RentalPhase::Wanted => false,
        });
        let has_orphans = self.fleets.orphans.values().any(|orphan| orphan.fleet == settings.id);
        let (every, is_restored) = (settings.limits.list_every, self.fleets.is_restored);
        let lists = self.fleets.lists.entry(settings.id.clone()).or_default();
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
        self.call(&settings.id, ProviderCall::List);
        now.plus(ANSWER_MAX)
    }

    fn request_prices(&mut self, now: Timestamp, settings: &FleetSettings) -> Timestamp {
        let known = self.fleets.fleets.get(&settings.id).map(|fleet| &fleet.prices);
        let is_known = settings.offers.iter().all(|offer| known.is_some_and(|it| it.contains_key(offer)));
        let is_needed = settings.hour_max.is_some() || settings.day_max.is_some();
        let every = if is_needed && !is_known { PRICES_MISSING } else { PRICES_EVERY };
        let lists = self.fleets.lists.entry(settings.id.clone()).or_default();
        let due = lists.priced_at.map_or(now, |at| at.plus(every));
        if now < due {
            return due;
        }
        lists.priced_at = Some(now);
        self.call(&settings.id, ProviderCall::Price);
        now.plus(every)
    }

    /// Repeats return calls until the pod is proven gone, and raises an alert when that takes long.
    fn request_returns(&mut self, now: Timestamp, settings: &FleetSettings) -> Timestamp {
        let returning = self.rentals_of(&settings.id).filter(|rental| rental.phase == RentalPhase::Returning);
        let machines: Vec<_> = returning.map(|rental| rental.machine.clone()).collect();
        let mut next = Timestamp::NEVER;
        for machine in machines {
            self.request_return(now, &machine);
            let Some(rental) = self.fleets.rentals.get_mut(&machine) else { continue };
            let alarm_at = rental.since.plus(settings.limits.return_timeout);
            if now >= alarm_at && !rental.return_alarm_sent {
                rental.return_alarm_sent = true;
                let reason = slow_return(rental, settings.limits.return_timeout);
                self.outbox.publish(now, DomainEvent::MachineAlarm { rental, reason });
                self.store_rental(&machine);
            } else if now < alarm_at {
                next = next.min(alarm_at);
            }
            if let Some(at) = self.fleets.rentals.get(&machine).and_then(|rental| rental.return_at) {
                next = next.min(at);
            }
        }
        next
    }

    /// When time alone makes a machine overdue or ends a drain.
    fn cycle_due(&self) -> Timestamp {
        let rentals = self.fleets.rentals.values().filter_map(|rental| {
            let settings = self.fleet_settings(&rental.fleet)?;
            rental.due_at(settings)
        });
        let draining = self.workers.iter().filter(|worker| worker.state == WorkerState::Terminating);
        rentals.chain(draining.filter_map(|worker| worker.drain_until)).min().unwrap_or(Timestamp::NEVER)
    }

    /// Installs a worker on a machine whose image starts none, as soon as SSH is reachable.
    pub(super) fn prepare(&mut self, now: Timestamp, machine: &MachineId, pod: &Pod) {
        let Some(rental) = self.fleets.rentals.get(machine) else { return };
        let id = rental.fleet.clone();
        let is_wanted = rental.phase == RentalPhase::Made
            && rental.joined_at.is_none()
            && pod.status == PodStatus::Running
            && pod.ssh.is_some()
            && self.fleet_settings(&id).is_some_and(|settings| settings.needs_bootstrap);
        let is_visited =
            matches!(self.fleets.bootstraps.get(machine), Some(Bootstrap::Running | Bootstrap::Done));
        if is_wanted && !is_visited {
            self.fleets.bootstraps.insert(machine.clone(), Bootstrap::Running);
            self.outbox.publish(now, DomainEvent::MachinePreparing(machine));
            self.call(&id, ProviderCall::Bootstrap { machine: machine.clone(), pod: Box::new(pod.clone()) });
        }
    }

    pub(super) fn prepared(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        result: Result<(), BootstrapError>,
    ) {
        if !self.fleets.rentals.contains_key(machine) {
            return;
        }
        let bootstrap = match &result {
            Ok(()) => Bootstrap::Done,
            Err(unprepared) => Bootstrap::Retrying(format!("{}: {}", unprepared.stage, unprepared.message)),
        };
        self.fleets.bootstraps.insert(machine.clone(), bootstrap);
        let Err(unprepared) = result else { return };
        let is_made =
            self.fleets.rentals.get(machine).is_some_and(|rental| rental.phase == RentalPhase::Made);
        if is_made && !unprepared.is_retryable {
            let reason = format!("start-up over SSH failed ({}): {}", unprepared.stage, unprepared.message);
            self.give_up(now, machine, AttemptVerdict::MachineLost, &reason);
        }
    }
}

/// For an operator: only the provider's console can tell more.
fn slow_return(rental: &Rental, limit: Duration) -> String {
    let pod = rental.pod.as_ref().map_or("a pod that was never seen".to_owned(), |pod| format!("pod {pod}"));
    format!(
        "{pod} was to be returned {} ago and is still not gone, after {} requests: check your provider's console",
        humanize(limit),
        rental.returns
    )
}
