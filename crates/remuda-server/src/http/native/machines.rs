//! Machines over HTTP: rented ones by their provider and workers, others by their workers alone.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use remuda_core::id::MachineId;
use remuda_core::machine::{self, WorkerState};
use remuda_core::plane::{Plane, PlaneEvent};
use remuda_core::rental::{Bootstrap, Rental};
use remuda_core::time::Timestamp;
use remuda_core::worker::Worker;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::dollars;

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let machines = context.plane.read(|plane, now| {
        let mut workers: BTreeMap<&MachineId, Vec<&Worker>> = BTreeMap::new();
        for rental in plane.rentals() {
            workers.entry(&rental.machine).or_default();
        }
        for worker in plane.workers() {
            workers.entry(&worker.machine).or_default().push(worker);
        }
        let existing = workers.iter().filter(|(machine, workers)| exists(plane, machine, workers));
        let shown = existing.map(|(machine, workers)| view(plane, now, machine, workers));
        shown.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "machines": machines.await? })))
}

pub(in crate::http) async fn one(
    State(context): State<Context>,
    Path(machine): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id: MachineId = machine.parse()?;
    let name = id.clone();
    let found = context.plane.read(move |plane, now| {
        let workers: Vec<_> = plane.workers().filter(|worker| worker.machine == id).collect();
        exists(plane, &id, &workers).then(|| view(plane, now, &id, &workers))
    });
    found.await?.map(Json).ok_or_else(|| {
        ApiError::not_found(format!("there is no machine {name}; `remuda machines` lists them"))
    })
}

/// Whether the machine still exists: it is rented, or one of its workers has not left.
fn exists(plane: &Plane, machine: &MachineId, workers: &[&Worker]) -> bool {
    let has_left = |worker: &&Worker| worker.state() == WorkerState::Terminated;
    plane.rental(machine).is_some() || !workers.iter().all(has_left)
}

fn view(plane: &Plane, now: Timestamp, machine: &MachineId, workers: &[&Worker]) -> Value {
    let presence = machine::machine_presence(workers.iter().map(|worker| worker.presence()));
    let names: Vec<_> = workers.iter().map(|worker| &worker.id).collect();
    let mut shown = match plane.rental(machine) {
        Some(rental) => rented(plane, now, rental),
        None => not_rented(workers),
    };
    (shown["machine"], shown["presence"], shown["workers"]) = (json!(machine), json!(presence), json!(names));
    let past = plane.machine_reliability(machine);
    shown["reliability"] = json!(past.map(|it| it.summary(now)));
    shown["unreliable"] =
        past.is_some_and(|it| it.is_unreliable(now, plane.settings().flaps_before_alert)).into();
    if shown["gpu"].is_null() {
        let mut reported = workers.iter().filter_map(|worker| Some(worker.check.as_ref()?.gpu.as_str()));
        shown["gpu"] = reported.find(|gpu| !gpu.is_empty()).into();
    }
    shown
}

fn rented(plane: &Plane, now: Timestamp, rental: &Rental) -> Value {
    let settings = plane.settings().fleets.iter().find(|fleet| fleet.id == rental.fleet);
    let waiting = settings.and_then(|fleet| rental.current_wait(fleet)).map(|waiting| {
        json!({
            "for": waiting.what,
            "since": waiting.since.to_string(),
            "seconds": now.since(waiting.since).as_secs(),
            "max_seconds": waiting.max.as_secs(),
            "text": waiting.describe(now),
        })
    });
    let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    json!({
        "is_rented": true,
        "fleet": rental.fleet,
        "pod": rental.pod().map(|pod| &pod.id),
        "tag": rental.tag,
        "offer": rental.offer,
        "phase": rental.phase().as_str(),
        "state": rental.phase().state(),
        "since": rental.since.to_string(),
        "wanted_at": rental.wanted_at.to_string(),
        "gpu": rental.pod().and_then(|pod| non_empty(&pod.kind)),
        "place": rental.pod().and_then(|pod| non_empty(&pod.place)),
        "host": rental.pod().and_then(|pod| pod.host.as_ref()),
        "price_dollars": plane.price(rental).map(dollars),
        "cost_dollars": dollars(plane.machine_cost(rental, now)),
        "waiting": waiting,
        "bootstrap": plane.bootstrap(&rental.machine).map(Bootstrap::describe),
        "drain_until": rental.drain_until().map(|until| until.to_string()),
        "reason": rental.reason,
    })
}

/// A machine that the plane does not rent: its cost is unknown.
fn not_rented(workers: &[&Worker]) -> Value {
    let first = workers.iter().min_by_key(|worker| worker.joined_at);
    json!({
        "is_rented": false,
        "fleet": workers.iter().find_map(|worker| worker.fleet.as_ref()),
        "state": machine::machine_state(workers.iter().map(|worker| worker.state())),
        "since": first.map(|worker| worker.joined_at.to_string()),
        "reason": first.map(|worker| worker.reason.clone()),
    })
}

/// The body of a drain order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct DrainBody {
    /// Work held then is moved elsewhere; by default as configured.
    deadline_seconds: Option<f64>,
    #[serde(default)]
    reason: String,
}

/// Longer than any job runs.
const DEADLINE_MAX: Duration = Duration::from_secs(30 * 86_400);

impl DrainBody {
    /// From an optional body.
    pub(in crate::http) fn read(body: &Bytes) -> Result<(Option<Duration>, String), ApiError> {
        let drain: DrainBody = if body.is_empty() {
            DrainBody::default()
        } else {
            serde_json::from_slice(body).map_err(|error| {
                ApiError::bad_request(format!(
                    "expected {{\"deadline_seconds\": 600, \"reason\": \"…\"}}, both optional: {error}"
                ))
            })?
        };
        let within = drain.deadline_seconds.map(|seconds| {
            let within = Duration::try_from_secs_f64(seconds).ok().filter(|within| *within <= DEADLINE_MAX);
            within.ok_or_else(|| {
                ApiError::invalid(format!(
                    "deadline_seconds is {seconds}, but must be from 0 to 2592000 (30 days)"
                ))
            })
        });
        Ok((within.transpose()?, drain.reason))
    }
}

/// The default reason.
pub(in crate::http) const DEFAULT_DRAIN_REASON: &str = "drained by hand";

pub(in crate::http) async fn drain(
    State(context): State<Context>,
    Path(machine): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let machine: MachineId = machine.parse()?;
    let (within, reason) = DrainBody::read(&body)?;
    let reason = if reason.is_empty() { DEFAULT_DRAIN_REASON.to_owned() } else { reason };
    context.plane.request(PlaneEvent::DrainMachine { machine: machine.clone(), reason, within }).await?;
    let deadline = within.map(|within| within.as_secs_f64());
    Ok(Json(json!({ "machine": machine, "state": "terminating", "deadline_seconds": deadline })))
}
