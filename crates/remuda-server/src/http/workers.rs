//! Workers over HTTP: join, beat and leave, as in `core::wire`; list, show and drain for admins.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::{Extension, Json};
use remuda_core::id::{Hash, JobId, Tenant, WorkerId};
use remuda_core::machine::Presence;
use remuda_core::plane::{JoinProof, Plane, PlaneAnswer, PlaneEvent};
use remuda_core::reliability::ReliabilitySummary;
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_core::wire::{Beat, BeatReply, JoinReply, JoinRequest, StartCheck};
use remuda_core::worker::Worker;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use super::access::AuditTarget;
use super::native::machines::{DEFAULT_DRAIN_REASON, DrainBody};
use super::path::Path;
use super::{ApiError, Caller, Context, blobs, unexpected_answer};
use crate::plane_handle::{PlaneError, PlaneHandle};
use crate::shutdown::stopped;

/// The longest a beat is held: below the idle timeout of common proxies.
const WAIT_MAX: Duration = Duration::from_secs(25);

pub(super) async fn join(
    State(context): State<Context>,
    caller: Caller,
    join: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<(StatusCode, Extension<AuditTarget>, Json<JoinReply>), ApiError> {
    let Json(join) = join?;
    caller.may_join_as(&join.worker, join.machine.as_ref())?;
    let proof = caller.proof();
    if let JoinProof::PreviousToken(credential) = proof {
        same_worker(&context, &join.worker, credential).await?;
    }
    let token = caller.new_credential()?;
    let about = about(&context, &join.worker).await?;
    let token_hash = Hash::digest(token.as_bytes());
    match context.plane.request_queued(PlaneEvent::Join { join: Box::new(join), token_hash, proof }).await? {
        PlaneAnswer::Joined(joined) => Ok((StatusCode::CREATED, about, Json(JoinReply { token, ..joined }))),
        _ => Err(unexpected_answer()),
    }
}

/// A worker that joins again must use the same name.
async fn same_worker(context: &Context, worker: &WorkerId, credential: Hash) -> Result<(), ApiError> {
    let name = worker.clone();
    let find = move |plane: &Plane, _| plane.worker(&name).is_some_and(|it| it.token_hash == credential);
    if context.plane.read(find).await? {
        return Ok(());
    }
    let message = format!("this is not the token that worker {worker} got when it last joined");
    Err(ApiError::new(StatusCode::FORBIDDEN, "wrong_token", message))
}

/// A join that replaces an online worker may be that worker after a restart, or an impostor: it is logged.
async fn about(context: &Context, worker: &WorkerId) -> Result<Extension<AuditTarget>, ApiError> {
    let name = worker.clone();
    let is_online = |worker: &Worker| worker.presence() == Presence::Online;
    let was_online = context.plane.read(move |plane, _| plane.worker(&name).is_some_and(is_online)).await?;
    if was_online {
        warn!(%worker, "another worker takes the place of the one that is online");
    }
    let how = if was_online { ", in place of the one that was online" } else { "" };
    Ok(Extension(AuditTarget(format!("worker {worker}{how}"))))
}

#[derive(Debug, Deserialize)]
pub(super) struct Wait {
    wait: Option<f64>,
}

pub(super) async fn beat(
    State(context): State<Context>,
    Path(worker): Path<String>,
    wait: Result<Query<Wait>, QueryRejection>,
    headers: HeaderMap,
    beat: Result<Json<Beat>, JsonRejection>,
) -> Result<Json<BeatReply>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let (Query(wait), Json(beat)) = (wait?, beat?);
    // Negative and invalid numbers mean no wait; longer than allowed means the longest allowed.
    let wait = wait
        .wait
        .filter(|wait| *wait > 0.0)
        .map_or(Duration::ZERO, |wait| Duration::try_from_secs_f64(wait).unwrap_or(WAIT_MAX));
    let token_hash = token(&headers)?;
    let (seq, term) = (beat.seq, beat.term);
    // Before the result is recorded: blobs that it names are kept as long as it is. They were stored moments ago and count
    // as used in any case, so a failure here refuses no beat.
    if let Err(error) = claim_results(&context, &beat).await {
        warn!(%worker, error = %error.message, "the blobs of a result could not be touched");
    }
    let waits = !wait.is_zero();
    let event =
        PlaneEvent::Beat { worker: worker.clone(), token_hash, beat: Box::new(beat), long_poll: waits };
    let answer = if waits {
        let held = HeldBeat { plane: context.plane.clone(), worker, seq, is_open: true };
        held.wait(&context, event, wait.min(WAIT_MAX)).await?
    } else {
        Some(context.plane.request_queued(event).await?)
    };
    match answer {
        Some(PlaneAnswer::Reply(mut reply)) => {
            fill_in(&context, &mut reply).await;
            Ok(Json(reply))
        }
        Some(PlaneAnswer::Pending) | None => Ok(Json(BeatReply { term, ..BeatReply::default() })),
        Some(_) => Err(unexpected_answer()),
    }
}

