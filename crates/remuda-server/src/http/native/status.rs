//! The plane's status over HTTP, and the views that the store computes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use remuda_core::job::JobState;
use remuda_core::plane::Plane;
use remuda_core::time::Timestamp;
use remuda_store::{StatusView, UnknownName};
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::dollars;

/// Enough to notice a problem; the lists of workers and machines mark every unreliable one.
const UNRELIABLE_MAX: usize = 100;
/// Tenants listed with what they use of their quotas.
const TENANTS_MAX: usize = 100;
/// Open jobs looked at for the oldest one that waits; the oldest are first.
const OLDEST_MAX: usize = 10_000;

pub(in crate::http) async fn status(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let mut status = context.plane.read(plane_status).await?;
    for tenant in status["tenants"].as_array_mut().into_iter().flatten() {
        let name = tenant["tenant"].as_str().and_then(|name| name.parse().ok());
        tenant["stored_bytes"] = json!(name.map(|name| context.intake().stored_bytes(&name)));
    }
    status["tasks"] = json!(context.tasks.statuses());
    let tls = context.access.tls.as_ref();
    status["tls"] = tls.map_or(Value::Null, |tls| json!({ "ends_at": tls.ends_at().to_string() }));
    status["connections"] = context.access.places.status();
    status["live_reports_dropped"] = json!(context.live_budgets.dropped());
    status["store"] = json!({ "has_reserve": context.store.has_reserve() });
    Ok(Json(status))
}

fn plane_status(plane: &Plane, now: Timestamp) -> Value {
    let (wake_at, reason) = plane.wake_at();
    let refusals = plane.refusals;
    let mut availability: BTreeMap<&str, u32> = BTreeMap::new();
    let mut running = 0;
    for worker in plane.workers() {
        *availability.entry(worker.availability(now).as_str()).or_default() += 1;
        running += worker.assignments.len();
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": now.to_string(),
        "term": plane.term(),
        "open_jobs": plane.open_jobs(),
        "running_jobs": running,
        "waiting_jobs": plane.open_jobs().saturating_sub(running),
        "ready_jobs": plane.ready_jobs(),
        "oldest_waiting": oldest_waiting(plane, now),
        "workers": plane.workers().count(),
        "workers_by_availability": availability,
        "blocks": plane.blocks().len(),
        "quarantined": plane.quarantine().iter().filter(|(_, entry)| entry.is_quarantined()).count(),
        "brake": plane.mass_loss().reason(now),
        "brakes": brakes(plane, now),
        "fleets": fleets(plane, now),
        "tenants": tenants(plane),
        "unreliable": {
            "workers": plane.unreliable_workers(now).take(UNRELIABLE_MAX).collect::<Vec<_>>(),
            "machines": plane.unreliable_machines(now).take(UNRELIABLE_MAX).collect::<Vec<_>>(),
        },
        "wakes": { "at": wake_at.to_string(), "reason": reason },
        "refused": {
            "stale_attempts": refusals.stale_attempts,
            "already_recorded": refusals.already_recorded,
            "old_beats": refusals.old_beats,
            "old_incarnations": refusals.old_incarnations,
        },
    })
}

fn oldest_waiting(plane: &Plane, now: Timestamp) -> Value {
    let oldest = plane.jobs().take(OLDEST_MAX).find(|job| matches!(job.state(), JobState::Waiting { .. }));
    oldest.map_or(Value::Null, |job| {
        let waits = u64::try_from(job.age(now).as_millis()).unwrap_or(u64::MAX);
        json!({ "job": job.id, "waits_millis": waits, "reason": plane.reason(now, job) })
    })
}

/// Everything that holds decisions back, with its reason and when it ends at the latest.
fn brakes(plane: &Plane, now: Timestamp) -> Vec<Value> {
    let mass_loss = plane.mass_loss();
    let mass_loss = mass_loss.reason(now).map(|reason| {
        json!({ "kind": "mass_loss", "reason": reason, "until": mass_loss.ends_at().map(|at| at.to_string()) })
    });
    let creation = plane.settings().fleets.iter().filter_map(|settings| {
        let creation = plane.fleet(&settings.id).creation;
        let until = creation.wake_at(now).map(|at| at.to_string());
        let reason = format!("fleet {}: {}", settings.id, creation.reason(now)?);
        Some(json!({ "kind": "creation", "fleet": settings.id, "reason": reason, "until": until }))
    });
    mass_loss.into_iter().chain(creation).collect()
}

fn fleets(plane: &Plane, now: Timestamp) -> Vec<Value> {
    let mut machines: BTreeMap<_, u32> = BTreeMap::new();
    for rental in plane.rentals() {
        *machines.entry(rental.fleet.clone()).or_default() += 1;
    }
    let shown = plane.settings().fleets.iter().map(|settings| {
        let fleet = plane.fleet(&settings.id);
        json!({
            "fleet": settings.id,
            "machines": machines.get(&settings.id).copied().unwrap_or(0),
            "per_hour_dollars": dollars(plane.fleet_hourly_price(&settings.id)),
            "today_dollars": dollars(plane.spent_today(now, settings)),
            "paused": fleet.paused,
            "held_back": plane.held_back(&settings.id),
            "trouble": plane.fleet_problem(now, &settings.id),
        })
    });
    shown.collect()
}

/// The tenants with the most open jobs, and what they use of their quotas.
fn tenants(plane: &Plane) -> Vec<Value> {
    let mut usages: Vec<_> = plane.tenant_usages().collect();
    usages.sort_by_key(|(_, usage)| std::cmp::Reverse(usage.open_jobs));
    let shown = usages.into_iter().take(TENANTS_MAX).map(|(tenant, usage)| {
        let quota = plane.settings().quota_of(tenant);
        json!({
            "tenant": tenant,
            "open_jobs": usage.open_jobs,
            "open_jobs_max": quota.open_jobs_max,
            "distinct_needs": usage.distinct_needs,
            "distinct_needs_max": quota.distinct_needs_max,
            "stored_bytes_max": quota.stored_bytes_max,
        })
    });
    shown.collect()
}

pub(in crate::http) async fn view(
    State(context): State<Context>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let view: StatusView = name.parse().map_err(|bad: UnknownName| ApiError::not_found(bad.to_string()))?;
    Ok(Json(json!({ view.as_str(): context.store.view(view).await? })))
}
