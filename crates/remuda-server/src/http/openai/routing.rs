//! Chooses who answers a call: a model of this process, or a worker of the fleet by way of a job. A local model is tried
//! first; if it is full or has no copy, the call goes to the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::id::WorkerId;
use remuda_core::plane::Plane;
use remuda_core::time::Timestamp;
use remuda_models::{
    AnswerHandle, AnswerUpdate, Capability, InferenceError, ModelAnswer, ModelError, ModelPool, ModelRequest,
};
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;

use super::super::{ApiError, Caller, Context};
use super::job_call::{JobCall, JobTerms};
use remuda_core::wire::metric::MODEL_LABEL;

/// The models of this process, if any. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LocalModels(Arc<LocalModelsInner>);

#[derive(Debug, Default)]
struct LocalModelsInner {
    pool: OnceLock<ModelPool>,
    own_workers: OnceLock<BTreeSet<WorkerId>>,
}

impl LocalModels {
    /// Makes the pool available to calls.
    pub fn set_pool(&self, pool: ModelPool) {
        // Set once, at start.
        self.0.pool.set(pool).ok();
    }

    /// The workers of this process; they use the same pool.
    pub fn set_workers(&self, own_workers: BTreeSet<WorkerId>) {
        self.0.own_workers.set(own_workers).ok();
    }

    fn workers(&self) -> BTreeSet<WorkerId> {
        self.0.own_workers.get().cloned().unwrap_or_default()
    }

    pub(super) fn pool(&self) -> Option<&ModelPool> {
        self.0.pool.get()
    }

    fn pool_with(&self, model: &str) -> Option<&ModelPool> {
        self.pool().filter(|pool| pool.models().iter().any(|(spec, _)| spec.name == model))
    }
}

/// A model that this process or a worker has.
#[derive(Clone, Debug)]
pub(super) struct OfferedModel {
    pub(super) capability: Capability,
    /// This process has it.
    pub(super) is_local: bool,
    /// Workers that can take a job for it now.
    pub(super) workers: Vec<String>,
}

impl OfferedModel {
    fn new(capability: Capability) -> OfferedModel {
        OfferedModel { capability, is_local: false, workers: Vec::new() }
    }
}

/// All known models by name: of this process, and as workers reported when they joined.
pub(super) async fn list_models(context: &Context) -> Result<BTreeMap<String, OfferedModel>, ApiError> {
    let mut offered = context.plane.read(fleet_models).await?;
    for (spec, found) in context.models.pool().map(ModelPool::models).unwrap_or_default() {
        let own = offered.entry(spec.name).or_insert_with(|| OfferedModel::new(found.capability));
        (own.capability, own.is_local) = (found.capability, true);
    }
    Ok(offered)
}

/// Models of workers. Whether a worker takes jobs is decided by the plane alone.
fn fleet_models(plane: &Plane, now: Timestamp) -> BTreeMap<String, OfferedModel> {
    let mut offered = BTreeMap::new();
    for worker in plane.workers().filter(|worker| !worker.has_left) {
        let labels = worker.offer.labels.iter();
        let models =
            labels.filter_map(|(name, word)| Some((name.strip_prefix(MODEL_LABEL)?, word.parse().ok()?)));
        for (name, capability) in models {
            let model: &mut OfferedModel =
                offered.entry(name.to_owned()).or_insert_with(|| OfferedModel::new(capability));
            // A model that its worker has given up is still known but gets no jobs.
            let is_there = worker.offer.models.as_ref().is_none_or(|models| models.contains(name));
            if is_there && worker.availability(now).is_ready() {
                model.workers.push(worker.id.to_string());
            }
        }
    }
    offered
}

/// A call of one model.
#[derive(Debug)]
pub(super) struct ModelCall<'a> {
    pub(super) model: &'a str,
    pub(super) request: ModelRequest,
    pub(super) timeout: Duration,
    /// The client's idempotency key. A model of this process needs none: it stores nothing, and a repeated call computes again.
    pub(super) key: Option<String>,
}

