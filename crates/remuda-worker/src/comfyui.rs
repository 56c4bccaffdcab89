//! A ComfyUI server as the service of an agent. It carries out the agent's effects and reports what the server answers;
//! it decides nothing about jobs.
//!
//! ```text
//!  agent ──run──▶ upload inputs, prepare, POST /prompt ──▶ Submitted      ws_listener: /ws ──▶ Signal, SaidDone, sockets
//!        ──probe──▶ /queue, /history ──▶ Probed                           incarnation: did the server restart?
//!        ──collect──▶ /view ──▶ blobs ──▶ Ended                           process: the server, if a worker started it
//!                                                                         early_outputs: outputs of a run that continues
//!                                                                         server_copies: removed when they are stored
//! ```

mod collect;
mod early_outputs;
mod incarnation;
mod inputs;
mod node_times;
mod process;
mod server_copies;
mod startup;
mod ws_listener;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_comfyui::{
    ComfyuiClient, ComfyuiTarget, PreparedPrompt, ProgressTracker, PromptDraft, PromptNode, PromptRestorer,
    PromptTag, outputs,
};
use remuda_core::agent::AgentEvent;
use remuda_core::id::{Attempt, JobId, WorkerId};
use remuda_core::service::{
    ProbeResult, ProbeTrigger, SelfTestResult, ServiceEvent, ServiceFailure, ServiceFault,
    ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use remuda_core::wire::metric::OBJECT_INFO;
use remuda_net::secret::Secret;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use self::early_outputs::{EarlyOutputs, NodeOutput};
use self::incarnation::ServerIncarnation;
use self::node_times::NodeTimes;
use self::process::ServerProcess;
pub(crate) use self::startup::ReadyComfyui;
use self::ws_listener::SentImage;
use crate::attempt::{AttemptRequest, Events, OutputFilter};
use crate::blob_link::BlobLink;
use crate::live_reports::LiveReports;
use crate::options::WorkerOptions;
use crate::previews::Previews;

/// The file that names the server a worker started.
fn pid_file(options: &WorkerOptions) -> PathBuf {
    options.data.join(format!("{}.pid", options.worker))
}

/// How long a failure, or a success without outputs, waits for the socket's final message, which explains it.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a success waits for it: the messages and previews before it are on their way, unless they are lost.
const LATE_MESSAGES_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct ComfyuiService {
    context: Arc<ComfyuiContext>,
    tasks: JoinSet<()>,
}

/// Shared by the service and its background tasks.
#[derive(Debug)]
struct ComfyuiContext {
    client: ComfyuiClient,
    target: ComfyuiTarget,
    /// The server sends a prompt's messages to the socket with the client id of its submission.
    client_id: String,
    worker: WorkerId,
    events: Events,
    previews: Previews,
    reports: LiveReports,
    early: mpsc::Sender<NodeOutput>,
    blobs: BlobLink,
    incarnations: ServerIncarnation,
    process: Option<ServerProcess>,
    reopen: Notify,
    runs: Mutex<BTreeMap<String, Run>>,
    /// Names on the server of inputs that were uploaded, by hash.
    uploaded: Mutex<BTreeMap<String, String>>,
    metrics: Mutex<Map<String, Value>>,
    /// The blob with the server's description of its node classes.
    object_info: Mutex<Option<String>>,
    scratch: PathBuf,
    /// The server's output folder, if the server says where it is.
    output_folder: OnceCell<Option<PathBuf>>,
    /// Files stay on the server after their attempt.
    keeps_copies: bool,
    self_test_timeout: Duration,
}

/// An attempt that was submitted to the server.
#[derive(Debug)]
struct Run {
    job: JobId,
    attempt: Attempt,
    /// None until the workflow is known.
    progress: Option<ProgressTracker>,
    phase: String,
    /// Class of each node, to recognise outputs that come over the socket.
    classes: BTreeMap<String, String>,
    sent_images: Vec<SentImage>,
    /// The last preview: it is passed on with the message that follows it.
    preview: Option<(Option<String>, Vec<u8>)>,
    /// Names of uploaded inputs on the server, and those in the submitted graph.
    input_names: Vec<(String, String)>,
    node_times: NodeTimes,
    filter: OutputFilter,
    early: EarlyOutputs,
    /// The socket has delivered the prompt's last message.
    has_final_message: watch::Sender<bool>,
    /// All its outputs are stored.
    is_collected: bool,
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
            sent_images: Vec::new(),
            preview: None,
            input_names: Vec::new(),
            node_times: NodeTimes::default(),
            filter: OutputFilter::default(),
            early: EarlyOutputs::default(),
            has_final_message: watch::Sender::new(false),
            is_collected: false,
            is_cancelled,
        }
    }

    /// Takes what was written into the prompt for this attempt out of its outputs.
    fn restorer(&self) -> PromptRestorer {
        let names = self.input_names.iter().map(|(placed, name)| (placed.as_str(), name.as_str()));
        PromptRestorer::new(self.job, self.attempt, names)
    }

    /// From now on messages about these nodes count as progress.
    fn follow(&mut self, id: &str, nodes: &BTreeMap<String, PromptNode>) {
        self.progress = Some(ProgressTracker::new(id, nodes));
        self.classes = nodes.iter().map(|(id, node)| (id.clone(), node.class.clone())).collect();
    }
}

