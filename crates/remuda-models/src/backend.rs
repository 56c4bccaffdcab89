//! Engines: what can read a model's files, load them and prepare requests for them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::beacon::Beacon;
use crate::failure::{LoadError, ModelError};
use crate::model::LoadedModel;
use crate::request::{ModelRequest, RequestPart};
use crate::spec::{Capability, Device, Isolation, ModelSpec};

/// What an engine found at a model's path. Only names and headers were read for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelInfo {
    pub engine: &'static str,
    pub capability: Capability,
    /// Such as `bert` or `llama`, with what tells it from its siblings.
    pub architecture: String,
    pub files: Vec<PathBuf>,
    /// What its copies compute on.
    pub device: Device,
    /// What that device has, if it is not the machine's own memory.
    pub device_bytes: Option<u64>,
    /// What a copy of it takes once it is loaded and at work, of its device's memory.
    pub memory_bytes: u64,
    /// What its copies had better run in.
    pub isolation: Isolation,
    /// What somebody who uses it should know: a slow quantisation, a truncation, a missing file that is not needed.
    pub notes: Vec<String>,
}

impl ModelInfo {
    /// As it was asked for, or why not.
    fn on(self, spec: &ModelSpec) -> Result<Self, LoadError> {
        let Some(device) = spec.device.filter(|device| *device != self.device) else { return Ok(self) };
        let hint = match cfg!(feature = "cuda") {
            true => format!("; its engine, {}, computes on CPUs only", self.engine),
            false => "; this build computes on CPUs only, and one with the feature cuda on NVIDIA cards, too"
                .to_owned(),
        };
        let what = format!("{} on {device}", self.capability);
        Err(LoadError::Unsupported { path: spec.path.clone(), what, hint })
    }
}

pub trait Backend: Send + Sync + fmt::Debug {
    fn name(&self) -> &'static str;

    /// What lies at the model's path, or nothing if it is not for this engine. An error if it is, and cannot be used.
    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError>;

    /// Reads the model into memory, stepping the beacon as it goes.
    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError>;

    /// What prepares requests for it, on their callers' threads.
    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError>;

    /// How much a copy is given at once; as the pool has it if the engine does not mind.
    fn batching(&self, _spec: &ModelSpec) -> Option<Batching> {
        None
    }

    /// For how long the beacon of a copy at work may stand still; as the pool has it if the engine does not know.
    fn stall_max(&self, _spec: &ModelSpec) -> Option<Duration> {
        None
    }
}

/// How much is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    pub tokens_max: usize,
    pub parts_max: usize,
    /// It makes all texts of a batch as long as the longest, so it is given texts of similar lengths.
    pub pads: bool,
}

impl Batching {
    pub fn packed(tokens_max: usize) -> Self {
        Batching { tokens_max, parts_max: 64, pads: false }
    }
}

/// Turns requests into parts. Shared by all callers; what is slow and needs no model belongs here.
pub trait Prepare: Send + Sync {
    /// Refuses with [`ModelError::Input`] what the model could not answer.
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError>;

    /// The question by which a copy proves itself; the same copy of the same files always answers it alike.
    fn golden(&self) -> RequestPart;
}

/// The engines there are; the first that finds something at a path has it.
#[derive(Clone, Debug, Default)]
pub struct Engines(Vec<Arc<dyn Backend>>);

impl Engines {
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.0.push(Arc::new(backend));
        self
    }

    /// Who can load it, and what it is.
    pub fn find(&self, spec: &ModelSpec) -> Result<(Arc<dyn Backend>, ModelInfo), LoadError> {
        if !spec.path.exists() {
            let what = "file or folder".to_owned();
            return Err(LoadError::Missing { path: spec.path.clone(), what, hint: String::new() });
        }
        for backend in &self.0 {
            if let Some(found) = backend.inspect(spec)? {
                return found.on(spec).map(|found| (Arc::clone(backend), found));
            }
        }
        let engines = self.0.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ");
        Err(LoadError::Unsupported {
            path: spec.path.clone(),
            what: "no engine knows what this is".to_owned(),
            hint: format!("; this build has {engines}"),
        })
    }
}
