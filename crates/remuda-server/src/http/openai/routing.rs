//! Who answers a call: a model of this process itself, or a worker of the fleet that has one, by way of a job. A model that
//! both have is asked here first; what finds no room or no copy here goes to the others, if there are any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::id::WorkerId;
use remuda_core::machine::Presence;
use remuda_core::plane::Plane;
use remuda_models::{Answer, Capability, Failure, Piece, Pool, PoolError, Request, Ticket};
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;

use super::super::{ApiError, Caller, Context};
use super::job_call::Following;
use remuda_core::wire::metric::MODEL_LABEL;

/// The models of this process, if it has any. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    pool: OnceLock<Pool>,
    hands: OnceLock<BTreeSet<WorkerId>>,
}

impl Models {
    /// From now on they are asked directly.
    pub fn share(&self, pool: Pool) {
        // Only whoever starts the program shares one, and once.
        self.0.pool.set(pool).ok();
    }

    /// The workers of this process. What they are given comes to the same pool.
    pub fn worked_by(&self, hands: BTreeSet<WorkerId>) {
        self.0.hands.set(hands).ok();
    }

    fn hands(&self) -> BTreeSet<WorkerId> {
        self.0.hands.get().cloned().unwrap_or_default()
    }

    pub(super) fn own(&self) -> Option<&Pool> {
        self.0.pool.get()
    }

    fn has(&self, model: &str) -> Option<&Pool> {
        self.own().filter(|pool| pool.models().iter().any(|(spec, _)| spec.name == model))
    }
}

/// A model that somebody has.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    pub(super) capability: Capability,
    /// It is asked directly.
    pub(super) is_own: bool,
    /// Workers that would take a job for it now.
    pub(super) workers: Vec<String>,
}

impl Offered {
    fn new(capability: Capability) -> Offered {
        Offered { capability, is_own: false, workers: Vec::new() }
    }
}

/// All that could be asked, by name: of this process, and of workers as they said when they joined.
pub(super) async fn offered(context: &Context) -> Result<BTreeMap<String, Offered>, ApiError> {
    let mut offered = context.plane.read(|plane, _| of_fleet(plane)).await?;
    for (spec, found) in context.models.own().map(Pool::models).unwrap_or_default() {
        let own = offered.entry(spec.name).or_insert_with(|| Offered::new(found.capability));
        (own.capability, own.is_own) = (found.capability, true);
    }
    Ok(offered)
}

fn of_fleet(plane: &Plane) -> BTreeMap<String, Offered> {
    let mut offered = BTreeMap::new();
    for worker in plane.workers().filter(|worker| !worker.has_left) {
        let labels = worker.offer.labels.iter();
        let models =
            labels.filter_map(|(name, word)| Some((name.strip_prefix(MODEL_LABEL)?, word.parse().ok()?)));
        for (name, capability) in models {
            let model: &mut Offered =
                offered.entry(name.to_owned()).or_insert_with(|| Offered::new(capability));
            // A model that its worker has given up is still known, and nobody is sent there.
            let is_there = worker.offer.models.as_ref().is_none_or(|models| models.contains(name));
            if worker.presence == Presence::Online && is_there && worker.closed.is_empty() {
                model.workers.push(worker.id.to_string());
            }
        }
    }
    offered
}

/// What is asked of whom.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) model: &'a str,
    pub(super) request: Request,
    pub(super) patience: Duration,
}

/// An answer on its way. Whoever drops it wants it no more.
#[derive(Debug)]
pub(super) struct Answering {
    model: String,
    until: Instant,
    from: From,
}

#[derive(Debug)]
enum From {
    Own(Ticket),
    Job(Box<Following>),
}

/// Asks whoever has the model.
pub(super) async fn call(context: &Context, caller: &Caller, call: Call<'_>) -> Result<Answering, ApiError> {
    let Call { model, request, patience } = call;
    let (model, until) = (model.to_owned(), Instant::now() + patience);
    if let Some(pool) = context.models.has(&model) {
        let refused = match ask(pool.clone(), model.clone(), request.clone(), until).await? {
            Ok(ticket) => return Ok(Answering { model, until, from: From::Own(ticket) }),
            Err(refused) => refused,
        };
        let hands = context.models.hands();
        if !is_for_others(&refused) || !has_others(context, &model, request.capability(), &hands).await? {
            return Err(problem(refused));
        }
        debug!(model, %refused, "asking a worker that has it as well");
        return by_job(context, caller, &model, request, until, hands).await;
    }
    let mut known = offered(context).await?;
    let Some(Offered { capability, workers, .. }) = known.remove(&model) else {
        return Err(unknown(&model, &known.into_keys().collect::<Vec<_>>()));
    };
    if capability != request.capability() {
        let asked = request.capability();
        return Err(problem(PoolError::WrongCapability { model, can: capability, asked }));
    }
    if workers.is_empty() {
        let why = "every worker that has it is offline or has closed".to_owned();
        return Err(problem(PoolError::NoWorkers { model, why }));
    }
    by_job(context, caller, &model, request, until, BTreeSet::new()).await
}

