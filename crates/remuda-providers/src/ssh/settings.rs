//! Settings of a bootstrap, the same for every machine of a fleet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{HostKeyPolicy, SshKey};

#[derive(Clone, Debug)]
pub struct BootstrapSettings {
    pub key: SshKey,
    /// The login; by default the one that the provider names.
    pub user: Option<String>,
    pub host_key: HostKeyPolicy,
    pub storage: Option<StorageCheck>,
    pub gpu: GpuCheck,
    /// Shell commands, run in order at every bootstrap, so each should be quick once it is done.
    pub dependencies: Vec<String>,
    pub upload: Option<ProgramUpload>,
    /// Folder for the worker's log and pid. Relative to the login's home, as every path here.
    pub folder: String,
    /// A shell command that runs the worker in the foreground.
    pub command: String,
    /// For the worker, in addition to the machine's own environment.
    pub environment: BTreeMap<String, String>,
    pub timeouts: StageTimeouts,
}

impl BootstrapSettings {
    pub fn new(key: SshKey, host_key: HostKeyPolicy, command: impl Into<String>) -> BootstrapSettings {
        BootstrapSettings {
            key,
            user: None,
            host_key,
            storage: None,
            gpu: GpuCheck::BuiltIn,
            dependencies: Vec::new(),
            upload: None,
            folder: ".remuda".to_owned(),
            command: command.into(),
            environment: BTreeMap::new(),
            timeouts: StageTimeouts::default(),
        }
    }
}

/// A folder that must exist and be writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageCheck {
    pub path: String,
    /// It must be a mount point: a volume that was not attached leaves an ordinary folder behind.
    pub is_mount: bool,
    pub free_bytes_min: u64,
}

/// How to check that a machine can compute; a GPU listed by `nvidia-smi` does not prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuCheck {
    /// A small kernel on each GPU, through the CUDA driver. Needs `python3` on the machine.
    BuiltIn,
    /// A shell command that succeeds on a good machine.
    Command(String),
    /// No GPU is needed.
    None,
}

/// A program to copy to the machine; skipped if the same one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramUpload {
    pub from: PathBuf,
    pub to: String,
}

/// How long each stage may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageTimeouts {
    pub port: Duration,
    pub host_key: Duration,
    pub login: Duration,
    pub marker: Duration,
    pub mount: Duration,
    pub gpu: Duration,
    pub dependencies: Duration,
    pub upload: Duration,
    pub start: Duration,
    pub started: Duration,
    /// How long a worker must have run to count as started.
    pub settle_time: Duration,
}

impl StageTimeouts {
    /// The longest a bootstrap can take, for a deadline around all of it.
    pub fn total(&self) -> Duration {
        let way = self.port + self.host_key + self.login + self.marker;
        way + self.mount
            + self.gpu
            + self.dependencies
            + self.upload
            + self.start
            + self.started
            + CLOSE_TIMEOUT
    }
}

/// How long a disconnect may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A round trip or two over a bad link, on a machine that is still booting.
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(20);

impl Default for StageTimeouts {
    fn default() -> StageTimeouts {
        StageTimeouts {
            port: ROUND_TRIP_TIMEOUT,
            host_key: ROUND_TRIP_TIMEOUT,
            login: ROUND_TRIP_TIMEOUT,
            marker: ROUND_TRIP_TIMEOUT,
            // The first access to a network volume may wait for its server.
            mount: Duration::from_secs(60),
            // A cold driver takes half a minute with eight GPUs.
            gpu: Duration::from_secs(120),
            dependencies: Duration::from_secs(900),
            // 100 MB at 200 kB/s.
            upload: Duration::from_secs(500),
            start: ROUND_TRIP_TIMEOUT,
            started: ROUND_TRIP_TIMEOUT,
            settle_time: Duration::from_secs(2),
        }
    }
}
