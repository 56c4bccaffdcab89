//! The command line. Exit codes: 0 success, 1 a job failed or the program could not continue, 2 wrong usage, 3 the plane
//! cannot be reached, 4 the worker was dismissed for good.

mod audit;
mod client;
mod commands;
mod completions;
mod demo;
mod fake;
mod model_path;
#[cfg(feature = "models")]
mod models;
mod run;
mod short_id;
mod sim;
mod start;
mod store;
mod token;
mod web_ui;
mod worker_args;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use self::client::Client;
use remuda_net::hidden_environment::{hide_secrets, process_variable};
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;
use remuda_net::terminal::escape_control;
use remuda_worker::serve_model_copy;

/// A self-healing control plane for fleets of GPU workers.
///
/// No job is ever lost, stuck or counted twice, and `remuda why JOB` always explains its state.
#[derive(Debug, Parser)]
#[command(name = "remuda", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a plane and workers, run a few jobs, kill a worker, show what happens, clean up
    ///
    /// Example: remuda demo
    Demo(demo::DemoCommand),
    /// Start a plane with an embedded store and workers on this machine
    ///
    /// By default the worker uses the ComfyUI on 127.0.0.1:8188.
    /// Examples: remuda up; remuda up --comfyui http://gpu1:8188; remuda up --exec './render.sh' --slots 2;
    /// remuda up --model embed=all-minilm-l6-v2,copies=2
    Up(start::UpCommand),
    /// Start the plane
    ///
    /// Example: remuda serve --data ./data --listen 127.0.0.1:8288
    Serve(start::ServeCommand),
    /// Start a worker that runs jobs on ComfyUI servers, on models, or with a command per attempt
    ///
    /// Examples: remuda worker --url http://plane:8288 --comfyui http://127.0.0.1:8188;
    /// remuda worker --comfyui http://127.0.0.1:8188 --comfyui-cmd 'python main.py --port 8188';
    /// remuda worker --exec 'python3 infer.py' --label gpu=a100 (the command reads the workflow from standard input, prints
    /// the result to standard output and progress to standard error)
    Worker(start::WorkerCommand),
    /// Submit a workflow, follow it and save its outputs
    ///
    /// Example: remuda run workflow.json --set 3.seed=42 --input LoadImage.image=photo.png -o out
    #[command(after_long_help = run::EXAMPLES)]
    Run(run::RunCommand),
    /// List jobs, newest first, or run ended ones again
    ///
    /// Examples: remuda jobs --state failed --limit 20; remuda jobs --watch; remuda jobs retry --failed --since 1h
    Jobs(commands::JobsCommand),
    /// Explain a job's state: its attempts and the workers that could run it
    ///
    /// Examples: remuda why 0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11; remuda why 0193e7a0-5b
    Why(commands::WhyCommand),
    /// Cancel waiting or running jobs
    Cancel(commands::CancelCommand),
    /// Show the plane in one sentence, then in ten lines: jobs, workers, brakes, fleets and what is wrong
    ///
    /// Example: remuda status
    #[command(after_long_help = commands::STATUS_EXAMPLES)]
    Status(commands::StatusCommand),
    /// List workers
    Workers(commands::WorkersCommand),
    /// List machines with their costs and what they are waiting for
    ///
    /// Examples: remuda machines; remuda machines gpus-mi2x4k1
    Machines(commands::MachinesCommand),
    /// List fleets, pause, resume or scale them
    ///
    /// Example: remuda fleet scale gpus 4
    #[command(after_long_help = commands::FLEET_EXAMPLES)]
    Fleet(commands::FleetCommand),
    /// Show the cost of rented machines: per hour, fleet, tenant or job
    ///
    /// Example: remuda cost --since 7d --by tenant
    #[command(after_long_help = commands::COST_EXAMPLES)]
    Cost(commands::CostCommand),
    /// Stop sending work to a worker or machine; it leaves when its jobs have ended
    ///
    /// Example: remuda drain gpu-7 --deadline 10m --wait
    #[command(after_long_help = commands::DRAIN_EXAMPLES)]
    Drain(commands::DrainCommand),
    /// List or lift blocks: workers that a workflow shape may not run on for now
    Blocks(commands::BlocksCommand),
    /// List, set or remove affinities: the workers a workflow shape prefers or avoids
    ///
    /// Example: remuda affinities set workflow.json --prefer gpu-1 --exclude gpu-7
    Affinities(commands::AffinitiesCommand),
    /// List or release quarantined shapes: workflows that failed on every worker
    Quarantine(commands::QuarantineCommand),
    /// Store and fetch the input and output files of jobs
    ///
    /// Example: remuda blobs put photo.png; remuda blobs get blake3:1f3a… -o photo.png
    Blobs(commands::BlobsCommand),
    /// Follow events, from now on or after an event number
    ///
    /// Example: remuda events --name job --after 0
    Events(commands::EventsCommand),
    /// Run a control cycle now and show its actions, or only plan them
    ///
    /// Examples: remuda cycle; remuda cycle --dry-run; remuda cycle --last 5
    Cycle(commands::CycleCommand),
    /// Create, list or revoke tokens of clients, workers and admins
    ///
    /// Example: remuda token create --role client --tenant anna --name "anna's laptop" --expires 30d
    #[command(after_long_help = token::EXAMPLES)]
    Token(token::TokenCommand),
    /// Show the audit log of the fleet, and verify that it was not tampered with
    ///
    /// Example: remuda audit --verify
    Audit(audit::AuditCommand),
    /// Check that the store holds everything that was acknowledged, or continue without what is lost
    ///
    /// Example: remuda store check --data /var/lib/remuda
    #[command(after_long_help = store::EXAMPLES)]
    Store(store::StoreCommand),
    /// Show every setting with its value and origin
    Config(start::ConfigCommand),
    /// Run simulated worlds with faults and check that the laws hold
    ///
    /// Example: remuda sim --seeds 1000; remuda sim --replay 42
    Sim(sim::SimCommand),
    /// Run a real plane, workers and ComfyUI stand-ins under real faults, and account for every job
    ///
    /// Kills, stopped processes, cut lines, a full disk, failing syncs, clock jumps, hostile workers. Exit code 1 if a job was
    /// lost or doubled, or if a verdict was false. Examples: remuda drill --duration 2m; remuda drill --hours 2 --seed 7
    Drill(remuda_drill::DrillCommand),
    /// List, fetch and examine models that run in Remuda itself
    ///
    /// Examples: remuda models list; remuda models get all-minilm-l6-v2; remuda models check ./all-minilm-l6-v2
    #[cfg(feature = "models")]
    Models(models::ModelsCommand),
    /// List, fetch and examine models that run in Remuda itself; not in this build
    #[cfg(not(feature = "models"))]
    Models(MissingCommand),
    /// Start a stand-in for ComfyUI or RunPod, for tests
    ///
    /// Example: remuda fake comfyui --fault drop-completion=0.05
    Fake(fake::FakeCommand),
    /// Measure this machine and Remuda on it
    ///
    /// Example: remuda bench queue
    Bench(remuda_bench::BenchCommand),
    /// Print a script that completes commands and flags in a shell
    ///
    /// Examples: remuda completions bash >~/.local/share/bash-completion/completions/remuda;
    /// remuda completions fish >~/.config/fish/completions/remuda.fish
    Completions(completions::CompletionsCommand),
    /// Run one model copy as a child process of a worker
    #[command(hide = true)]
    PoolCopy,
}

