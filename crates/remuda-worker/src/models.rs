//! Models of this process as the hands of an agent. Each attempt is a call to the pool, which direct calls share; the pool
//! sees to it that a dead copy costs nobody an answer, so what fails here is tried elsewhere.
//!
//! ```text
//!  agent ──run──▶ read, fetch pictures, Pool::call ──▶ Submitted ──▶ pieces: Signal, live text ──▶ Ended
//!        ──cancel──▶ the ticket is dropped: the copy stops within a step
//!        ──probe──▶ Running while somebody waits for it
//!  watch: a model that its pool gave up is offered no more; when none is left, the agent treats us
//! ```

mod asked;
mod result;
mod start;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::agent::{AgentEvent, AttemptEnd};
use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, JobId, Service};
use remuda_core::need::Capabilities;
use remuda_core::service::{
    ProbeResult, ServiceEvent, ServiceFailure as Refused, ServiceFault, ServiceIncarnation, ServiceRemedy,
    SubmitOutcome,
};
use remuda_core::wire::metric::{MODEL_LABEL, MODELS_METRIC};
use remuda_models::{Call, Failure, Pool, PoolError, Ticket};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::asked::Asked;
use self::result::StreamedAnswer;
use self::watch::GivenUp;
use super::Options;
use super::blobs::BlobLink;
use super::hands::{Events, Order};
use super::reports::Reports;
use remuda_net::secret::Secret;

pub use self::start::{inspect, serve_copy, start};

/// For each copy one attempt that is answered, and one that waits behind it.
const SLOTS_PER_COPY: u32 = 2;
/// How often it is looked whether copies are at work for those that hear nothing of their own.
const STEPS_EVERY: Duration = Duration::from_secs(5);
/// The pool is there from the first moment to the last.
const LIFE: ServiceIncarnation = ServiceIncarnation(1);

/// What a worker has that serves models.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    pub pool: Pool,
}

impl ModelsOptions {
    /// Jobs ask for a model by its name, or for any that does something.
    pub(super) fn services(&self) -> BTreeSet<Service> {
        let models = self.pool.models();
        let words = models.iter().flat_map(|(spec, found)| [spec.name.as_str(), found.capability.name()]);
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Enough to keep all copies busy.
    pub(super) fn slots(&self) -> u32 {
        let copies: u32 = self.pool.models().iter().map(|(spec, _)| spec.copies).sum();
        copies.saturating_mul(SLOTS_PER_COPY).max(1)
    }

    pub fn labels(&self) -> impl Iterator<Item = (String, String)> {
        let models = self.pool.models().into_iter();
        models
            .map(|(spec, found)| (format!("{MODEL_LABEL}{}", spec.name), found.capability.name().to_owned()))
    }
}

/// The calls under way.
#[derive(Debug)]
pub(super) struct Models {
    shared: Shared,
    /// Until its end is heard of; with the way to tell it to stop, until it was told.
    running: BTreeMap<(JobId, Attempt), Option<oneshot::Sender<String>>>,
    tasks: JoinSet<()>,
}

/// What came of asking the pool.
enum Called {
    Taken {
        model: String,
        ticket: Ticket,
    },
    /// Not now, which says nothing about what was asked, nor about this worker.
    TooMuch(String),
}

#[derive(Clone, Debug)]
struct Shared {
    pool: Pool,
    events: Events,
    reports: Reports,
    blobs: BlobLink,
    given_up: GivenUp,
}

impl Models {
    pub(super) fn new(models: &ModelsOptions, options: &Options, events: Events, reports: Reports) -> Self {
        let blobs = BlobLink::with(&options.url, &options.credentials);
        let shared =
            Shared { pool: models.pool.clone(), events, reports, blobs, given_up: GivenUp::default() };
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::watch(shared.clone()));
        Models { shared, running: BTreeMap::new(), tasks }
    }

    /// What can be asked of it now.
    pub(super) fn offer(&self) -> Capabilities {
        self.shared.given_up.offer(&self.shared.pool)
    }

    pub(super) fn run(&mut self, order: Order) {
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert((order.job, order.attempt), Some(cancel));
        let shared = self.shared.clone();
        self.spawn(async move { shared.run(order, cancelled).await });
    }

