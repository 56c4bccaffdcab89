//! Jobs over HTTP: submit, read, list, cancel, explain.

mod retry;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::{JobId, Service, Tenant, WorkerId};
use remuda_core::need::Requirements;
use remuda_core::options::{JobOptions, Webhook};
use remuda_core::plane::{Plane, PlaneEvent};
use remuda_core::record::{AcceptedJob, JobStatus};
use remuda_core::refusal::Refusal;
use remuda_core::service::ServiceState;
use remuda_core::time::Timestamp;
use remuda_store::blobs::BlobHash;
use remuda_store::{JobFilter, JobStateFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

pub(super) use self::retry::retry;
pub(super) use self::why::why;

use super::comfyui::{FleetCheck, SERVICE as COMFYUI};
use super::path::Path;
use super::{ApiError, Caller, Context, lost};
use crate::intake::{DURATION_MAX, SubmitFields, Submitted, parse_with_attachments};
use crate::live::LiveAttempt;
use crate::plane_handle::PlaneError;
use remuda_core::wire::live::ProgressSnapshot;

/// The body of a submission.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmitBody<'a> {
    #[serde(borrow)]
    workflow: &'a RawValue,
    tenant: Option<Tenant>,
    #[serde(default)]
    priority: i8,
    service: Option<Service>,
    #[serde(default)]
    needs: Requirements,
    deadline_seconds: Option<u64>,
    attempts_max: Option<u8>,
    retry_delay_seconds: Option<f64>,
    #[serde(default)]
    preferred: BTreeSet<WorkerId>,
    start_limit_seconds: Option<f64>,
    node_limit_seconds: Option<f64>,
    #[serde(default)]
    include_outputs: BTreeSet<String>,
    #[serde(default)]
    wait_for_capability: bool,
    #[serde(default)]
    attachments: BTreeMap<String, BlobHash>,
    webhook: Option<Webhook>,
    idempotency_key: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

pub(super) async fn submit(
    State(context): State<Context>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body = read(&body)?;
    let options = JobOptions {
        retry_delay: seconds("retry_delay_seconds", body.retry_delay_seconds)?,
        preferred: body.preferred,
        start_limit: seconds("start_limit_seconds", body.start_limit_seconds)?,
        node_limit: seconds("node_limit_seconds", body.node_limit_seconds)?,
        include_outputs: body.include_outputs,
        webhook: body.webhook,
        wait_for_capability: body.wait_for_capability,
        retry_of: None,
    };
    let fields = SubmitFields {
        tenant: caller.tenant(body.tenant.as_ref())?,
        token: caller.token(),
        priority: context.access.priority(&caller, body.priority)?,
        service: body.service,
        needs: body.needs,
        deadline: body.deadline_seconds.map(Duration::from_secs),
        attempts_max: body.attempts_max,
        options,
        idempotency_key: idempotency_key(&headers, body.idempotency_key)?,
        labels: body.labels,
        metadata: body.metadata,
    };
    let fleet = fleet_check(&context, &fields).await?;
    let check = fleet.as_ref().and_then(|fleet| fleet.graph_check(None));
    let text = body.workflow.to_owned();
    let workflow = parse_with_attachments(text, &body.attachments, &context.limits, check.as_ref())?;
    let node_errors = workflow.verdict().map(|verdict| verdict.node_errors.clone()).unwrap_or_default();
    let Submitted { job, created } = context.intake().submit(workflow, fields).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/remuda/v1/jobs/{job}");
    let mut answer = json!({ "id": job, "created": created });
    if !node_errors.is_empty() {
        answer["node_errors"] = node_errors.into();
    }
    Ok((status, [(header::LOCATION, location)], Json(answer)).into_response())
}

/// The key of a submission, which may be in the header, in the body, or the same in both.
fn idempotency_key(headers: &HeaderMap, in_body: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(in_header) = headers.get("idempotency-key") else { return Ok(in_body) };
    let in_header = in_header
        .to_str()
        .map_err(|_| ApiError::bad_request("the Idempotency-Key header is not plain text"))?;
    match in_body {
        Some(in_body) if in_body != in_header => Err(ApiError::invalid(
            "the Idempotency-Key header and idempotency_key differ: send one of them, or the same key twice",
        )),
        Some(_) | None => Ok(Some(in_header.to_owned())),
    }
}

/// What a graph is checked against; `None` if the job is not for ComfyUI.
async fn fleet_check(context: &Context, fields: &SubmitFields) -> Result<Option<FleetCheck>, ApiError> {
    if fields.service.as_ref().is_some_and(|service| service.as_str() != COMFYUI) {
        return Ok(None);
    }
    let waits = fields.options.wait_for_capability;
    Ok(Some(context.comfyui.fleet_check(context, waits).await?))
}

fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>, ApiError> {
    match given {
        Some(given) if !(0.0..=DURATION_MAX.as_secs_f64()).contains(&given) => {
            Err(ApiError::invalid(format!("{name} is {given}: a number of seconds, from 0 to ten years")))
        }
        given => Ok(given.map(Duration::from_secs_f64)),
    }
}

fn read(body: &[u8]) -> Result<SubmitBody<'_>, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::bad_request(format!("the body is not UTF-8: {error}")))?;
    serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            let hint = "a submission is an object with \"workflow\" and, if you like, tenant, priority, service, needs, \
                        deadline_seconds, attempts_max, retry_delay_seconds, preferred, start_limit_seconds, \
                        node_limit_seconds, include_outputs, wait_for_capability, attachments, webhook, idempotency_key, labels, metadata";
            ApiError::invalid(format!("{error}; {hint}"))
        }
        _ => ApiError::bad_request(format!("the body is not JSON: {error}")),
    })
}

