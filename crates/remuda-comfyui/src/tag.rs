//! The tag in a prompt's `extra_data`, which ComfyUI stores unchanged. After a restart an agent finds its prompts by it.

use std::collections::BTreeMap;

use remuda_core::id::{Attempt, JobId, WorkerId};
use serde::{Deserialize, Serialize};

use super::json::{self, JsonMembers};
use super::prompt_node::PromptNode;

/// The key in `extra_data`.
pub(super) const TAG: &str = "remuda";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTag {
    pub worker: WorkerId,
    pub job: JobId,
    pub attempt: Attempt,
}

/// One of our prompts in the server's queue or history.
#[derive(Clone, Debug, PartialEq)]
pub struct TaggedPrompt {
    pub id: String,
    pub job: JobId,
    pub attempt: Attempt,
    pub phase: PromptPhase,
    /// Its nodes, to follow its progress; empty once it has ended.
    pub nodes: BTreeMap<String, PromptNode>,
}

impl TaggedPrompt {
    pub(super) fn new(
        id: &str,
        tag: &PromptTag,
        phase: PromptPhase,
        nodes: BTreeMap<String, PromptNode>,
    ) -> Self {
        TaggedPrompt { id: id.to_owned(), job: tag.job, attempt: tag.attempt, phase, nodes }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPhase {
    Running,
    Pending,
    Ended,
}

/// Our tag in `extra_data`, if it is present and valid. Other clients may write anything there.
#[derive(Debug, Default)]
pub(super) struct Extra {
    pub(super) tag: Option<PromptTag>,
}

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members: JsonMembers<Box<serde_json::value::RawValue>> = JsonMembers::deserialize(deserializer)?;
        let ours = members.0.iter().find(|(key, _)| key == TAG);
        Ok(Extra { tag: ours.and_then(|(_, tag)| json::parse(tag.get().as_bytes()).ok()) })
    }
}
