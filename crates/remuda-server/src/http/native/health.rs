//! Health probes. `live` is about the event loop alone: restarting the process helps only if that stands still. `ready`
//! is about serving: the queue, the disk, and every background task.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use remuda_core::plane::Plane;
use serde_json::{Value, json};

use super::super::{ApiError, Context};

/// The event loop wakes at least every second; half a minute without is a fault.
const TICK_AGE_MAX: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub(in crate::http) async fn live(State(context): State<Context>) -> (StatusCode, Json<Value>) {
    let mut age = context.plane.tick_age();
    if age >= TICK_AGE_MAX {
        // A process that was stopped wakes up with an old tick: only a loop that does not answer now stands still.
        drop(tokio::time::timeout(ANSWER_TIMEOUT, context.plane.read(|_, _| ())).await);
        age = context.plane.tick_age();
    }
    let status = if age < TICK_AGE_MAX { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    (status, Json(json!({ "live": status == StatusCode::OK, "tick_age_millis": age })))
}

pub(in crate::http) async fn ready(
    State(context): State<Context>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let look = |plane: &Plane, _| {
        (plane.open_jobs(), plane.settings().open_jobs_max, plane.clock_difference().problem())
    };
    let (open_jobs, open_max, clock) = context.plane.read(look).await?;
    let down = context.tasks.down();
    let problem = if let Some(misplaced) = context.store.misplaced() {
        Some(misplaced.to_string())
    } else if !context.store.has_reserve() {
        Some("the disk is full: submissions are refused until there is space".to_owned())
    } else if open_jobs >= open_max {
        Some("the queue is full".to_owned())
    } else if !down.is_empty() {
        Some(format!("background task down: {}; restart the plane, and see the log for why", down.join(", ")))
    } else {
        None
    };
    let is_ready = problem.is_none();
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reason = problem.unwrap_or_else(|| "jobs are accepted".to_owned());
    // A wrong clock is no reason to send jobs elsewhere: nothing here is decided by it.
    let answer = json!({
        "ready": is_ready, "reason": reason, "open_jobs": open_jobs, "tasks_down": down, "clock": clock,
    });
    Ok((status, Json(answer)))
}
