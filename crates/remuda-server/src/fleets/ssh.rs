//! Brings up workers, over SSH, on machines whose image starts none: one key and one memory of host keys for the whole
//! plane, one way of preparing for each fleet.

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

/// Where our own program lies on such a machine; what is started finds it first.
const FOLDER: &str = ".remuda/bin";
/// What is started unless the fleet says otherwise.
const COMMAND: &str = "remuda worker";

/// What all fleets share.
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

/// How the machines of one fleet are prepared.
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
            let from = std::env::current_exe().context("this program does not know where it lies")?;
            settings.upload = Some(ProgramUpload { from, to: format!("{FOLDER}/remuda") });
        }
        Ok(SshBootstrap(settings))
    }

    /// What lets us in, as a pod is told.
    pub(super) fn public_key(&self) -> &str {
        self.0.key.public()
    }

    pub(super) async fn run(
        &self,
        pod: &Pod,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), BootstrapError> {
        let Some(address) = &pod.ssh else {
            let message = "its provider has not said yet where its SSH answers".to_owned();
            return Err(BootstrapError { stage: "port", message, is_retryable: true });
        };
        bootstrap(address, &PodInstance::from(pod), &self.0, environment).await
    }
}
