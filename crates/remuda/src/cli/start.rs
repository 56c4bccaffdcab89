//! The commands that start a plane or workers: `serve`, `worker`, `up`; and `config`, which shows their settings.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use remuda_core::id::{FleetId, MachineId, Service, WorkerId};
use remuda_models::ModelPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use super::model_path::model_specs;
use super::web_ui::WebUiArgs;
use super::worker_args::{describe_service, run_all};
use super::{Client, Connection, DataSettings, Identity, Settings};
use remuda_config::{ConfigFlag, ResolvedConfig};
use remuda_net::http_client::Credentials;
use remuda_net::terminal::print_line;
use remuda_net::text::url_without_password;
use remuda_server::serve::Serving;
use remuda_worker::{WorkerDismissed, inspect_models};

/// Exit code of a dismissed worker. Not 3, which means that a retry may succeed.
const DISMISSED: u8 = 4;
/// Providers give notice of a preemption some seconds ahead.
const PREEMPT_POLL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct ServeCommand {
    #[command(flatten)]
    ui: WebUiArgs,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct WorkerCommand {
    /// Address of the plane
    #[arg(long, env = "REMUDA_URL", default_value = "http://127.0.0.1:8288")]
    url: String,
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    what: WorkerArgs,
    #[command(flatten)]
    terms: WorkerLimitArgs,
    #[command(flatten)]
    settings: DataSettings,
}

/// Limits of a worker. A rented machine gets them in its environment.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkerLimitArgs {
    /// How long an idle worker may be silent before it counts as gone; by default the fleet's or plane's setting
    #[arg(long, value_name = "DURATION", env = "REMUDA_STALE_AFTER", value_parser = remuda_config::parse_duration_or_seconds)]
    pub(crate) stale_after: Option<Duration>,
    /// Stop the worker after this long without contact to the plane, and run the command below
    #[arg(long, value_name = "DURATION", env = "REMUDA_CONTACT_TIMEOUT", value_parser = remuda_config::parse_duration_or_seconds)]
    pub(crate) contact_timeout: Option<Duration>,
    /// Command (`sh -c`) that ends this machine; run when the machine is retired or the contact timeout has passed
    #[arg(long, value_name = "COMMAND", env = "REMUDA_CONTACT_TIMEOUT_COMMAND")]
    pub(crate) contact_timeout_command: Option<String>,
    /// Time to finish jobs after a stop request; unfinished ones are handed back. By default unlimited
    #[arg(long, value_name = "DURATION", env = "REMUDA_NOTICE", value_parser = remuda_config::parse_duration_or_seconds)]
    pub(crate) notice: Option<Duration>,
    /// Stop, as on a signal, when this file appears
    #[arg(long, value_name = "FILE", env = "REMUDA_PREEMPT_FILE")]
    pub(crate) preempt_file: Option<PathBuf>,
    /// Command (`sh -c`) that must succeed before the worker accepts jobs: let it compute something on the GPU
    #[arg(long, value_name = "COMMAND", env = "REMUDA_CHECK")]
    pub(crate) check_cmd: Option<String>,
    /// Time limit of the check command
    #[arg(long, value_name = "DURATION", env = "REMUDA_CHECK_TIMEOUT", default_value = "2m",
          value_parser = remuda_config::parse_duration_or_seconds)]
    pub(crate) check_timeout: Duration,
    /// Minimum free space on the disk with the data folder
    #[arg(long, value_name = "BYTES", env = "REMUDA_DISK_MIN", default_value = "256MiB",
          value_parser = remuda_config::parse_bytes)]
    pub(crate) disk_min: u64,
}

/// The identity and the service of a worker.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Command to run per attempt (`sh -c`)
    #[arg(long, value_name = "COMMAND", conflicts_with = "comfyui")]
    pub(crate) exec: Option<String>,
    /// ComfyUI server to use; repeat it for more, each gets its own worker
    #[arg(long, value_name = "URL")]
    pub(crate) comfyui: Vec<String>,
    /// Command that starts the ComfyUI server; Remuda restarts it when it fails and stops it at the end.
    /// May be repeated, in the order of --comfyui
    #[arg(long, value_name = "COMMAND", requires = "comfyui")]
    pub(crate) comfyui_cmd: Vec<String>,
    /// Header for every request to ComfyUI, such as 'Authorization: Bearer …'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", env = "REMUDA_COMFYUI_HEADER", hide_env_values = true)]
    pub(crate) comfyui_header: Vec<String>,
    /// Model to serve from this machine, as NAME=PATH[,copies=2][,isolation=process][,threads=2][,precision=int8]
    /// [,capability=text_embedding][,device=cuda][,memory=1GiB]; may be repeated. PATH may be the bare name of a model that
    /// `remuda models get` fetched. Models in remuda.toml are served too
    #[arg(long, value_name = "NAME=PATH,…")]
    pub(crate) model: Vec<String>,
    /// Name of this worker; by default the host name with the server's port or this process's id
    #[arg(long, env = "REMUDA_WORKER")]
    pub(crate) name: Option<WorkerId>,
    /// Name of this machine
    #[arg(long, env = "REMUDA_MACHINE")]
    pub(crate) machine: Option<MachineId>,
    /// Fleet this machine belongs to
    #[arg(long, env = "REMUDA_FLEET")]
    pub(crate) fleet: Option<FleetId>,
    /// Service to offer; may be repeated
    #[arg(long = "service", value_name = "NAME")]
    pub(crate) services: Vec<Service>,
    /// Attempts to run at the same time; by default 1, or with models twice the number of copies
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) slots: Option<u32>,
    /// Label that jobs can require; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Several labels separated by commas; --label overrides them
    #[arg(long = "labels", value_name = "NAME=VALUE,…", env = "REMUDA_LABELS", value_delimiter = ',')]
    pub(crate) more_labels: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct UpCommand {
    #[command(flatten)]
    what: WorkerArgs,
    #[command(flatten)]
    ui: WebUiArgs,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    command: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Print every setting, its value and its origin
    Show {
        #[command(flatten)]
        settings: Settings,
        /// Print JSON for scripts
        #[arg(long)]
        json: bool,
    },
    /// Check whether a plane could start with these settings, including fleets and their keys; changes nothing
    Check {
        #[command(flatten)]
        settings: Settings,
    },
    /// Make a running plane reload its settings; invalid settings change nothing
    Reload {
        #[command(flatten)]
        connection: Connection,
    },
}

