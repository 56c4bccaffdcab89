//! What an agent works with: commands of this machine, a ComfyUI server, or models of this process. The agent decides, hands do, and what comes
//! of it goes back to the agent as an event; every question gets an answer, if only that there was none.

use std::collections::BTreeSet;
use std::sync::Arc;

use remuda_core::agent::{AgentEffect, AgentEvent};
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeTrigger, ServiceRemedy};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::comfyui::Comfyui;
use super::exec::Commands;
use super::models::Models;
use super::{Does, Options};
use remuda_net::secret::Secret;

pub(super) type Events = mpsc::Sender<AgentEvent>;

/// An attempt to begin.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) service_job_id: String,
    pub(super) wanted: Wanted,
    pub(super) workflow: Arc<RawValue>,
}

/// Nodes whose outputs are wanted; all if none is named.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted(pub(super) BTreeSet<String>);

impl Wanted {
    /// A node made at run time is called after the one that made it: `2.0.0.1` belongs to `2`.
    pub(super) fn has(&self, node: &str) -> bool {
        let root = node.split('.').next().unwrap_or(node);
        self.0.is_empty() || self.0.contains(node) || self.0.contains(root)
    }
}

#[derive(Debug)]
pub(super) enum Hands {
    Commands(Commands),
    Comfyui(Comfyui),
    Models(Models),
}

/// A worker that never came to have hands may have started a service all the same: it ends with it.
pub(super) async fn abandon(options: &Options) {
    match &options.does {
        Does::Exec(_) | Does::Models(_) => {}
        Does::Comfyui(comfyui) if comfyui.command.is_some() => Comfyui::abandon(options).await,
        Does::Comfyui(_) => {}
    }
}

impl Hands {
    /// What the agent wants of its service; what it wants of the plane is not for hands.
    pub(super) fn carry_out(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Run { job, attempt, service_job_id, include_outputs, workflow, .. } => {
                let wanted = Wanted(include_outputs);
                self.run(Order { job, attempt, service_job_id, wanted, workflow });
            }
            AgentEffect::Cancel { job, attempt, reason } => {
                debug!(%job, %attempt, %reason, "told to stop");
                self.cancel(job, attempt, reason);
            }
            AgentEffect::Probe { job, attempt, trigger } => self.probe(job, attempt, trigger),
            AgentEffect::Collect { job, attempt, outputs, include_outputs } => {
                self.collect(job, attempt, outputs, Wanted(include_outputs));
            }
            AgentEffect::Reopen => self.reopen(),
            AgentEffect::Treat(remedy) => {
                warn!(?remedy, "treating the service");
                self.treat(remedy);
            }
            AgentEffect::Check => self.check(),
            AgentEffect::Join(_)
            | AgentEffect::Beat { .. }
            | AgentEffect::Leave { .. }
            | AgentEffect::Exit(_) => {}
        }
    }

    fn run(&mut self, order: Order) {
        match self {
            Hands::Commands(commands) => commands.run(order),
            Hands::Comfyui(comfyui) => comfyui.run(order),
            Hands::Models(models) => models.run(order),
        }
    }

    fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        match self {
            Hands::Commands(commands) => commands.cancel(job, attempt, reason),
            Hands::Comfyui(comfyui) => comfyui.cancel(job, attempt),
            Hands::Models(models) => models.cancel(job, attempt, reason),
        }
    }

    fn probe(&mut self, job: JobId, attempt: Attempt, trigger: ProbeTrigger) {
        match self {
            Hands::Commands(commands) => commands.probe(job, attempt),
            Hands::Comfyui(comfyui) => comfyui.probe(job, attempt, trigger),
            Hands::Models(models) => models.probe(job, attempt),
        }
    }

    fn collect(&mut self, job: JobId, attempt: Attempt, outputs: Arc<RawValue>, wanted: Wanted) {
        match self {
            // A command's result comes with its end, and so does a model's.
            Hands::Commands(_) | Hands::Models(_) => {}
            Hands::Comfyui(comfyui) => comfyui.collect(job, attempt, outputs, wanted),
        }
    }

    fn reopen(&mut self) {
        match self {
            Hands::Commands(_) | Hands::Models(_) => {}
            Hands::Comfyui(comfyui) => comfyui.reopen(),
        }
    }

    fn treat(&mut self, remedy: ServiceRemedy) {
        match self {
            Hands::Commands(commands) => commands.treat(remedy),
            Hands::Comfyui(comfyui) => comfyui.treat(remedy),
            Hands::Models(models) => models.treat(remedy),
        }
    }

    fn check(&mut self) {
        match self {
            Hands::Commands(commands) => commands.check(),
            Hands::Comfyui(comfyui) => comfyui.check(),
            Hands::Models(models) => models.check(),
        }
    }

    /// The worker has joined, and goes by what it was given.
    pub(super) fn joined(&self, token: &Secret) {
        match self {
            Hands::Commands(_) => {}
            Hands::Comfyui(comfyui) => comfyui.joined(token),
            Hands::Models(models) => models.joined(token),
        }
    }

    /// Whatever the agent does not hold is over: nothing more will be asked about it, however it ended.
    pub(super) fn keep_only(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        match self {
            Hands::Commands(commands) => commands.keep_only(held),
            Hands::Comfyui(comfyui) => comfyui.keep_only(held),
            Hands::Models(models) => models.keep_only(held),
        }
    }

    /// Why the service has ended, if we started it and it has.
    pub(super) async fn ended(&self) -> Option<String> {
        match self {
            Hands::Commands(_) | Hands::Models(_) => None,
            Hands::Comfyui(comfyui) => comfyui.ended().await,
        }
    }

    /// What the service says of itself, to be shown.
    pub(super) fn metrics(&self) -> Map<String, Value> {
        match self {
            Hands::Commands(_) => Map::new(),
            Hands::Comfyui(comfyui) => comfyui.metrics(),
            Hands::Models(models) => models.metrics(),
        }
    }

    /// Nothing that was started here outlives the worker, but for what another of its name has taken over.
    pub(super) async fn end(self, is_replaced: bool) {
        match self {
            Hands::Commands(commands) => commands.end().await,
            Hands::Comfyui(comfyui) => comfyui.end(is_replaced).await,
            Hands::Models(models) => models.end().await,
        }
    }
}
