//! The note we leave in a prompt's `extra_data`, which ComfyUI keeps word for word: whose prompt it is. An agent that lost
//! its memory finds by it what it once handed in.

use remuda_core::id::{Attempt, JobId, WorkerId};
use serde::{Deserialize, Serialize};

use super::json::{self, Members};

/// The key in `extra_data`.
pub(super) const TAG: &str = "remuda";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    pub worker: WorkerId,
    pub job: JobId,
    pub attempt: Attempt,
}

/// A prompt of ours that the server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    pub id: String,
    pub job: JobId,
    pub attempt: Attempt,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Running,
    Pending,
    Ended,
}

/// What is read of `extra_data`: our tag, if it is there and sound. Others write there what they like.
#[derive(Debug, Default)]
pub(super) struct Extra {
    pub(super) tag: Option<Tag>,
}

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members: Members<Box<serde_json::value::RawValue>> = Members::deserialize(deserializer)?;
        let ours = members.0.iter().find(|(key, _)| key == TAG);
        Ok(Extra { tag: ours.and_then(|(_, tag)| json::read(tag.get().as_bytes()).ok()) })
    }
}