/// Marks the blobs of results as used, and counts them for the tenants of their jobs.
async fn claim_results(context: &Context, beat: &Beat) -> Result<(), ApiError> {
    for finished in &beat.finished {
        let Some(result) = finished.result.as_deref().filter(|result| blobs::names_any(result)) else {
            continue;
        };
        let job = finished.job;
        // A job that has ended meanwhile keeps nothing: its late result is refused.
        let find = move |plane: &Plane, _| plane.job(job).map(|job| Tenant::clone(&job.tenant));
        match context.plane.read(find).await? {
            Some(tenant) => blobs::claim_named(context, tenant, result).await?,
            None => blobs::touch_named(context, [result]).await?,
        }
    }
    Ok(())
}

/// A held beat. If it is dropped before it was answered, the plane is notified: a reason to probe the worker.
struct HeldBeat {
    plane: PlaneHandle,
    worker: WorkerId,
    seq: u64,
    is_open: bool,
}

impl HeldBeat {
    async fn wait(
        mut self,
        context: &Context,
        event: PlaneEvent,
        wait: Duration,
    ) -> Result<Option<PlaneAnswer>, ApiError> {
        let mut stopping = context.stopping.clone();
        let answer = tokio::select! {
            answer = self.plane.request_queued(event) => match answer {
                // The beat was dropped, for a newer one of the same worker or because the plane stops: no orders.
                Err(PlaneError::Stopping) => Ok(None),
                answer => answer.map(Some).map_err(ApiError::from),
            },
            () = tokio::time::sleep(wait) => Ok(None),
            () = stopped(&mut stopping) => Ok(None),
        };
        self.is_open = false;
        answer
    }
}

impl Drop for HeldBeat {
    fn drop(&mut self) {
        if self.is_open {
            self.plane.notify(PlaneEvent::ConnectionDropped { worker: self.worker.clone(), seq: self.seq });
        }
    }
}

/// Adds the workflow to each start order: the core never holds workflows. An order whose workflow cannot be read now is
/// left out and comes again with the next beat.
async fn fill_in(context: &Context, reply: &mut BeatReply) {
    for start in &mut reply.start {
        start.workflow = context.workflows.read(&context.store, start.job).await.ok().flatten();
        start.keys = context.secrets.find(start.job);
    }
    reply.start.retain(|start| start.workflow.is_some());
}

pub(super) fn token(headers: &HeaderMap) -> Result<Hash, ApiError> {
    let token =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| {
        let message = "send the token this worker was given when it joined: Authorization: Bearer TOKEN";
        ApiError::new(StatusCode::UNAUTHORIZED, "no_token", message)
    })?;
    Ok(Hash::digest(token.as_bytes()))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct LeaveQuery {
    #[serde(default)]
    reason: String,
}

/// A worker leaves with its own token; an admin removes it in its place.
pub(super) async fn leave(
    State(context): State<Context>,
    caller: Caller,
    Path(worker): Path<String>,
    query: Result<Query<LeaveQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let Query(query) = query?;
    let is_own_request =
        caller.is_joined() || headers.contains_key(header::AUTHORIZATION) && caller.is_anyone();
    let token_hash = if is_own_request { Some(token(&headers)?) } else { None };
    let reason = if query.reason.is_empty() { "it left".to_owned() } else { query.reason };
    context.plane.request_queued(PlaneEvent::Leave { worker: worker.clone(), token_hash, reason }).await?;
    Ok(Json(json!({ "worker": worker, "presence": "offline" })))
}

