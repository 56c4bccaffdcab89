//! A ComfyUI server as the hands of an agent. It does what the agent says and answers what the agent asks; it keeps no
//! opinion of its own about jobs.
//!
//! ```text
//!  agent ──run──▶ place inputs, prepare, POST /prompt ──▶ Submitted          ears: /ws ──▶ Signal, SaidDone, sockets
//!        ──probe──▶ /queue, /history ──▶ Probed                              life: the same server as before?
//!        ──collect──▶ /view ──▶ blobs ──▶ Ended                              process: the server, if we started it
//!                                                                            early: outputs while the run goes on
//! ```

mod collect;
mod early;
mod ears;
mod life;
mod place;
mod process;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_comfyui::{Client, Progress, Prompt, Tag, Target, outputs};
use remuda_core::agent::AgentEvent;
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::service::{
    ProbeResult, ProbeTrigger, ServiceEvent, ServiceFailure, ServiceFault, ServiceRemedy, SubmitOutcome,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use self::early::{Brought, PutOut};
use self::ears::SentImage;
use self::life::Lives;
use self::process::Process;
use super::Options;
use super::blobs::BlobLink;
use super::hands::{Events, Order, Wanted};
use super::previews::Previews;
use super::reports::Reports;
use remuda_config::Resolved;
use remuda_core::wire::metric::OBJECT_INFO;
use remuda_net::secret::Secret;

/// Which server, and whether it is ours to start and stop.
#[derive(Clone, Debug)]
pub struct ComfyuiOptions {
    pub target: Target,
    /// Starts the server; then it is also restarted when it is sick, and stopped with the worker.
    pub command: Option<String>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long the check may take: a server that has just started may load for a while first.
    pub self_test_timeout: Duration,
}

/// How long one request to ComfyUI may take.
pub const REQUEST_MAX: Duration = Duration::from_secs(5);

impl ComfyuiOptions {
    /// A server that somebody else started, asked as the settings say.
    pub fn new(target: Target, resolved: &Resolved) -> ComfyuiOptions {
        let self_test_timeout = resolved.agent.self_test_timeout;
        ComfyuiOptions { target, command: None, timeout: REQUEST_MAX, self_test_timeout }
    }
}

/// Where the number of the server stands that a worker started.
fn marker(options: &Options) -> PathBuf {
    options.data.join(format!("{}.pid", options.worker))
}

/// How long an end without outputs waits for what the socket says about it.
const HEAR_OUT_MAX: Duration = Duration::from_secs(1);
const HEAR_OUT_LOOK: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Comfyui {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    target: Target,
    /// Events of a prompt go to whoever has the id it was submitted with.
    client_id: String,
    worker: WorkerId,
    events: Events,
    previews: Previews,
    reports: Reports,
    early: mpsc::Sender<PutOut>,
    blobs: BlobLink,
    lives: Lives,
    process: Option<Process>,
    reopen: Notify,
    runs: Mutex<BTreeMap<String, Run>>,
    /// Names under which inputs were placed on the server.
    placed: Mutex<BTreeMap<String, String>>,
    metrics: Mutex<Map<String, Value>>,
    /// The blob with what the server says of its node classes.
    info: Mutex<Option<String>>,
    scratch: PathBuf,
    self_test_timeout: Duration,
}

/// What is known of an attempt that the server has.
#[derive(Debug)]
struct Run {
    job: JobId,
    attempt: Attempt,
    /// Nothing for what was found: its workflow is not at hand.
    progress: Option<Progress>,
    phase: String,
    /// Node classes, for outputs that come over the socket.
    classes: BTreeMap<String, String>,
    sent: Vec<SentImage>,
    wanted: Wanted,
    brought: Brought,
    /// The socket has said the last it has to say.
    is_heard_out: bool,
    is_cancelled: watch::Sender<bool>,
}

impl Run {
    fn new(job: JobId, attempt: Attempt) -> Self {
        let is_cancelled = watch::Sender::new(false);
        let phase = "adopted".to_owned();
        Run {
            job,
            attempt,
            progress: None,
            phase,
            classes: BTreeMap::new(),
            sent: Vec::new(),
            wanted: Wanted::default(),
            brought: Brought::default(),
            is_heard_out: false,
            is_cancelled,
        }
    }
}

impl Comfyui {
    pub(super) fn run(&mut self, order: Order) {
        let cancelled = self.shared.with_run(&order.service_job_id, |runs, id| {
            let run = runs.entry(id).or_insert_with(|| Run::new(order.job, order.attempt));
            run.wanted.clone_from(&order.wanted);
            run.is_cancelled.subscribe()
        });
        let shared = self.shared.clone();
        self.spawn(async move {
            let (job, attempt) = (order.job, order.attempt);
            let answer = shared.hand_in(order, cancelled).await;
            let life = shared.lives.current();
            shared.tell(AgentEvent::Submitted { job, attempt, life, answer }).await;
        });
    }

    pub(super) fn cancel(&mut self, job: JobId, attempt: Attempt) {
        let id = job.service_job_id(attempt);
        self.shared.with_run(&id, |runs, id| runs.get(&id).map(|run| run.is_cancelled.send_replace(true)));
        let shared = self.shared.clone();
        self.spawn(async move {
            if let Err(error) = shared.client.cancel(&id).await {
                // It is asked about in a moment, and told again if it still runs.
                debug!(%job, %attempt, %error, "could not tell ComfyUI to stop it");
            }
        });
    }

    pub(super) fn probe(&mut self, job: JobId, attempt: Attempt, trigger: ProbeTrigger) {
        let shared = self.shared.clone();
        self.spawn(async move {
            let (life, seen) = shared.look(&job.service_job_id(attempt), trigger).await;
            debug!(%job, %attempt, %trigger, seen = seen.as_str(), "asked ComfyUI");
            // What was said of a failure is told before it; a success is still to be collected.
            if matches!(seen, ProbeResult::Failed(_)) {
                shared.reports.told(job, attempt).await;
            }
            shared.tell(AgentEvent::Probed { job, attempt, life, seen }).await;
        });
    }

    pub(super) fn collect(&mut self, job: JobId, attempt: Attempt, outputs: Arc<RawValue>, wanted: Wanted) {
        let shared = self.shared.clone();
        self.spawn(async move {
            let outcome = shared.collect(&job.service_job_id(attempt), &outputs, &wanted).await;
            shared.reports.told(job, attempt).await;
            shared.tell(AgentEvent::Ended { job, attempt, outcome }).await;
        });
    }

    pub(super) fn reopen(&mut self) {
        self.shared.reopen.notify_one();
    }

    pub(super) fn treat(&mut self, remedy: ServiceRemedy) {
        let shared = self.shared.clone();
        self.spawn(async move {
            let problem = shared.treat(remedy).await.err();
            if let Some(problem) = &problem {
                info!(?remedy, %problem, "the remedy did not help");
            }
            shared.tell(AgentEvent::Service(ServiceEvent::Treated { remedy, problem })).await;
        });
    }

    pub(super) fn check(&mut self) {
        let shared = self.shared.clone();
        self.spawn(async move {
            let (problem, offer) = match shared.check().await {
                Ok(offer) => (None, Some(Box::new(offer))),
                Err(problem) => (Some(problem.to_string()), None),
            };
            match &problem {
                None => info!("ComfyUI works"),
                Some(problem) => info!(%problem, "ComfyUI does not work"),
            }
            let life = shared.lives.current();
            shared.tell(AgentEvent::Service(ServiceEvent::Checked { life, problem, offer })).await;
        });
    }

    /// Files come and go under the worker's own name, whatever it joined with.
    pub(super) fn joined(&self, token: &Secret) {
        self.shared.blobs.go_by(token.clone());
    }

    pub(super) fn keep_only(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        let mut runs = self.shared.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| held.contains(&(run.job, run.attempt)));
    }

    pub(super) fn metrics(&self) -> Map<String, Value> {
        let mut metrics = self.shared.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let info = self.shared.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        metrics.extend(info.map(|info| (OBJECT_INFO.to_owned(), info.into())));
        metrics
    }

    /// Why the server has ended, if we started it and it has.
    pub(super) async fn ended(&self) -> Option<String> {
        self.shared.process.as_ref()?.ended().await
    }

    /// The server that a worker of this name started ends with it.
    pub(super) async fn abandon(options: &Options) {
        Process::stop_marked(&marker(options)).await;
    }

    /// A server that we started ends with us, unless another of our name has taken over: then it is that one's.
    pub(super) async fn end(mut self, is_replaced: bool) {
        self.tasks.shutdown().await;
        if let Some(process) = self.shared.process.as_ref().filter(|_| !is_replaced) {
            process.stop().await;
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

impl Shared {
    async fn tell(&self, event: AgentEvent) {
        // Nobody listens any more only when the worker ends.
        drop(self.events.send(event).await);
    }

    fn with_run<T>(&self, id: &str, act: impl FnOnce(&mut BTreeMap<String, Run>, String) -> T) -> T {
        act(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner), id.to_owned())
    }

    async fn hand_in(&self, order: Order, cancelled: watch::Receiver<bool>) -> SubmitOutcome {
        let prompt = match self.prepare(&order, cancelled).await {
            Ok(prompt) => prompt,
            Err(failure) => return SubmitOutcome::Refused(failure),
        };
        // Before it is sent: its first message may come before the answer.
        self.with_run(prompt.id(), |runs, id| {
            if let Some(run) = runs.get_mut(&id) {
                (run.progress, run.phase) = (Some(Progress::new(&prompt)), "handed in".to_owned());
                let classes = prompt.nodes().iter().map(|(id, node)| (id.clone(), node.class.clone()));
                run.classes = classes.collect();
            }
        });
        let answer = self.client.submit(&prompt).await;
        if let SubmitOutcome::Refused(ServiceFailure { fault: ServiceFault::Missing, .. }) = &answer {
            // Perhaps it is an input that somebody cleared away.
            self.placed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        answer
    }

    async fn prepare(
        &self,
        order: &Order,
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<Prompt, ServiceFailure> {
        let stopped = || ServiceFailure::new(ServiceFault::Lost, "it was stopped before ComfyUI had it");
        let placed = tokio::select! {
            placed = self.place(&order.workflow) => placed?,
            Ok(_) = cancelled.wait_for(|it| *it) => return Err(stopped()),
        };
        if *cancelled.borrow() {
            return Err(stopped());
        }
        let tag = Tag { worker: self.worker.clone(), job: order.job, attempt: order.attempt };
        Prompt::prepare(&order.workflow, &tag, &order.service_job_id, &self.client_id, &placed)
    }

    /// Asks about a prompt. Whether the server is still the one that took it matters only when it does not know it.
    async fn look(
        &self,
        id: &str,
        trigger: ProbeTrigger,
    ) -> (remuda_core::service::ServiceIncarnation, ProbeResult) {
        let (seen, copies) = self.client.look_closely(id, trigger).await;
        if copies > 0 {
            match self.client.take_out(id, copies).await {
                Ok(()) => info!(prompt = id, copies, "took copies out of ComfyUI's queue that nobody needs"),
                // They are seen again with the next look.
                Err(error) => {
                    debug!(prompt = id, copies, %error, "could not take copies out of ComfyUI's queue");
                }
            }
        }
        if !matches!(seen, ProbeResult::Unknown) {
            self.hear_out(id, &seen).await;
            return (self.lives.current(), self.judge(id, seen));
        }
        match self.lives.settle(&self.client).await {
            Ok(life) => (life, seen),
            Err(error) => (self.lives.current(), ProbeResult::NoAnswer(error.to_string())),
        }
    }

    /// An end without outputs may be one that only the socket explains: what it has still to say is waited for, a moment.
    async fn hear_out(&self, id: &str, seen: &ProbeResult) {
        if !matches!(seen, ProbeResult::Succeeded { outputs } if outputs::is_empty(outputs)) {
            return;
        }
        let is_heard = || self.with_run(id, |runs, id| runs.get(&id).is_none_or(|run| run.is_heard_out));
        let heard = async {
            while !is_heard() {
                tokio::time::sleep(HEAR_OUT_LOOK).await;
            }
        };
        if tokio::time::timeout(HEAR_OUT_MAX, heard).await.is_err() {
            debug!(prompt = id, "it ended without outputs, and the socket does not say why");
        }
    }

    /// Some of what became of a prompt is told over the socket alone.
    fn judge(&self, id: &str, seen: ProbeResult) -> ProbeResult {
        self.with_run(id, |runs, id| match runs.get(&id).and_then(|run| run.progress.as_ref()) {
            Some(progress) => progress.judge(seen),
            None => seen,
        })
    }

    async fn treat(&self, remedy: ServiceRemedy) -> Result<(), String> {
        match (remedy, &self.process) {
            (ServiceRemedy::Free, _) => self.client.free().await.map_err(|error| error.to_string()),
            (ServiceRemedy::Restart, None) => {
                Err("Remuda did not start this server and cannot restart it: do it by hand, or let Remuda start it with \
                     --comfyui-cmd"
                    .to_owned())
            }
            (ServiceRemedy::Restart, Some(process)) => {
                process.restart().await?;
                self.lives.began();
                self.wait_until_it_answers(process).await
            }
        }
    }
}
