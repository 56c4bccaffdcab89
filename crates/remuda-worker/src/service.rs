//! The service that an agent runs attempts on: commands, a ComfyUI server, or models of this process.
//!
//! The agent decides; the service acts and answers every request with an event, even if only to say that there was no
//! answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use remuda_core::agent::AgentEffect;
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeTrigger, ServiceRemedy};
use remuda_net::secret::Secret;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tracing::{debug, warn};

use crate::attempt::{AttemptRequest, OutputFilter};
use crate::comfyui::ComfyuiService;
use crate::exec::ExecService;
use crate::models::ModelService;
use crate::options::{ServiceSpec, WorkerOptions};

#[derive(Debug)]
pub(crate) enum ServiceRunner {
    Exec(ExecService),
    Comfyui(ComfyuiService),
    Models(ModelService),
}

/// Stops the server of a worker that ended before its service was ready: the server may have been started already.
pub(crate) async fn abandon(options: &WorkerOptions) {
    match &options.service {
        ServiceSpec::Exec(_) | ServiceSpec::Models(_) => {}
        ServiceSpec::Comfyui(comfyui) if comfyui.command.is_some() => ComfyuiService::abandon(options).await,
        ServiceSpec::Comfyui(_) => {}
    }
}

impl ServiceRunner {
    /// Runs the effects that concern the service; the shell runs those that concern the plane.
    pub(crate) fn run_effect(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Run { job, attempt, service_job_id, include_outputs, workflow, keys, .. } => {
                let filter = OutputFilter(include_outputs);
                self.run(AttemptRequest { job, attempt, service_job_id, filter, workflow, keys });
            }
            AgentEffect::Cancel { job, attempt, reason } => {
                debug!(%job, %attempt, %reason, "cancelling an attempt");
                self.cancel(job, attempt, reason);
            }
            AgentEffect::Probe { job, attempt, trigger } => self.probe(job, attempt, trigger),
            AgentEffect::FetchOutputs { job, attempt, outputs, include_outputs } => {
                self.collect(job, attempt, outputs, OutputFilter(include_outputs));
            }
            AgentEffect::ReopenSocket => self.reopen(),
            AgentEffect::ApplyRemedy(remedy) => {
                warn!(?remedy, "repairing the service");
                self.repair(remedy);
            }
            AgentEffect::SelfTest => self.check(),
            AgentEffect::Join(_)
            | AgentEffect::Beat { .. }
            | AgentEffect::Leave { .. }
            | AgentEffect::Exit(_) => {}
        }
    }

    fn run(&mut self, mut request: AttemptRequest) {
        // Only a prompt for ComfyUI has a place for keys of its own.
        if !matches!(self, ServiceRunner::Comfyui(_)) && !request.keys.is_empty() {
            request.workflow = request.keys.put_into(&request.workflow).map_or(request.workflow, Arc::from);
        }
        match self {
            ServiceRunner::Exec(exec) => exec.run(request),
            ServiceRunner::Comfyui(comfyui) => comfyui.run(request),
            ServiceRunner::Models(models) => models.run(request),
        }
    }

    fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        match self {
            ServiceRunner::Exec(exec) => exec.cancel(job, attempt, reason),
            ServiceRunner::Comfyui(comfyui) => comfyui.cancel(job, attempt),
            ServiceRunner::Models(models) => models.cancel(job, attempt, reason),
        }
    }

    fn probe(&mut self, job: JobId, attempt: Attempt, trigger: ProbeTrigger) {
        match self {
            ServiceRunner::Exec(exec) => exec.probe(job, attempt),
            ServiceRunner::Comfyui(comfyui) => comfyui.probe(job, attempt, trigger),
            ServiceRunner::Models(models) => models.probe(job, attempt),
        }
    }

    fn collect(&mut self, job: JobId, attempt: Attempt, outputs: Arc<RawValue>, filter: OutputFilter) {
        match self {
            // Commands and models report their result together with their end.
            ServiceRunner::Exec(_) | ServiceRunner::Models(_) => {}
            ServiceRunner::Comfyui(comfyui) => comfyui.collect(job, attempt, outputs, filter),
        }
    }

    fn reopen(&mut self) {
        match self {
            ServiceRunner::Exec(_) | ServiceRunner::Models(_) => {}
            ServiceRunner::Comfyui(comfyui) => comfyui.reopen(),
        }
    }

    fn repair(&mut self, remedy: ServiceRemedy) {
        match self {
            ServiceRunner::Exec(exec) => exec.repair(remedy),
            ServiceRunner::Comfyui(comfyui) => comfyui.repair(remedy),
            ServiceRunner::Models(models) => models.repair(remedy),
        }
    }

    fn check(&mut self) {
        match self {
            ServiceRunner::Exec(exec) => exec.check(),
            ServiceRunner::Comfyui(comfyui) => comfyui.check(),
            ServiceRunner::Models(models) => models.check(),
        }
    }

    /// Blobs are transferred with this token from now on: the one the worker got when it joined.
    pub(crate) fn set_token(&self, token: &Secret) {
        match self {
            ServiceRunner::Exec(_) => {}
            ServiceRunner::Comfyui(comfyui) => comfyui.set_token(token),
            ServiceRunner::Models(models) => models.set_token(token),
        }
    }

    /// Drops the state of every attempt that the agent does not hold: it will not ask about them again.
    pub(crate) fn retain(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        match self {
            ServiceRunner::Exec(exec) => exec.retain(held),
            ServiceRunner::Comfyui(comfyui) => comfyui.retain(held),
            ServiceRunner::Models(models) => models.retain(held),
        }
    }

    /// Why the service exited, if this worker started it and it has exited.
    pub(crate) async fn exit_reason(&self) -> Option<String> {
        match self {
            ServiceRunner::Exec(_) | ServiceRunner::Models(_) => None,
            ServiceRunner::Comfyui(comfyui) => comfyui.exit_reason().await,
        }
    }

    /// The service's own metrics; displayed only.
    pub(crate) fn metrics(&self) -> Map<String, Value> {
        match self {
            ServiceRunner::Exec(_) => Map::new(),
            ServiceRunner::Comfyui(comfyui) => comfyui.metrics(),
            ServiceRunner::Models(models) => models.metrics(),
        }
    }

    /// Stops everything this worker started, except a server that a replacing worker of the same name has taken over.
    pub(crate) async fn end(self, is_replaced: bool) {
        match self {
            ServiceRunner::Exec(exec) => exec.end().await,
            ServiceRunner::Comfyui(comfyui) => comfyui.end(is_replaced).await,
            ServiceRunner::Models(models) => models.end().await,
        }
    }
}