impl ComfyuiService {
    pub(crate) fn run(&mut self, request: AttemptRequest) {
        let cancelled = self.context.with_runs(&request.service_job_id, |runs, id| {
            let run = runs.entry(id).or_insert_with(|| Run::new(request.job, request.attempt));
            run.filter.clone_from(&request.filter);
            run.is_cancelled.subscribe()
        });
        let context = self.context.clone();
        self.spawn(async move {
            let (job, attempt) = (request.job, request.attempt);
            let answer = context.submit(request, cancelled).await;
            let life = context.incarnations.lock().current();
            context.send(AgentEvent::Submitted { job, attempt, incarnation: life, answer }).await;
        });
    }

    pub(crate) fn cancel(&mut self, job: JobId, attempt: Attempt) {
        let id = job.service_job_id(attempt);
        self.context.with_runs(&id, |runs, id| runs.get(&id).map(|run| run.is_cancelled.send_replace(true)));
        let context = self.context.clone();
        self.spawn(async move {
            if let Err(error) = context.client.cancel(&id).await {
                // The agent probes it soon, and cancels again if it still runs.
                debug!(%job, %attempt, %error, "could not cancel a prompt on ComfyUI");
            }
        });
    }

    pub(crate) fn probe(&mut self, job: JobId, attempt: Attempt, trigger: ProbeTrigger) {
        let context = self.context.clone();
        self.spawn(async move {
            let (life, seen) = context.probe(&job.service_job_id(attempt), trigger).await;
            debug!(%job, %attempt, %trigger, seen = seen.state().as_str(), "probed ComfyUI");
            // A failure is reported after the messages that led to it; a success is still to be collected.
            if matches!(seen, ProbeResult::Failed(_)) {
                context.flush_live(job, attempt).await;
            }
            context.send(AgentEvent::Probed { job, attempt, incarnation: life, result: seen }).await;
        });
    }

    pub(crate) fn collect(
        &mut self,
        job: JobId,
        attempt: Attempt,
        outputs: Arc<RawValue>,
        filter: OutputFilter,
    ) {
        let context = self.context.clone();
        self.spawn(async move {
            let outcome = context.collect(&job.service_job_id(attempt), &outputs, &filter).await;
            context.flush_live(job, attempt).await;
            context.send(AgentEvent::Ended { job, attempt, outcome }).await;
        });
    }

    pub(crate) fn reopen(&mut self) {
        self.context.reopen.notify_one();
    }

    pub(crate) fn repair(&mut self, remedy: ServiceRemedy) {
        let context = self.context.clone();
        self.spawn(async move {
            let problem = context.repair(remedy).await.err();
            if let Some(problem) = &problem {
                info!(?remedy, %problem, "repair of ComfyUI failed");
            }
            context.send(AgentEvent::Service(ServiceEvent::RemedyDone { remedy, problem })).await;
        });
    }