impl DataSettings {
    pub(crate) fn load(&self) -> anyhow::Result<ResolvedConfig> {
        self.load_with(Vec::new())
    }

    fn load_with<'a>(&'a self, mut flags: Vec<ConfigFlag<'a>>) -> anyhow::Result<ResolvedConfig> {
        flags.extend(self.data.as_deref().map(|value| ConfigFlag { key: "data", value, name: "--data" }));
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--set takes KEY=VALUE, not {pair:?}; `remuda config show` lists the keys");
            };
            flags.push(ConfigFlag { key, value, name: "--set" });
        }
        Ok(remuda_config::load(self.config.as_deref(), remuda_config::process_environment(), &flags)?)
    }
}

impl Settings {
    pub(crate) fn load(&self) -> anyhow::Result<ResolvedConfig> {
        let named = [
            ("listen", self.listen.as_deref(), "--listen"),
            ("store", self.store.as_deref(), "--store"),
            ("tls.cert", self.tls_cert.as_deref(), "--tls-cert"),
            ("tls.key", self.tls_key.as_deref(), "--tls-key"),
            ("insecure", self.insecure.then_some("true"), "--insecure"),
        ];
        let flag = |(key, value, name)| Some(ConfigFlag { key, value: value?, name });
        self.data.load_with(named.into_iter().filter_map(flag).collect())
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

/// The web UI and the servers come from the command line, so they stay when the settings are reloaded.
async fn start_serving(resolved: &ResolvedConfig, settings: Settings) -> anyhow::Result<Serving> {
    let (ui, forward_to) = (resolved.serve.ui.clone(), resolved.serve.forward_to.clone());
    let read = move || {
        let mut resolved = settings.load()?;
        resolved.serve.ui.clone_from(&ui);
        resolved.serve.forward_to.clone_from(&forward_to);
        Ok(resolved)
    };
    remuda_server::http::raise_open_files_limit();
    let serving = Serving::start_with(resolved, read).await?;
    serving.end_process_if_stuck();
    Ok(serving)
}

impl ServeCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut resolved = self.settings.load()?;
        resolved.serve.ui = self.ui.folder()?;
        start_log(resolved.serve.log_json);
        let mut serving = start_serving(&resolved, self.settings.clone()).await?;
        print_line(&format!(
            "remuda serves on {} (data in {})",
            serving.url(),
            resolved.serve.data.display()
        ));
        let mut stops = stop_signals()?;
        loop {
            let restart_wanted = serving.restart_wanted();
            tokio::select! {
                result = serving.failed() => {
                    result?;
                    return Ok(ExitCode::SUCCESS);
                }
                _ = stops.recv() => {
                    tokio::spawn(async move {
                        if stops.recv().await.is_some() {
                            std::process::exit(130);
                        }
                    });
                    serving.stop().await?;
                    return Ok(ExitCode::SUCCESS);
                }
                () = restart_wanted.notified() => {
                    warn!("the clock of this machine was set back; the plane starts again to take its time");
                    // The same port, also if the system chose it.
                    resolved.serve.listen = serving.address;
                    serving.stop().await?;
                    serving = start_serving(&resolved, self.settings.clone()).await?;
                }
            }
        }
    }
}