pub(super) async fn drain(
    State(context): State<Context>,
    Path(worker): Path<String>,
    query: Result<Query<LeaveQuery>, QueryRejection>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let worker: WorkerId = worker.parse()?;
    let (Query(query), (within, reason)) = (query?, DrainBody::read(&body)?);
    let reason = [reason, query.reason].into_iter().find(|reason| !reason.is_empty());
    let reason = reason.unwrap_or_else(|| DEFAULT_DRAIN_REASON.to_owned());
    context.plane.request(PlaneEvent::Drain { worker: worker.clone(), reason, within }).await?;
    let deadline = within.map(|within| within.as_secs_f64());
    Ok(Json(json!({ "worker": worker, "state": "terminating", "deadline_seconds": deadline })))
}

/// A worker in answers.
#[derive(Debug, Serialize)]
struct WorkerView {
    id: WorkerId,
    machine: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    state: &'static str,
    presence: &'static str,
    /// Whether it takes work now: `ready`, or what keeps it.
    availability: &'static str,
    incarnation: u64,
    services: Vec<String>,
    slots: u32,
    holds: Vec<HoldView>,
    seen_at: String,
    seen_millis_ago: u64,
    joined_at: String,
    reason: String,
    /// Why it takes no work although it is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable_reason: Option<String>,
    completed: u64,
    failed: u64,
    lost: u64,
    went_stale: u64,
    /// Of the last hour, day and week.
    reliability: ReliabilitySummary,
    /// It went stale too often within the last hour.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unreliable: bool,
    stale_after_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<StartCheck>,
    labels: Value,
    metrics: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    probation_until: Option<String>,
}

#[derive(Debug, Serialize)]
struct HoldView {
    job: JobId,
    attempt: u32,
    progress: f32,
    phase: String,
}

fn view(worker: &Worker, settings: &Settings, now: Timestamp) -> WorkerView {
    let holds = worker.assignments.iter().map(|(job, hold)| HoldView {
        job: *job,
        attempt: hold.attempt.0,
        progress: hold.progress,
        phase: hold.phase.clone(),
    });
    WorkerView {
        id: worker.id.clone(),
        machine: worker.machine.to_string(),
        fleet: worker.fleet.as_ref().map(ToString::to_string),
        state: worker.state().as_str(),
        presence: worker.presence().as_str(),
        availability: worker.availability(now).as_str(),
        incarnation: worker.incarnation.0,
        services: worker.services.iter().map(ToString::to_string).collect(),
        slots: worker.slots,
        holds: holds.collect(),
        seen_at: worker.watch.seen_at().to_string(),
        seen_millis_ago: u64::try_from(now.since(worker.watch.seen_at()).as_millis()).unwrap_or(u64::MAX),
        joined_at: worker.joined_at.to_string(),
        reason: worker.reason.clone(),
        unavailable_reason: worker.unavailable_reason.clone(),
        completed: worker.counts.completed,
        failed: worker.counts.failed,
        lost: worker.counts.lost,
        went_stale: worker.counts.went_stale,
        reliability: worker.reliability.summary(now),
        unreliable: worker.reliability.is_unreliable(now, settings.flaps_before_alert),
        stale_after_seconds: worker.stale_after(settings).as_secs_f64(),
        check: worker.check.clone(),
        labels: json!(worker.offer.labels),
        metrics: Value::Object(worker.metrics.clone()),
        probation_until: worker.probation.until().map(|until| until.to_string()),
    }
}

pub(super) async fn list(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let views = |plane: &Plane, now| {
        let workers = plane.workers().map(|worker| view(worker, plane.settings(), now));
        (workers.collect::<Vec<_>>(), plane.mass_loss().reason(now))
    };
    let (workers, brake) = context.plane.read(views).await?;
    let own_servers: Vec<_> = context.forward_to.iter().map(|server| server.url.as_str()).collect();
    Ok(Json(json!({ "workers": workers, "brake": brake, "own_servers": own_servers })))
}

pub(super) async fn one(
    State(context): State<Context>,
    Path(worker): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id: WorkerId = worker.parse()?;
    let name = id.clone();
    let find = move |plane: &Plane, now| plane.worker(&id).map(|worker| view(worker, plane.settings(), now));
    let found = context.plane.read(find).await?;
    found.map(|view| Json(json!(view))).ok_or_else(|| {
        ApiError::not_found(format!("no worker {name} has joined; `remuda workers` lists those that have"))
    })
}