    pub(crate) fn check(&mut self) {
        let context = self.context.clone();
        self.spawn(async move {
            let began_in = context.incarnations.lock().current();
            let (result, offer) = match context.self_test().await {
                Ok(offer) => (SelfTestResult::Passed, Some(Box::new(offer))),
                Err(problem) if problem.is_queued() => (SelfTestResult::Queued(problem.to_string()), None),
                Err(problem) => (SelfTestResult::Failed(problem.to_string()), None),
            };
            match &result {
                SelfTestResult::Passed => info!("self-test of ComfyUI passed"),
                SelfTestResult::Failed(problem) => info!(%problem, "self-test of ComfyUI failed"),
                SelfTestResult::Queued(problem) => {
                    info!(%problem, "self-test of ComfyUI waited behind other work");
                }
            }
            let current = context.incarnations.lock().current();
            let tested = ServiceEvent::self_tested(began_in, current, result, offer);
            context.send(AgentEvent::Service(tested)).await;
        });
    }

    pub(crate) fn set_token(&self, token: &Secret) {
        self.context.blobs.set_token(token.clone());
    }

    pub(crate) fn retain(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        let mut collected = Vec::new();
        let mut runs = self.context.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| {
            let is_held = held.contains(&(run.job, run.attempt));
            if !is_held && run.is_collected {
                collected.push((run.job, run.attempt));
            }
            is_held
        });
        drop(runs);
        if !collected.is_empty() && !self.context.keeps_copies {
            let context = self.context.clone();
            self.spawn(context.remove_copies(collected));
        }
    }

    pub(crate) fn metrics(&self) -> Map<String, Value> {
        let mut metrics = self.context.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let info = self.context.object_info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        metrics.extend(info.map(|info| (OBJECT_INFO.to_owned(), info.into())));
        metrics
    }

    /// Why the server exited, if this worker started it and it has exited.
    pub(crate) async fn exit_reason(&self) -> Option<String> {
        self.context.process.as_ref()?.exit_reason().await
    }

    /// Stops the server that a worker of this name started.
    pub(crate) async fn abandon(options: &WorkerOptions) {
        ServerProcess::stop_recorded(&pid_file(options)).await;
    }

    /// Stops the server if this worker started it, unless another worker of the same name has taken it over.
    pub(crate) async fn end(mut self, is_replaced: bool) {
        self.tasks.shutdown().await;
        if let Some(process) = self.context.process.as_ref().filter(|_| !is_replaced) {
            process.stop().await;
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

impl ComfyuiContext {
    async fn send(&self, event: AgentEvent) {
        // The receiver is gone only when the worker ends.
        drop(self.events.send(event).await);
    }

    /// Messages and previews arrive before the end of their run.
    async fn flush_live(&self, job: JobId, attempt: Attempt) {
        tokio::join!(self.reports.flush(job, attempt), self.previews.flush(job, attempt));
    }

    fn with_runs<T>(&self, id: &str, act: impl FnOnce(&mut BTreeMap<String, Run>, String) -> T) -> T {
        act(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner), id.to_owned())
    }

    async fn submit(&self, request: AttemptRequest, cancelled: watch::Receiver<bool>) -> SubmitOutcome {
        let answer = self.submit_once(&request, cancelled.clone()).await;
        let may_lack_input = matches!(
            &answer,
            SubmitOutcome::Refused(ServiceFailure { fault: ServiceFault::Missing | ServiceFault::Node, .. })
        );
        let had_uploads = {
            let mut uploaded = self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
            may_lack_input && !std::mem::take(&mut *uploaded).is_empty()
        };
        // An uploaded input may have been deleted on the server, which is not the job's fault: upload all again, once.
        if had_uploads { self.submit_once(&request, cancelled).await } else { answer }
    }

    async fn submit_once(&self, request: &AttemptRequest, cancelled: watch::Receiver<bool>) -> SubmitOutcome {
        let prompt = match self.prepare(request, cancelled).await {
            Ok(prompt) => prompt,
            Err(failure) => return SubmitOutcome::Refused(failure),
        };
        // Before the submission: the first message may arrive before its answer.
        self.with_runs(prompt.id(), |runs, id| {
            if let Some(run) = runs.get_mut(&id) {
                run.follow(prompt.id(), prompt.nodes());
                "submitted".clone_into(&mut run.phase);
            }
        });
        self.client.submit(&prompt).await
    }

    async fn prepare(
        &self,
        request: &AttemptRequest,
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<PreparedPrompt, ServiceFailure> {
        let stopped =
            || ServiceFailure::new(ServiceFault::Lost, "cancelled before it was submitted to ComfyUI");
        let draft = PromptDraft::read(&request.workflow, &request.keys)?;
        let inputs = tokio::select! {
            inputs = self.upload_inputs(draft.assets()) => inputs?,
            Ok(_) = cancelled.wait_for(|it| *it) => return Err(stopped()),
        };
        if *cancelled.borrow() {
            return Err(stopped());
        }
        let named = draft.assets().iter().filter_map(|asset| {
            let name = asset.name.as_ref().or(asset.file_path.as_ref())?;
            Some((inputs.get(&asset.hash)?.clone(), name.clone()))
        });
        let input_names: Vec<_> = named.collect();
        self.with_runs(&request.service_job_id, |runs, id| {
            if let Some(run) = runs.get_mut(&id) {
                run.input_names = input_names;
            }
        });
        let tag = PromptTag { worker: self.worker.clone(), job: request.job, attempt: request.attempt };
        draft.prepare(&tag, &request.service_job_id, &self.client_id, &inputs)
    }

    /// Asks the server about a prompt. The incarnation only matters if the server does not know the prompt.
    async fn probe(&self, id: &str, trigger: ProbeTrigger) -> (ServiceIncarnation, ProbeResult) {
        let (seen, copies) = self.client.probe_with_copies(id, trigger).await;
        if copies > 0 {
            match self.client.delete_queued(id, copies).await {
                Ok(()) => info!(prompt = id, copies, "removed duplicate prompts from ComfyUI's queue"),
                // The next probe finds them again.
                Err(error) => {
                    debug!(prompt = id, copies, %error, "could not remove duplicate prompts from ComfyUI's queue");
                }
            }
        }
        if !matches!(seen, ProbeResult::Unknown) {
            self.await_final_message(id, &seen).await;
            return (self.incarnations.lock().current(), seen);
        }
        match self.incarnations.confirm(&self.client).await {
            Ok(life) => (life, seen),
            Err(error) => (self.incarnations.lock().current(), ProbeResult::NoAnswer(error.to_string())),
        }
    }

    /// Only the socket may explain a success without outputs, and it has the whole error of a failure. A probe can be faster
    /// than the socket, so the final message is awaited for a moment.
    async fn await_final_message(&self, id: &str, seen: &ProbeResult) {
        let timeout = match seen {
            ProbeResult::Failed(_) => FINAL_MESSAGE_TIMEOUT,
            ProbeResult::Succeeded { outputs } if outputs::is_empty(outputs) => FINAL_MESSAGE_TIMEOUT,
            ProbeResult::Succeeded { .. } => LATE_MESSAGES_TIMEOUT,
            _ => return,
        };
        let arrival = self.update_run(id, |run| run.has_final_message.subscribe());
        // An error means that the run was dropped.
        let Some(mut arrival) = arrival else { return };
        if tokio::time::timeout(timeout, arrival.wait_for(|it| *it)).await.is_err() {
            debug!(prompt = id, "the run has ended, and there is no final message on the socket");
        }
    }

    async fn repair(&self, remedy: ServiceRemedy) -> Result<(), String> {
        match (remedy, &self.process) {
            (ServiceRemedy::FreeMemory, _) => self.client.free_memory().await.map_err(|error| error.to_string()),
            (ServiceRemedy::Restart, None) => {
                Err("Remuda did not start this server and cannot restart it: restart it yourself, or let Remuda start it \
                     with --comfyui-cmd"
                    .to_owned())
            }
            (ServiceRemedy::Restart, Some(process)) => {
                process.restart().await?;
                self.incarnations.lock().advance();
                self.await_answer(process).await
            }
        }
    }
}
