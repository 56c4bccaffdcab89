//! The errors of this crate: loading a model, computing an answer, calling the pool.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::beacon::Stopped;
use crate::spec::{Capability, Device};

/// Why a model cannot be loaded. Every message says what, where and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum LoadError {
    #[error("{path}: no {what} found here{hint}", path = path.display())]
    Missing { path: PathBuf, what: String, hint: String },
    #[error("{path}: truncated: {detail}; download it again", path = path.display())]
    Truncated { path: PathBuf, detail: String },
    #[error("{path}: invalid: {detail}", path = path.display())]
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
    #[error("stopped on request")]
    Stopped,
}

impl From<Stopped> for LoadError {
    fn from(_: Stopped) -> Self {
        LoadError::Stopped
    }
}

/// Why a copy could not answer a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum InferenceError {
    #[error("stopped on request")]
    Stopped,
    /// The input is at fault: every copy would fail on it.
    #[error("{0}")]
    Input(String),
    /// The copy is healthy; a copy with more free memory may succeed.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The copy's later answers cannot be trusted, so it has to end.
    #[error("the engine can no longer be used: {0}")]
    Poisoned(String),
}

impl From<Stopped> for InferenceError {
    fn from(_: Stopped) -> Self {
        InferenceError::Stopped
    }
}

/// Why a caller gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model called {model}; there are: {known}")]
    UnknownModel { model: String, known: String },
    #[error("{model} is a model for {can}, not for {asked}")]
    WrongCapability { model: String, can: Capability, asked: Capability },
    #[error("{0}")]
    Input(String),
    #[error("the queue of {model} is full: try again in {} ms", retry_after.as_millis())]
    Full { model: String, retry_after: Duration },
    #[error("no copy of {model} can answer: {why}")]
    NoWorkers { model: String, why: String },
    #[error("{model} did not answer before the deadline")]
    Deadline { model: String },
    #[error("cancelled")]
    Cancelled,
    #[error("{model}: {failure}")]
    Failed { model: String, failure: InferenceError },
    /// Part of the first text was already streamed to the caller, so the answer cannot be repaired.
    #[error(
        "{model}: the copy ended while it streamed, and a second copy generated a different text; send the request again"
    )]
    Diverged { model: String },
    #[error("the pool is closing")]
    Closing,
}
