//! Commands that start something: `serve`, `worker`, `up`; and `config`, which shows what they would run with.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use remuda_core::id::{MachineId, Service, WorkerId};
use remuda_core::need::Offer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

use super::{Settings, say};
use crate::config::{self, Flag, Resolved};
use crate::serve::Serving;
use crate::worker::{self, Exec};

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct Work {
    /// Address of the plane
    #[arg(long, env = "REMUDA_URL", default_value = "http://127.0.0.1:8288")]
    url: String,
    #[command(flatten)]
    what: WorkWhat,
    #[command(flatten)]
    settings: Settings,
}

/// What a worker is and does.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkWhat {
    /// Command to run for each attempt, by `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: String,
    /// Name of this worker; by default the machine's name and this process's number
    #[arg(long)]
    pub(crate) name: Option<WorkerId>,
    /// Name of this machine
    #[arg(long)]
    pub(crate) machine: Option<MachineId>,
    /// Service to offer; may be repeated
    #[arg(long = "service", value_name = "NAME", default_value = "exec")]
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
}

impl Settings {
    pub(crate) fn load(&self) -> anyhow::Result<Resolved> {
        let mut flags = Vec::new();
        let named = [
            ("data", &self.data, "--data"),
            ("listen", &self.listen, "--listen"),
            ("store", &self.store, "--store"),
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

impl Serve {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let resolved = self.settings.load()?;
        start_log(resolved.serve.log_json);
        let mut serving = Serving::start(&resolved).await?;
        say(&format!(
            "remuda serves on http://{} (data in {})",
            serving.address,
            resolved.serve.data.display()
        ));
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
        let options = self.what.options(self.url.clone(), resolved.agent.inactivity)?;
        say(&format!("remuda worker {} works for {}", options.worker, self.url));
        worker::run(options, stops()?).await?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Up {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let resolved = self.settings.load()?;
        start_log(resolved.serve.log_json);
        let mut serving = Serving::start(&resolved).await?;
        let options = self.what.options(format!("http://{}", serving.address), resolved.agent.inactivity)?;
        say(&format!(
            "remuda is up on http://{} with worker {} (data in {})",
            serving.address,
            options.worker,
            resolved.serve.data.display()
        ));
        tokio::select! {
            result = worker::run(options, stops()?) => result?,
            result = serving.failed() => return result.map(|()| ExitCode::FAILURE),
        }
        serving.stop().await?;
        Ok(ExitCode::SUCCESS)
    }
}

impl WorkWhat {
    pub(crate) fn options(&self, url: String, inactivity: Duration) -> anyhow::Result<worker::Options> {
        let mut labels = std::collections::BTreeMap::new();
        for label in &self.labels {
            let (name, value) =
                label.split_once('=').with_context(|| format!("--label takes NAME=VALUE, not {label:?}"))?;
            labels.insert(name.to_owned(), value.to_owned());
        }
        let host = hostname();
        let machine = self.machine.clone().or_else(|| host.parse().ok());
        let worker = match &self.name {
            Some(name) => name.clone(),
            None => format!("{host}-{}", std::process::id()).parse().context("choose a name with --name")?,
        };
        Ok(worker::Options {
            url,
            worker,
            machine,
            services: self.services.iter().cloned().collect::<BTreeSet<_>>(),
            slots: self.slots,
            offer: Offer { labels, ..Offer::default() },
            exec: Exec { command: self.exec.clone() },
            inactivity,
        })
    }
}

/// This machine's name as far as it can serve as one here.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    if name.is_empty() { "worker".to_owned() } else { name }
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
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let ConfigCommand::Show { settings, json } = self.command;
        say(config::show(&settings.load()?, json).trim_end());
        Ok(ExitCode::SUCCESS)
    }
}
