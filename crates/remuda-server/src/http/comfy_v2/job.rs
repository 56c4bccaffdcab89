//! A job in the format of the contract. Ended jobs are read from the store; open ones from the plane, and their progress from
//! the latest live report.

use std::time::Duration;

use remuda_core::id::{JobId, Tenant};
use remuda_core::record::{JobStatus, StateRow};
use remuda_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::super::{ApiError, Caller, Context, lost};
use super::links::Links;
use super::output::{self, JobOutput};
use remuda_core::wire::live::ProgressSnapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiStatus {
    Queued,
    Running,
    Succeeded,
    Canceled,
    Failed,
    Expired,
}

impl ApiStatus {
    pub(super) fn new(life: &JobStatus) -> ApiStatus {
        match &life.state {
            StateRow::Queued { .. } => ApiStatus::Queued,
            StateRow::Running { .. } => ApiStatus::Running,
            StateRow::Completed { .. } => ApiStatus::Succeeded,
            StateRow::Cancelled { .. } => ApiStatus::Canceled,
            StateRow::Expired { .. } => ApiStatus::Expired,
            StateRow::Failed { .. } => ApiStatus::Failed,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            ApiStatus::Queued => "queued",
            ApiStatus::Running => "running",
            ApiStatus::Succeeded => "succeeded",
            ApiStatus::Canceled => "canceled",
            ApiStatus::Failed => "failed",
            ApiStatus::Expired => "expired",
        }
    }

    pub(super) fn has_ended(self) -> bool {
        !matches!(self, ApiStatus::Queued | ApiStatus::Running)
    }
}

/// Timestamps of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobTimes {
    pub(super) started_at: Option<Timestamp>,
    pub(super) completed_at: Option<Timestamp>,
    pub(super) expires_at: Timestamp,
}

