//! A model call as a job: submitted like any other, followed to its end, and cancelled when the client disconnects. A call
//! with an idempotency key is not cancelled then: its client may ask again with the key, and gets the same job's answer. The
//! seed of such a call follows from the key, so that both requests are the same.
//!
//! Text arrives in live reports, which may be lost: each piece carries its offset, and missed text is in the result. A retried
//! attempt repeats text, which is skipped.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::cause::Cause;
use remuda_core::id::{Hash, JobId, WorkerId};
use remuda_core::need::Requirements;
use remuda_core::plane::PlaneEvent;
use remuda_core::record::StateRow;
use remuda_core::workflow::Workflow;
use remuda_models::{AnswerUpdate, ModelAnswer, ModelError, ModelRequest};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tracing::debug;

use super::super::{ApiError, Caller, Context};
use super::routing::{model_error, pool_error};
use crate::follower::{Followed, Follower};
use crate::intake::{SubmitFields, Submitted};
use crate::live::LiveEvent;
use crate::plane_handle::PlaneHandle;
use remuda_models::result::{ModelResult, read_streamed_text};

#[derive(Debug)]
pub(super) struct JobCall {
    context: Context,
    model: String,
    guard: CancelOnDrop,
    events: Follower,
    ready: VecDeque<AnswerUpdate>,
    text_offset: TextOffset,
    is_over: bool,
}

/// How a call is submitted.
#[derive(Debug)]
pub(super) struct JobTerms {
    pub(super) timeout: Duration,
    /// Workers that must not run it.
    pub(super) excluded: BTreeSet<WorkerId>,
    /// Under which a repeated call finds the same job.
    pub(super) key: Option<String>,
}

/// Bytes of the text that were already forwarded.
#[derive(Debug, Default)]
struct TextOffset(usize);

impl TextOffset {
    /// The new part of a piece that starts at `at`; after a gap the text waits for the result.
    fn unseen<'a>(&mut self, at: usize, text: &'a str) -> Option<&'a str> {
        let new = text.get(self.0.checked_sub(at)?..).filter(|new| !new.is_empty())?;
        self.0 += new.len();
        Some(new)
    }
}

/// Cancels its job when dropped before the end.
#[derive(Debug)]
struct CancelOnDrop {
    job: JobId,
    plane: PlaneHandle,
    is_over: bool,
    /// The client may come back for it; its deadline ends it.
    has_key: bool,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if !self.is_over && !self.has_key {
            debug!(job = %self.job, "client disconnected, cancelling its job");
            let message = "the client disconnected".to_owned();
            self.plane.notify(PlaneEvent::Cancel { job: self.job, message });
        }
    }
}

impl JobCall {
    pub(super) async fn begin(
        context: &Context,
        caller: &Caller,
        model: &str,
        request: ModelRequest,
        terms: JobTerms,
    ) -> Result<JobCall, ApiError> {
        let JobTerms { timeout, excluded, key } = terms;
        let has_key = key.is_some();
        let workflow = to_raw_value(&job_workflow(model, request, key.as_deref())?);
        let workflow = workflow.map_err(|error| ApiError::bad_request(error.to_string()))?;
        // Input texts must not be mistaken for model file names.
        let workflow = Workflow::parse(workflow, &context.limits)?.for_model(model);
        // Subscribe before submitting, so that no event is missed.
        // A call in flight may end while the plane stops, so it does not end with it.
        let events = Follower::new(context.store.clone(), &context.events, None);
        let fields = SubmitFields {
            token: caller.token(),
            service: Some(model.parse()?),
            deadline: Some(timeout),
            idempotency_key: key,
            needs: Requirements { excluded, ..Requirements::default() },
            ..SubmitFields::new(caller.tenant(None)?)
        };
        let Submitted { job, created } = context.intake().submit(workflow, fields).await?;
        let guard = CancelOnDrop { job, plane: context.plane.clone(), is_over: false, has_key };
        // Of a known job the end may lie before the first event that is followed.
        let is_over =
            !created && context.store.job(job).await?.is_some_and(|(_, status)| !status.state.is_open());
        let (context, model) = (context.clone(), model.to_owned());
        Ok(JobCall {
            context,
            model,
            guard,
            events,
            ready: VecDeque::new(),
            text_offset: TextOffset::default(),
            is_over,
        })
    }

