//! A call as a job: handed in where every other job is, followed to its end, and cancelled when whoever asked hangs up.
//!
//! What its worker says meanwhile comes as live reports, which may be lost: each piece says where in the text it begins, and
//! what was missed is in the result. An attempt that is begun anew elsewhere says the same again, which is passed over.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::cause::Cause;
use remuda_core::id::{JobId, WorkerId};
use remuda_core::need::Requirements;
use remuda_core::plane::Event;
use remuda_core::record::StateRow;
use remuda_core::workflow;
use remuda_models::{Answer, Piece, PoolError, Request};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::broadcast::{self, error::RecvError};
use tracing::debug;

use super::super::{ApiError, Caller, Context};
use super::routing::{off, problem};
use crate::intake::{self, Taken};
use crate::live::LiveEvent;
use crate::plane_handle::PlaneHandle;
use remuda_models::result::{ModelResult, read_streamed_text};

#[derive(Debug)]
pub(super) struct Following {
    context: Context,
    model: String,
    wanted: Wanted,
    news: broadcast::Receiver<LiveEvent>,
    ready: VecDeque<Piece>,
    heard: Heard,
    is_over: bool,
}

/// How much of a text was heard, in bytes.
#[derive(Debug, Default)]
struct Heard(usize);

impl Heard {
    /// What is new of a piece that begins at `at`; with a gap before it, it waits for the result.
    fn new_of<'a>(&mut self, at: usize, text: &'a str) -> Option<&'a str> {
        let new = text.get(self.0.checked_sub(at)?..).filter(|new| !new.is_empty())?;
        self.0 += new.len();
        Some(new)
    }
}

/// A job that somebody waits for; whoever drops it cancels it.
#[derive(Debug)]
struct Wanted {
    job: JobId,
    plane: PlaneHandle,
    is_over: bool,
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if !self.is_over {
            debug!(job = %self.job, "nobody waits for it any more");
            let message = "whoever asked has hung up".to_owned();
            self.plane.notify(Event::Cancel { job: self.job, message });
        }
    }
}

impl Following {
    pub(super) async fn begin(
        context: &Context,
        caller: &Caller,
        model: &str,
        request: Request,
        patience: Duration,
        excluded: BTreeSet<WorkerId>,
    ) -> Result<Following, ApiError> {
        let workflow = to_raw_value(&workflow(model, request)?);
        let workflow = workflow.map_err(|error| ApiError::bad_request(error.to_string()))?;
        let mut examined = workflow::examine(workflow.get(), &context.limits)?;
        // Texts are texts here, whatever they look like.
        examined.models = [model.to_owned()].into();
        // Before it is handed in: nothing of it is missed.
        let news = context.events.subscribe();
        let request = intake::Request {
            service: Some(model.parse()?),
            deadline: Some(patience),
            needs: Requirements { excluded, ..Requirements::default() },
            ..intake::Request::new(Arc::from(workflow), caller.tenant(None)?)
        };
        let Taken { job, .. } = context.intake().take_examined(request, examined).await?;
        let wanted = Wanted { job, plane: context.plane.clone(), is_over: false };
        let (context, model) = (context.clone(), model.to_owned());
        Ok(Following {
            context,
            model,
            wanted,
            news,
            ready: VecDeque::new(),
            heard: Heard::default(),
            is_over: false,
        })
    }

