//! A job as the contract shows it. What has ended stands in the store; what is open is best known to the plane, and how far
//! it is to whoever told of its attempt last.

use std::time::Duration;

use remuda_comfyui::fault;
use remuda_core::id::{JobId, Tenant};
use remuda_core::record::{Life, StateRow};
use remuda_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::super::{ApiError, Caller, Context};
use super::links::Links;
use super::output::{self, Output};
use remuda_core::wire::live::ProgressSnapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Queued,
    Running,
    Succeeded,
    Canceled,
    Failed,
    Expired,
}

impl Status {
    pub(super) fn of(deadline: Option<Timestamp>, life: &Life) -> Status {
        match &life.state {
            StateRow::Queued { .. } => Status::Queued,
            StateRow::Running { .. } => Status::Running,
            StateRow::Completed { .. } => Status::Succeeded,
            StateRow::Cancelled { .. } => Status::Canceled,
            StateRow::Failed { .. } if life.has_expired(deadline) => Status::Expired,
            StateRow::Failed { .. } => Status::Failed,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Canceled => "canceled",
            Status::Failed => "failed",
            Status::Expired => "expired",
        }
    }

    pub(super) fn is_over(self) -> bool {
        !matches!(self, Status::Queued | Status::Running)
    }
}

/// The moments of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub(super) started_at: Option<Timestamp>,
    pub(super) completed_at: Option<Timestamp>,
    pub(super) expires_at: Timestamp,
}

impl Lifetime {
    pub(super) fn of(accepted_at: Timestamp, life: &Life, retention: Duration) -> Lifetime {
        let completed_at = (!life.state.is_open()).then_some(life.changed_at);
        Lifetime {
            started_at: life.tries.first().map(|first| first.started_at),
            completed_at,
            // An open job is kept whatever its age; this is the least that can be promised.
            expires_at: completed_at.unwrap_or(accepted_at.max(life.changed_at)).plus(retention),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) id: JobId,
    tenant: Tenant,
    accepted_at: Timestamp,
    metadata: Map<String, Value>,
    life: Life,
    pub(super) status: Status,
    /// 1 for whoever is next; nothing if it does not wait, or too many do.
    pub(super) queue_position: Option<usize>,
    pub(super) progress: Option<ProgressSnapshot>,
    pub(super) outputs: Vec<Output>,
}

/// The job of this id, if the caller may know of it.
pub(super) async fn find(context: &Context, caller: &Caller, id: &str) -> Result<Seen, ApiError> {
    // What is no id at all is nobody's.
    let id: JobId = id.parse().map_err(|_| missing())?;
    look(context, id).await?.filter(|seen| caller.may_see(&seen.tenant)).ok_or_else(missing)
}

/// An open job is asked of the plane alone: most polls cost no read.
pub(super) async fn look(context: &Context, id: JobId) -> Result<Option<Seen>, ApiError> {
    let open = context.plane.read(move |plane, now| {
        let job = plane.job(id)?;
        let life = job.life(now);
        let held = life.state.worker().and_then(|worker| plane.worker(worker)?.holds.get(&id));
        let held = held.map(|hold| (hold.progress, hold.phase.clone()));
        let seen = Seen {
            id,
            tenant: job.tenant.clone(),
            accepted_at: job.accepted_at,
            metadata: job.metadata(),
            status: Status::of(job.deadline, &life),
            life,
            queue_position: plane.ahead(id).map(|ahead| ahead + 1),
            progress: None,
            outputs: Vec::new(),
        };
        Some((seen, held))
    });
    if let Some((mut seen, held)) = open.await? {
        if seen.status == Status::Running {
            seen.progress = progress(context, id, held);
            seen.outputs = output::so_far(context, id);
        }
        return Ok(Some(seen));
    }
    let Some((accepted, life)) = context.store.job(id).await? else { return Ok(None) };
    let status = Status::of(accepted.deadline, &life);
    let result = if status == Status::Succeeded { context.store.result(id).await? } else { None };
    let outputs = result.map(|result| output::of_result(id, &result)).unwrap_or_default();
    Ok(Some(Seen {
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

/// As its worker tells it while it works; failing that, as the last beat had it.
fn progress(context: &Context, id: JobId, held: Option<(f32, String)>) -> Option<ProgressSnapshot> {
    let told = context.live_attempts.find(id).and_then(|doing| doing.progress);
    told.or_else(|| {
        let (value, phase) = held?;
        let message = Some(phase).filter(|phase| !phase.is_empty());
        Some(ProgressSnapshot { value: value.into(), message, ..ProgressSnapshot::default() })
    })
}

/// Every number within the bounds that the contract has.
pub(super) fn shown_progress(progress: &ProgressSnapshot) -> Value {
    // To four places: what a worker counted in halves of the precision has no more.
    let value = (progress.value.clamp(0.0, 1.0) * 1e4).round() / 1e4;
    let value = if value.is_finite() { value } else { 0.0 };
    let mut shown = json!(progress);
    shown["value"] = value.into();
    shown
}

impl Seen {
    pub(super) fn lifetime(&self, context: &Context) -> Lifetime {
        Lifetime::of(self.accepted_at, &self.life, context.retention)
    }

    pub(super) fn shown(&self, context: &Context, links: &Links) -> Value {
        let (id, lifetime) = (self.id, self.lifetime(context));
        let outputs: Vec<_> = self.outputs.iter().map(|output| output.shown(id, lifetime, links)).collect();
        let mut shown = json!({
            "id": id.to_string(),
            "status": self.status.as_str(),
            "created_at": self.accepted_at.to_string(),
            "started_at": lifetime.started_at.map(|at| at.to_string()),
            "completed_at": lifetime.completed_at.map(|at| at.to_string()),
            "expires_at": lifetime.expires_at.to_string(),
            "queue_position": self.queue_position,
            "progress": self.progress.as_ref().map(shown_progress),
            "outputs": outputs,
            "error": self.error(),
            "metrics": self.metrics(lifetime),
            "urls": Links::job(id),
        });
        if !self.metadata.is_empty() {
            shown["metadata"] = Value::Object(self.metadata.clone());
        }
        shown
    }

    fn error(&self) -> Value {
        let StateRow::Failed { cause, message, .. } = &self.life.state else { return Value::Null };
        let at = fault::place(message);
        let ran_out = self.life.tries.last().is_some_and(|last| last.out_of_memory.is_some());
        let code = match (self.status, at) {
            (Status::Expired, _) => "deadline_exceeded".to_owned(),
            _ if ran_out => "out_of_memory".to_owned(),
            (_, Some(_)) => "node_execution_error".to_owned(),
            (_, None) => format!("{cause}_error"),
        };
        json!({
            "code": code,
            "message": message,
            "node_id": at.map(|(node, _)| node),
            "class_type": at.and_then(|(_, class)| class),
            "traceback": null,
        })
    }

    fn metrics(&self, lifetime: Lifetime) -> Value {
        let millis = |from: Timestamp, to: Timestamp| u64::try_from(to.since(from).as_millis()).ok();
        let last = self.life.tries.last();
        json!({
            "queue_ms": lifetime.started_at.and_then(|started_at| millis(self.accepted_at, started_at)),
            "execution_ms": last.and_then(|last| millis(last.started_at, last.ended_at?)),
        })
    }
}

/// Never was, is no more, or is somebody else's: nobody is told which.
pub(super) fn missing() -> ApiError {
    ApiError::not_found("there is no such job; it may have been cleared away (retention)")
}