/// A job in answers.
#[derive(Debug, Serialize)]
struct JobView {
    id: JobId,
    state: &'static str,
    /// Why it waits, where it runs, how it ended.
    reason: String,
    #[serde(flatten)]
    accepted: Map<String, Value>,
    attempt: u32,
    failures: u8,
    infra_failures: u8,
    changed_at: String,
    accepted_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// The service's last status of the newest attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    service_status: Option<ServiceState>,
    /// Progress of the running attempt, as reported by its worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressSnapshot>,
    /// Outputs so far, in the form they will have in the result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<Arc<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Arc<RawValue>>,
}

impl JobView {
    fn new(accepted: &AcceptedJob, life: &JobStatus, reason: String, result: Option<Arc<RawValue>>) -> Self {
        let fields = match serde_json::to_value(accepted) {
            Ok(Value::Object(mut fields)) => {
                for replaced in ["id", "accepted_at", "deadline", "key"] {
                    fields.remove(replaced);
                }
                if let Some(deadline) = accepted.deadline {
                    fields.insert("deadline".to_owned(), deadline.to_string().into());
                }
                let webhook = fields.get_mut("options").and_then(|it| it.get_mut("webhook"));
                if let Some(secret) = webhook.and_then(|webhook| webhook.get_mut("secret")) {
                    *secret = "***".into();
                }
                if let Some(key) = &accepted.key {
                    fields.insert("idempotency_key".to_owned(), key.key.clone().into());
                }
                fields
            }
            Ok(_) | Err(_) => Map::new(),
        };
        JobView {
            id: accepted.id,
            state: life.state.name(),
            reason,
            accepted: fields,
            attempt: life.attempt.0,
            failures: life.failures,
            infra_failures: life.infra_failures,
            changed_at: life.changed_at.to_string(),
            accepted_at: accepted.accepted_at.to_string(),
            worker: life.state.worker().map(ToString::to_string),
            service_status: life.attempts.last().and_then(|one| Some(one.service.as_ref()?.service_status)),
            progress: None,
            outputs: Vec::new(),
            result,
        }
    }

    fn with_live(mut self, live: Option<LiveAttempt>) -> Self {
        if let Some(live) = live.filter(|live| live.attempt.0 == self.attempt) {
            (self.progress, self.outputs) = (live.progress, live.outputs);
        }
        self
    }
}

pub(super) async fn one(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse()?;
    let open = context
        .plane
        .read(move |plane, now| plane.job(id).map(|job| (job.status(now), plane.reason(now, job))))
        .await?;
    let (accepted, stored) = context.store.job(id).await?.ok_or_else(|| unknown(&context, id))?;
    // A job that has ended is read from the store; the plane knows the open ones best.
    let (life, reason) = match open {
        Some(open) if stored.state.is_open() => open,
        Some(_) | None => {
            let reason = Plane::explain_ended(id, &stored).reason;
            (stored, reason)
        }
    };
    let result = context.store.result(id).await?;
    let live = context.live_attempts.find(id).filter(|_| life.state.is_open());
    Ok(Json(JobView::new(&accepted, &life, reason, result).with_live(live)).into_response())
}

