//! Starts workers over SSH, on machines whose image starts none. One key and one list of host keys for the whole plane, one
//! bootstrap for each fleet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use remuda_core::provider::{BootstrapError, Pod};
use remuda_providers::ssh::{
    BootstrapSettings, GpuCheck, HostKeyPolicy, KnownHosts, PodInstance, ProgramUpload, SshKey, StorageCheck,
    bootstrap,
};

use remuda_config::MachineSource;

/// The folder of the uploaded program; it is first in the worker's PATH.
const FOLDER: &str = ".remuda/bin";
/// The default worker command.
const COMMAND: &str = "remuda worker";

/// Shared by all fleets.
#[derive(Clone, Debug)]
pub(super) struct SshIdentity {
    key: SshKey,
    hosts: Arc<KnownHosts>,
}

impl SshIdentity {
    pub(super) fn open(data: &Path) -> anyhow::Result<SshIdentity> {
        let folder = data.join("ssh");
        let key = SshKey::open(&folder.join("id_ed25519"))?;
        let hosts = KnownHosts::open(&folder.join("hosts.json"))?;
        Ok(SshIdentity { key, hosts: Arc::new(hosts) })
    }
}

/// Bootstraps the machines of one fleet.
#[derive(Debug)]
pub(super) struct SshBootstrap(BootstrapSettings);

impl SshBootstrap {
    pub(super) fn new(source: &MachineSource, ssh_identity: SshIdentity) -> anyhow::Result<SshBootstrap> {
        let ssh = &source.ssh;
        let command = source.command.as_deref().unwrap_or(COMMAND);
        let command = format!("PATH=\"$HOME/{FOLDER}:$PATH\"; export PATH; {command}");
        let mut settings =
            BootstrapSettings::new(ssh_identity.key, HostKeyPolicy::Pinned(ssh_identity.hosts), command);
        settings.user.clone_from(&ssh.user);
        settings.dependencies = ssh.setup.iter().cloned().collect();
        settings.gpu = match ssh.gpu_check.as_deref() {
            None | Some("built-in") => GpuCheck::BuiltIn,
            Some("none") => GpuCheck::None,
            Some(command) => GpuCheck::Command(command.to_owned()),
        };
        let volume = source.runpod.volume();
        settings.storage = volume.map(|it| StorageCheck { path: it.path, is_mount: true, free_bytes_min: 0 });
        if ssh.upload {
            let from = std::env::current_exe().context("cannot find the path of this program")?;
            settings.upload = Some(ProgramUpload { from, to: format!("{FOLDER}/remuda") });
        }
        Ok(SshBootstrap(settings))
    }

    /// The public key that a pod has to accept.
    pub(super) fn public_key(&self) -> &str {
        self.0.key.public()
    }

    pub(super) async fn run(
        &self,
        pod: &Pod,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), BootstrapError> {
        let Some(address) = &pod.ssh else {
            let message = "the provider has not reported an SSH address yet".to_owned();
            return Err(BootstrapError { stage: "port", message, is_retryable: true });
        };
        bootstrap(address, &PodInstance::from(pod), &self.0, environment).await
    }
}