/// A command that this build lacks, with any arguments.
#[cfg(not(feature = "models"))]
#[derive(Debug, Args)]
struct MissingCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<String>,
}

/// How a command reaches the plane.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// Address of the plane
    #[arg(long, env = "REMUDA_URL", default_value = "http://127.0.0.1:8288", global = true)]
    url: String,
    #[command(flatten)]
    identity: Identity,
    /// Print JSON for scripts
    #[arg(long, global = true)]
    json: bool,
}

/// How a command authenticates, and which certificates it trusts.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Identity {
    /// File with the caller's token, or a pipe (`/dev/fd/3`); by default the variable REMUDA_TOKEN has the token
    #[arg(long, env = "REMUDA_TOKEN_FILE", value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Token of the caller; every user of this machine can read it here, so prefer REMUDA_TOKEN or --token-file
    #[arg(long, conflicts_with = "token_file", global = true)]
    token: Option<Secret>,
    /// PEM file with certificates to trust in addition to the system's
    #[arg(long, env = "REMUDA_CA", value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
}

impl Identity {
    pub(crate) fn credentials(&self) -> anyhow::Result<Credentials> {
        Credentials::new(self.caller_token()?, self.ca.as_deref())
    }

    /// For a worker, whose jobs can read its command line as long as it runs.
    pub(crate) fn worker_credentials(&self) -> anyhow::Result<Credentials> {
        if self.token.is_some() {
            let message = "jobs of a worker can read a token on its command line: put it into the variable REMUDA_TOKEN, \
                           or into a file and name that with --token-file";
            return Err(UsageError(message.to_owned()).into());
        }
        self.credentials()
    }

    fn caller_token(&self) -> anyhow::Result<Secret> {
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        let Some(path) = &self.token_file else {
            return Ok(Secret::new(process_variable("REMUDA_TOKEN").unwrap_or_default().trim()));
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {} (--token-file, REMUDA_TOKEN_FILE)", path.display()))?;
        match text.trim() {
            "" => Err(UsageError(format!("{} contains no token (--token-file)", path.display())).into()),
            token => Ok(Secret::new(token)),
        }
    }
}

impl Connection {
    pub(crate) fn credentials(&self) -> anyhow::Result<Credentials> {
        self.identity.credentials()
    }
}

/// Where settings come from, for every program that has a data folder: flags override the environment, which overrides
/// the file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DataSettings {
    /// Settings file; by default remuda.toml in the current or the data folder
    #[arg(long, env = "REMUDA_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder: store, blobs, models, credentials; by default the platform's
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Any other setting, named as in `remuda config show`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The settings of a plane.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    data: DataSettings,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where jobs are stored: sqlite:PATH or memory:
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// PEM file with the plane's certificate chain
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Listen on public addresses without TLS, and without tokens while none exist
    #[arg(long)]
    insecure: bool,
}

