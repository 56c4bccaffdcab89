//! Builds and starts a pool.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remuda_core::id::{Sequence, WorkerId};
use remuda_core::settings::quota::TenantQuota;
use remuda_core::strategy::{FailoverStrategy, OwnStrategy};
use remuda_store::StoreError;
use remuda_store::blobs::{BlobError, BlobHash};
use tokio::task::JoinSet;

use super::guarded_strategy::GuardedStrategy;
use super::servers::{ComfyuiServer, PoolAgentSettings, PoolServers, SERVERS_MAX, worker_name};
use super::{Inner, JobWatch, Running, State, WorkflowPool};
use remuda_config::{ResolvedConfig, StoreUrl};
use remuda_net::http_client::Credentials;
use remuda_net::secret::{Secret, random_hex};
use remuda_server::serve::Serving;

/// A dropped pool releases its folder in the background, so a new pool on the same folder waits for the lock this long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(50);

const TOKEN_BYTES: usize = 32;

/// Settings of a pool that is about to start. Created by [`WorkflowPool::builder`].
#[derive(Debug, Default)]
pub struct WorkflowPoolBuilder {
    servers: Vec<ComfyuiServer>,
    folder: Option<PathBuf>,
    changes: Vec<SettingsChange>,
    strategy: Option<Arc<GuardedStrategy>>,
}

struct SettingsChange(Box<dyn FnOnce(&mut ResolvedConfig) + Send>);

impl std::fmt::Debug for SettingsChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SettingsChange")
    }
}

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowPoolBuildError {
    #[error("a pool needs a server: add one with `.comfyui(\"http://127.0.0.1:8188\")`")]
    NoServer,
    #[error("{url} is not the address of a ComfyUI server: {why}")]
    Address { url: String, why: String },
    #[error("two servers would be worker {0}: name them with `ComfyuiServer::new(url).name(…)`")]
    SameName(WorkerId),
    #[error("a pool has at most {} servers: for more, use `remuda serve` and `remuda worker`", SERVERS_MAX)]
    TooMany,
    /// Another pool or program uses the folder: shut it down, or choose another folder.
    #[error("the folder {} is in use: {why}", folder.display())]
    InUse { folder: PathBuf, why: String },
    #[error("the pool cannot keep its files in {}: {why}", folder.display())]
    Start { folder: PathBuf, why: String },
}

impl WorkflowPoolBuilder {
    /// Adds a server. It need not be running: it joins when it answers, and delays nothing until then.
    pub fn comfyui(mut self, server: impl Into<ComfyuiServer>) -> WorkflowPoolBuilder {
        self.servers.push(server.into());
        self
    }

    /// Stores jobs and files in this folder. A later pool on the same folder continues where this one ended, even after a
    /// crash.
    pub fn sqlite(mut self, folder: impl Into<PathBuf>) -> WorkflowPoolBuilder {
        self.folder = Some(folder.into());
        self
    }

    /// Keeps jobs in memory and files in a temporary folder; both are gone when the pool ends. The default.
    pub fn memory(mut self) -> WorkflowPoolBuilder {
        self.folder = None;
        self
    }

    /// How many attempts of a job may fail through the job's own fault (3).
    pub fn max_attempts(self, attempts: u8) -> WorkflowPoolBuilder {
        self.set(move |it| it.settings.attempts_max = attempts.max(1))
    }

    /// How often a workflow shape may fail on a server before the server is blocked for it (1).
    pub fn max_failures_before_block(self, failures: u32) -> WorkflowPoolBuilder {
        self.set(move |it| it.settings.max_failures_before_block = failures.max(1))
    }

    /// How long the first such block lasts (60 s).
    pub fn cooldown(self, cooldown: Duration) -> WorkflowPoolBuilder {
        self.set(move |it| {
            it.settings.block_cooldown = cooldown;
            it.settings.block_cooldown_max = it.settings.block_cooldown_max.max(cooldown);
        })
    }

    /// Delay before the first retry (1 s); it doubles with each retry, up to 30 s.
    pub fn retry_delay(self, delay: Duration) -> WorkflowPoolBuilder {
        self.set(move |it| {
            it.settings.retry_base = delay;
            it.settings.retry_max = it.settings.retry_max.max(delay);
        })
    }

    /// A strategy of one's own: which of the servers that could take a job gets it. Without one: warm first, then fastest,
    /// then least loaded. One that panics, or is slow again and again, is turned off.
    pub fn strategy(mut self, strategy: impl FailoverStrategy + 'static) -> WorkflowPoolBuilder {
        self.strategy = Some(GuardedStrategy::new(strategy));
        self
    }

