//! Why there is no model, and why there is no answer.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::beacon::Stopped;
use crate::spec::{Capability, Device};

/// Why a model cannot be loaded. Each says what, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum LoadError {
    #[error("{path}: there is no {what} here{hint}", path = path.display())]
    Missing { path: PathBuf, what: String, hint: String },
    #[error("{path}: cut short: {detail}; fetch it again", path = path.display())]
    Truncated { path: PathBuf, detail: String },
    #[error("{path}: not what it should be: {detail}", path = path.display())]
    Wrong { path: PathBuf, detail: String },
    #[error("{path}: not supported: {what}{hint}", path = path.display())]
    Unsupported { path: PathBuf, what: String, hint: String },
    #[error(
        "{path}: a Python pickle, which runs code when it is read; convert it to safetensors, GGUF or ONNX",
        path = path.display()
    )]
    Pickle { path: PathBuf },
    #[error("{need_bytes} bytes of memory are needed and {free_bytes} are free: {hint}")]
    Memory { need_bytes: u64, free_bytes: u64, hint: String },
    #[error("{device} cannot be used: {why}")]
    Device { device: Device, why: String },
    #[error("the engine failed: {0}")]
    Engine(String),
    #[error("told to stop")]
    Stopped,
}

impl From<Stopped> for LoadError {
    fn from(_: Stopped) -> Self {
        LoadError::Stopped
    }
}

/// Why a copy has no answer to what it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum InferenceError {
    #[error("told to stop")]
    Stopped,
    /// It would fail everywhere.
    #[error("{0}")]
    Input(String),
    /// The copy is well, and another with more room may manage.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("the engine failed: {0}")]
    Engine(String),
    /// Nothing that this copy says from here on is worth anything: it ends.
    #[error("the engine can no longer be used: {0}")]
    Poisoned(String),
}

impl From<Stopped> for InferenceError {
    fn from(_: Stopped) -> Self {
        InferenceError::Stopped
    }
}

/// Why a caller has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model called {model}; there are: {known}")]
    UnknownModel { model: String, known: String },
    #[error("{model} does {can}, not {asked}")]
    WrongCapability { model: String, can: Capability, asked: Capability },
    #[error("{0}")]
    Input(String),
    #[error("the queue of {model} is full: try again in {} ms", retry_after.as_millis())]
    Full { model: String, retry_after: Duration },
    #[error("no copy of {model} can answer: {why}")]
    NoWorkers { model: String, why: String },
    #[error("{model} gave no answer in time")]
    Deadline { model: String },
    #[error("cancelled")]
    Cancelled,
    #[error("{model}: {failure}")]
    Failed { model: String, failure: InferenceError },
    /// Words of it were given out already, so there is nothing to put right.
    #[error("{model} began the answer anew after its copy had ended, and it became another text: ask again")]
    Diverged { model: String },
    #[error("the pool is closing")]
    Closing,
}
