//! Brings a ComfyUI server up for an agent: waits until it answers, finds the attempts an earlier agent of this name left
//! with it, runs a small prompt as a self-test and reads its capabilities.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use remuda_comfyui::{ComfyuiClient, ComfyuiError, Inventory, PromptPhase, SelfTestError, SystemStats};
use remuda_core::agent::{AgentEvent, FoundAttempt};
use remuda_core::id::WorkerId;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceIncarnation;
use remuda_core::service::startup::{START_RETRY_INTERVAL, StartSupervision, StartVerdict};
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::early_outputs;
use super::incarnation::ServerIncarnation;
use super::process::ServerProcess;
use super::{ComfyuiContext, ComfyuiService, Run, pid_file};
use crate::attempt::Events;
use crate::blob_link::BlobLink;
use crate::live_sinks::LiveSinks;
use crate::options::{ComfyuiOptions, WorkerOptions};
use crate::start_check::StartupReporter;

/// How often a server that does not answer yet is asked, and after how many requests that is reported again.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLLS_PER_REPORT: u32 = 50;
/// A restarted server that does not answer within this time is broken.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const STATS_INTERVAL: Duration = Duration::from_secs(30);
/// For a megabyte or two.
const OBJECT_INFO_TIMEOUT: Duration = Duration::from_secs(10);
/// Reading the inventory blocks the server for a moment, so it is done rarely and only while the server is idle.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(300);

/// A server that is ready for work.
#[derive(Debug)]
pub(crate) struct ReadyComfyui {
    pub(crate) comfyui: ComfyuiService,
    pub(crate) offer: Capabilities,
    pub(crate) found: Vec<FoundAttempt>,
    pub(crate) life: ServiceIncarnation,
}

/// Why a server is not ready for work.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceCheckError {
    #[error(transparent)]
    Silent(#[from] ComfyuiError),
    #[error(transparent)]
    Sick(#[from] SelfTestError),
}

impl ServiceCheckError {
    /// Whether the check only waited behind other work.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self, ServiceCheckError::Sick(SelfTestError::Queued { .. }))
    }
}

impl ComfyuiService {
    /// Waits until the server is ready for work, without a time limit.
    pub(crate) async fn start(
        comfyui: ComfyuiOptions,
        options: &WorkerOptions,
        events: Events,
        LiveSinks { previews, reports }: LiveSinks,
        reporter: &StartupReporter,
    ) -> anyhow::Result<ReadyComfyui> {
        let ComfyuiOptions { target, command, request_timeout, keeps_copies, self_test_timeout } = comfyui;
        let client = ComfyuiClient::new(&target, request_timeout)?;
        let scratch = options.data.join("scratch").join(options.worker.as_str());
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot create the scratch folder {}", scratch.display()))?;
        let pid_file = pid_file(options);
        let process = match command {
            Some(_) if !ServerProcess::is_recorded(&pid_file) && client.stats().await.is_ok() => {
                warn!(
                    url = target.url,
                    "a ComfyUI that no worker of this name started is running; using it without restarting or stopping it"
                );
                None
            }
            Some(command) => {
                let environment = options.job_environment.clone();
                Some(ServerProcess::adopt_or_start(command, environment, pid_file, events.clone()).await?)
            }
            None => None,
        };
        let (early, early_queue) = early_outputs::channel();
        let context = Arc::new(ComfyuiContext {
            client,
            target,
            client_id: client_id(&options.worker, &options.url),
            worker: options.worker.clone(),
            blobs: BlobLink::with_credentials(&options.url, &options.credentials),
            events,
            previews,
            reports,
            early,
            incarnations: ServerIncarnation::default(),
            process,
            reopen: Notify::new(),
            runs: Default::default(),
            uploaded: Default::default(),
            metrics: Default::default(),
            object_info: Default::default(),
            scratch,
            output_folder: Default::default(),
            keeps_copies,
            self_test_timeout,
        });
        context.incarnations.lock().advance();
        let (offer, found) = context.await_ready(options.slots as usize, reporter).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(context.clone().listen());
        tasks.spawn(context.clone().store_early(early_queue));
        tasks.spawn(context.clone().refresh_metrics());
        let life = context.incarnations.lock().current();
        Ok(ReadyComfyui { comfyui: ComfyuiService { context, tasks }, offer, found, life })
    }
}

