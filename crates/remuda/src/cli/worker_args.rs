//! Turns command-line flags into workers: one for a command, one per ComfyUI server, one for all models of this process.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use remuda_comfyui::{ComfyuiClient, ComfyuiTarget};
use remuda_core::agent::AgentDeadlines;
use remuda_core::id::WorkerId;
use remuda_core::need::Capabilities;
use remuda_models::ModelPool;
use remuda_net::secret::Secret;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use super::UsageError;
use super::model_path::model_specs;
use super::start::{WorkerArgs, WorkerLimitArgs};
use remuda_config::ResolvedConfig;
use remuda_net::hidden_environment::{process_variable, process_variables};
use remuda_net::http_client::Credentials;
use remuda_net::job_environment::JobEnvironment;
use remuda_net::secret::SECRET_VARIABLES;
use remuda_worker::{
    ComfyuiOptions, ExecCommand, ModelsOptions, ServiceSpec, StartChecks, WorkerOptions, hostname,
    worker_name_for,
};

/// Where ComfyUI listens by default.
const DEFAULT_COMFYUI_URL: &str = "http://127.0.0.1:8188";
const DETECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A command that should end the machine and takes longer has failed.
const END_MACHINE_TIMEOUT: Duration = Duration::from_secs(60);

impl WorkerArgs {
    /// The ComfyUI servers of these workers, for the plane to forward requests to.
    pub(super) fn servers(&self, has_models: bool) -> anyhow::Result<Vec<ComfyuiTarget>> {
        let headers = self.headers()?;
        let urls = match (&self.exec, self.comfyui.is_empty()) {
            (Some(_), _) => Vec::new(),
            (None, true) if has_models => Vec::new(),
            (None, true) => vec![DEFAULT_COMFYUI_URL.to_owned()],
            (None, false) => self.comfyui.clone(),
        };
        Ok(urls.into_iter().map(|url| ComfyuiTarget { url, headers: headers.clone() }).collect())
    }

    /// Starts a pool with the models to serve; None without models. A model that cannot be served is an error now, before
    /// anything else starts.
    pub(super) fn pool(&self, resolved: &ResolvedConfig) -> anyhow::Result<Option<ModelPool>> {
        let specs = model_specs(resolved, &self.model)?;
        if specs.is_empty() {
            return Ok(None);
        }
        let pool = remuda_worker::start_models(
            specs,
            &resolved.models,
            &JobEnvironment::new(&resolved.agent.pass_environment),
        );
        pool.map(Some).map_err(|error| UsageError(format!("{error:#}")).into())
    }

    /// The workers to start; without any flag, one for the ComfyUI at its default address.
    pub(super) async fn workers(
        &self,
        (url, credentials): (&str, Credentials),
        pool: Option<&ModelPool>,
        resolved: &ResolvedConfig,
    ) -> anyhow::Result<Vec<WorkerOptions>> {
        let plane = (url, &credentials);
        let mut workers = match &self.exec {
            Some(command) => {
                let service = ServiceSpec::Exec(ExecCommand { command: command.clone() });
                vec![self.options(plane, resolved, self.name_or(&default_name())?, service)?]
            }
            None if pool.is_some() && self.comfyui.is_empty() => Vec::new(),
            None => self.comfyui_workers(plane, resolved).await?,
        };
        if let Some(pool) = pool {
            let mut name = self.name_or(&default_name())?;
            if !workers.is_empty() {
                name = format!("{name}-models").parse().context("choose a name with --name")?;
            }
            let service = ServiceSpec::Models(ModelsOptions { pool: pool.clone() });
            workers.push(self.options(plane, resolved, name, service)?);
        }
        Ok(workers)
    }

    async fn comfyui_workers(
        &self,
        plane: (&str, &Credentials),
        resolved: &ResolvedConfig,
    ) -> anyhow::Result<Vec<WorkerOptions>> {
        let servers =
            if self.comfyui.is_empty() { vec![find_comfyui().await?] } else { self.comfyui.clone() };
        if self.comfyui_cmd.len() > servers.len() {
            bail!(
                "{} commands for {} servers: give one --comfyui for each --comfyui-cmd",
                self.comfyui_cmd.len(),
                servers.len()
            );
        }
        let headers = self.headers()?;
        let mut workers: Vec<WorkerOptions> = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            let target = ComfyuiTarget { url: server.clone(), headers: headers.clone() };
            // An invalid address is an error now; a worker would wait for ever.
            ComfyuiClient::new(&target, remuda_worker::COMFYUI_REQUEST_TIMEOUT)
                .map_err(|error| UsageError(error.to_string()))?;
            let name = match (&self.name, servers.len()) {
                (Some(name), 1) => name.clone(),
                (Some(name), _) => format!("{name}-{}", at + 1).parse()?,
                (None, _) => worker_name_for(server).with_context(|| "choose a name with --name")?,
            };
            if workers.iter().any(|other| other.worker == name) {
                bail!(
                    "two servers would get the worker name {name}: choose names with --name, or start one worker per server"
                );
            }
            let command = self.comfyui_cmd.get(at).cloned();
            let service =
                ServiceSpec::Comfyui(ComfyuiOptions { command, ..ComfyuiOptions::new(target, resolved) });
            workers.push(self.options(plane, resolved, name, service)?);
        }
        Ok(workers)
    }

    fn options(
        &self,
        (url, credentials): (&str, &Credentials),
        resolved: &ResolvedConfig,
        worker: WorkerId,
        service: ServiceSpec,
    ) -> anyhow::Result<WorkerOptions> {
        let mut labels = BTreeMap::new();
        let given = self.more_labels.iter().map(|label| label.trim()).filter(|label| !label.is_empty());
        for label in given.chain(self.labels.iter().map(String::as_str)) {
            let (name, value) =
                label.split_once('=').with_context(|| format!("--label takes NAME=VALUE, not {label:?}"))?;
            labels.insert(name.to_owned(), value.to_owned());
        }
        let mut options = WorkerOptions::new(url, credentials.clone(), worker, service, resolved);
        match &options.service {
            // Jobs ask for a model by its name, so its services are always offered.
            ServiceSpec::Models(models) => {
                labels.extend(models.labels());
                options.services.extend(self.services.iter().cloned());
            }
            ServiceSpec::Exec(_) | ServiceSpec::Comfyui(_) if self.services.is_empty() => {}
            ServiceSpec::Exec(_) | ServiceSpec::Comfyui(_) => {
                options.services = self.services.iter().cloned().collect();
            }
        }
        options.machine = self.machine.clone().or(options.machine);
        options.fleet.clone_from(&self.fleet);
        options.slots = self.slots.unwrap_or(options.slots);
        options.offer = Capabilities { labels, ..Capabilities::default() };
        Ok(options)
    }

    fn name_or(&self, name: &str) -> anyhow::Result<WorkerId> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => name.parse().context("choose a name with --name"),
        }
    }

    fn headers(&self) -> anyhow::Result<Vec<(String, Secret)>> {
        let read = |header: &String| {
            // The error must not contain the header: its value may be secret.
            let (name, value) = header.split_once(':').context("--comfyui-header takes 'NAME: VALUE'")?;
            Ok((name.trim().to_owned(), Secret::new(value.trim())))
        };
        if self.comfyui_header.is_empty() {
            // clap does not see a variable that was hidden from jobs.
            return process_variable("REMUDA_COMFYUI_HEADER").iter().map(read).collect();
        }
        self.comfyui_header.iter().map(read).collect()
    }
}

