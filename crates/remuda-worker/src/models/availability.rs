//! Follows the pool's escalations and tells the agent which models are offered; `remuda_core::service::models` decides
//! which those are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use remuda_core::service::models::{ModelOffer, OfferChange};
use remuda_core::service::{ServiceEvent, ServiceExit};
use remuda_models::{Escalation, ModelPool};
use tokio::sync::broadcast::error::RecvError;
use tracing::{info, warn};

use super::ModelContext;

/// How often a withdrawn model is checked for a ready copy.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What this worker offers; clones share it.
#[derive(Clone, Debug)]
pub(super) struct SharedOffer(Arc<Mutex<ModelOffer>>);

impl SharedOffer {
    pub(super) fn new(pool: &ModelPool) -> SharedOffer {
        let models = pool.models().into_iter().map(|(spec, _)| spec.name);
        SharedOffer(Arc::new(Mutex::new(ModelOffer::new(models))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ModelOffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the task is dropped or the pool closes.
pub(super) async fn watch(context: ModelContext) {
    let mut escalations = context.pool.escalations();
    loop {
        tokio::select! {
            escalation = escalations.recv() => match escalation {
                Ok(Escalation { model, why }) => escalated(&context, &model, why).await,
                // A model that stays broken escalates again.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            () = tokio::time::sleep(POLL_INTERVAL) => {
                let restored = context.offer.lock().restore(|model| has_ready_copy(&context.pool, model));
                for model in restored {
                    info!(model, "model available again");
                    send_offer(&context).await;
                }
            }
        }
    }
}

async fn escalated(context: &ModelContext, model: &str, why: String) {
    let change = context.offer.lock().escalated(model, has_ready_copy(&context.pool, model));
    if change == OfferChange::None {
        return;
    }
    warn!(model, why, "model unavailable until one of its copies works again");
    send_offer(context).await;
    if change == OfferChange::Exhausted {
        context
            .send(AgentEvent::Service(ServiceEvent::Exited {
                why: format!("{model}: {why}"),
                how: ServiceExit::Crashed,
            }))
            .await;
    }
}

async fn send_offer(context: &ModelContext) {
    let offer = context.offer.lock().capabilities();
    context.send(AgentEvent::CapabilitiesChanged(Box::new(offer))).await;
}

fn has_ready_copy(pool: &ModelPool, model: &str) -> bool {
    let snapshot = pool.snapshot();
    let model = snapshot.models.iter().find(|seen| seen.model == model);
    model.is_some_and(|seen| seen.copies.iter().any(|copy| copy.is_serving))
}
