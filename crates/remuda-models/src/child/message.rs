//! What a pool and the process of a copy tell each other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::failure::{InferenceError, LoadError};
use crate::request::{AnswerUpdate, PartAnswer, RequestPart};
use crate::spec::ModelSpec;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToChild {
    /// Always the first frame, and sent once.
    Load(ModelSpec),
    Work {
        run: u64,
        parts: Vec<Arc<RequestPart>>,
    },
    Stop {
        run: u64,
    },
    Ping {
        nonce: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromChild {
    Loaded,
    NotLoaded(LoadError),
    Update { run: u64, update: AnswerUpdate },
    Done { run: u64, outcome: Result<Vec<PartAnswer>, InferenceError> },
    Pong { nonce: u64, steps: u64 },
    Panicked(String),
}