/// A mistake in the arguments that clap cannot detect; exit code 2, as for those it can.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(String);

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Before the runtime starts: a model copy uses only the threads it was given.
    if let Command::PoolCopy = cli.command {
        return ExitCode::from(u8::from(serve_model_copy().is_err()));
    }
    // Also before it starts: these run jobs, whose processes must not read our environment.
    if matches!(cli.command, Command::Up(_) | Command::Serve(_) | Command::Worker(_))
        && let Err(error) = hide_secrets()
    {
        eprintln!("remuda: cannot hide secrets of the environment from jobs: {error}");
        return ExitCode::FAILURE;
    }
    for warning in remuda_config::unknown_variables(remuda_config::process_environment()) {
        eprintln!("remuda: {}", escape_control(&warning));
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("remuda: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(dispatch(cli.command)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("remuda: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    };
    runtime.shutdown_background();
    code
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let is_no_plane = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<client::Unreachable>() || cause.is::<client::NoPlane>()
    };
    if error.chain().any(is_no_plane) {
        3
    } else if error.chain().any(|cause| cause.is::<UsageError>()) || client::is_invalid_workflow(error) {
        2
    } else {
        1
    }
}

async fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(demo) => demo.run().await,
        Command::Up(up) => up.run().await,
        Command::Serve(serve) => serve.run().await,
        Command::Worker(work) => work.run().await,
        Command::Run(run) => run.run().await,
        Command::Jobs(jobs) => jobs.run().await,
        Command::Why(why) => why.run().await,
        Command::Cancel(cancel) => cancel.run().await,
        Command::Status(status) => status.run().await,
        Command::Workers(workers) => workers.run().await,
        Command::Machines(machines) => machines.run().await,
        Command::Fleet(fleet) => fleet.run().await,
        Command::Cost(cost) => cost.run().await,
        Command::Drain(drain) => drain.run().await,
        Command::Blocks(blocks) => blocks.run().await,
        Command::Affinities(affinities) => affinities.run().await,
        Command::Quarantine(quarantine) => quarantine.run().await,
        Command::Blobs(blobs) => blobs.run().await,
        Command::Events(events) => events.run().await,
        Command::Cycle(cycle) => cycle.run().await,
        Command::Token(token) => token.run().await,
        Command::Audit(audit) => audit.run(),
        Command::Store(store) => store.run().await,
        Command::Config(config) => config.run().await,
        Command::Sim(sim) => sim.run(),
        Command::Drill(drill) => {
            let mut stops = start::stop_signals()?;
            let interrupted = async {
                stops.recv().await;
            };
            drill.run(interrupted).await
        }
        #[cfg(feature = "models")]
        Command::Models(models) => models.run().await,
        #[cfg(not(feature = "models"))]
        Command::Models(MissingCommand { .. }) => {
            anyhow::bail!(
                "this build has no models: build with `--features models`, or `--features full` for all"
            )
        }
        Command::Fake(fake) => fake.run().await,
        Command::Bench(bench) => bench.run(&fetch_model).await,
        Command::Completions(completions) => completions.run(),
        Command::PoolCopy => Ok(ExitCode::SUCCESS),
    }
}

/// Fetches a model for a benchmark, as `remuda models get` does.
#[cfg(feature = "models")]
fn fetch_model(
    model: remuda_bench::BenchModel,
) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<PathBuf>>>> {
    use anyhow::Context as _;
    use remuda_models::fetch::download::{DEFAULT_INDEX, configure_client};
    use remuda_models::fetch::{KNOWN_PACKAGES, ModelFetcher};
    Box::pin(async move {
        let package =
            KNOWN_PACKAGES.iter().find(|package| package.name == model.name).context("unknown model")?;
        let index = model.index.unwrap_or_else(|| DEFAULT_INDEX.to_owned());
        let client = configure_client(remuda_net::http_client::client_builder()).build()?;
        let fetcher = ModelFetcher { client, index, folder: model.folder.clone() };
        fetcher.get(package, &mut |_| {}).await?;
        Ok(package.path_in(&model.folder))
    })
}

/// Without models there is nothing to fetch.
#[cfg(not(feature = "models"))]
fn fetch_model(
    _: remuda_bench::BenchModel,
) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<PathBuf>>>> {
    Box::pin(async { anyhow::bail!("this build has no models: build with `--features models`") })
}
