//! Models of this process as the service of an agent. Each attempt is a call to the pool, which also serves direct calls.
//! The pool repeats a call whose copy died, so a call that fails here is retried on another worker.
//!
//! ```text
//!  agent ──run──▶ parse, fetch images, call the pool ──▶ Submitted ──▶ pieces: Signal, live text ──▶ Ended
//!        ──cancel──▶ the ticket is dropped: the copy stops within a step
//!        ──probe──▶ Running while the call's task is alive
//!  availability: a model that the pool gave up is not offered; without any model the agent repairs the service
//! ```

mod availability;
mod load;
mod request;
mod result;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, JobId};
use remuda_core::need::Capabilities;
use remuda_core::service::models::CallFailure;
use remuda_core::service::{
    AttemptEnd, ProbeResult, SelfTestResult, ServiceEvent, ServiceFailure as Refused, ServiceFault,
    ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use remuda_core::wire::metric::MODELS_METRIC;
use remuda_models::{AnswerHandle, CallOptions, InferenceError, ModelError, ModelPool};
use remuda_net::secret::Secret;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::availability::SharedOffer;
use self::request::ModelJob;
use self::result::StreamedAnswer;
use crate::attempt::{AttemptRequest, Events};
use crate::blob_link::BlobLink;
use crate::live_reports::LiveReports;
use crate::options::{ModelsOptions, WorkerOptions};

pub use self::load::{inspect, serve_copy, start};

/// How often the steps of a model's copies are compared, for calls that get no piece of their own answer.
const STEPS_INTERVAL: Duration = Duration::from_secs(5);
/// The pool lives as long as the worker, so it has a single incarnation.
const INCARNATION: ServiceIncarnation = ServiceIncarnation(1);

/// The running calls.
#[derive(Debug)]
pub(crate) struct ModelService {
    context: ModelContext,
    /// Calls of held attempts, with the channel that cancels each; None once it was cancelled.
    running: BTreeMap<(JobId, Attempt), Option<oneshot::Sender<String>>>,
    tasks: JoinSet<()>,
}

/// The pool's answer to a call.
enum CallOutcome {
    Accepted {
        model: String,
        ticket: AnswerHandle,
    },
    /// The pool is full or closing: neither the job's nor the worker's fault.
    Busy(String),
}

/// Shared by the service and its background tasks.
#[derive(Clone, Debug)]
struct ModelContext {
    pool: ModelPool,
    events: Events,
    reports: LiveReports,
    blobs: BlobLink,
    offer: SharedOffer,
}

impl ModelService {
    pub(crate) fn new(
        models: &ModelsOptions,
        options: &WorkerOptions,
        events: Events,
        reports: LiveReports,
    ) -> Self {
        let blobs = BlobLink::with_credentials(&options.url, &options.credentials);
        let offer = SharedOffer::new(&models.pool);
        let context = ModelContext { pool: models.pool.clone(), events, reports, blobs, offer };
        let mut tasks = JoinSet::new();
        tasks.spawn(availability::watch(context.clone()));
        ModelService { context, running: BTreeMap::new(), tasks }
    }

    /// The models that can be called now.
    pub(crate) fn offer(&self) -> Capabilities {
        self.context.offer.lock().capabilities()
    }

    pub(crate) fn run(&mut self, request: AttemptRequest) {
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert((request.job, request.attempt), Some(cancel));
        let context = self.context.clone();
        self.spawn(async move { context.run(request, cancelled).await });
    }

    pub(crate) fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        if let Some(cancel) = self.running.get_mut(&(job, attempt)).and_then(Option::take) {
            drop(cancel.send(reason));
        }
    }

    /// A call reports its own end, so it runs as long as its task holds the cancel channel.
    pub(crate) fn probe(&mut self, job: JobId, attempt: Attempt) {
        let is_known = match self.running.get(&(job, attempt)) {
            Some(Some(cancel)) => !cancel.is_closed(),
            Some(None) => true,
            None => false,
        };
        let seen = if is_known { ProbeResult::Running } else { ProbeResult::Unknown };
        self.send_later(AgentEvent::Probed { job, attempt, incarnation: INCARNATION, result: seen });
    }

    /// The pool restarts copies by itself; if that did not help, this worker cannot do more.
    pub(crate) fn repair(&mut self, remedy: ServiceRemedy) {
        let problem =
            (remedy == ServiceRemedy::Restart).then(|| "restarting model copies did not help".to_owned());
        self.send_later(AgentEvent::Service(ServiceEvent::RemedyDone { remedy, problem }));
    }

    pub(crate) fn check(&mut self) {
        let offer = self.context.offer.lock().clone();
        let result = match offer.problem() {
            None => SelfTestResult::Passed,
            Some(problem) => SelfTestResult::Failed(problem.to_owned()),
        };
        let offer = Some(Box::new(offer.capabilities()));
        self.send_later(AgentEvent::Service(ServiceEvent::SelfTested {
            incarnation: INCARNATION,
            result,
            offer,
        }));
    }

    pub(crate) fn set_token(&self, token: &Secret) {
        self.context.blobs.set_token(token.clone());
    }

    pub(crate) fn retain(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        self.running.retain(|key, _| held.contains(key));
    }

    pub(crate) fn metrics(&self) -> Map<String, Value> {
        Map::from_iter([(
            MODELS_METRIC.to_owned(),
            Value::Object(remuda_models::status::status(&self.context.pool)),
        )])
    }

    /// The pool is left running: the process that started it closes it.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    fn send_later(&mut self, event: AgentEvent) {
        let events = self.context.events.clone();
        self.spawn(async move { drop(events.send(event).await) });
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

impl ModelContext {
    async fn run(self, request: AttemptRequest, mut cancelled: oneshot::Receiver<String>) {
        let (job, attempt) = (request.job, request.attempt);
        let called = tokio::select! {
            called = self.call(&request) => called,
            Ok(reason) = &mut cancelled => Err(Refused::new(ServiceFault::Lost, reason)),
        };
        let (answer, called) = match called {
            Ok(called) => (SubmitOutcome::Accepted, Some(called)),
            Err(refused) => (SubmitOutcome::Refused(refused), None),
        };
        self.send(AgentEvent::Submitted { job, attempt, incarnation: INCARNATION, answer }).await;
        let outcome = match called {
            None => return,
            Some(CallOutcome::Busy(message)) => AttemptEnd::Failed { cause: Cause::Plane, message },
            Some(CallOutcome::Accepted { model, ticket }) => tokio::select! {
                outcome = self.await_answer(job, attempt, &model, ticket) => outcome,
                Ok(reason) = &mut cancelled => AttemptEnd::Failed { cause: Cause::Plane, message: reason },
            },
        };
        self.reports.flush(job, attempt).await;
        self.send(AgentEvent::Ended { job, attempt, outcome }).await;
    }

    async fn call(&self, request: &AttemptRequest) -> Result<CallOutcome, Refused> {
        let job = ModelJob::parse(&request.workflow, &self.pool)?;
        let (model, request) = job.into_request(&self.blobs).await?;
        let (pool, name) = (self.pool.clone(), model.clone());
        let called =
            tokio::task::spawn_blocking(move || pool.call(&name, request, CallOptions::default())).await;
        let ticket = called.map_err(|panicked| Refused::new(ServiceFault::Died, panicked.to_string()))?;
        match ticket {
            Ok(ticket) => Ok(CallOutcome::Accepted { model, ticket }),
            Err(error) if failure(&error) == CallFailure::Overloaded => {
                Ok(CallOutcome::Busy(error.to_string()))
            }
            Err(error) => Err(Refused::new(failure(&error).fault(), error.to_string())),
        }
    }

    async fn await_answer(
        &self,
        job: JobId,
        attempt: Attempt,
        model: &str,
        mut ticket: AnswerHandle,
    ) -> AttemptEnd {
        let (mut streamed, mut steps) = (StreamedAnswer::default(), self.count_steps(model));
        loop {
            let phase = tokio::select! {
                piece = ticket.next_update() => {
                    let Some(piece) = piece else { break };
                    let (message, progress, phase) = streamed.report(piece);
                    self.reports.add(job, attempt, message, progress);
                    phase
                }
                () = tokio::time::sleep(STEPS_INTERVAL) => {
                    if std::mem::replace(&mut steps, self.count_steps(model)) == steps {
                        continue;
                    }
                    "copies are working".to_owned()
                }
            };
            // If the channel is full the agent has enough signals; the next one will do.
            drop(self.events.try_send(AgentEvent::Signal {
                job,
                attempt,
                progress: streamed.progress,
                phase,
            }));
        }
        let stored = match ticket.answer().await {
            Ok(answer) => result::store_answer(model, answer, &self.blobs).await,
            Err(error) => {
                return AttemptEnd::Failed { cause: failure(&error).cause(), message: error.to_string() };
            }
        };
        match stored {
            Ok(result) => AttemptEnd::Completed { result: Arc::from(result) },
            Err(message) => AttemptEnd::Failed { cause: Cause::Service, message },
        }
    }

    /// Steps of all copies of a model. While the sum grows, a call that waits behind others is making progress too; the
    /// pool itself restarts a copy that is stuck.
    fn count_steps(&self, model: &str) -> u64 {
        let snapshot = self.pool.snapshot();
        let copies = snapshot.models.iter().filter(|status| status.model == model);
        copies.flat_map(|status| &status.copies).map(|copy| copy.steps).sum()
    }

    async fn send(&self, event: AgentEvent) {
        // The receiver is gone only when the worker ends.
        drop(self.events.send(event).await);
    }
}

/// The pool's error in the core's words, which decide whose fault it is.
fn failure(error: &ModelError) -> CallFailure {
    match error {
        ModelError::Input(_) | ModelError::WrongCapability { .. } => CallFailure::Input,
        ModelError::UnknownModel { .. } | ModelError::NoWorkers { .. } => CallFailure::NoModel,
        ModelError::Failed { failure, .. } => match failure {
            InferenceError::Input(_) => CallFailure::Input,
            InferenceError::OutOfMemory(_) => CallFailure::OutOfMemory,
            InferenceError::Engine(_) | InferenceError::Poisoned(_) => CallFailure::Engine,
            InferenceError::Stopped => CallFailure::Lost,
        },
        ModelError::Diverged { .. } => CallFailure::Engine,
        ModelError::Deadline { .. } => CallFailure::Lost,
        ModelError::Full { .. } | ModelError::Closing => CallFailure::Overloaded,
        ModelError::Cancelled => CallFailure::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_errors_have_a_cause() {
        let failed = |failure| ModelError::Failed { model: "m".to_owned(), failure };
        let text = || "…".to_owned();
        for (error, expected) in [
            (ModelError::Input(text()), Cause::Job),
            (failed(InferenceError::Input(text())), Cause::Job),
            (failed(InferenceError::OutOfMemory(text())), Cause::Worker),
            (ModelError::NoWorkers { model: text(), why: text() }, Cause::Worker),
            (failed(InferenceError::Engine(text())), Cause::Service),
            (failed(InferenceError::Poisoned(text())), Cause::Service),
            (ModelError::Diverged { model: text() }, Cause::Service),
            (ModelError::Full { model: text(), retry_after: Duration::ZERO }, Cause::Plane),
            (ModelError::Closing, Cause::Plane),
        ] {
            assert_eq!(failure(&error).cause(), expected, "{error:?}");
        }
    }
}
