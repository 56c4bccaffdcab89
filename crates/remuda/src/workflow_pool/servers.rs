//! The servers of a pool, each with an agent of its own. They are added and removed while the pool runs.
//!
//! ```text
//!  add ──▶ agent joins when the server answers ──▶ works ──remove──▶ finishes what it holds ──▶ leaves ──▶ forgotten
//!                                                                └─limit over─▶ hands it back ──▶ leaves
//! ```

use std::time::Duration;

use remuda_comfyui::{ComfyuiClient, ComfyuiTarget};
use remuda_config::ResolvedConfig;
use remuda_core::id::WorkerId;
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;
use remuda_worker::{COMFYUI_REQUEST_TIMEOUT, ComfyuiOptions, ServiceSpec, WorkerOptions, worker_name_for};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use super::shutdown::{FINISH_TIMEOUT, HAND_BACK_TIMEOUT};
use super::{WorkflowPool, WorkflowPoolBuildError, WorkflowPoolError};

/// Each has an agent with a connection to the plane; more belong to workers of their own (`remuda worker`).
pub(super) const SERVERS_MAX: usize = 512;
/// Pause before an agent that exited unexpectedly is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(5);

/// A ComfyUI server, by its address.
#[derive(Clone, Debug)]
pub struct ComfyuiServer {
    pub(super) target: ComfyuiTarget,
    name: Option<WorkerId>,
    slots: u32,
}

impl ComfyuiServer {
    pub fn new(url: impl Into<String>) -> ComfyuiServer {
        ComfyuiServer { target: ComfyuiTarget::new(url), name: None, slots: 1 }
    }

    /// A header for every request to the server, such as `Authorization`.
    pub fn header(mut self, name: impl Into<String>, value: &str) -> ComfyuiServer {
        self.target.headers.push((name.into(), Secret::new(value)));
        self
    }

    /// Names the server's worker. Do not use the same name for the same server in two pools: each agent would adopt the
    /// other's jobs. Default names differ between pools.
    pub fn name(mut self, name: WorkerId) -> ComfyuiServer {
        self.name = Some(name);
        self
    }

    /// How many workflows the server holds at a time (1). ComfyUI still runs one after the other.
    pub fn slots(mut self, slots: u32) -> ComfyuiServer {
        self.slots = slots.max(1);
        self
    }
}

impl From<&str> for ComfyuiServer {
    fn from(url: &str) -> Self {
        ComfyuiServer::new(url)
    }
}

impl From<String> for ComfyuiServer {
    fn from(url: String) -> Self {
        ComfyuiServer::new(url)
    }
}

impl From<&String> for ComfyuiServer {
    fn from(url: &String) -> Self {
        ComfyuiServer::new(url)
    }
}

/// What the agents of a pool have in common.
#[derive(Debug)]
pub(super) struct PoolAgentSettings {
    pub(super) plane: String,
    pub(super) credentials: Credentials,
    pub(super) resolved: ResolvedConfig,
    /// Worker names end in it: the same after a restart, different in every other pool.
    pub(super) suffix: String,
}

/// The servers and their agents; dropping this ends the agents.
#[derive(Debug)]
pub(super) struct PoolServers {
    settings: PoolAgentSettings,
    /// In the order in which they were added.
    servers: Vec<PoolServer>,
    agents: JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

#[derive(Debug)]
struct PoolServer {
    worker: WorkerId,
    url: String,
    /// Closed once the agent has ended.
    stop: mpsc::Sender<()>,
    agent: AbortHandle,
    is_leaving: bool,
}

/// A server as the pool itself knows it.
#[derive(Clone, Debug)]
pub(super) struct ListedServer {
    pub(super) worker: WorkerId,
    pub(super) url: String,
    pub(super) is_leaving: bool,
}

impl PoolServers {
    pub(super) fn new(settings: PoolAgentSettings, runtime: tokio::runtime::Handle) -> PoolServers {
        PoolServers { settings, servers: Vec::new(), agents: JoinSet::new(), runtime }
    }

    /// Starts an agent for the server and returns the name of its worker.
    pub(super) fn add(&mut self, server: ComfyuiServer) -> Result<WorkerId, WorkflowPoolBuildError> {
        self.forget_ended();
        let name = worker_name(&server, &self.settings.suffix)?;
        if self.servers.iter().any(|server| server.worker == name) {
            return Err(WorkflowPoolBuildError::SameName(name));
        }
        if self.servers.len() >= SERVERS_MAX {
            return Err(WorkflowPoolBuildError::TooMany);
        }
        let PoolAgentSettings { plane, credentials, resolved, .. } = &self.settings;
        let url = server.target.url.clone();
        let service = ServiceSpec::Comfyui(ComfyuiOptions::new(server.target, resolved));
        let mut options = WorkerOptions::new(plane, credentials.clone(), name.clone(), service, resolved);
        options.slots = server.slots;
        let (stop, stopped) = mpsc::channel(4);
        let agent = self.agents.spawn_on(supervise_worker(options, stopped), &self.runtime);
        self.servers.push(PoolServer { worker: name.clone(), url, stop, agent, is_leaving: false });
        Ok(name)
    }