pub(super) fn unknown(context: &Context, id: JobId) -> ApiError {
    let not_found =
        || ApiError::not_found(format!("there is no job {id}; it may have been cleared away (retention)"));
    lost::job(context, id).unwrap_or_else(not_found)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<String>,
    tenant: Option<Tenant>,
    before: Option<JobId>,
    limit: Option<usize>,
}

const PAGE: usize = 50;
const PAGE_MAX: usize = 1000;

pub(super) async fn list(
    State(context): State<Context>,
    caller: Caller,
    page: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(page) = page?;
    let state: Option<JobStateFilter> = match page.state.as_deref() {
        Some(word) => Some(
            word.parse().map_err(|bad: remuda_store::UnknownName| ApiError::bad_request(bad.to_string()))?,
        ),
        None => None,
    };
    let limit = page.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let filter = JobFilter { state, tenant: caller.narrowed(page.tenant)? };
    let jobs = context.store.jobs(filter, page.before, limit).await?;
    let next = (jobs.len() == limit).then(|| jobs.last().map(|(accepted, _)| accepted.id)).flatten();
    let open: Vec<_> =
        jobs.iter().filter(|(_, life)| life.state.is_open()).map(|(accepted, _)| accepted.id).collect();
    let (reasons, brake): (BTreeMap<JobId, String>, _) = context
        .plane
        .read(move |plane, now| {
            let reasons = open.into_iter().filter_map(|id| Some((id, plane.reason(now, plane.job(id)?))));
            (reasons.collect(), plane.mass_loss().reason(now))
        })
        .await?;
    let views: Vec<_> = jobs
        .iter()
        .map(|(accepted, life)| {
            let reason = reasons.get(&accepted.id).cloned();
            let reason = reason.unwrap_or_else(|| Plane::explain_ended(accepted.id, life).reason);
            JobView::new(accepted, life, reason, None)
        })
        .collect();
    Ok(Json(json!({ "jobs": views, "next": next, "brake": brake })).into_response())
}

pub(super) async fn workflow(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse()?;
    let workflow = context.store.workflow(id).await?.ok_or_else(|| unknown(&context, id))?;
    Ok(Json(workflow).into_response())
}

pub(super) async fn result(
    State(context): State<Context>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse()?;
    match context.store.result(id).await? {
        Some(result) => Ok(Json(result).into_response()),
        None => {
            let (_, life) = context.store.job(id).await?.ok_or_else(|| unknown(&context, id))?;
            Err(ApiError::not_found(format!("job {id} is {} and has no result", life.state.name())))
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelBody {
    #[serde(default)]
    reason: String,
}

pub(super) async fn cancel(
    State(context): State<Context>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let id: JobId = id.parse()?;
    let cancel = if body.is_empty() {
        CancelBody::default()
    } else {
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::bad_request(format!("expected {{\"reason\": \"…\"}}: {error}")))?
    };
    let message = if cancel.reason.is_empty() { "cancelled on request".to_owned() } else { cancel.reason };
    match context.plane.request(PlaneEvent::Cancel { job: id, message }).await {
        Ok(_) => Ok(Json(json!({ "id": id, "state": "cancelled" })).into_response()),
        Err(PlaneError::Refused(Refusal::UnknownJob(_))) => {
            // It may have ended before the plane started.
            let (_, life) = context.store.job(id).await?.ok_or_else(|| unknown(&context, id))?;
            Err(Refusal::Ended { state: life.state.name() }.into())
        }
        Err(other) => Err(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_body_may_name_one_idempotency_key() {
        let in_header = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), "a".parse().unwrap())]);
        let key = |headers: &HeaderMap, in_body: Option<&str>| {
            idempotency_key(headers, in_body.map(str::to_owned)).map_err(|problem| problem.status)
        };
        assert_eq!(key(&HeaderMap::new(), None), Ok(None));
        assert_eq!(key(&HeaderMap::new(), Some("b")), Ok(Some("b".to_owned())));
        assert_eq!(key(&in_header, None), Ok(Some("a".to_owned())));
        assert_eq!(key(&in_header, Some("a")), Ok(Some("a".to_owned())));
        assert_eq!(key(&in_header, Some("b")), Err(StatusCode::UNPROCESSABLE_ENTITY));
    }
}
