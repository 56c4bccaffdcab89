//! Refuses live reports and previews of a worker that sends too many.

use axum::http::StatusCode;
use remuda_core::id::{Hash, WorkerId};
use remuda_core::plane::Plane;
use remuda_core::wire::live_budget::LiveExcess;

use super::{ApiError, Context};

/// Counts a report or preview against what the worker may send. The plane is asked only the first time a credential is seen.
pub(super) async fn charge(
    context: &Context,
    worker: &WorkerId,
    credential: Hash,
    bytes: usize,
) -> Result<(), ApiError> {
    let now = context.plane.clock.now();
    let charge = || context.live_budgets.charge(worker, credential, now, bytes);
    let charged = match charge() {
        Some(charged) => charged,
        None => {
            let name = worker.clone();
            let find = move |plane: &Plane, _| plane.slots_of(&name, credential);
            context.live_budgets.insert(credential, context.plane.read(find).await??, now);
            charge().unwrap_or(Ok(()))
        }
    };
    charged.map_err(|LiveExcess { what, per_second, retry_after }| {
        let message = format!(
            "worker {worker} may send {per_second} {what} a second of live reports and previews; this one was dropped"
        );
        let seconds = retry_after.as_secs().max(1);
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_reports", message).with_retry_after(seconds)
    })
}