    /// How long ended jobs and their files are kept (seven days).
    pub fn retention(self, time: Duration) -> WorkflowPoolBuilder {
        self.set(move |it| it.serve.retention = time)
    }

    /// Changes any other setting of `remuda.toml`. The pool overrides addresses and folders.
    pub fn set(mut self, change: impl FnOnce(&mut ResolvedConfig) + Send + 'static) -> WorkflowPoolBuilder {
        self.changes.push(SettingsChange(Box::new(change)));
        self
    }

    /// Starts the pool without waiting for servers.
    pub async fn build(self) -> Result<WorkflowPool, WorkflowPoolBuildError> {
        let temporary = match self.folder {
            Some(_) => None,
            None => Some(TempFolder::create()?),
        };
        let folder = self.folder.as_deref().or(temporary.as_ref().map(|it| it.0.as_path()));
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let mut resolved = ResolvedConfig::defaults(folder.clone());
        for SettingsChange(change) in self.changes {
            change(&mut resolved);
        }
        resolved.serve.data.clone_from(&folder);
        resolved.serve.listen = ([127, 0, 0, 1], 0).into();
        resolved.serve.store = match &temporary {
            None => StoreUrl::Sqlite(folder.join("remuda.sqlite")),
            Some(_) => StoreUrl::Memory,
        };
        // Other users of this machine must not reach the plane's loopback port: this token never leaves the pool.
        let token = random_hex(TOKEN_BYTES).map_err(|error| WorkflowPoolBuildError::Start {
            folder: folder.clone(),
            why: format!("the system has no randomness: {error}"),
        })?;
        resolved.serve.access.admin_token = Some(Secret::new(token));
        // Worker names depend on the folder: the same after a restart, different in every other pool.
        let suffix = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
        let suffix = BlobHash::from_content(suffix.as_os_str().as_encoded_bytes()).hex();
        let suffix = suffix[..6].to_owned();
        check_servers(&self.servers, &suffix)?;
        // The program is the only tenant: nothing is shared with another.
        resolved.settings.quota = TenantQuota::unlimited();
        if let Some(strategy) = &self.strategy {
            resolved.settings.strategy = OwnStrategy::new(strategy.clone());
        }
        let serving = start_plane(&resolved, &folder).await?;
        let sequence = last_sequence(&serving, &folder).await?;
        let (plane, credentials) = (serving.url(), Credentials::from_token(serving.own_token()));
        let settings = PoolAgentSettings { plane, credentials, resolved, suffix };
        let mut servers = PoolServers::new(settings, tokio::runtime::Handle::current());
        for server in self.servers {
            servers.add(server)?;
        }
        Ok(WorkflowPool::run(serving, sequence, servers, self.strategy, temporary))
    }
}

/// The servers must have addresses and different names.
fn check_servers(servers: &[ComfyuiServer], suffix: &str) -> Result<(), WorkflowPoolBuildError> {
    if servers.is_empty() {
        return Err(WorkflowPoolBuildError::NoServer);
    }
    if servers.len() > SERVERS_MAX {
        return Err(WorkflowPoolBuildError::TooMany);
    }
    let mut names = BTreeSet::new();
    for server in servers {
        let name = worker_name(server, suffix)?;
        if !names.insert(name.clone()) {
            return Err(WorkflowPoolBuildError::SameName(name));
        }
    }
    Ok(())
}

