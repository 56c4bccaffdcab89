//! What a worker is started with: its identity, its plane, and the service that does the work.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use remuda_comfyui::ComfyuiTarget;
use remuda_config::{AgentConfig, ResolvedConfig};
use remuda_core::agent::{AgentDeadlines, AgentTimeouts};
use remuda_core::id::{FleetId, MachineId, Service, WorkerId};
use remuda_core::need::Capabilities;
use remuda_core::wire::metric::MODEL_LABEL;
use remuda_models::ModelPool;
use remuda_net::http_client::Credentials;
use remuda_net::job_environment::JobEnvironment;

use crate::start_check::StartChecks;
use crate::worker_name::hostname;

/// How long one request to ComfyUI may take.
pub const COMFYUI_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Each model copy answers one attempt while one more waits behind it, so that a copy is never idle between two.
const SLOTS_PER_COPY: u32 = 2;

/// Everything one worker needs to run.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Address of the plane.
    pub url: String,
    /// Used to join, and to transfer blobs until the worker has joined.
    pub credentials: Credentials,
    pub worker: WorkerId,
    pub machine: Option<MachineId>,
    pub fleet: Option<FleetId>,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Capabilities,
    pub service: ServiceSpec,
    /// Longest silence of a running attempt before the agent asks the service about it.
    pub inactivity: Duration,
    pub timeouts: AgentTimeouts,
    pub deadlines: AgentDeadlines,
    pub start_checks: StartChecks,
    /// What the processes of its jobs get of the environment.
    pub job_environment: JobEnvironment,
    /// Folder for files the worker needs across restarts.
    pub data: PathBuf,
}

impl WorkerOptions {
    /// The number of slots follows from the service; everything else comes from the settings and the machine.
    pub fn new(
        plane: &str,
        credentials: Credentials,
        worker: WorkerId,
        service: ServiceSpec,
        resolved: &ResolvedConfig,
    ) -> WorkerOptions {
        let AgentConfig {
            unknown_recheck,
            cancel_timeout,
            queue_stall_max,
            given_up_recheck,
            inactivity,
            ..
        } = resolved.agent;
        WorkerOptions {
            url: plane.to_owned(),
            credentials,
            worker,
            machine: hostname().parse().ok(),
            fleet: None,
            services: service.services(),
            slots: service.slots(),
            offer: Capabilities::default(),
            service,
            inactivity,
            timeouts: AgentTimeouts { unknown_recheck, cancel_timeout, queue_stall_max, given_up_recheck },
            deadlines: AgentDeadlines::default(),
            start_checks: StartChecks::default(),
            job_environment: JobEnvironment::new(&resolved.agent.pass_environment),
            data: resolved.serve.data.join("workers"),
        }
    }
}

/// The service that a worker runs attempts on.
#[derive(Clone, Debug)]
pub enum ServiceSpec {
    Exec(ExecCommand),
    Comfyui(ComfyuiOptions),
    Models(ModelsOptions),
}

impl ServiceSpec {
    fn services(&self) -> BTreeSet<Service> {
        match self {
            ServiceSpec::Exec(_) => "exec".parse().into_iter().collect(),
            ServiceSpec::Comfyui(_) => "comfyui".parse().into_iter().collect(),
            ServiceSpec::Models(models) => models.services(),
        }
    }

    fn slots(&self) -> u32 {
        match self {
            ServiceSpec::Exec(_) | ServiceSpec::Comfyui(_) => 1,
            ServiceSpec::Models(models) => models.slots(),
        }
    }
}

/// A shell command that is run once per attempt.
#[derive(Clone, Debug)]
pub struct ExecCommand {
    pub command: String,
}

/// A ComfyUI server, and whether this worker starts and stops it.
#[derive(Clone, Debug)]
pub struct ComfyuiOptions {
    pub target: ComfyuiTarget,
    /// Starts the server. With a command, the worker also restarts a sick server and stops it when the worker ends.
    pub command: Option<String>,
    pub request_timeout: Duration,
    /// Files stay on the server after their attempt.
    pub keeps_copies: bool,
    /// Limit for the self-test: a server that has just started may load for a while first.
    pub self_test_timeout: Duration,
}

impl ComfyuiOptions {
    /// A server that is already running.
    pub fn new(target: ComfyuiTarget, resolved: &ResolvedConfig) -> ComfyuiOptions {
        let AgentConfig { self_test_timeout, keep_server_copies: keeps_copies, .. } = resolved.agent;
        let request_timeout = COMFYUI_REQUEST_TIMEOUT;
        ComfyuiOptions { target, command: None, request_timeout, keeps_copies, self_test_timeout }
    }
}

/// The models that a worker serves from its own process.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    pub pool: ModelPool,
}

impl ModelsOptions {
    /// Jobs ask for a model by name, or for any model with a capability: both are services.
    fn services(&self) -> BTreeSet<Service> {
        let models = self.pool.models();
        let words = models.iter().flat_map(|(spec, found)| [spec.name.as_str(), found.capability.name()]);
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Enough slots to keep every copy busy.
    fn slots(&self) -> u32 {
        let copies: u32 = self.pool.models().iter().map(|(spec, _)| spec.copies).sum();
        copies.saturating_mul(SLOTS_PER_COPY).max(1)
    }

    /// One label per model, with its capability as the value.
    pub fn labels(&self) -> impl Iterator<Item = (String, String)> {
        let models = self.pool.models().into_iter();
        models
            .map(|(spec, found)| (format!("{MODEL_LABEL}{}", spec.name), found.capability.name().to_owned()))
    }
}
