//! Which models are offered. The pool restarts copies by itself and escalates when that does not help: such a model is not
//! offered until one of its copies is ready again. When no model is left the agent is told that the service exited; it
//! then accepts no work and checks again from time to time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceEvent;
use remuda_models::{Escalation, ModelPool};
use tokio::sync::broadcast::error::RecvError;
use tracing::{info, warn};

use super::ModelContext;

/// How often an unavailable model is checked for a ready copy.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Models that the pool gave up for now; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnavailableModels(Arc<Mutex<BTreeSet<String>>>);

impl UnavailableModels {
    /// The models that can be called now.
    pub(super) fn offer(&self, pool: &ModelPool) -> Capabilities {
        let unavailable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let models = pool.models().into_iter().map(|(spec, _)| spec.name);
        Capabilities {
            models: Some(models.filter(|name| !unavailable.contains(name)).collect()),
            ..Capabilities::default()
        }
    }

    /// Returns whether the model was available until now.
    fn add(&self, model: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(model.to_owned())
    }

    /// Removes and returns the models that have a ready copy again.
    fn remove_recovered(&self, pool: &ModelPool) -> Vec<String> {
        let mut unavailable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recovered: Vec<_> =
            unavailable.iter().filter(|model| has_ready_copy(pool, model)).cloned().collect();
        unavailable.retain(|model| !recovered.contains(model));
        recovered
    }
}

/// Follows the pool's escalations until the task is dropped or the pool closes.
pub(super) async fn watch(context: ModelContext) {
    let mut escalations = context.pool.escalations();
    loop {
        tokio::select! {
            escalation = escalations.recv() => match escalation {
                Ok(Escalation { model, why }) => mark_unavailable(&context, &model, why).await,
                // A model that stays broken escalates again.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            () = tokio::time::sleep(POLL_INTERVAL) => {
                for model in context.unavailable.remove_recovered(&context.pool) {
                    info!(model, "model available again");
                    context.send(AgentEvent::CapabilitiesChanged(Box::new(context.unavailable.offer(&context.pool)))).await;
                }
            }
        }
    }
}

/// One copy of a model may be beyond repair while the others answer; then the model stays available.
async fn mark_unavailable(context: &ModelContext, model: &str, why: String) {
    if has_ready_copy(&context.pool, model) || !context.unavailable.add(model) {
        return;
    }
    warn!(model, why, "model unavailable until one of its copies works again");
    let offer = context.unavailable.offer(&context.pool);
    let is_none = offer.models.as_ref().is_some_and(BTreeSet::is_empty);
    context.send(AgentEvent::CapabilitiesChanged(Box::new(offer))).await;
    if is_none {
        context.send(AgentEvent::Service(ServiceEvent::Exited { why: format!("{model}: {why}") })).await;
    }
}

fn has_ready_copy(pool: &ModelPool, model: &str) -> bool {
    let snapshot = pool.snapshot();
    let model = snapshot.models.iter().find(|seen| seen.model == model);
    model.is_some_and(|seen| seen.copies.iter().any(|copy| ["ready", "busy"].contains(&copy.state.as_str())))
}