async fn start_plane(resolved: &ResolvedConfig, folder: &Path) -> Result<Serving, WorkflowPoolBuildError> {
    let deadline = tokio::time::Instant::now() + LOCK_TIMEOUT;
    loop {
        let error = match Serving::start(resolved).await {
            Ok(serving) => return Ok(serving),
            Err(error) => error,
        };
        let (folder, why) = (folder.to_owned(), format!("{error:#}"));
        if !is_in_use(&error) {
            return Err(WorkflowPoolBuildError::Start { folder, why });
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(WorkflowPoolBuildError::InUse { folder, why });
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<BlobError>(), Some(BlobError::InUse { .. }))
        || matches!(error.downcast_ref::<StoreError>(), Some(StoreError::InUse { .. }))
}

async fn last_sequence(serving: &Serving, folder: &Path) -> Result<Sequence, WorkflowPoolBuildError> {
    let stored = serving.context.store.restore_fleet().await;
    let folder = folder.to_owned();
    Ok(stored.map_err(|error| WorkflowPoolBuildError::Start { folder, why: error.to_string() })?.sequence)
}

impl WorkflowPool {
    fn run(
        serving: Serving,
        sequence: Sequence,
        servers: PoolServers,
        strategy: Option<Arc<GuardedStrategy>>,
        folder: Option<TempFolder>,
    ) -> WorkflowPool {
        let context = Arc::new(serving.context.clone());
        let stopping = context.stopping.clone();
        let mut listeners = JoinSet::new();
        if let Some(strategy) = &strategy {
            listeners.spawn(strategy.clone().replace_when_turned_off(context.plane.clone()));
        }
        let running = Running { serving, servers, listeners, _folder: folder };
        let inner = Arc::new(Inner {
            state: Mutex::new(State { context: Some(context), is_closing: false, running: Some(running) }),
            watch: JobWatch::after(sequence),
            strategy,
            runtime: tokio::runtime::Handle::current(),
        });
        let follower = inner.follow();
        if let (Some(running), Some(follower)) = (&mut inner.state().running, follower) {
            running.listeners.spawn(JobWatch::run(inner.clone(), follower.until(stopping)));
        }
        WorkflowPool { inner }
    }
}

/// A temporary folder that is removed with its content.
#[derive(Debug)]
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    fn create() -> Result<TempFolder, WorkflowPoolBuildError> {
        let folder = std::env::temp_dir().join(format!("remuda-pool-{}", uuid::Uuid::new_v4()));
        match std::fs::create_dir_all(&folder) {
            Ok(()) => Ok(TempFolder(folder)),
            Err(error) => Err(WorkflowPoolBuildError::Start { folder, why: error.to_string() }),
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // If this fails, the rest stays in the system's temporary folder.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow_pool::{EnqueueOptions, JobError, WorkflowPoolError};

    #[tokio::test]
    async fn pool_in_memory_leaves_no_files() {
        let pool = WorkflowPool::builder().comfyui("http://127.0.0.1:9").build().await.unwrap();
        let folder = pool.inner.state().running.as_ref().unwrap()._folder.as_ref().unwrap().0.clone();
        assert!(folder.join("blobs").is_dir());
        pool.shutdown().await.unwrap();
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn plane_of_a_pool_refuses_other_clients() {
        let pool = WorkflowPool::builder().comfyui("http://127.0.0.1:9").build().await.unwrap();
        let url = pool.inner.state().running.as_ref().unwrap().serving.url();
        let http = remuda_net::http_client::client_builder().build().unwrap();
        for path in ["/remuda/v1/jobs", "/remuda/v1/workers", "/queue", "/remuda/v1/events"] {
            let answer = http.get(format!("{url}{path}")).send().await.unwrap();
            assert_eq!(answer.status(), 401, "{path}");
        }
        pool.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn handles_end_when_the_plane_ends_by_itself() {
        let pool = WorkflowPool::builder().comfyui("http://127.0.0.1:9").build().await.unwrap();
        let workflow = serde_json::json!({ "1": { "class_type": "SaveImage", "inputs": {} } });
        let job = pool.enqueue(workflow.clone(), EnqueueOptions::new()).await.unwrap();
        // As it does when the store fails.
        pool.inner.context().unwrap().plane.stop().await;
        let ended =
            tokio::time::timeout(Duration::from_secs(20), job).await.expect("the handle ends at once");
        assert!(matches!(ended, Err(JobError::Stopped)), "{ended:?}");
        let late = pool.enqueue(workflow, EnqueueOptions::new()).await;
        assert!(matches!(late, Err(WorkflowPoolError::Stopped)), "{late:?}");
        pool.shutdown().await.unwrap();
    }

    #[test]
    fn worker_name_follows_from_server_and_pool() {
        let name = |server: ComfyuiServer, suffix: &str| worker_name(&server, suffix).unwrap().to_string();
        let [here, there] =
            ["aaaaaa", "bbbbbb"].map(|suffix| name(ComfyuiServer::new("http://gpu-7:8188"), suffix));
        assert_eq!((here.as_str(), there.as_str()), ("gpu-7-8188-aaaaaa", "gpu-7-8188-bbbbbb"));
        let chosen = ComfyuiServer::new("http://gpu-7:8188").name("mine".parse().unwrap());
        assert_eq!(name(chosen, "aaaaaa"), "mine");
    }
}
