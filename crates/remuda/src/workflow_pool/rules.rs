//! Rules about where workflows run: blocks, which Remuda sets after failures, and affinities, which the program sets.

use std::collections::BTreeSet;
use std::time::Duration;

use remuda_core::affinity::Affinity;
use remuda_core::id::{Shape, WorkerId, WorkflowHash};
use remuda_core::plane::{Plane, PlaneEvent};
use remuda_core::time::Timestamp;
use remuda_core::workflow::Workflow;

use super::{WorkflowPool, WorkflowPoolError, WorkflowSource};

/// A server that a workflow failed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowBlock {
    pub worker: WorkerId,
    /// The shape and the exact hash of the workflow that failed last.
    pub shape: Shape,
    pub workflow_hash: WorkflowHash,
    /// What is kept away: `workflow` (this one), `tenant` (the tenant's jobs of the shape) or `shape` (all jobs of it).
    pub scope: &'static str,
    /// Whether it is blocked now; otherwise failures are only counted, or a trial decides.
    pub is_blocked: bool,
    pub until: Timestamp,
    /// How long the block lasts; it doubles with each failed trial.
    pub cooldown: Duration,
    pub failures: u32,
    pub reason: String,
}

impl WorkflowPool {
    /// Every pair of a server and a workflow that failed there and has not succeeded since.
    pub async fn blocks(&self) -> Result<Vec<WorkflowBlock>, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let read = |plane: &Plane, _| {
            let blocks = plane.blocks().iter().map(|(worker, scope, block)| WorkflowBlock {
                worker: worker.clone(),
                shape: block.shape,
                workflow_hash: block.workflow_hash,
                scope: scope.name(),
                is_blocked: block.is_blocked(),
                until: block.until(),
                cooldown: block.cooldown,
                failures: block.failures(),
                reason: block.reason.clone(),
            });
            blocks.collect()
        };
        Ok(context.plane.read(read).await?)
    }

    /// Lifts every block of a server for this shape: it may run such workflows again, now.
    pub async fn lift_block(&self, worker: &WorkerId, shape: Shape) -> Result<(), WorkflowPoolError> {
        let context = self.inner.open_context()?;
        context.plane.request(PlaneEvent::LiftBlock { worker: worker.clone(), hash: shape }).await?;
        Ok(())
    }

    /// The shape of a workflow: the same for the same graph and models with any texts, seeds and sizes.
    pub async fn shape(&self, workflow: impl Into<WorkflowSource>) -> Result<Shape, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let workflow = workflow.into().read().await.map_err(WorkflowPoolError::Invalid)?;
        let workflow = Workflow::parse(workflow, &context.limits)
            .map_err(|invalid| WorkflowPoolError::Invalid(invalid.to_string()))?;
        Ok(workflow.facts().shape)
    }

    /// Sets where workflows of this shape (same graph and models, any texts, seeds and sizes) should preferably run, and
    /// where they must not. Replaces the shape's earlier affinity, and returns the shape.
    pub async fn set_affinity(
        &self,
        workflow: impl Into<WorkflowSource>,
        preferred: impl IntoIterator<Item = WorkerId>,
        excluded: impl IntoIterator<Item = WorkerId>,
    ) -> Result<Shape, WorkflowPoolError> {
        let (preferred, excluded) = (BTreeSet::from_iter(preferred), BTreeSet::from_iter(excluded));
        let context = self.inner.open_context()?;
        let shape = self.shape(workflow).await?;
        let affinity = Affinity { preferred, excluded };
        context.plane.request(PlaneEvent::SetAffinity { shape, affinity }).await?;
        Ok(shape)
    }

    /// Every affinity, by shape.
    pub async fn affinities(&self) -> Result<Vec<(Shape, Affinity)>, WorkflowPoolError> {
        let context = self.inner.context().ok_or(WorkflowPoolError::Stopped)?;
        let read = |plane: &Plane, _| {
            plane.affinities().iter().map(|(shape, affinity)| (*shape, affinity.clone())).collect()
        };
        Ok(context.plane.read(read).await?)
    }

    /// Lets workflows of this shape run anywhere again.
    pub async fn remove_affinity(&self, shape: Shape) -> Result<(), WorkflowPoolError> {
        let context = self.inner.open_context()?;
        context.plane.request(PlaneEvent::RemoveAffinity { shape }).await?;
        Ok(())
    }
}
