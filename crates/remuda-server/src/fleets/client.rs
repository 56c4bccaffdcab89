//! The client of one fleet: makes its provider calls with one version of its settings.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use remuda_core::id::{FleetId, MachineId};
use remuda_core::provider::{
    BootstrapError, Pod, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent,
};
use remuda_net::secret::Secret;
use remuda_providers::fixed::FixedProvider;
use remuda_providers::process::{ProcessProvider, ProcessSettings};
use remuda_providers::runpod::{Cloud, RunPodProvider, RunPodSettings};
use remuda_providers::{Provider, RentOrder};

use super::ssh::{SshBootstrap, SshIdentity};
use crate::join_key::SharedJoinKey;
use crate::plane_handle::PlaneHandle;
use remuda_config::{ProviderKind, WorkerStart};

/// Providers have timeouts of their own; this one is for a provider that hangs.
const CALL_MAX: Duration = Duration::from_secs(300);
const SSH_PORT: &str = "22/tcp";
/// The stages have timeouts of their own, half an hour together: installing packages, an upload over a slow network.
const PREPARE_MAX: Duration = Duration::from_secs(2400);

/// What all fleets of a plane share.
#[derive(Clone, Debug)]
pub struct FleetContext {
    pub plane: PlaneHandle,
    pub join_key: SharedJoinKey,
    /// The plane's URL for workers on the same machine.
    pub url: String,
    pub data: PathBuf,
    /// The SSH key and host keys, once a fleet needs them.
    pub(super) ssh_identity: OnceLock<SshIdentity>,
}

impl FleetContext {
    pub fn new(plane: PlaneHandle, join_key: SharedJoinKey, url: String, data: PathBuf) -> FleetContext {
        FleetContext { plane, join_key, url, data, ssh_identity: OnceLock::new() }
    }

    fn ssh_identity(&self) -> anyhow::Result<SshIdentity> {
        if let Some(ssh_identity) = self.ssh_identity.get() {
            return Ok(ssh_identity.clone());
        }
        let opened = SshIdentity::open(&self.data)?;
        Ok(self.ssh_identity.get_or_init(|| opened).clone())
    }

    /// The URL of a plane with this listen address, from its own machine.
    pub fn local_url(listen: SocketAddr, has_tls: bool) -> String {
        let scheme = if has_tls { "https" } else { "http" };
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("{scheme}://{}", SocketAddr::new(ip, listen.port()))
    }
}

#[derive(Debug)]
pub(super) struct FleetClient {
    fleet: remuda_config::FleetConfig,
    provider: Arc<dyn Provider>,
    /// Set if its machines do not start a worker by themselves.
    bootstrap: Option<SshBootstrap>,
    context: Arc<FleetContext>,
}

impl FleetClient {
    pub(super) fn new(
        fleet: remuda_config::FleetConfig,
        context: Arc<FleetContext>,
    ) -> anyhow::Result<FleetClient> {
        let about = || format!("fleet {}", fleet.settings.id);
        let provider = provider(&fleet, &context).with_context(about)?;
        let needs_bootstrap = fleet.source.start == WorkerStart::Ssh;
        let bootstrap = needs_bootstrap.then(|| SshBootstrap::new(&fleet.source, context.ssh_identity()?));
        let bootstrap = bootstrap.transpose().with_context(about)?;
        Ok(FleetClient { fleet, provider, bootstrap, context })
    }

    #[cfg(test)]
    pub(super) fn with(
        fleet: remuda_config::FleetConfig,
        provider: Arc<dyn Provider>,
        context: Arc<FleetContext>,
    ) -> FleetClient {
        FleetClient { fleet, provider, bootstrap: None, context }
    }

    #[cfg(test)]
    pub(super) fn plane(&self) -> &PlaneHandle {
        &self.context.plane
    }

    #[cfg(test)]
    pub(super) fn context(&self) -> &FleetContext {
        &self.context
    }