    pub(super) fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        if let Some(cancel) = self.running.get_mut(&(job, attempt)).and_then(Option::take) {
            drop(cancel.send(reason));
        }
    }

    /// A call that ended says so: as long as somebody waits for it, it is under way.
    pub(super) fn probe(&mut self, job: JobId, attempt: Attempt) {
        let is_known = match self.running.get(&(job, attempt)) {
            Some(Some(cancel)) => !cancel.is_closed(),
            Some(None) => true,
            None => false,
        };
        let seen = if is_known { ProbeResult::Running } else { ProbeResult::Unknown };
        self.say(AgentEvent::Probed { job, attempt, life: LIFE, seen });
    }

    /// Copies are started anew by their pool, and if that does not help nobody here can do more.
    pub(super) fn treat(&mut self, remedy: ServiceRemedy) {
        let problem =
            (remedy == ServiceRemedy::Restart).then(|| "starting copies anew does not help".to_owned());
        self.say(AgentEvent::Service(ServiceEvent::Treated { remedy, problem }));
    }

    pub(super) fn check(&mut self) {
        let offer = self.offer();
        let is_none = offer.models.as_ref().is_some_and(BTreeSet::is_empty);
        let problem = is_none.then(|| "no model has a copy that works".to_owned());
        let offer = Some(Box::new(offer));
        self.say(AgentEvent::Service(ServiceEvent::Checked { life: LIFE, problem, offer }));
    }

    /// Files come and go under the worker's own name, whatever it joined with.
    pub(super) fn joined(&self, token: &Secret) {
        self.shared.blobs.go_by(token.clone());
    }

    pub(super) fn keep_only(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        self.running.retain(|key, _| held.contains(key));
    }

    pub(super) fn metrics(&self) -> Map<String, Value> {
        Map::from_iter([(
            MODELS_METRIC.to_owned(),
            Value::Object(remuda_models::status::status(&self.shared.pool)),
        )])
    }

    /// The pool is whoever's who started it.
    pub(super) async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    fn say(&mut self, event: AgentEvent) {
        let events = self.shared.events.clone();
        self.spawn(async move { drop(events.send(event).await) });
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

impl Shared {
    async fn run(self, order: Order, mut cancelled: oneshot::Receiver<String>) {
        let (job, attempt) = (order.job, order.attempt);
        let called = tokio::select! {
            called = self.call(&order) => called,
            Ok(reason) = &mut cancelled => Err(Refused::new(ServiceFault::Lost, reason)),
        };
        let (answer, called) = match called {
            Ok(called) => (SubmitOutcome::Accepted, Some(called)),
            Err(refused) => (SubmitOutcome::Refused(refused), None),
        };
        self.tell(AgentEvent::Submitted { job, attempt, life: LIFE, answer }).await;
        let outcome = match called {
            None => return,
            Some(Called::TooMuch(message)) => AttemptEnd::Failed { cause: Cause::Plane, message },
            Some(Called::Taken { model, ticket }) => tokio::select! {
                outcome = self.answer(job, attempt, &model, ticket) => outcome,
                Ok(reason) = &mut cancelled => AttemptEnd::Failed { cause: Cause::Plane, message: reason },
            },
        };
        self.reports.told(job, attempt).await;
        self.tell(AgentEvent::Ended { job, attempt, outcome }).await;
    }

    async fn call(&self, order: &Order) -> Result<Called, Refused> {
        let asked = Asked::read(&order.workflow, &self.pool)?;
        let (model, request) = asked.request(&self.blobs).await?;
        let (pool, name) = (self.pool.clone(), model.clone());
        let asked = tokio::task::spawn_blocking(move || pool.call(&name, request, Call::default())).await;
        let ticket = asked.map_err(|panicked| Refused::new(ServiceFault::Died, panicked.to_string()))?;
        match ticket {
            Ok(ticket) => Ok(Called::Taken { model, ticket }),
            Err(error @ (PoolError::Full { .. } | PoolError::Closing)) => {
                Ok(Called::TooMuch(error.to_string()))
            }
            Err(error) => Err(Refused::new(fault(&error), error.to_string())),
        }
    }

    async fn answer(&self, job: JobId, attempt: Attempt, model: &str, mut ticket: Ticket) -> AttemptEnd {
        let (mut streamed, mut steps) = (StreamedAnswer::default(), self.steps(model));
        loop {
            let phase = tokio::select! {
                piece = ticket.piece() => {
                    let Some(piece) = piece else { break };
                    let (said, progress, phase) = streamed.report(piece);
                    self.reports.heard(job, attempt, said, progress);
                    phase
                }
                () = tokio::time::sleep(STEPS_EVERY) => {
                    if std::mem::replace(&mut steps, self.steps(model)) == steps {
                        continue;
                    }
                    "copies are at work".to_owned()
                }
            };
            // A sign of life that finds no room is one too many; the next one will do.
            drop(self.events.try_send(AgentEvent::Signal {
                job,
                attempt,
                progress: streamed.progress,
                phase,
            }));
        }
        let given = match ticket.answer().await {
            Ok(answer) => result::store_answer(model, answer, &self.blobs).await,
            Err(error) => return AttemptEnd::Failed { cause: cause(&error), message: error.to_string() },
        };
        match given {
            Ok(result) => AttemptEnd::Completed { result: Arc::from(result) },
            Err(message) => AttemptEnd::Failed { cause: Cause::Service, message },
        }
    }

    /// How far all copies of a model are. As long as that changes, whoever waits behind others is not forgotten: a copy
    /// that stands still is the pool's business.
    fn steps(&self, model: &str) -> u64 {
        let snapshot = self.pool.snapshot();
        let copies = snapshot.models.iter().filter(|seen| seen.model == model).flat_map(|seen| &seen.copies);
        copies.map(|copy| copy.steps).sum()
    }

    async fn tell(&self, event: AgentEvent) {
        // Nobody listens any more only when the worker ends.
        drop(self.events.send(event).await);
    }
}

/// Whose fault it is that a call was not taken.
fn fault(error: &PoolError) -> ServiceFault {
    match error {
        PoolError::Input(_) | PoolError::WrongCapability { .. } => ServiceFault::Graph,
        PoolError::UnknownModel { .. } | PoolError::NoWorkers { .. } => ServiceFault::Missing,
        PoolError::Failed { failure, .. } => match failure {
            Failure::Input(_) => ServiceFault::Graph,
            Failure::OutOfMemory(_) => ServiceFault::Memory,
            Failure::Engine(_) | Failure::Poisoned(_) => ServiceFault::Died,
            Failure::Stopped => ServiceFault::Lost,
        },
        PoolError::Differs { .. } => ServiceFault::Died,
        PoolError::Full { .. } | PoolError::Deadline { .. } | PoolError::Cancelled | PoolError::Closing => {
            ServiceFault::Lost
        }
    }
}

/// Whose fault it is that there is no answer.
fn cause(error: &PoolError) -> Cause {
    match error {
        // More was given to it than it can take: that says nothing about it.
        PoolError::Full { .. } | PoolError::Cancelled | PoolError::Closing => Cause::Plane,
        error => fault(error).cause(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_fault_it_is_decides_where_it_is_tried_again() {
        let failed = |failure| PoolError::Failed { model: "m".to_owned(), failure };
        let text = || "…".to_owned();
        for (error, expected) in [
            (PoolError::Input(text()), Cause::Job),
            (failed(Failure::Input(text())), Cause::Job),
            (failed(Failure::OutOfMemory(text())), Cause::Worker),
            (PoolError::NoWorkers { model: text(), why: text() }, Cause::Worker),
            (failed(Failure::Engine(text())), Cause::Service),
            (failed(Failure::Poisoned(text())), Cause::Service),
            (PoolError::Differs { model: text() }, Cause::Service),
            (PoolError::Full { model: text(), retry_after: Duration::ZERO }, Cause::Plane),
            (PoolError::Closing, Cause::Plane),
        ] {
            assert_eq!(cause(&error), expected, "{error:?}");
        }
    }
}