    /// The next piece; `None` once the job has ended.
    pub(super) async fn piece(&mut self) -> Result<Option<AnswerUpdate>, ApiError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.is_over {
                return Ok(None);
            }
            self.next_event().await?;
        }
    }

    pub(super) async fn answer(mut self) -> Result<ModelAnswer, ApiError> {
        while !self.is_over {
            self.next_event().await?;
        }
        self.outcome().await
    }

    async fn next_event(&mut self) -> Result<(), ApiError> {
        let job = self.guard.job;
        match self.events.next().await {
            Some(Followed::Event(LiveEvent::Update(update))) if update.job == job => {
                for (at, text) in update.report.messages.iter().filter_map(|it| read_streamed_text(it)) {
                    let new = self.text_offset.unseen(at, &text);
                    self.ready.extend(new.map(|new| AnswerUpdate::Text(new.to_owned())));
                }
                let progress = update.report.progress.as_ref().map(|progress| progress.value as f32);
                self.ready.extend(progress.map(AnswerUpdate::Progress));
            }
            Some(Followed::Event(LiveEvent::Stored(stored))) if stored.job == Some(job) => {
                self.is_over = stored.kind.is_job_end();
            }
            // The end may be among the missed events.
            Some(Followed::Gap { is_replayed: false, .. } | Followed::Restored { .. }) => {
                let stored = self.context.store.job(job).await?;
                self.is_over = stored.is_none_or(|(_, status)| !status.state.is_open());
            }
            Some(Followed::Event(_) | Followed::Gap { .. } | Followed::CaughtUp) => {}
            None => return Err(pool_error(ModelError::Closing)),
        }
        Ok(())
    }

    async fn outcome(mut self) -> Result<ModelAnswer, ApiError> {
        self.guard.is_over = true;
        let (job, model) = (self.guard.job, &self.model);
        let (_, life) = self.context.store.job(job).await?.ok_or_else(|| result_gone(job))?;
        match &life.state {
            StateRow::Completed { .. } => self.result().await,
            StateRow::Expired { .. } => Err(pool_error(ModelError::Deadline { model: model.clone() })),
            StateRow::Failed { cause: Cause::Job, message, .. } => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message.clone()))
            }
            StateRow::Failed { message, .. } | StateRow::Cancelled { message } => {
                let why = format!("{message} (job {job})");
                Err(pool_error(ModelError::NoWorkers { model: model.clone(), why }))
            }
            StateRow::Queued { .. } | StateRow::Running { .. } => Err(result_gone(job)),
        }
    }

    async fn result(&self) -> Result<ModelAnswer, ApiError> {
        let job = self.guard.job;
        let result = self.context.store.result(job).await?.ok_or_else(|| result_gone(job))?;
        let unreadable =
            || model_error(&self.model, &format!("returned a result in an unknown format (job {job})"));
        let given: ModelResult = serde_json::from_str(result.get()).map_err(|_| unreadable())?;
        let mut contents = Vec::new();
        for output in &given.outputs {
            let blob = self
                .context
                .blobs
                .read(output.hash.parse().map_err(|_| unreadable())?, self.context.plane.clock.now())
                .await?;
            let mut blob = blob.ok_or_else(|| result_gone(job))?;
            let read = tokio::task::spawn_blocking(move || {
                let mut content = Vec::new();
                std::io::Read::read_to_end(&mut blob.file, &mut content).map(|_| content)
            });
            contents.push(read.await.ok().and_then(Result::ok).ok_or_else(|| result_gone(job))?);
        }
        given.into_answer(&contents).ok_or_else(unreadable)
    }
}

/// The job for a worker. The seed is chosen here, so that a retry produces the same answer.
fn job_workflow(model: &str, mut request: ModelRequest, key: Option<&str>) -> Result<Value, ApiError> {
    match key {
        Some(key) => request.fix_seed_to(seed_from(key)),
        None => request.fix_seed(),
    }
    let mut workflow =
        serde_json::to_value(&request).map_err(|error| ApiError::bad_request(error.to_string()))?;
    workflow["model"] = json!(model);
    Ok(workflow)
}

fn seed_from(key: &str) -> u64 {
    let hash = Hash::digest(key.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

fn result_gone(job: JobId) -> ApiError {
    let message = format!("the result of job {job} is no longer stored: try again");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "gone", message).with_retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_or_lost_text_is_forwarded_once_and_in_order() {
        let mut offset = TextOffset::default();
        let story = [
            (0, "grün", Some("grün")),
            (0, "grün", None),
            (5, "er", Some("er")),
            (0, "grüner Wald", Some(" Wald")),
            (40, "später", None),
            (12, "!", Some("!")),
            (3, "ü", None),
        ];
        for (at, text, expected) in story {
            assert_eq!(offset.unseen(at, text), expected, "{at} {text}");
        }
    }

    #[test]
    fn seed_is_part_of_the_job() {
        let chat =
            job_workflow("chat", ModelRequest::TextToText(remuda_models::request::Chat::default()), None)
                .unwrap();
        assert!(
            chat["seed"].is_u64() && chat["model"] == "chat" && chat["capability"] == "text_to_text",
            "{chat}"
        );
        let embed =
            job_workflow("embed", ModelRequest::TextEmbedding { texts: vec!["x".to_owned()] }, None).unwrap();
        assert_eq!(embed, json!({ "model": "embed", "capability": "text_embedding", "texts": ["x"] }));
    }

    #[test]
    fn seed_of_a_call_with_a_key_follows_from_the_key() {
        let seed = |key: &str| {
            let chat = ModelRequest::TextToText(remuda_models::request::Chat::default());
            job_workflow("chat", chat, Some(key)).unwrap()["seed"].as_u64().unwrap()
        };
        assert_eq!(seed("a"), seed("a"));
        assert_ne!(seed("a"), seed("b"));
        assert!(i64::try_from(seed("a")).is_ok());
    }
}