    pub(super) fn fleet(&self) -> &FleetId {
        &self.fleet.settings.id
    }

    /// Makes a call once; panics and timeouts become results too.
    pub(super) async fn make(&self, call: ProviderCall) -> ProviderEvent {
        let limit = if matches!(call, ProviderCall::Bootstrap { .. }) { PREPARE_MAX } else { CALL_MAX };
        let made = tokio::time::timeout(limit, AssertUnwindSafe(self.call(call.clone())).catch_unwind());
        match made.await {
            Ok(Ok(news)) => news,
            Ok(Err(_)) => failed_call(&call, ProviderErrorClass::Ambiguous, "the provider's code panicked"),
            Err(_) => {
                failed_call(&call, ProviderErrorClass::Ambiguous, &format!("nothing came back for {limit:?}"))
            }
        }
    }

    async fn call(&self, call: ProviderCall) -> ProviderEvent {
        match call {
            ProviderCall::Rent { machine, tag, offer } => {
                let environment = match self.environment(&machine) {
                    Ok(environment) => environment,
                    Err(fault) => return ProviderEvent::Rented { machine, result: Err(fault) },
                };
                let order = RentOrder { machine: machine.clone(), tag, offer, environment };
                ProviderEvent::Rented { machine, result: self.provider.rent(order).await }
            }
            ProviderCall::List => ProviderEvent::Listed { result: self.provider.list().await },
            ProviderCall::Return { pod } => {
                let result = self.provider.return_pod(pod.clone()).await;
                ProviderEvent::Returned { pod, result }
            }
            ProviderCall::Price => ProviderEvent::Priced { result: self.provider.prices().await },
            ProviderCall::Bootstrap { machine, pod } => {
                let result = self.prepare(&machine, &pod).await;
                ProviderEvent::Bootstrapped { machine, result }
            }
        }
    }

    async fn prepare(&self, machine: &MachineId, pod: &Pod) -> Result<(), BootstrapError> {
        let failed = |message| BootstrapError { stage: "start", message, is_retryable: true };
        let environment = self.environment(machine).map_err(|fault| failed(fault.message))?;
        match &self.bootstrap {
            Some(bootstrap) => bootstrap.run(pod, &environment).await,
            None => Err(failed("the fleet's settings do not say how: `start = \"ssh\"`".to_owned())),
        }
    }

    /// The environment of a machine: the plane's URL, the machine's name and its join token. The fleet's own variables come
    /// first, so that they cannot replace these.
    fn environment(&self, machine: &MachineId) -> Result<BTreeMap<String, String>, ProviderError> {
        let FleetContext { join_key, url, .. } = &*self.context;
        let source = &self.fleet.source;
        let key = join_key.current().ok_or_else(|| {
            ProviderError::new(
                ProviderErrorClass::Transient,
                "there is no secret yet to make its join token with",
            )
        })?;
        let mut all: BTreeMap<_, _> =
            source.env.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned())).collect();
        if source.provider == ProviderKind::Process
            && !all.contains_key("PATH")
            && let Some(path) = path_with_us()
        {
            all.insert("PATH".to_owned(), path);
        }
        if let Some(bootstrap) = &self.bootstrap {
            all.insert("PUBLIC_KEY".to_owned(), bootstrap.public_key().to_owned());
        }
        let labels: Vec<_> =
            self.fleet.settings.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut tell = |name: &str, value: String| all.insert(name.to_owned(), value);
        tell("REMUDA_URL", source.url.clone().unwrap_or_else(|| url.clone()));
        tell("REMUDA_TOKEN", key.token(machine).reveal().to_owned());
        tell("REMUDA_WORKER", machine.to_string());
        tell("REMUDA_MACHINE", machine.to_string());
        tell("REMUDA_FLEET", self.fleet().to_string());
        tell("REMUDA_LABELS", labels.join(","));
        tell("REMUDA_CONTACT_TIMEOUT", self.fleet.settings.limits.contact_timeout.as_secs().to_string());
        if let Some(command) = &source.contact_timeout_command {
            tell("REMUDA_CONTACT_TIMEOUT_COMMAND", command.clone());
        }
        Ok(all)
    }
}

