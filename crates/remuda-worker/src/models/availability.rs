//! What becomes of models while nobody asks. The pool starts copies anew by itself and says when that does not help: such a
//! model is offered no more until a copy of it has proved itself again. When none is left the agent is told, which closes
//! the worker and looks again now and then.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceEvent;
use remuda_models::{Escalation, Pool};
use tokio::sync::broadcast::error::RecvError;
use tracing::{info, warn};

use super::Shared;

/// How often it is seen whether a model that was given up is back.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Models that their pool gave up for now. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUp(Arc<Mutex<BTreeSet<String>>>);

impl GivenUp {
    /// What can be asked now.
    pub(super) fn offer(&self, pool: &Pool) -> Capabilities {
        let given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let models = pool.models().into_iter().map(|(spec, _)| spec.name);
        Capabilities {
            models: Some(models.filter(|name| !given_up.contains(name)).collect()),
            ..Capabilities::default()
        }
    }

    /// Whether that is news.
    fn add(&self, model: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(model.to_owned())
    }

    /// Those that are back.
    fn take_back(&self, pool: &Pool) -> Vec<String> {
        let mut given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let back: Vec<_> = given_up.iter().filter(|model| has_ready_copy(pool, model)).cloned().collect();
        given_up.retain(|model| !back.contains(model));
        back
    }
}

/// Never ends by itself.
pub(super) async fn watch(shared: Shared) {
    let mut escalations = shared.pool.escalations();
    loop {
        tokio::select! {
            told = escalations.recv() => match told {
                Ok(Escalation { model, why }) => given_up(&shared, &model, why).await,
                // What is so badly off says it again.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            () = tokio::time::sleep(LOOK_EVERY) => {
                for model in shared.given_up.take_back(&shared.pool) {
                    info!(model, "a model that was given up works again");
                    shared.tell(AgentEvent::Offer(Box::new(shared.given_up.offer(&shared.pool)))).await;
                }
            }
        }
    }
}

/// One place of several may be beyond help while the others answer.
async fn given_up(shared: &Shared, model: &str, why: String) {
    if has_ready_copy(&shared.pool, model) || !shared.given_up.add(model) {
        return;
    }
    warn!(model, why, "a model is offered no more until a copy of it works again");
    let offer = shared.given_up.offer(&shared.pool);
    let is_none = offer.models.as_ref().is_some_and(BTreeSet::is_empty);
    shared.tell(AgentEvent::Offer(Box::new(offer))).await;
    if is_none {
        shared.tell(AgentEvent::Service(ServiceEvent::Exited { why: format!("{model}: {why}") })).await;
    }
}

fn has_ready_copy(pool: &Pool, model: &str) -> bool {
    let snapshot = pool.snapshot();
    let model = snapshot.models.iter().find(|seen| seen.model == model);
    model.is_some_and(|seen| seen.copies.iter().any(|copy| ["ready", "busy"].contains(&copy.state.as_str())))
}
