//! From flags to workers: one for a command, one for each ComfyUI server, one for all models of this process.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use remuda_comfyui::{Client, Target};
use remuda_core::agent::AgentDeadlines;
use remuda_core::id::WorkerId;
use remuda_core::need::Capabilities;
use remuda_models::Pool;
use remuda_net::secret::Secret;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use super::Usage;
use super::start::{WorkerArgs, WorkerLimitArgs};
use remuda_config::Resolved;
use remuda_net::http_client::Credentials;
use remuda_net::secret::VARIABLES;
use remuda_worker::{
    ComfyuiOptions, ExecCommand, ModelsOptions, ServiceSpec, StartChecks, WorkerOptions, hostname,
    worker_name_for,
};

/// Where ComfyUI listens unless it is told otherwise.
const USUAL_COMFYUI: &str = "http://127.0.0.1:8188";
/// Whoever listens there answers by then.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Whatever ends a machine is done by then, or will never be.
const LAST_COMMAND_MAX: Duration = Duration::from_secs(60);

impl WorkerArgs {
    /// The servers that whoever starts these workers can reach itself.
    pub(super) fn servers(&self, has_models: bool) -> anyhow::Result<Vec<Target>> {
        let headers = self.headers()?;
        let urls = match (&self.exec, self.comfyui.is_empty()) {
            (Some(_), _) => Vec::new(),
            (None, true) if has_models => Vec::new(),
            (None, true) => vec![USUAL_COMFYUI.to_owned()],
            (None, false) => self.comfyui.clone(),
        };
        Ok(urls.into_iter().map(|url| Target { url, headers: headers.clone() }).collect())
    }

    /// The models to serve, loading; nothing if there are none. What cannot be is said now, before anything else starts.
    pub(super) fn pool(&self, resolved: &Resolved) -> anyhow::Result<Option<Pool>> {
        let specs = resolved.models.with(&self.model).map_err(|error| Usage(error.to_string()))?;
        if specs.is_empty() {
            return Ok(None);
        }
        let pool = remuda_worker::start_models(specs, &resolved.models);
        pool.map(Some).map_err(|error| Usage(format!("{error:#}")).into())
    }

    /// The workers to start; without any hint, the ComfyUI server that is usually there.
    pub(super) async fn workers(
        &self,
        (url, credentials): (&str, Credentials),
        pool: Option<&Pool>,
        resolved: &Resolved,
    ) -> anyhow::Result<Vec<WorkerOptions>> {
        let plane = (url, &credentials);
        let mut workers = match &self.exec {
            Some(command) => {
                let service = ServiceSpec::Exec(ExecCommand { command: command.clone() });
                vec![self.options(plane, resolved, self.name_or(&own_name())?, service)?]
            }
            None if pool.is_some() && self.comfyui.is_empty() => Vec::new(),
            None => self.comfyui_workers(plane, resolved).await?,
        };
        if let Some(pool) = pool {
            let mut name = self.name_or(&own_name())?;
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
        resolved: &Resolved,
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
            let target = Target { url: server.clone(), headers: headers.clone() };
            // Said now, not by a worker that waits for ever.
            Client::new(&target, remuda_worker::COMFYUI_REQUEST_TIMEOUT)
                .map_err(|error| Usage(error.to_string()))?;
            let name = match (&self.name, servers.len()) {
                (Some(name), 1) => name.clone(),
                (Some(name), _) => format!("{name}-{}", at + 1).parse()?,
                (None, _) => worker_name_for(server).with_context(|| "choose a name with --name")?,
            };
            if workers.iter().any(|other| other.worker == name) {
                bail!(
                    "two servers would be worker {name}: give them names with --name, or start a worker for each"
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
        resolved: &Resolved,
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
            // Whoever asks for a model asks by its name.
            ServiceSpec::Models(models) => {
                labels.extend(models.labels());
                options.services.extend(self.services.iter().cloned());
            }
            ServiceSpec::Exec(_) | ServiceSpec::Comfyui(_) if self.services.is_empty() => {}
            ServiceSpec::Exec(_) | ServiceSpec::Comfyui(_) => {
                options.services = self.services.iter().cloned().collect()
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
            // What is wrong with it is said without what is secret in it.
            let (name, value) = header.split_once(':').context("--comfyui-header takes 'NAME: VALUE'")?;
            Ok((name.trim().to_owned(), Secret::new(value.trim())))
        };
        self.comfyui_header.iter().map(read).collect()
    }
}

/// Of whoever has no server to be called after.
fn own_name() -> String {
    format!("{}-{}", hostname(), std::process::id())
}

async fn find_comfyui() -> anyhow::Result<String> {
    let client = Client::new(&Target::new(USUAL_COMFYUI), LOOK_MAX)?;
    match client.stats().await {
        Ok(_) => Ok(USUAL_COMFYUI.to_owned()),
        Err(error) => {
            let message = format!(
                "there is nothing to work with: no ComfyUI at {USUAL_COMFYUI} ({error}). Start it, or name yours with \
                 --comfyui URL, or try `remuda fake comfyui`, or run a command for each job with --exec COMMAND, or serve a model with \
                 --model NAME=PATH"
            );
            Err(Usage(message).into())
        }
    }
}

/// What a worker works with, for people.
pub(super) fn with(worker: &WorkerOptions) -> String {
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
    pub(super) fn put_into(&self, options: &mut WorkerOptions) {
        let WorkerLimitArgs { stale_after, contact_timeout, notice, .. } = *self;
        options.deadlines = AgentDeadlines { stale_after, contact_timeout, notice };
        options.start_checks = StartChecks {
            command: self.check_cmd.clone(),
            command_timeout: self.check_timeout,
            disk_min_bytes: self.disk_min,
        };
    }

    /// The machine ends itself, if it was told how.
    pub(super) async fn end_machine(&self) {
        let Some(command) = &self.contact_timeout_command else { return };
        warn!(command, "ending this machine");
        let mut shell = tokio::process::Command::new("sh");
        for secret in VARIABLES {
            shell.env_remove(secret);
        }
        let ended = shell.args(["-c", command]).stdin(std::process::Stdio::null()).status();
        match tokio::time::timeout(LAST_COMMAND_MAX, ended).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => warn!(%status, "the command that ends this machine failed"),
            Ok(Err(error)) => warn!(%error, "the command that ends this machine cannot be started"),
            Err(_) => warn!("the command that ends this machine takes too long"),
        }
    }
}

/// Runs them side by side until all have ended; a stop is for all of them, and the first trouble ends all.
pub(super) async fn run_all(
    workers: Vec<WorkerOptions>,
    mut stops: mpsc::Receiver<()>,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let mut trouble = None;
    let mut each = Vec::new();
    for options in workers {
        let (stop, stopped) = mpsc::channel(4);
        each.push(stop);
        tasks.spawn(remuda_worker::run(options, stopped));
    }
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended.map(|ended| ended.context("a worker panicked").flatten()) {
                None => return trouble.map_or(Ok(()), Err),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    // The others hand back what they hold, and what they started ends.
                    tell_all(&each, 2).await;
                    trouble.get_or_insert(error);
                }
            },
            Some(()) = stops.recv() => tell_all(&each, 1).await,
        }
    }
}

async fn tell_all(workers: &[mpsc::Sender<()>], times: usize) {
    for stop in workers {
        for _ in 0..times {
            // Whoever has ended already needs no telling.
            stop.send(()).await.ok();
        }
    }
}