/// PATH with this program's folder first, so that workers have the same version as their plane.
fn path_with_us() -> Option<String> {
    let here = std::env::current_exe().ok()?;
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = here.parent().map(PathBuf::from).into_iter().chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).ok()?.into_string().ok()
}

fn provider(fleet: &remuda_config::FleetConfig, context: &FleetContext) -> anyhow::Result<Arc<dyn Provider>> {
    let source = &fleet.source;
    Ok(match source.provider {
        ProviderKind::Fixed => {
            let machines: Result<Vec<MachineId>, _> =
                source.machines.iter().map(|machine| machine.parse()).collect();
            Arc::new(FixedProvider::new(machines?))
        }
        ProviderKind::Process => {
            let shell = ["sh", "-c", source.command.as_deref().unwrap_or_default()];
            let folder = context.data.join("fleets").join(fleet.settings.id.as_str());
            let mut settings = ProcessSettings::new(shell.map(str::to_owned).to_vec(), folder.clone());
            (settings.price, settings.stop_grace) = (source.price, source.stop_grace);
            Arc::new(
                ProcessProvider::open(settings)
                    .with_context(|| format!("cannot use {}", folder.display()))?,
            )
        }
        ProviderKind::Runpod => Arc::new(
            RunPodProvider::new(pods(fleet)?, remuda_net::http_client::client_builder()).map_err(said)?,
        ),
    })
}

fn pods(fleet: &remuda_config::FleetConfig) -> anyhow::Result<RunPodSettings> {
    let runpod = &fleet.source.runpod;
    let key = Secret::new(runpod.api_key()?.reveal());
    let clouds: Result<Vec<Cloud>, ProviderError> = runpod.clouds.iter().map(|cloud| cloud.parse()).collect();
    let image = runpod.image.clone().unwrap_or_default();
    let least = RunPodSettings::new(key, runpod.gpus.clone(), image);
    Ok(RunPodSettings {
        url: runpod.base_url.clone().unwrap_or(least.url),
        gpu_count: runpod.gpu_count,
        data_centres: runpod.data_centers.clone(),
        clouds: clouds.map_err(said)?,
        disk_gb: runpod.disk_gb,
        ports: ports(&fleet.source),
        volume: runpod.volume(),
        registry: runpod.registry.clone(),
        cuda_min: runpod.min_cuda.clone(),
        ..least
    })
}

/// The configured ports, with SSH's if the plane connects over SSH.
fn ports(source: &remuda_config::MachineSource) -> Vec<String> {
    let mut ports = source.runpod.ports.clone();
    if source.start == WorkerStart::Ssh && !ports.iter().any(|port| port == SSH_PORT) {
        ports.push(SSH_PORT.to_owned());
    }
    ports
}

fn said(fault: ProviderError) -> anyhow::Error {
    anyhow::Error::msg(fault.message)
}

/// The result of a call without an answer.
pub(super) fn failed_call(call: &ProviderCall, class: ProviderErrorClass, why: &str) -> ProviderEvent {
    let fault = ProviderError::new(class, why);
    match call {
        ProviderCall::Rent { machine, .. } => {
            ProviderEvent::Rented { machine: machine.clone(), result: Err(fault) }
        }
        ProviderCall::List => ProviderEvent::Listed { result: Err(fault) },
        ProviderCall::Return { pod } => ProviderEvent::Returned { pod: pod.clone(), result: Err(fault) },
        ProviderCall::Price => ProviderEvent::Priced { result: Err(fault) },
        ProviderCall::Bootstrap { machine, .. } => {
            let result = Err(BootstrapError { stage: "start", message: why.to_owned(), is_retryable: true });
            ProviderEvent::Bootstrapped { machine: machine.clone(), result }
        }
    }
}