/// A pending answer. Dropping it cancels the call.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    model: String,
    until: Instant,
    from: AnswerSource,
}

#[derive(Debug)]
enum AnswerSource {
    Own(AnswerHandle),
    Job(Box<JobCall>),
}

/// Calls the model.
pub(super) async fn call(
    context: &Context,
    caller: &Caller,
    call: ModelCall<'_>,
) -> Result<PendingAnswer, ApiError> {
    let ModelCall { model, request, timeout, key } = call;
    let (model, until) = (model.to_owned(), Instant::now() + timeout);
    if let Some(pool) = context.models.pool_with(&model) {
        let refused = match call_pool(pool.clone(), model.clone(), request.clone(), until).await? {
            Ok(ticket) => return Ok(PendingAnswer { model, until, from: AnswerSource::Own(ticket) }),
            Err(refused) => refused,
        };
        let own_workers = context.models.workers();
        if !can_try_fleet(&refused)
            || !has_other_workers(context, &model, request.capability(), &own_workers).await?
        {
            return Err(pool_error(refused));
        }
        debug!(model, %refused, "local model unavailable, trying the fleet");
        let terms = job_terms(timeout, until, own_workers, key);
        return call_by_job(context, caller, &model, request, until, terms).await;
    }
    let mut known = list_models(context).await?;
    let Some(OfferedModel { capability, workers, .. }) = known.remove(&model) else {
        return Err(unknown_model(&model, &known.into_keys().collect::<Vec<_>>()));
    };
    if capability != request.capability() {
        let asked = request.capability();
        return Err(pool_error(ModelError::WrongCapability { model, can: capability, asked }));
    }
    if workers.is_empty() {
        let why = "no worker that has it takes jobs now: offline, draining or on probation".to_owned();
        return Err(pool_error(ModelError::NoWorkers { model, why }));
    }
    let terms = job_terms(timeout, until, BTreeSet::new(), key);
    call_by_job(context, caller, &model, request, until, terms).await
}

fn job_terms(
    timeout: Duration,
    until: Instant,
    excluded: BTreeSet<WorkerId>,
    key: Option<String>,
) -> JobTerms {
    // With a key both requests must be the same, so the time that passed since it came does not count.
    let left = until.saturating_duration_since(Instant::now());
    let timeout = if key.is_some() { timeout } else { left };
    JobTerms { timeout, excluded, key: key.map(|key| format!("v1:{key}")) }
}

/// Submits the call as a job.
async fn call_by_job(
    context: &Context,
    caller: &Caller,
    model: &str,
    request: ModelRequest,
    until: Instant,
    terms: JobTerms,
) -> Result<PendingAnswer, ApiError> {
    let following = JobCall::begin(context, caller, model, request, terms).await?;
    Ok(PendingAnswer { model: model.to_owned(), until, from: AnswerSource::Job(Box::new(following)) })
}

/// True if the failure is about local capacity and not about the request.
fn can_try_fleet(refused: &ModelError) -> bool {
    match refused {
        ModelError::Full { .. } | ModelError::NoWorkers { .. } => true,
        ModelError::UnknownModel { .. }
        | ModelError::WrongCapability { .. }
        | ModelError::Input(_)
        | ModelError::Deadline { .. }
        | ModelError::Cancelled
        | ModelError::Failed { .. }
        | ModelError::Diverged { .. }
        | ModelError::Closing => false,
    }
}

/// True if a worker of another process can take a job for it now.
async fn has_other_workers(
    context: &Context,
    model: &str,
    fields: Capability,
    own_workers: &BTreeSet<WorkerId>,
) -> Result<bool, ApiError> {
    let own_workers: Vec<_> = own_workers.iter().map(ToString::to_string).collect();
    let known = context.plane.read(fleet_models).await?;
    let offered = known.get(model).filter(|offered| offered.capability == fields);
    Ok(offered.is_some_and(|offered| offered.workers.iter().any(|worker| !own_workers.contains(worker))))
}

