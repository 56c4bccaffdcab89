//! Shapes among the newest jobs: how often each ran, how it went, how long it took, and on which workers. Computed from the
//! stored jobs when it is read, because a table of counts would be one more thing to keep right.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use remuda_core::id::{JobId, Shape, WorkerId};
use remuda_core::record::{AcceptedJob, JobStatus, PastAttempt, StateRow};
use remuda_core::time::Timestamp;
use remuda_store::JobFilter;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{ApiError, Context};

/// Jobs looked at: enough for a day of most fleets, and read in a moment.
const JOBS_MAX: usize = 5_000;
/// Shapes in the answer, those that ran last.
const SHAPES_MAX: usize = 200;
/// Workers listed for one shape.
const WORKERS_MAX: usize = 200;
const TENANTS_MAX: usize = 5;

/// What became of the jobs of one shape.
#[derive(Debug, Default, Serialize)]
struct ShapeUse {
    jobs: u32,
    waiting: u32,
    running: u32,
    completed: u32,
    failed: u32,
    cancelled: u32,
    services: BTreeSet<String>,
    models: BTreeSet<String>,
    tenants: BTreeSet<String>,
    workers: BTreeMap<WorkerId, WorkerUse>,
    last_job: Option<JobId>,
    last_at: String,
    /// The middle and the slow end of its run times.
    run_millis: Option<RunTimes>,
    #[serde(skip)]
    took: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct WorkerUse {
    completed: u32,
    failed: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct RunTimes {
    shortest: u64,
    median: u64,
    slow: u64,
    longest: u64,
}

pub(in crate::http) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let jobs = context.store.jobs(JobFilter::default(), None, JOBS_MAX).await?;
    let (looked_at, oldest) = (jobs.len(), jobs.last().map(|(job, _)| job.accepted_at));
    let mut shapes: BTreeMap<Shape, ShapeUse> = BTreeMap::new();
    for (job, status) in &jobs {
        shapes.entry(job.shape).or_default().add(job, status);
    }
    let mut shapes: Vec<_> = shapes.into_iter().map(|(shape, used)| (shape, used.finish())).collect();
    shapes.sort_by_key(|(_, shape)| std::cmp::Reverse(shape.last_job));
    let shown = shapes.iter().take(SHAPES_MAX).map(|(shape, used)| {
        let mut shown = json!(used);
        shown["shape"] = json!(shape);
        shown
    });
    Ok(Json(json!({
        "workflows": shown.collect::<Vec<_>>(),
        "jobs_looked_at": looked_at,
        "since": oldest.map(|at: Timestamp| at.to_string()),
        "is_all": looked_at < JOBS_MAX,
    })))
}

impl ShapeUse {
    /// Jobs come newest first.
    fn add(&mut self, job: &AcceptedJob, status: &JobStatus) {
        self.jobs += 1;
        let count = match &status.state {
            StateRow::Queued { .. } => &mut self.waiting,
            StateRow::Running { .. } => &mut self.running,
            StateRow::Completed { .. } => &mut self.completed,
            StateRow::Failed { .. } | StateRow::Expired { .. } => &mut self.failed,
            StateRow::Cancelled { .. } => &mut self.cancelled,
        };
        *count += 1;
        if self.last_job.is_none() {
            (self.last_job, self.last_at) = (Some(job.id), job.accepted_at.to_string());
            self.models = job.needs.models.iter().cloned().collect();
        }
        self.services.insert(job.service.to_string());
        if self.tenants.len() < TENANTS_MAX {
            self.tenants.insert(job.tenant.to_string());
        }
        let is_completed = matches!(status.state, StateRow::Completed { .. });
        for (at, attempt) in status.attempts.iter().enumerate() {
            self.add_attempt(attempt, is_completed && at + 1 == status.attempts.len());
        }
    }

    fn add_attempt(&mut self, attempt: &PastAttempt, is_completed: bool) {
        let is_full = self.workers.len() >= WORKERS_MAX && !self.workers.contains_key(&attempt.worker);
        if is_full || attempt.ended_at.is_none() {
            return;
        }
        let worker = self.workers.entry(attempt.worker.clone()).or_default();
        if is_completed {
            worker.completed += 1;
            self.took.extend(attempt.ended_at.map(|ended_at| ended_at.since(attempt.started_at)));
        } else {
            worker.failed += u32::from(attempt.cause.is_some());
        }
    }

    fn finish(mut self) -> ShapeUse {
        self.took.sort_unstable();
        let at = |part: usize| {
            let took = self.took.get(self.took.len().saturating_sub(1) * part / 100)?;
            Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
        };
        self.run_millis = at(0)
            .zip(at(50))
            .zip(at(95))
            .zip(at(100))
            .map(|(((shortest, median), slow), longest)| RunTimes { shortest, median, slow, longest });
        self
    }
}