/// The default name of a worker without a server.
fn default_name() -> String {
    format!("{}-{}", hostname(), std::process::id())
}

async fn find_comfyui() -> anyhow::Result<String> {
    let client = ComfyuiClient::new(&ComfyuiTarget::new(DEFAULT_COMFYUI_URL), DETECT_TIMEOUT)?;
    match client.stats().await {
        Ok(_) => Ok(DEFAULT_COMFYUI_URL.to_owned()),
        Err(error) => {
            let message = format!(
                "no ComfyUI answers at {DEFAULT_COMFYUI_URL} ({error}). Start it, or set its address with --comfyui URL, or try \
                 `remuda fake comfyui`, or run a command per job with --exec COMMAND, or serve a model with --model NAME=PATH"
            );
            Err(UsageError(message).into())
        }
    }
}

/// A suffix for messages that names the worker's service.
pub(super) fn describe_service(worker: &WorkerOptions) -> String {
    match &worker.service {
        ServiceSpec::Exec(_) => String::new(),
        ServiceSpec::Comfyui(comfyui) => format!(" on ComfyUI at {}", comfyui.target.url),
        ServiceSpec::Models(models) => {
            let names: Vec<_> = models.pool.models().into_iter().map(|(spec, _)| spec.name).collect();
            format!(" with {}", names.join(", "))
        }
    }
}

impl WorkerLimitArgs {
    pub(super) fn apply_to(&self, options: &mut WorkerOptions) {
        let WorkerLimitArgs { stale_after, contact_timeout, notice, .. } = *self;
        options.deadlines = AgentDeadlines { stale_after, contact_timeout, notice };
        options.start_checks = StartChecks {
            command: self.check_cmd.clone(),
            command_timeout: self.check_timeout,
            disk_min_bytes: self.disk_min,
        };
    }

    /// Runs the command that ends this machine, if there is one.
    pub(super) async fn end_machine(&self) {
        let Some(command) = &self.contact_timeout_command else { return };
        warn!(command, "ending this machine");
        // It is the operator's command, and may need a key of the provider; ours it does not need.
        let variables = process_variables()
            .filter(|(name, _)| !SECRET_VARIABLES.iter().any(|secret| name.to_str() == Some(*secret)));
        let mut shell = tokio::process::Command::new("sh");
        shell.env_clear().envs(variables);
        let ended = shell.args(["-c", command]).stdin(std::process::Stdio::null()).status();
        match tokio::time::timeout(END_MACHINE_TIMEOUT, ended).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => warn!(%status, "command to end this machine failed"),
            Ok(Err(error)) => warn!(%error, "command to end this machine could not be started"),
            Err(_) => warn!(timeout = ?END_MACHINE_TIMEOUT, "command to end this machine timed out"),
        }
    }
}

/// Runs all workers until the last has ended. A stop request goes to all of them, and so does the first error.
pub(super) async fn run_all(
    workers: Vec<WorkerOptions>,
    mut stops: mpsc::Receiver<()>,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let mut first_error = None;
    let mut stop_senders = Vec::new();
    for options in workers {
        let (stop, stopped) = mpsc::channel(4);
        stop_senders.push(stop);
        tasks.spawn(remuda_worker::run(options, stopped));
    }
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended.map(|ended| ended.context("a worker panicked").flatten()) {
                None => return first_error.map_or(Ok(()), Err),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    // Two stops: the others hand back their attempts and stop their servers at once.
                    send_stops(&stop_senders, 2).await;
                    first_error.get_or_insert(error);
                }
            },
            Some(()) = stops.recv() => send_stops(&stop_senders, 1).await,
        }
    }
}

async fn send_stops(workers: &[mpsc::Sender<()>], times: usize) {
    for stop in workers {
        for _ in 0..times {
            // The worker may have ended already.
            stop.send(()).await.ok();
        }
    }
}
