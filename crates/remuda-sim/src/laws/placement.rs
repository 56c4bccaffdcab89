//! Laws about where jobs run: only where they may, and on a preferred worker while one is free.

use remuda_core::id::{JobId, WorkerId};
use remuda_core::job::JobState;
use remuda_core::plane::{Plane, PlaneAnswer, Step};
use remuda_core::time::Timestamp;

use super::Laws;
use crate::law::Law;
use crate::net::PlaneRequest;
use crate::scenario::{Scenario, client_of};

impl Laws {
    /// S12: pins hold, and a worker excluded by the job or its shape never gets it.
    pub(super) fn check_placement(&mut self, at: u64, job: JobId, worker: &WorkerId, scenario: &Scenario) {
        let plan = &scenario.jobs[client_of(job)];
        let affinity = scenario.affinities.get(&plan.shape);
        let problem = if plan.pin.as_ref().is_some_and(|pin| pin != worker) {
            "is pinned to another worker"
        } else if plan.excluded.as_ref() == Some(worker) {
            "excludes it"
        } else if affinity.is_some_and(|affinity| affinity.excluded.contains(worker)) {
            "has a shape that excludes it"
        } else {
            return;
        };
        self.violated(Law::S12, at, format!("{worker} got job {job}, which {problem}"));
    }

    /// S12: a preferred worker that can take a job at submission gets it. Checked only there, because no worker becomes
    /// free in the same moment.
    pub(super) fn check_preferred(
        &mut self,
        now: Timestamp,
        at: u64,
        plane: &Plane,
        request: Option<&PlaneRequest>,
        step: &Step,
    ) {
        let (Some(PlaneRequest::Submit { .. }), Ok(PlaneAnswer::Accepted { job, created: true })) =
            (request, &step.answer)
        else {
            return;
        };
        let Some(job) = plane.job(*job) else { return };
        let JobState::Running { worker, .. } = job.state() else { return };
        let preferred = &self.plans[client_of(job.id)].options.preferred;
        if preferred.contains(worker) {
            return;
        }
        // Probation ends by itself, and the timer for that may be due at this very moment.
        let free = preferred.iter().filter_map(|name| plane.worker(name));
        let mut free = free.filter(|it| it.probation.until().is_none());
        if let Some(free) = free.find(|it| plane.passed_over(now, job, it).is_none()) {
            let what = format!("{worker} got job {}, which prefers {}, which is free", job.id, free.id);
            self.violated(Law::S12, at, what);
        }
    }

    /// S2: no new attempt of a cancelled job starts.
    pub(super) fn check_not_cancelled(
        &mut self,
        at: u64,
        key: crate::service::Key,
        store: &crate::store::Store,
    ) {
        use remuda_core::record::StateRow;
        let (job, attempt) = key;
        let Some(status) = store.status(job) else { return };
        if matches!(status.state, StateRow::Cancelled { .. }) && attempt > status.attempt {
            self.violated(Law::S2, at, format!("job {job} was cancelled and still starts attempt {attempt}"));
        }
    }
}