impl WorkerCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let resolved = self.settings.load()?;
        start_log(resolved.serve.log_json);
        let pool = self.what.pool(&resolved)?;
        let plane = (self.url.as_str(), self.identity.worker_credentials()?);
        let mut workers = self.what.workers(plane, pool.as_ref(), &resolved).await?;
        for worker in &mut workers {
            self.terms.apply_to(worker);
            let service = describe_service(worker);
            let plane = url_without_password(&self.url);
            print_line(&format!("remuda worker {} works for {plane}{service}", worker.worker));
        }
        let stops = stop_signals_or_file(self.terms.preempt_file.clone())?;
        let ended = run_all(workers, stops).await;
        close(pool).await;
        match ended {
            Err(error) if error.is::<WorkerDismissed>() => {
                eprintln!("remuda: this worker was dismissed: {error:#}");
                self.terms.end_machine().await;
                Ok(ExitCode::from(DISMISSED))
            }
            ended => ended.map(|()| ExitCode::SUCCESS),
        }
    }
}

impl UpCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut resolved = self.settings.load()?;
        resolved.serve.ui = self.ui.folder()?;
        start_log(resolved.serve.log_json);
        if resolved.serve.access.tls_cert.is_some() {
            bail!(
                "`remuda up` runs its workers on the same machine and does not support TLS: use `remuda serve` and `remuda worker`"
            );
        }
        let pool = self.what.pool(&resolved)?;
        resolved.serve.forward_to = self.what.servers(pool.is_some())?;
        let mut serving = start_serving(&resolved, self.settings.clone()).await?;
        if let Some(pool) = &pool {
            serving.context.models.set_pool(pool.clone());
        }
        let credentials = Credentials::from_token(serving.own_token());
        let workers = match self.what.workers((&serving.url(), credentials), pool.as_ref(), &resolved).await {
            Ok(workers) => workers,
            Err(error) => {
                serving.stop().await?;
                return Err(error);
            }
        };
        serving.context.models.set_workers(workers.iter().map(|it| it.worker.clone()).collect());
        let names: Vec<_> =
            workers.iter().map(|it| format!("{}{}", it.worker, describe_service(it))).collect();
        print_line(&format!(
            "remuda is up on {} with {} {} (data in {})",
            serving.url(),
            if names.len() == 1 { "worker" } else { "workers" },
            names.join(", "),
            resolved.serve.data.display()
        ));
        tokio::select! {
            result = run_all(workers, stop_signals()?) => result?,
            result = serving.failed() => return result.map(|()| ExitCode::FAILURE),
        }
        serving.stop().await?;
        close(pool).await;
        Ok(ExitCode::SUCCESS)
    }
}

/// By now every caller has its answer or an error, so running computations are of no use.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Ends every model copy before this process.
async fn close(pool: Option<ModelPool>) {
    if let Some(pool) = pool {
        // A panic while closing must not keep this process running.
        tokio::task::spawn_blocking(move || pool.close(CLOSE_TIMEOUT)).await.ok();
    }
}

/// One message per signal that requests a stop.
pub(crate) fn stop_signals() -> anyhow::Result<mpsc::Receiver<()>> {
    stop_signals_or_file(None)
}

/// As `stop_signals`, with one more message when the file appears.
fn stop_signals_or_file(file: Option<PathBuf>) -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(4);
    if let Some(file) = file {
        let sender = sender.clone();
        tokio::spawn(async move {
            while !tokio::fs::try_exists(&file).await.unwrap_or(false) {
                tokio::time::sleep(PREEMPT_POLL).await;
            }
            info!(file = %file.display(), "stop file appeared; stopping");
            // The receiver may be gone already.
            sender.send(()).await.ok();
        });
    }
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

fn describe_settings(resolved: &ResolvedConfig) -> String {
    let fleet = |fleet: &remuda_config::FleetConfig| {
        format!("{} ({})", fleet.settings.id, fleet.source.provider.as_str())
    };
    let fleets: Vec<_> = resolved.fleets.iter().map(fleet).collect();
    let fleets =
        if fleets.is_empty() { "no fleet".to_owned() } else { format!("fleets {}", fleets.join(", ")) };
    let models: Vec<_> = resolved.models.own.iter().map(|model| model.spec.name.as_str()).collect();
    let models = if models.is_empty() { String::new() } else { format!(", models {}", models.join(", ")) };
    format!("settings are valid: {} set, {fleets}{models}", resolved.origins.len())
}

impl ConfigCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            ConfigAction::Show { settings, json } => {
                print_line(remuda_config::show(&settings.load()?, json).trim_end());
            }
            ConfigAction::Check { settings } => {
                let resolved = settings.load()?;
                resolved.serve.admin_token()?;
                for fleet in &resolved.fleets {
                    fleet.check_api_key().with_context(|| format!("fleet {}", fleet.settings.id))?;
                }
                inspect_models(&model_specs(&resolved, &[])?)?;
                print_line(&describe_settings(&resolved));
            }
            ConfigAction::Reload { connection } => {
                let client = Client::new(&connection)?;
                let answer = client.post("/remuda/v1/reload", &serde_json::json!({})).await?;
                print_line(&match (connection.json, answer["needs_restart"] == true) {
                    (true, _) => answer.to_string(),
                    (false, true) => {
                        "loaded; changes to addresses, folders and start-up limits take effect when the plane restarts"
                            .to_owned()
                    }
                    (false, false) => "loaded".to_owned(),
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