    pub(super) fn list(&self) -> Vec<ListedServer> {
        let here = self.servers.iter().filter(|server| !server.stop.is_closed());
        here.map(|server| ListedServer {
            worker: server.worker.clone(),
            url: server.url.clone(),
            is_leaving: server.is_leaving,
        })
        .collect()
    }

    /// How to stop the agent of a server that is not being removed yet.
    fn start_leaving(&mut self, worker: &WorkerId) -> Option<(mpsc::Sender<()>, AbortHandle)> {
        self.forget_ended();
        let mut here = self.servers.iter_mut().filter(|server| !server.is_leaving);
        let server = here.find(|server| server.worker == *worker)?;
        server.is_leaving = true;
        Some((server.stop.clone(), server.agent.clone()))
    }

    fn forget_ended(&mut self) {
        self.servers.retain(|server| !server.stop.is_closed());
        while self.agents.try_join_next().is_some() {}
    }

    /// A stop request for every agent: the first lets running jobs finish, the second hands them back.
    pub(super) async fn stop_all(&self) {
        for server in &self.servers {
            // The agent may have ended already.
            server.stop.send(()).await.ok();
        }
    }

    pub(super) async fn all_ended(&mut self, within: Duration) -> bool {
        let all = async { while self.agents.join_next().await.is_some() {} };
        tokio::time::timeout(within, all).await.is_ok()
    }
}

/// The name of a server's worker; an error if its address is none.
pub(super) fn worker_name(server: &ComfyuiServer, suffix: &str) -> Result<WorkerId, WorkflowPoolBuildError> {
    let url = &server.target.url;
    let invalid = |why: String| WorkflowPoolBuildError::Address { url: url.clone(), why };
    ComfyuiClient::new(&server.target, COMFYUI_REQUEST_TIMEOUT)
        .map_err(|error| invalid(error.to_string()))?;
    match &server.name {
        Some(name) => Ok(name.clone()),
        None => {
            let name = worker_name_for(url).map_err(|error| invalid(error.to_string()))?;
            format!("{name}-{suffix}").parse().map_err(|error| invalid(format!("{error}")))
        }
    }
}

/// Runs a worker until the pool stops, and restarts it when its agent exits.
async fn supervise_worker(options: WorkerOptions, mut stopped: mpsc::Receiver<()>) {
    loop {
        let (stop, stops) = mpsc::channel(4);
        let mut agent = std::pin::pin!(remuda_worker::run(options.clone(), stops));
        let mut is_stopping = false;
        let ended = loop {
            tokio::select! {
                ended = &mut agent => break ended,
                request = stopped.recv(), if !stopped.is_closed() => {
                    is_stopping = true;
                    if request.is_some() {
                        // The agent may have ended already.
                        stop.send(()).await.ok();
                    }
                }
            }
        };
        match ended {
            Err(problem) if !is_stopping => {
                warn!(worker = %options.worker, %problem, "worker agent exited; restarting");
                tokio::time::sleep(RESTART_DELAY).await;
            }
            Ok(()) | Err(_) => return,
        }
    }
}

impl WorkflowPool {
    /// Adds a server to the running pool and returns the name of its worker. As with the builder, it need not be running:
    /// it joins when it answers.
    pub fn add_server(&self, server: impl Into<ComfyuiServer>) -> Result<WorkerId, WorkflowPoolError> {
        let mut state = self.inner.state();
        let running = state.running.as_mut().ok_or(WorkflowPoolError::Stopped)?;
        running.servers.add(server.into()).map_err(|error| WorkflowPoolError::Server(error.to_string()))
    }

    /// Removes a server: it gets no more jobs, finishes the ones it runs for up to a minute, and leaves. Returns when it has.
    pub async fn remove_server(&self, worker: &WorkerId) -> Result<(), WorkflowPoolError> {
        self.remove_server_within(worker, FINISH_TIMEOUT).await
    }

    /// As `remove_server`, with another limit for running jobs. Unfinished ones are run again on another server.
    pub async fn remove_server_within(
        &self,
        worker: &WorkerId,
        limit: Duration,
    ) -> Result<(), WorkflowPoolError> {
        let leaving = {
            let mut state = self.inner.state();
            let running = state.running.as_mut().ok_or(WorkflowPoolError::Stopped)?;
            running.servers.start_leaving(worker)
        };
        let unknown =
            || WorkflowPoolError::Server(format!("there is no server {worker}, or it is leaving already"));
        let (stop, agent) = leaving.ok_or_else(unknown)?;
        // An agent that has ended takes no request.
        stop.send(()).await.ok();
        if tokio::time::timeout(limit, stop.closed()).await.is_ok() {
            return Ok(());
        }
        info!(%worker, ?limit, "jobs still running at the limit for leaving; handing them back");
        stop.send(()).await.ok();
        if tokio::time::timeout(HAND_BACK_TIMEOUT, stop.closed()).await.is_err() {
            warn!(%worker, timeout = ?HAND_BACK_TIMEOUT, "agent did not end in time; ending it");
            agent.abort();
        }
        Ok(())
    }
}
