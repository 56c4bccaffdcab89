//! Fleets over HTTP: settings, state and orders.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use remuda_core::cycle::CycleReport;
use remuda_core::fleet::{Avoidance, Fleet, FleetOrder, FleetSettings, ScalingPolicy};
use remuda_core::id::FleetId;
use remuda_core::plane::{Plane, PlaneEvent};
use remuda_core::time::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::dollars;

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let fleets = context.plane.read(|plane, now| {
        let plan = plane.preview_cycle(now);
        let fleets = plane.settings().fleets.iter().map(|settings| view(plane, now, settings, &plan));
        fleets.collect::<Vec<_>>()
    });
    Ok(Json(json!({ "fleets": fleets.await? })))
}

pub(in crate::http) async fn one(
    State(context): State<Context>,
    Path(fleet): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id: FleetId = fleet.parse()?;
    let shown = context.plane.read(move |plane, now| {
        let settings = plane.settings().fleets.iter().find(|fleet| fleet.id == id);
        settings.map(|settings| view(plane, now, settings, &plane.preview_cycle(now))).ok_or(id)
    });
    match shown.await? {
        Ok(shown) => Ok(Json(shown)),
        Err(id) => Err(remuda_core::refusal::Refusal::UnknownFleet(id).into()),
    }
}

fn view(plane: &Plane, now: Timestamp, settings: &FleetSettings, plan: &CycleReport) -> Value {
    let id = &settings.id;
    let fleet = plane.fleet(id);
    let mut machines: BTreeMap<&str, u32> = BTreeMap::new();
    for rental in plane.rentals().filter(|rental| rental.fleet == *id) {
        *machines.entry(rental.phase().as_str()).or_default() += 1;
    }
    let mut workers: BTreeMap<&str, u32> = BTreeMap::new();
    for worker in plane.workers().filter(|worker| plane.fleet_for_worker(worker) == Some(id)) {
        *workers.entry(worker.state().as_str()).or_default() += 1;
    }
    let wanted = plan.fleets.get(id).map(|fleet| fleet.machines_wanted);
    json!({
        "fleet": id,
        "settings": configured(settings),
        "machines": machines,
        "machines_total": machines.values().sum::<u32>(),
        "orphans": fleet.orphans.len(),
        "workers": workers,
        "machines_wanted": wanted,
        "machines_set": fleet.machines,
        "queued_jobs": plan.fleets.get(id).map(|fleet| fleet.status.queued_tasks),
        "problem": plane.fleet_problem(now, id),
        "held_back": plane.held_back(id),
        "paused": fleet.paused,
        "brake": fleet.creation.reason(now),
        "creation_hold": fleet.creation_hold(now),
        "avoided": avoided(now, &fleet.avoided),
        "bad_hosts": avoided(now, &fleet.bad_hosts),
        "prices_dollars": prices(&fleet),
        "per_hour_dollars": dollars(plane.fleet_hourly_price(id)),
        "today_dollars": dollars(plane.spent_today(now, settings)),
    })
}

fn configured(settings: &FleetSettings) -> Value {
    let (scaling, limits) = (&settings.scaling, &settings.limits);
    let policy = match settings.policy {
        ScalingPolicy::Queue => json!({ "name": "queue", "jobs_per_worker": scaling.jobs_per_worker }),
        ScalingPolicy::Latency { wait_max } => {
            json!({ "name": "latency", "wait_max_seconds": wait_max.as_secs_f64() })
        }
    };
    json!({
        "can_rent": settings.can_rent,
        "services": settings.services,
        "labels": settings.labels,
        "offers": settings.offers,
        "policy": policy,
        "machines_min": scaling.machines_min,
        "machines_max": scaling.machines_max,
        "price_max_dollars": settings.price_max.map(dollars),
        "hour_max_dollars": settings.hour_max.map(dollars),
        "day_max_dollars": settings.day_max.map(dollars),
        "needs_bootstrap": settings.needs_bootstrap,
        "stale_after_seconds": settings.stale_after.map(|time| time.as_secs_f64()),
        "reversal_cooldown_seconds": scaling.reversal_cooldown.as_secs_f64(),
        "uptime_min_seconds": scaling.uptime_min.as_secs_f64(),
        "drain_timeout_seconds": scaling.drain_timeout.as_secs_f64(),
        "spawning_timeout_seconds": scaling.spawning_timeout.as_secs_f64(),
        "image_pull_timeout_seconds": limits.image_pull_timeout.as_secs_f64(),
        "readiness_timeout_seconds": limits.readiness_timeout.as_secs_f64(),
        "lost_create_timeout_seconds": limits.lost_create_timeout.as_secs_f64(),
        "return_timeout_seconds": limits.return_timeout.as_secs_f64(),
        "offer_cooldown_seconds": limits.offer_cooldown.as_secs_f64(),
    })
}

fn avoided(now: Timestamp, avoided: &BTreeMap<String, Avoidance>) -> Vec<Value> {
    let still = avoided.iter().filter(|(_, avoided)| !avoided.is_over(now));
    let shown = still.map(|(name, it)| json!({ "name": name, "until": it.until.to_string(), "why": it.why }));
    shown.collect()
}

fn prices(fleet: &Fleet) -> BTreeMap<&str, f64> {
    fleet.prices.iter().map(|(offer, price)| (offer.as_str(), dollars(*price))).collect()
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    #[serde(default)]
    reason: String,
}

pub(in crate::http) async fn pause(
    State(context): State<Context>,
    Path(fleet): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let pause: PauseBody =
        if body.is_empty() { PauseBody::default() } else { read(&body, "{\"reason\": \"…\"}")? };
    let reason = if pause.reason.is_empty() { "paused by hand".to_owned() } else { pause.reason };
    order(&context, &fleet, FleetOrder::Pause { reason }).await
}

pub(in crate::http) async fn resume(
    State(context): State<Context>,
    Path(fleet): Path<String>,
) -> Result<Json<Value>, ApiError> {
    order(&context, &fleet, FleetOrder::Resume).await
}

pub(in crate::http) async fn reset_brake(
    State(context): State<Context>,
    Path(fleet): Path<String>,
) -> Result<Json<Value>, ApiError> {
    order(&context, &fleet, FleetOrder::ResetBrake).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleBody {
    machines: Option<u32>,
}

pub(in crate::http) async fn scale(
    State(context): State<Context>,
    Path(fleet): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let ScaleBody { machines } =
        read(&body, "{\"machines\": 4}, or {\"machines\": null} to follow the policy again")?;
    order(&context, &fleet, FleetOrder::Scale { machines }).await
}

fn read<T: DeserializeOwned>(body: &Bytes, expected: &str) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("expected {expected}: {error}")))
}

/// Applies an order and returns the fleet.
async fn order(context: &Context, fleet: &str, order: FleetOrder) -> Result<Json<Value>, ApiError> {
    let fleet: FleetId = fleet.parse()?;
    context.plane.request(PlaneEvent::OrderFleet { fleet: fleet.clone(), order }).await?;
    one(State(context.clone()), Path(fleet.to_string())).await
}
