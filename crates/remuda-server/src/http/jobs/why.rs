//! The history of a job: every attempt, and every worker that was passed over.

use axum::Json;
use axum::extract::State;
use remuda_core::id::JobId;
use remuda_core::plane::{JobExplanation, Plane};
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::unknown;

pub(in crate::http) async fn why(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id: JobId = id.parse()?;
    let why = match context.plane.read(move |plane, now| plane.explain(now, id)).await? {
        Some(why) => why,
        None => {
            let (_, life) = context.store.job(id).await?.ok_or_else(|| unknown(&context, id))?;
            Plane::explain_ended(id, &life)
        }
    };
    Ok(Json(history_json(&why)))
}

/// The history with readable times.
fn history_json(why: &JobExplanation) -> Value {
    let mut history = json!(why);
    for (shown, attempt) in history["attempts"].as_array_mut().into_iter().flatten().zip(&why.attempts) {
        shown["started_at"] = attempt.started_at.to_string().into();
        if let Some(ended_at) = attempt.ended_at {
            shown["ended_at"] = ended_at.to_string().into();
        }
        if let Some(service) = &attempt.service {
            let times = [
                ("service_submitted_at", service.service_submitted_at),
                ("last_service_check", service.last_service_check),
            ];
            for (name, at) in times {
                shown["service"][name] = at.map(|at| at.to_string()).into();
            }
        }
    }
    history
}
