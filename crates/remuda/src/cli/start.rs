//! Commands that start something: `serve`, `worker`, `up`; and `config`, which shows what they would run with.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use remuda_core::id::{MachineId, Service, WorkerId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

use super::ui::Ui;
use super::workers::{run_all, with};
use super::{Client, Connection, Identity, Settings, say};
use crate::config::{self, Flag, Resolved};
use crate::dial::Credentials;
use crate::serve::Serving;

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    ui: Ui,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct Work {
    /// Address of the plane
    #[arg(long, env = "REMUDA_URL", default_value = "http://127.0.0.1:8288")]
    url: String,
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    what: WorkWhat,
    #[command(flatten)]
    settings: Settings,
}

/// What a worker is and does.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkWhat {
    /// Command to run for each attempt, by `sh -c`
    #[arg(long, value_name = "COMMAND", conflicts_with = "comfyui")]
    pub(crate) exec: Option<String>,
    /// ComfyUI server to work with; may be repeated, each is a worker of its own
    #[arg(long, value_name = "URL")]
    pub(crate) comfyui: Vec<String>,
    /// Command that starts the ComfyUI server; Remuda then restarts it when it is sick, and stops it at the end.
    /// May be repeated, in the order of --comfyui
    #[arg(long, value_name = "COMMAND", requires = "comfyui")]
    pub(crate) comfyui_cmd: Vec<String>,
    /// Header for every request to ComfyUI, such as 'Authorization: Bearer …'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", env = "REMUDA_COMFYUI_HEADER", hide_env_values = true)]
    pub(crate) comfyui_header: Vec<String>,
    /// Name of this worker; by default the machine's name with the server's port, or this process's number
    #[arg(long)]
    pub(crate) name: Option<WorkerId>,
    /// Name of this machine
    #[arg(long)]
    pub(crate) machine: Option<MachineId>,
    /// Service to offer; may be repeated
    #[arg(long = "service", value_name = "NAME")]
    pub(crate) services: Vec<Service>,
    /// Attempts to run at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) slots: u32,
    /// Label that jobs can ask for; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Up {
    #[command(flatten)]
    what: WorkWhat,
    #[command(flatten)]
    ui: Ui,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting, its value and its origin
    Show {
        #[command(flatten)]
        settings: Settings,
        /// Print JSON for scripts
        #[arg(long)]
        json: bool,
    },
    /// Have a running plane read its settings again; a mistake in them changes nothing
    Reload {
        #[command(flatten)]
        connection: Connection,
    },
}

impl Settings {
    pub(crate) fn load(&self) -> anyhow::Result<Resolved> {
        let mut flags = Vec::new();
        let named = [
            ("data", &self.data, "--data"),
            ("listen", &self.listen, "--listen"),
            ("store", &self.store, "--store"),
            ("tls.cert", &self.tls_cert, "--tls-cert"),
            ("tls.key", &self.tls_key, "--tls-key"),
        ];
        for (key, value, name) in named {
            if let Some(value) = value {
                flags.push(Flag { key, value, name });
            }
        }
        if self.insecure {
            flags.push(Flag { key: "insecure", value: "true", name: "--insecure" });
        }
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--set takes KEY=VALUE, not {pair:?}; `remuda config show` lists the keys");
            };
            flags.push(Flag { key, value, name: "--set" });
        }
        Ok(config::load(self.config.as_deref(), config::environment(), &flags)?)
    }
}

/// Logs go to standard error; `REMUDA_LOG=debug` shows more.
pub(crate) fn start_log(is_json: bool) {
    let filter = EnvFilter::try_from_env("REMUDA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let log = log.with_ansi(std::io::stderr().is_terminal());
    // A second start in one process (tests, demo) keeps the first log.
    drop(if is_json { log.json().try_init() } else { log.try_init() });
}

/// The web interface and the servers were named at the start and stay, whatever the settings say when they are read again.
async fn start_serving(resolved: &Resolved, settings: Settings) -> anyhow::Result<Serving> {
    let (ui, forward_to) = (resolved.serve.ui.clone(), resolved.serve.forward_to.clone());
    let read = move || {
        let mut resolved = settings.load()?;
        resolved.serve.ui.clone_from(&ui);
        resolved.serve.forward_to.clone_from(&forward_to);
        Ok(resolved)
    };
    let serving = Serving::start_with(resolved, read).await?;
    serving.end_process_if_stuck();
    Ok(serving)
}

impl Serve {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut resolved = self.settings.load()?;
        resolved.serve.ui = self.ui.folder()?;
        start_log(resolved.serve.log_json);
        let mut serving = start_serving(&resolved, self.settings.clone()).await?;
        say(&format!("remuda serves on {} (data in {})", serving.url(), resolved.serve.data.display()));
        let mut stops = stops()?;
        tokio::select! {
            result = serving.failed() => { result?; }
            _ = stops.recv() => {
                tokio::spawn(async move {
                    if stops.recv().await.is_some() {
                        std::process::exit(130);
                    }
                });
                serving.stop().await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Work {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let resolved = self.settings.load()?;
        start_log(resolved.serve.log_json);
        let workers = self.what.workers(&self.url, self.identity.credentials()?, &resolved).await?;
        for worker in &workers {
            say(&format!("remuda worker {} works for {}{}", worker.worker, self.url, with(worker)));
        }
        run_all(workers, stops()?).await?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Up {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut resolved = self.settings.load()?;
        resolved.serve.ui = self.ui.folder()?;
        resolved.serve.forward_to = self.what.servers()?;
        start_log(resolved.serve.log_json);
        if resolved.serve.access.tls_cert.is_some() {
            bail!(
                "`remuda up` has its workers beside it and needs no TLS: for that, start `remuda serve` and `remuda worker`"
            );
        }
        let mut serving = start_serving(&resolved, self.settings.clone()).await?;
        let credentials = Credentials::of(serving.own_token());
        let workers = match self.what.workers(&serving.url(), credentials, &resolved).await {
            Ok(workers) => workers,
            Err(error) => {
                serving.stop().await?;
                return Err(error);
            }
        };
        let names: Vec<_> = workers.iter().map(|it| format!("{}{}", it.worker, with(it))).collect();
        say(&format!(
            "remuda is up on {} with {} {} (data in {})",
            serving.url(),
            if names.len() == 1 { "worker" } else { "workers" },
            names.join(", "),
            resolved.serve.data.display()
        ));
        tokio::select! {
            result = run_all(workers, stops()?) => result?,
            result = serving.failed() => return result.map(|()| ExitCode::FAILURE),
        }
        serving.stop().await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// One message for each signal that asks us to stop.
pub(crate) fn stops() -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(4);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()] {
        let mut signals = signal(kind).context("cannot listen for signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

impl Config {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            ConfigCommand::Show { settings, json } => {
                say(config::show(&settings.load()?, json).trim_end());
            }
            ConfigCommand::Reload { connection } => {
                let client = Client::new(&connection)?;
                let answer = client.post("/fleet/reload", &serde_json::json!({})).await?;
                say(&match (connection.json, answer["needs_restart"] == true) {
                    (true, _) => answer.to_string(),
                    (false, true) => {
                        "loaded; what the plane was started with (addresses, folders, limits) changes \
                                      with its next start"
                            .to_owned()
                    }
                    (false, false) => "loaded".to_owned(),
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
