//! What bringing up a worker takes: the same for every machine of a fleet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{HostKey, Key};

#[derive(Clone, Debug)]
pub struct Preparation {
    pub key: Key,
    /// Who to log in as; without it whom the provider names.
    pub user: Option<String>,
    pub host_key: HostKey,
    pub storage: Option<Storage>,
    pub gpu: GpuCheck,
    /// Shell commands, one after the other. They run at every visit, so each should be quick once it is done.
    pub dependencies: Vec<String>,
    pub upload: Option<Upload>,
    /// Where the worker's log and its process number are. Counts from the folder a login begins in, as every path here.
    pub folder: String,
    /// A shell command that runs the worker and stays in the foreground.
    pub command: String,
    /// For the worker, beside what its machine gets.
    pub environment: BTreeMap<String, String>,
    pub limits: Limits,
}

impl Preparation {
    pub fn new(key: Key, host_key: HostKey, command: impl Into<String>) -> Preparation {
        Preparation {
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
            limits: Limits::default(),
        }
    }
}

/// A folder that must be there and take what is written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    pub path: String,
    /// It must be a file system of its own: a volume that was not attached leaves an ordinary folder behind.
    pub is_mount: bool,
    pub free_bytes_min: u64,
}

/// How it is known that a machine can compute; that `nvidia-smi` lists a GPU does not say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuCheck {
    /// A small kernel on each GPU, through the CUDA driver. Needs `python3` there.
    BuiltIn,
    /// A shell command that succeeds on a good machine.
    Command(String),
    /// It needs no GPU.
    None,
}

/// A program of ours for the machine; it goes over the wire only if another one or none is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    pub from: PathBuf,
    pub to: String,
}

/// How long each stage may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
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
    pub settling: Duration,
}

impl Limits {
    /// No visit takes longer: what must hold for a deadline around all of it.
    pub fn sum(&self) -> Duration {
        let way = self.port + self.host_key + self.login + self.marker;
        way + self.mount
            + self.gpu
            + self.dependencies
            + self.upload
            + self.start
            + self.started
            + FAREWELL_MAX
    }
}

/// A machine that does not take our leave is left all the same.
pub(super) const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A round trip or two over a bad line, on a machine that still boots.
const ANSWER_MAX: Duration = Duration::from_secs(20);

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            port: ANSWER_MAX,
            host_key: ANSWER_MAX,
            login: ANSWER_MAX,
            marker: ANSWER_MAX,
            // The first look into a network volume may wait for its server.
            mount: Duration::from_secs(60),
            // A cold driver takes half a minute with eight GPUs.
            gpu: Duration::from_secs(120),
            dependencies: Duration::from_secs(900),
            // 100 MB at 200 kB/s.
            upload: Duration::from_secs(500),
            start: ANSWER_MAX,
            started: ANSWER_MAX,
            settling: Duration::from_secs(2),
        }
    }
}