/// Of a worker that has the model, and is none of `excluded`.
async fn by_job(
    context: &Context,
    caller: &Caller,
    model: &str,
    request: Request,
    until: Instant,
    excluded: BTreeSet<WorkerId>,
) -> Result<Answering, ApiError> {
    let patience = until.saturating_duration_since(Instant::now());
    let following = Following::begin(context, caller, model, request, patience, excluded).await?;
    Ok(Answering { model: model.to_owned(), until, from: From::Job(Box::new(following)) })
}

/// Whether it says nothing about what was asked, and only that it cannot be done here and now.
fn is_for_others(refused: &PoolError) -> bool {
    match refused {
        PoolError::Full { .. } | PoolError::NoWorkers { .. } => true,
        PoolError::UnknownModel { .. }
        | PoolError::WrongCapability { .. }
        | PoolError::Input(_)
        | PoolError::Deadline { .. }
        | PoolError::Cancelled
        | PoolError::Failed { .. }
        | PoolError::Differs { .. }
        | PoolError::Closing => false,
    }
}

/// Whether a worker of another process would take a job for it now.
async fn has_others(
    context: &Context,
    model: &str,
    asked: Capability,
    hands: &BTreeSet<WorkerId>,
) -> Result<bool, ApiError> {
    let hands: Vec<_> = hands.iter().map(ToString::to_string).collect();
    let known = context.plane.read(|plane, _| of_fleet(plane)).await?;
    let offered = known.get(model).filter(|offered| offered.capability == asked);
    Ok(offered.is_some_and(|offered| offered.workers.iter().any(|worker| !hands.contains(worker))))
}

/// Preparing takes a processor for a while, and nobody else is to wait for that.
async fn ask(
    pool: Pool,
    model: String,
    request: Request,
    until: Instant,
) -> Result<Result<Ticket, PoolError>, ApiError> {
    let terms = remuda_models::Call { deadline: Some(until.into_std()) };
    let asked = tokio::task::spawn_blocking(move || pool.call(&model, request, terms)).await;
    asked.map_err(|panicked| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", panicked.to_string())
    })
}

impl Answering {
    /// The next thing that is said of the answer while it is made; nothing once it is made, or cannot be.
    pub(super) async fn piece(&mut self) -> Result<Option<Piece>, ApiError> {
        let piece = async {
            match &mut self.from {
                From::Own(ticket) => Ok(ticket.piece().await),
                From::Job(following) => following.piece().await,
            }
        };
        match tokio::time::timeout_at(self.until, piece).await {
            Ok(piece) => piece,
            Err(_) => Err(problem(PoolError::Deadline { model: self.model.clone() })),
        }
    }

    pub(super) async fn answer(self) -> Result<Answer, ApiError> {
        let Answering { model, until, from } = self;
        let answer = async {
            match from {
                From::Own(ticket) => ticket.answer().await.map_err(problem),
                From::Job(following) => following.answer().await,
            }
        };
        match tokio::time::timeout_at(until, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(problem(PoolError::Deadline { model })),
        }
    }
}

/// What went wrong, as a caller is told.
pub(super) fn problem(error: PoolError) -> ApiError {
    use StatusCode as S;
    let message = error.to_string();
    match error {
        PoolError::UnknownModel { model, known } => {
            unknown(&model, &known.split(", ").map(str::to_owned).collect::<Vec<_>>())
        }
        PoolError::WrongCapability { .. } => {
            let detail = json!({ "param": "model" });
            ApiError { detail, ..ApiError::new(S::BAD_REQUEST, "wrong_model", message) }
        }
        PoolError::Input(_) | PoolError::Failed { failure: Failure::Input(_), .. } => {
            ApiError::new(S::BAD_REQUEST, "invalid_value", message)
        }
        PoolError::Full { retry_after, .. } => {
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            ApiError::new(S::TOO_MANY_REQUESTS, "queue_full", message).later(seconds.try_into().unwrap_or(60))
        }
        PoolError::NoWorkers { .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "model_unavailable", message).later(1)
        }
        PoolError::Differs { .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "stream_diverged", message).later(1)
        }
        PoolError::Deadline { .. } => ApiError::new(S::GATEWAY_TIMEOUT, "deadline", message),
        PoolError::Cancelled | PoolError::Closing => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "stopping", message).later(2)
        }
        PoolError::Failed { failure: Failure::OutOfMemory(_), .. } => {
            ApiError::new(S::SERVICE_UNAVAILABLE, "out_of_memory", message).later(1)
        }
        PoolError::Failed { .. } => ApiError::new(S::INTERNAL_SERVER_ERROR, "model_failed", message),
    }
}

pub(super) fn unknown(model: &str, known: &[String]) -> ApiError {
    let there = match known.is_empty() {
        true => "there is none at all: start one with `remuda up --model NAME=PATH`".to_owned(),
        false => format!("there are: {}", known.join(", ")),
    };
    let message = format!("there is no model called {model}; {there}");
    let detail = json!({ "param": "model" });
    ApiError { detail, ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message) }
}

/// An answer that is none.
pub(super) fn off(model: &str, what: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "model_failed", format!("{model} {what}"))
}
