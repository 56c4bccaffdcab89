//! What a job's attempts so far say: where it failed, how, and what went down with it.

use std::collections::BTreeSet;

use super::Job;
use crate::cause::Cause;
use crate::id::{Attempt, WorkerId};
use crate::need::Capabilities;
use crate::record::PastAttempt;
use crate::scope::{BlockScope, TenantShape};
use crate::service::{FailingNode, ServiceFault};
use crate::settings::Settings;
use crate::verdict::CrashEvidence;

impl Job {
    /// Whether it took down enough distinct workers or services: each for certain, or so many on circumstantial evidence
    /// that it was tried alone on a worker, which went down as well.
    pub(super) fn is_poison(&self, settings: &Settings) -> bool {
        let is_direct = |past: &&PastAttempt| past.took_down == Some(CrashEvidence::Direct);
        let direct: BTreeSet<_> = self.attempts().iter().filter(is_direct).map(|past| &past.worker).collect();
        let limit = usize::from(settings.poison_after.max(1));
        direct.len() >= limit || !direct.is_empty() && self.crashed_workers().len() > limit
    }

    /// Whether the next attempt runs alone on its worker: what went down with the job so far may have had another
    /// reason, and this decides.
    pub fn needs_isolation(&self, settings: &Settings) -> bool {
        self.crashed_workers().len() >= usize::from(settings.poison_after.max(1))
    }

    /// Something else explains why a worker went down under this attempt. True if that changed something.
    pub(crate) fn withdraw_crash(&mut self, attempt: Attempt) -> bool {
        let Some(history) = &mut self.history else { return false };
        let is_meant = |past: &&mut PastAttempt| past.attempt == attempt && past.took_down.is_some();
        let Some(past) = history.attempts.iter_mut().find(is_meant) else { return false };
        past.took_down = None;
        let worker = past.worker.clone();
        if !history.attempts.iter().any(|past| past.worker == worker && past.took_down.is_some()) {
            history.crashed_workers.remove(&worker);
        }
        true
    }

    /// The scopes of blocks that the job is in.
    pub fn scopes(&self) -> [BlockScope; 3] {
        [
            BlockScope::Workflow(self.workflow_hash),
            BlockScope::Tenant(self.tenant_shape()),
            BlockScope::Shape(*self.kind.shape),
        ]
    }

    pub fn tenant_shape(&self) -> TenantShape {
        TenantShape { shape: *self.kind.shape, tenant: self.tenant.clone() }
    }

    /// Whether an attempt on another worker failed with the same error: the same node raised the same exception.
    pub fn failed_alike_elsewhere(
        &self,
        worker: &WorkerId,
        fault: Option<ServiceFault>,
        node: Option<&FailingNode>,
    ) -> bool {
        let error = |node: Option<&FailingNode>| node.map(|it| (it.id.clone(), it.exception.clone()));
        self.attempts().iter().any(|past| {
            let is_job_fault = past.cause.is_some_and(Cause::is_job_fault);
            is_job_fault
                && past.worker != *worker
                && past.fault == fault
                && error(past.node.as_deref()) == error(node)
        })
    }

    /// The workers on which an attempt failed by the job's own fault, as far as it was known then.
    pub fn job_fault_workers(&self) -> impl Iterator<Item = &WorkerId> {
        let is_own = |past: &&PastAttempt| past.cause.is_some_and(Cause::is_job_fault);
        self.attempts().iter().filter(is_own).map(|past| &past.worker)
    }

    /// Whether this worker has answered: an attempt there raised an error, or the worker lacks something that the job needs.
    /// An attempt that was lost there is no answer.
    pub fn has_answer_of(&self, worker: &WorkerId) -> bool {
        let is_answer = |past: &PastAttempt| {
            past.cause.is_some_and(Cause::is_job_fault)
                || matches!(past.fault, Some(ServiceFault::Missing | ServiceFault::Memory))
        };
        self.attempts().iter().any(|past| past.worker == *worker && is_answer(past))
    }

    /// Whether an attempt on this worker failed before, for any cause.
    pub fn has_failed_on(&self, worker: &WorkerId) -> bool {
        self.attempts().iter().any(|attempt| attempt.worker == *worker && attempt.cause.is_some())
    }

    /// Whether another worker would be better, if there is one: an attempt failed on this one, or ran out of memory on
    /// one that was no smaller.
    pub fn should_avoid(&self, worker: &WorkerId, has: &Capabilities) -> bool {
        let too_small = self.attempts().iter().filter_map(|attempt| attempt.out_of_memory).max();
        self.has_failed_on(worker)
            || too_small.is_some_and(|size| has.vram_bytes.is_some_and(|has| has <= size))
    }
}