/// Preparing a request uses the CPU for a while, so it runs on a blocking thread.
async fn call_pool(
    pool: ModelPool,
    model: String,
    request: ModelRequest,
    until: Instant,
) -> Result<Result<AnswerHandle, ModelError>, ApiError> {
    let terms = remuda_models::CallOptions { deadline: Some(until.into_std()) };
    let fields = tokio::task::spawn_blocking(move || pool.call(&model, request, terms)).await;
    fields.map_err(|panicked| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", panicked.to_string())
    })
}

impl PendingAnswer {
    /// The next piece of the answer; `None` once it is complete or failed.
    pub(super) async fn piece(&mut self) -> Result<Option<AnswerUpdate>, ApiError> {
        let piece = async {
            match &mut self.from {
                AnswerSource::Own(ticket) => Ok(ticket.next_update().await),
                AnswerSource::Job(following) => following.piece().await,
            }
        };
        match tokio::time::timeout_at(self.until, piece).await {
            Ok(piece) => piece,
            Err(_) => Err(pool_error(ModelError::Deadline { model: self.model.clone() })),
        }
    }

    pub(super) async fn answer(self) -> Result<ModelAnswer, ApiError> {
        let PendingAnswer { model, until, from } = self;
        let answer = async {
            match from {
                AnswerSource::Own(ticket) => ticket.answer().await.map_err(pool_error),
                AnswerSource::Job(following) => following.answer().await,
            }
        };
        match tokio::time::timeout_at(until, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(pool_error(ModelError::Deadline { model })),
        }
    }
}

/// The error in the common format.
pub(super) fn pool_error(error: ModelError) -> ApiError {
    use StatusCode as S;
    let message = error.to_string();
    match error {
        ModelError::UnknownModel { model, known } => {
            unknown_model(&model, &known.split(", ").map(str::to_owned).collect::<Vec<_>>())
        }
        ModelError::WrongCapability { .. } => {
            let detail = json!({ "param": "model" });
            ApiError { detail, ..ApiError::new(S::BAD_REQUEST, "wrong_model", message) }
        }
        ModelError::Input(_) | ModelError::Failed { failure: InferenceError::Input(_), .. } => {
            ApiError::new(S::BAD_REQUEST, "invalid_value", message)
        }
        ModelError::Full { retry_after, .. } => {
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            ApiError::new(S::TOO_MANY_REQUESTS, "queue_full", message)
                .with_retry_after(seconds.try_into().unwrap_or(60))
        }
        ModelError::NoWorkers { .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "model_unavailable", message).with_retry_after(1)
        }
        ModelError::Diverged { .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "stream_diverged", message).with_retry_after(1)
        }
        ModelError::Deadline { .. } => ApiError::new(S::GATEWAY_TIMEOUT, "deadline", message),
        ModelError::Cancelled | ModelError::Closing => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "stopping", message).with_retry_after(2)
        }
        ModelError::Failed { failure: InferenceError::OutOfMemory(_), .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "out_of_memory", message).with_retry_after(1)
        }
        ModelError::Failed { .. } => ApiError::new(S::INTERNAL_SERVER_ERROR, "model_failed", message),
    }
}

pub(super) fn unknown_model(model: &str, known: &[String]) -> ApiError {
    let there = match known.is_empty() {
        true => "no model is running: start one with `remuda up --model NAME=PATH`".to_owned(),
        false => format!("known models: {}", known.join(", ")),
    };
    let message = format!("there is no model named {model}; {there}");
    let detail = json!({ "param": "model" });
    ApiError { detail, ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) }
}

/// The model returned something unusable.
pub(super) fn model_error(model: &str, what: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "model_failed", format!("{model} {what}"))
}