impl JobTimes {
    pub(super) fn new(accepted_at: Timestamp, life: &JobStatus, retention: Duration) -> JobTimes {
        let completed_at = (!life.state.is_open()).then_some(life.changed_at);
        JobTimes {
            started_at: life.attempts.first().map(|first| first.started_at),
            completed_at,
            // An open job is kept regardless of its age; this is the earliest possible expiry.
            expires_at: completed_at.unwrap_or(accepted_at.max(life.changed_at)).plus(retention),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct JobView {
    pub(super) id: JobId,
    tenant: Tenant,
    accepted_at: Timestamp,
    metadata: Map<String, Value>,
    life: JobStatus,
    pub(super) status: ApiStatus,
    /// 1 for the next job; `None` if it is not queued or too many jobs are ahead.
    pub(super) queue_position: Option<usize>,
    pub(super) progress: Option<ProgressSnapshot>,
    pub(super) outputs: Vec<JobOutput>,
}

/// The job with this id, if the caller may see it.
pub(super) async fn find(context: &Context, caller: &Caller, id: &str) -> Result<JobView, ApiError> {
    // A malformed id is answered like an unknown one.
    let id: JobId = id.parse().map_err(|_| not_found())?;
    let found = read(context, id).await?;
    if found.is_none()
        && let Some(lost) = lost::job(context, id)
    {
        return Err(lost);
    }
    found.filter(|view| caller.may_see(&view.tenant)).ok_or_else(not_found)
}

/// Open jobs are read from the plane alone: most polls need no store access.
pub(super) async fn read(context: &Context, id: JobId) -> Result<Option<JobView>, ApiError> {
    let open = context.plane.read(move |plane, now| {
        let job = plane.job(id)?;
        let life = job.status(now);
        let held = life.state.worker().and_then(|worker| plane.worker(worker)?.assignments.get(&id));
        let held = held.map(|hold| (hold.progress, hold.phase.clone()));
        let view = JobView {
            id,
            tenant: job.tenant.clone(),
            accepted_at: job.accepted_at,
            metadata: job.metadata(),
            status: ApiStatus::new(&life),
            life,
            queue_position: plane.jobs_ahead(id).map(|ahead| ahead + 1),
            progress: None,
            outputs: Vec::new(),
        };
        Some((view, held))
    });
    if let Some((mut view, held)) = open.await? {
        if view.status == ApiStatus::Running {
            view.progress = progress(context, id, held);
            view.outputs = output::live_outputs(context, id);
        }
        return Ok(Some(view));
    }
    let Some((accepted, life)) = context.store.job(id).await? else { return Ok(None) };
    let status = ApiStatus::new(&life);
    let result = if status == ApiStatus::Succeeded { context.store.result(id).await? } else { None };
    let outputs = result.map(|result| output::from_result(id, &result)).unwrap_or_default();
    Ok(Some(JobView {
        id,
        tenant: accepted.tenant,
        accepted_at: accepted.accepted_at,
        metadata: accepted.metadata,
        life,
        status,
        queue_position: None,
        progress: None,
        outputs,
    }))
}

/// Progress of the latest live report; otherwise of the last beat.
fn progress(context: &Context, id: JobId, held: Option<(f32, String)>) -> Option<ProgressSnapshot> {
    let reported = context.live_attempts.find(id).and_then(|doing| doing.progress);
    reported.or_else(|| {
        let (value, phase) = held?;
        let message = Some(phase).filter(|phase| !phase.is_empty());
        Some(ProgressSnapshot { value: value.into(), message, ..ProgressSnapshot::default() })
    })
}

/// Every number is within the bounds of the contract.
pub(super) fn progress_json(progress: &ProgressSnapshot) -> Value {
    // Rounded to four digits; workers report single precision.
    let value = (progress.value.clamp(0.0, 1.0) * 1e4).round() / 1e4;
    let value = if value.is_finite() { value } else { 0.0 };
    let mut json = json!(progress);
    json["value"] = value.into();
    json
}

impl JobView {
    pub(super) fn times(&self, context: &Context) -> JobTimes {
        JobTimes::new(self.accepted_at, &self.life, context.retention)
    }

    pub(super) fn to_json(&self, context: &Context, links: &Links) -> Value {
        let (id, times) = (self.id, self.times(context));
        let outputs: Vec<_> = self.outputs.iter().map(|output| output.to_json(id, times, links)).collect();
        let mut json = json!({
            "id": id.to_string(),
            "status": self.status.as_str(),
            "created_at": self.accepted_at.to_string(),
            "started_at": times.started_at.map(|at| at.to_string()),
            "completed_at": times.completed_at.map(|at| at.to_string()),
            "expires_at": times.expires_at.to_string(),
            "queue_position": self.queue_position,
            "progress": self.progress.as_ref().map(progress_json),
            "outputs": outputs,
            "error": self.error(),
            "metrics": self.metrics(times),
            "urls": Links::job(id),
        });
        if !self.metadata.is_empty() {
            json["metadata"] = Value::Object(self.metadata.clone());
        }
        json
    }

    fn error(&self) -> Value {
        let Some((cause, message)) = self.life.state.failure() else { return Value::Null };
        let node = self.life.failing_node();
        let is_out_of_memory = self.life.attempts.last().is_some_and(|last| last.out_of_memory.is_some());
        let code = match (self.status, node) {
            (ApiStatus::Expired, _) => "deadline_exceeded".to_owned(),
            _ if is_out_of_memory => "out_of_memory".to_owned(),
            (_, Some(_)) => "node_execution_error".to_owned(),
            (_, None) => format!("{cause}_error"),
        };
        json!({
            "code": code,
            "message": message,
            "node_id": node.map(|node| &node.id),
            "class_type": node.and_then(|node| node.class.as_ref()),
            "traceback": null,
        })
    }

    fn metrics(&self, times: JobTimes) -> Value {
        let millis = |from: Timestamp, to: Timestamp| u64::try_from(to.since(from).as_millis()).ok();
        let last = self.life.attempts.last();
        json!({
            "queue_ms": times.started_at.and_then(|started_at| millis(self.accepted_at, started_at)),
            "execution_ms": last.and_then(|last| millis(last.started_at, last.ended_at?)),
        })
    }
}

/// Not found, expired or owned by another tenant: the answer does not tell which.
pub(super) fn not_found() -> ApiError {
    ApiError::not_found("there is no such job; it may have been removed after its retention time (retention)")
}