    /// The next piece; nothing once it has ended.
    pub(super) async fn piece(&mut self) -> Result<Option<Piece>, ApiError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.is_over {
                return Ok(None);
            }
            self.hear().await?;
        }
    }

    pub(super) async fn answer(mut self) -> Result<Answer, ApiError> {
        while !self.is_over {
            self.hear().await?;
        }
        self.outcome().await
    }

    async fn hear(&mut self) -> Result<(), ApiError> {
        let job = self.wanted.job;
        match self.news.recv().await {
            Ok(LiveEvent::Update(told)) if told.job == job => {
                for (at, text) in told.report.messages.iter().filter_map(|it| read_streamed_text(it)) {
                    let new = self.heard.new_of(at, &text);
                    self.ready.extend(new.map(|new| Piece::Text(new.to_owned())));
                }
                let progress = told.report.progress.as_ref().map(|progress| progress.value as f32);
                self.ready.extend(progress.map(Piece::Progress));
            }
            Ok(LiveEvent::Stored(happened)) if happened.job == Some(job) => {
                let end = ["job:completed", "job:failed", "job:cancelled"];
                self.is_over = end.contains(&&*happened.name);
            }
            Ok(_) => {}
            // Its end may be among what was missed.
            Err(RecvError::Lagged(_)) => {
                let stored = self.context.store.job(job).await?;
                self.is_over = stored.is_none_or(|(_, life)| !life.state.is_open());
            }
            Err(RecvError::Closed) => return Err(problem(PoolError::Closing)),
        }
        Ok(())
    }

    async fn outcome(mut self) -> Result<Answer, ApiError> {
        self.wanted.is_over = true;
        let (job, model) = (self.wanted.job, &self.model);
        let (accepted, life) = self.context.store.job(job).await?.ok_or_else(|| gone(job))?;
        match &life.state {
            StateRow::Completed { .. } => self.result().await,
            StateRow::Failed { .. } if life.has_expired(accepted.deadline) => {
                Err(problem(PoolError::Deadline { model: model.clone() }))
            }
            StateRow::Failed { cause: Cause::Job, message, .. } => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message.clone()))
            }
            StateRow::Failed { message, .. } | StateRow::Cancelled { message } => {
                let why = format!("{message} (job {job})");
                Err(problem(PoolError::NoWorkers { model: model.clone(), why }))
            }
            StateRow::Queued { .. } | StateRow::Running { .. } => Err(gone(job)),
        }
    }

    async fn result(&self) -> Result<Answer, ApiError> {
        let job = self.wanted.job;
        let result = self.context.store.result(job).await?.ok_or_else(|| gone(job))?;
        let unlike = || off(&self.model, &format!("gave a result that is none of a model's (job {job})"));
        let given: ModelResult = serde_json::from_str(result.get()).map_err(|_| unlike())?;
        let mut contents = Vec::new();
        for output in &given.outputs {
            let blob = self
                .context
                .blobs
                .read(output.hash.parse().map_err(|_| unlike())?, self.context.plane.clock.now())
                .await?;
            let mut blob = blob.ok_or_else(|| gone(job))?;
            let read = tokio::task::spawn_blocking(move || {
                let mut content = Vec::new();
                std::io::Read::read_to_end(&mut blob.file, &mut content).map(|_| content)
            });
            contents.push(read.await.ok().and_then(Result::ok).ok_or_else(|| gone(job))?);
        }
        given.into_answer(&contents).ok_or_else(unlike)
    }
}

/// As workers read it. What was drawn by chance on one of them is drawn the same on the next: the seed goes with it.
fn workflow(model: &str, mut request: Request) -> Result<Value, ApiError> {
    request.draw_seed();
    let mut workflow =
        serde_json::to_value(&request).map_err(|error| ApiError::bad_request(error.to_string()))?;
    workflow["model"] = json!(model);
    Ok(workflow)
}

fn gone(job: JobId) -> ApiError {
    let message = format!("what job {job} gave is gone: ask again");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "gone", message).later(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_told_again_or_with_gaps_is_heard_once_and_in_order() {
        let mut heard = Heard::default();
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
            assert_eq!(heard.new_of(at, text), expected, "{at} {text}");
        }
    }

    #[test]
    fn what_chance_draws_goes_with_the_job() {
        let chat = workflow("chat", Request::TextToText(remuda_models::request::Chat::default())).unwrap();
        assert!(
            chat["seed"].is_u64() && chat["model"] == "chat" && chat["capability"] == "text_to_text",
            "{chat}"
        );
        let embed = workflow("embed", Request::TextEmbedding { texts: vec!["x".to_owned()] }).unwrap();
        assert_eq!(embed, json!({ "model": "embed", "capability": "text_embedding", "texts": ["x"] }));
    }
}
