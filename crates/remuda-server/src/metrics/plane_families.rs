//! The metrics that the plane knows. Written inside the event loop, where the plane is: counters are there already, and
//! gauges cost one look at every worker and machine, never one at every job.

use std::collections::BTreeMap;

use remuda_core::event_kind::EventKind;
use remuda_core::plane::{Plane, ProviderOutcome, WaitingReason};
use remuda_core::time::Timestamp;
use remuda_core::wire::metric::MODELS_METRIC;
use remuda_core::worker::Worker;

use super::page::Page;
use super::table;

const MILLIS_PER_SECOND: u32 = 1000;
/// A worker may call its copies what it wants; other names are not shown.
const COPY_STATES: [&str; 6] = ["loading", "testing", "ready", "busy", "draining", "dead"];
/// Kinds of events that are sent live and never published, so that they are not counted.
const UNCOUNTED: [EventKind; 2] = [EventKind::JobProgress, EventKind::JobPreview];

pub(crate) fn write_plane(plane: &Plane, now: Timestamp) -> Page {
    let mut page = Page::default();
    write_jobs(&mut page, plane, now);
    write_attempts(&mut page, plane);
    write_workers(&mut page, plane, now);
    write_trust(&mut page, plane, now);
    write_fleets(&mut page, plane, now);
    page.single(&table::TERM, plane.term().0);
    page
}

fn write_jobs(page: &mut Page, plane: &Plane, now: Timestamp) {
    let counts = plane.job_counts();
    let waiting = plane.open_jobs().saturating_sub(counts.running);
    page.family(&table::JOBS).sample(["waiting"], waiting).sample(["running"], counts.running);
    let mut reasons = page.family(&table::JOBS_WAITING);
    for (reason, count) in plane.waiting_counts(now) {
        reasons.sample([WaitingReason::as_str(reason)], count);
    }
    let oldest = plane.oldest_waiting().map_or(0.0, |job| job.age(now).as_secs_f64());
    page.single(&table::OLDEST_WAITING, oldest);
    page.single(&table::JOBS_SUBMITTED, counts.submitted);
    page.family(&table::JOBS_ENDED)
        .sample(["completed"], counts.ended.completed)
        .sample(["failed"], counts.ended.failed)
        .sample(["expired"], counts.ended.expired)
        .sample(["cancelled"], counts.ended.cancelled);
    page.family(&table::JOB_WAIT).histogram(&counts.waits, MILLIS_PER_SECOND);
    page.family(&table::JOB_RUN).histogram(&counts.runs, MILLIS_PER_SECOND);
    page.family(&table::JOB_TURNAROUND).histogram(&counts.turnarounds, MILLIS_PER_SECOND);
}

fn write_attempts(page: &mut Page, plane: &Plane) {
    let mut attempts = page.family(&table::ATTEMPTS_ENDED);
    for ((verdict, cause), count) in &plane.job_counts().attempts {
        attempts.sample([verdict.as_str(), cause.map_or("none", |cause| cause.as_str())], count);
    }
    page.single(&table::RECOVERED, plane.event_counts().get(EventKind::JobRecovered));
    let refusals = plane.refusals;
    page.family(&table::REFUSED_WRITES)
        .sample(["stale_attempt"], refusals.stale_attempts)
        .sample(["already_recorded"], refusals.already_recorded)
        .sample(["old_beat"], refusals.old_beats)
        .sample(["old_incarnation"], refusals.old_incarnations);
    let mut probes = page.family(&table::PROBES);
    for (result, count) in plane.probe_counts() {
        probes.sample([result.as_str()], count);
    }
    let mut events = page.family(&table::EVENTS);
    for kind in EventKind::ALL.iter().filter(|kind| !UNCOUNTED.contains(kind)) {
        events.sample([kind.as_str()], plane.event_counts().get(*kind));
    }
}

fn write_workers(page: &mut Page, plane: &Plane, now: Timestamp) {
    let mut availability: BTreeMap<&str, u64> = BTreeMap::new();
    let mut copies: BTreeMap<&str, u64> = COPY_STATES.into_iter().map(|state| (state, 0)).collect();
    let (mut busy, mut free) = (0, 0);
    for worker in plane.workers() {
        let found = worker.availability(now);
        *availability.entry(found.as_str()).or_default() += 1;
        if found.is_ready() {
            busy += worker.assignments.len();
            free += worker.free_slots(now);
        }
        count_copies(worker, &mut copies);
    }
    let mut workers = page.family(&table::WORKERS);
    for (name, count) in availability {
        workers.sample([name], count);
    }
    page.family(&table::SLOTS).sample(["busy"], busy).sample(["free"], free);
    page.family(&table::UNRELIABLE)
        .sample(["workers"], plane.unreliable_workers(now).count())
        .sample(["machines"], plane.unreliable_machines(now).count());
    let mut family = page.family(&table::MODEL_COPIES);
    for (state, count) in copies {
        family.sample([state], count);
    }
}

/// Adds the copies of a worker's models, as of its last report.
fn count_copies(worker: &Worker, copies: &mut BTreeMap<&str, u64>) {
    let models = worker.metrics.get(MODELS_METRIC).and_then(|models| models.as_object());
    let listed = models.into_iter().flat_map(|models| models.values());
    for copy in listed.filter_map(|model| model["copies"].as_array()).flatten() {
        if let Some(count) = copy["state"].as_str().and_then(|state| copies.get_mut(state)) {
            *count += 1;
        }
    }
}

fn write_trust(page: &mut Page, plane: &Plane, now: Timestamp) {
    let blocked = plane.blocks().iter().filter(|(_, _, block)| block.is_blocked()).count();
    page.single(&table::BLOCKS, blocked);
    let quarantined = plane.quarantine().iter().filter(|(_, entry)| entry.is_quarantined()).count();
    page.single(&table::QUARANTINED, quarantined);
    let fleets = plane.settings().fleets.iter();
    let creation = fleets.filter(|fleet| plane.fleet(&fleet.id).creation.is_on(now)).count();
    page.family(&table::BRAKES)
        .sample(["mass_loss"], u8::from(plane.mass_loss().is_on()))
        .sample(["creation"], creation);
}

fn write_fleets(page: &mut Page, plane: &Plane, now: Timestamp) {
    let mut machines: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for rental in plane.rentals() {
        *machines.entry((rental.fleet.as_str(), rental.phase().as_str())).or_default() += 1;
    }
    let mut family = page.family(&table::MACHINES);
    for ((fleet, phase), count) in machines {
        family.sample([fleet, phase], count);
    }
    let events = plane.event_counts();
    page.family(&table::SCALING)
        .sample(["up"], events.get(EventKind::ScaleUp))
        .sample(["down"], events.get(EventKind::ScaleDown));
    let mut rates = page.family(&table::SPEND_RATE);
    for fleet in &plane.settings().fleets {
        rates.sample([fleet.id.as_str()], plane.fleet_hourly_price(&fleet.id).as_dollars());
    }
    let mut today = page.family(&table::SPEND_TODAY);
    for fleet in &plane.settings().fleets {
        today.sample([fleet.id.as_str()], plane.spent_today(now, fleet).as_dollars());
    }
    let mut calls = page.family(&table::PROVIDER_CALLS);
    for (call, outcome, count) in plane.provider_calls().iter() {
        let outcome = match outcome {
            ProviderOutcome::Ok => "ok".to_owned(),
            ProviderOutcome::Failed(class) => class.as_str().replace(' ', "_"),
            ProviderOutcome::BootstrapFailed => "failed".to_owned(),
        };
        calls.sample([call, &outcome], count);
    }
}

#[cfg(test)]
mod tests;