impl ComfyuiContext {
    async fn await_ready(
        &self,
        slots: usize,
        reporter: &StartupReporter,
    ) -> (Capabilities, Vec<FoundAttempt>) {
        self.await_first_answer(reporter).await;
        let mut supervision = StartSupervision::default();
        loop {
            reporter.report_phase("ComfyUI answers: running a self-test").await;
            // Attempts of an earlier agent come first: the self-test would wait behind them.
            let found = self.find_attempts(slots).await;
            let checked = match found {
                Ok(found) if found.is_empty() => self.self_test().await.map(|offer| (offer, found)),
                Ok(found) => {
                    self.read_offer().await.map(|offer| (offer, found)).map_err(ServiceCheckError::from)
                }
                Err(error) => Err(error.into()),
            };
            match checked {
                Ok(ready) => return ready,
                Err(problem) => {
                    warn!(%problem, url = %self.target.url, "ComfyUI is not ready for work; checking again later");
                    let message = format!("ComfyUI is not ready for work: {problem}");
                    reporter.report_start(supervision.failed(), message).await;
                    tokio::time::sleep(START_RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn await_first_answer(&self, reporter: &StartupReporter) {
        let (mut polls, mut supervision) = (0, StartSupervision::default());
        while let Err(error) = self.client.stats().await {
            if polls % POLLS_PER_REPORT == 0 {
                info!(url = %self.target.url, %error, "waiting for ComfyUI");
                reporter.report_phase(format!("waiting for ComfyUI to answer: {error}")).await;
            }
            polls += 1;
            tokio::time::sleep(POLL_INTERVAL).await;
            if let Some(process) = &self.process
                && let Some(reason) = process.exit_reason().await
            {
                let verdict = supervision.failed();
                self.restart_after_exit(process, &reason, verdict, reporter).await;
            }
        }
    }

    /// The server exited before it ever answered; the next one may not.
    async fn restart_after_exit(
        &self,
        process: &ServerProcess,
        reason: &str,
        verdict: StartVerdict,
        reporter: &StartupReporter,
    ) {
        let message = format!("ComfyUI exited before it answered: {reason}");
        warn!(%reason, "ComfyUI exited before it answered; restarting it later");
        reporter.report_start(verdict, message).await;
        tokio::time::sleep(START_RETRY_INTERVAL).await;
        if let Err(problem) = process.restart().await {
            warn!(%problem, "restart of ComfyUI failed");
        }
        self.incarnations.lock().advance();
    }

    /// Waits until a restarted server answers.
    pub(super) async fn await_answer(&self, process: &ServerProcess) -> Result<(), String> {
        let answer = async {
            while let Err(error) = self.client.stats().await {
                if let Some(reason) = process.exit_reason().await {
                    return Err(format!("it exited right after it was started: {reason}"));
                }
                tracing::debug!(%error, "restarted ComfyUI does not answer yet");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        let late = |_| Err(format!("it did not answer within {START_TIMEOUT:?} after it was started"));
        tokio::time::timeout(START_TIMEOUT, answer).await.unwrap_or_else(late)
    }

    /// Attempts of an earlier agent whose end the plane may not know: all that run or wait, and of those that have ended
    /// the newest, as many as an agent holds at a time.
    async fn find_attempts(&self, slots: usize) -> Result<Vec<FoundAttempt>, ComfyuiError> {
        let mut ours = self.client.tagged_prompts(&self.worker).await?;
        let ended = ours.iter().filter(|it| it.phase == PromptPhase::Ended).count();
        let mut to_skip = ended.saturating_sub(slots);
        // The oldest come first.
        ours.retain(|it| {
            let is_old = it.phase == PromptPhase::Ended && to_skip > 0;
            to_skip -= usize::from(is_old);
            !is_old
        });
        for tagged in &ours {
            info!(job = %tagged.job, attempt = %tagged.attempt, phase = ?tagged.phase, "adopted an attempt on ComfyUI");
            let mut run = Run::new(tagged.job, tagged.attempt);
            if !tagged.nodes.is_empty() {
                run.follow(&tagged.id, &tagged.nodes);
            }
            self.with_runs(&tagged.id, |runs, id| runs.insert(id, run));
        }
        Ok(ours.into_iter().map(|tagged| FoundAttempt { job: tagged.job, attempt: tagged.attempt }).collect())
    }

    /// Runs a small prompt, and reads the server's capabilities.
    pub(super) async fn self_test(&self) -> Result<Capabilities, ServiceCheckError> {
        let canary = self.client.self_test_prompt(&self.worker, &self.client_id);
        if let Err(sick) = self.client.run_self_test(&canary, self.self_test_timeout).await {
            // It must not stay in the queue of a broken server.
            self.client.cancel(canary.id()).await.ok();
            return Err(sick.into());
        }
        self.incarnations.lock().set_anchor(canary.id());
        Ok(self.read_offer().await?)
    }

    async fn read_offer(&self) -> Result<Capabilities, ComfyuiError> {
        let stats = self.client.stats().await?;
        let (Inventory { classes, models }, info) = self.client.inventory_and_object_info().await?;
        self.store_object_info(&info).await;
        let vram_bytes = stats.devices.first().map(|device| device.vram_total_bytes);
        info!(
            version = stats.version,
            classes = classes.len(),
            models = models.len(),
            "ComfyUI is ready for work"
        );
        self.update_metrics(&stats);
        Ok(Capabilities {
            models: Some(models),
            classes: Some(classes),
            vram_bytes,
            ..Capabilities::default()
        })
    }

    /// Stores the description of the server's node classes on the plane, which passes it to clients of its ComfyUI API.
    /// No job depends on it.
    async fn store_object_info(&self, info: &RawValue) {
        let store = self.blobs.store_bytes(Bytes::copy_from_slice(info.get().as_bytes()));
        match tokio::time::timeout(OBJECT_INFO_TIMEOUT, store).await {
            Ok(Ok((hash, _))) => {
                *self.object_info.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash.to_string());
            }
            Ok(Err(error)) => {
                warn!(%error, "could not store ComfyUI's node descriptions on the plane; retrying later");
            }
            Err(_) => warn!("storing ComfyUI's node descriptions on the plane timed out; retrying later"),
        }
    }

    fn update_metrics(&self, stats: &SystemStats) {
        let mut metrics = Map::new();
        metrics.insert("comfyui_version".to_owned(), stats.version.clone().into());
        if let Some(device) = stats.devices.first() {
            metrics.insert("device".to_owned(), device.name.clone().into());
            metrics.insert("vram_total_bytes".to_owned(), device.vram_total_bytes.into());
            metrics.insert("vram_free_bytes".to_owned(), Value::from(device.vram_free_bytes));
            let used = device.vram_total_bytes.saturating_sub(device.vram_free_bytes);
            metrics.insert("vram_used_bytes".to_owned(), used.into());
        }
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    /// Reads the server's metrics, and now and then its inventory, until the task is dropped.
    async fn refresh_metrics(self: Arc<Self>) {
        let mut inventory_at = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(STATS_INTERVAL).await;
            if let Ok(stats) = self.client.stats().await {
                self.update_metrics(&stats);
            }
            let is_idle = self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            if is_idle
                && inventory_at.elapsed() >= INVENTORY_INTERVAL
                && let Ok(offer) = self.read_offer().await
            {
                inventory_at = tokio::time::Instant::now();
                self.send(AgentEvent::CapabilitiesChanged(Box::new(offer))).await;
            }
        }
    }
}

/// The same for every agent of this name under this plane, so that an agent that adopts a prompt also gets its messages.
fn client_id(worker: &WorkerId, plane: &str) -> String {
    let plane = BlobHash::from_content(plane.as_bytes()).hex();
    format!("remuda-{worker}-{}", &plane[..8])
}
