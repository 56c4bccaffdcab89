//! Laws about whose fault a failure is: no tenant pays for another, no shape is set aside on weak evidence, no job fails
//! untried, and an error that no further attempt can change is told.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::cause::Cause;
use remuda_core::id::{JobId, Shape, Tenant, WorkerId};
use remuda_core::record::{BlockRow, JobStatus, PastAttempt, QuarantineRow, Record, StateRow};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::service::ServiceFault;

use super::Laws;
use crate::law::Law;
use crate::scenario::{Scenario, WorkflowKind, client_of};

/// Failures since the last success, as committed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Tenants whose jobs of a shape failed on a worker.
    tenants: BTreeMap<(WorkerId, Shape), BTreeSet<Tenant>>,
    /// Workers on which a tenant's jobs of a shape failed by their own fault or took the worker down.
    own: BTreeMap<TenantShape, BTreeSet<WorkerId>>,
}

impl Laws {
    /// S19 and L7, and the evidence for S17 and S18.
    pub(super) fn check_blame(&mut self, at: u64, job: JobId, status: &JobStatus, scenario: &Scenario) {
        if let StateRow::Completed { worker } = &status.state {
            let shape = scenario.shape_of(job);
            self.failures.tenants.remove(&(worker.clone(), shape));
            self.failures.own.retain(|jobs, _| jobs.shape != shape);
        }
        let failed: Vec<_> = status.attempts.iter().filter(|one| one.cause.is_some()).collect();
        if matches!(status.state, StateRow::Failed { .. }) && failed.is_empty() {
            self.violated(Law::S19, at, format!("job {job} failed and was never tried"));
        }
        if let Some(last) = failed.last() {
            self.note_failure(job, last, scenario);
        }
        let plan = &scenario.jobs[client_of(job)];
        let is_bad = scenario.workflow_kind(plan.shape) == WorkflowKind::Bad && plan.attempts_max.is_none();
        let raised = failed.iter().filter(|one| one.fault == Some(ServiceFault::Node));
        let raised: BTreeSet<_> = raised.map(|one| &one.worker).collect();
        if is_bad && raised.len() > 1 && status.state.is_open() {
            let what =
                format!("job {job} raised the same error on {raised:?} and is still {}", status.state.name());
            self.violated(Law::L7, at, what);
        }
    }

    fn note_failure(&mut self, job: JobId, last: &PastAttempt, scenario: &Scenario) {
        let [_, tenant, shape] = scenario.scopes_of(job);
        let (BlockScope::Tenant(jobs), BlockScope::Shape(shape)) = (tenant, shape) else { return };
        let pair = (last.worker.clone(), shape);
        self.failures.tenants.entry(pair).or_default().insert(jobs.tenant.clone());
        if is_own(last) {
            self.failures.own.entry(jobs).or_default().insert(last.worker.clone());
        }
    }

    /// S17: a worker is kept from everyone's jobs of a shape only if it lacks something, or failed two tenants.
    /// S12: a worker that lacks a model is kept from the whole shape.
    pub(super) fn check_block_scope(
        &mut self,
        at: u64,
        row: &BlockRow,
        records: &[Record],
        scenario: &Scenario,
    ) {
        let here: Vec<_> =
            failures_of(records, &row.scope, scenario).filter(|(_, one)| one.worker == row.worker).collect();
        let lacks_model = here.iter().any(|(_, one)| one.fault == Some(ServiceFault::Missing));
        match &row.scope {
            BlockScope::Shape(shape) => {
                let before = self.failures.tenants.get(&(row.worker.clone(), *shape));
                let mut tenants = before.cloned().unwrap_or_default();
                tenants.extend(here.iter().map(|(job, _)| scenario.jobs[client_of(*job)].tenant.clone()));
                let is_renewed = self.blocks.contains_key(&(row.worker.clone(), row.scope.clone()));
                if !lacks_model && !is_renewed && tenants.len() < 2 {
                    let what =
                        format!("{} is kept from every tenant's jobs by the failure of one", row.worker);
                    self.violated(Law::S17, at, what);
                }
            }
            BlockScope::Workflow(_) if lacks_model => {
                let what = format!("{} lacks a model and is kept from one workflow only", row.worker);
                self.violated(Law::S12, at, what);
            }
            BlockScope::Workflow(_) | BlockScope::Tenant(_) => {}
        }
    }

    /// S18: a quarantine has evidence from the jobs' own failures on three workers, since the shape last completed.
    pub(super) fn check_quarantine(
        &mut self,
        at: u64,
        row: &QuarantineRow,
        records: &[Record],
        scenario: &Scenario,
    ) {
        let own = self.failures.own.get(&row.jobs);
        // The failure that decided is recorded after what followed from it.
        let scope = BlockScope::Tenant(row.jobs.clone());
        let now: Vec<_> = failures_of(records, &scope, scenario).filter(|(_, one)| is_own(one)).collect();
        let has_evidence = |worker: &WorkerId| {
            own.is_some_and(|own| own.contains(worker)) || now.iter().any(|(_, one)| one.worker == *worker)
        };
        let is_enough = row.failed_on.len() >= usize::from(self.rules.suspect_shape_after);
        let is_proved = is_enough && row.failed_on.iter().all(has_evidence);
        if row.trial_at.is_some() && !is_proved {
            let what =
                format!("a shape is quarantined, although {:?} do not speak against it", row.failed_on);
            self.violated(Law::S18, at, what);
        }
    }
}

/// A failure of the job's own, or one that took something down.
fn is_own(one: &PastAttempt) -> bool {
    one.cause == Some(Cause::Job) || one.took_down.is_some()
}

/// The newest failures, in this batch, of jobs in this scope.
fn failures_of<'a>(
    records: &'a [Record],
    scope: &'a BlockScope,
    scenario: &'a Scenario,
) -> impl Iterator<Item = (JobId, &'a PastAttempt)> {
    records.iter().filter_map(move |record| match record {
        Record::JobStatus { job, status } if scenario.scopes_of(*job).contains(scope) => {
            Some((*job, status.attempts.iter().rfind(|one| one.cause.is_some())?))
        }
        _ => None,
    })
}
