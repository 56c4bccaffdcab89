//! Messages of the socket. They are only hints: messages are lost, repeated and late, and messages about other clients'
//! prompts arrive too.
//!
//! Text frames are `{"type", "data"}`. Binary frames begin with a type; all numbers are 32-bit big-endian:
//! `[1][format][image]`, `[4][length][metadata as JSON][image]`, `[3][length][node][text]`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::fault::NodeException;
use super::json::{self, JsonMembers, Text};
use remuda_net::text::one_line;

#[derive(Clone, Debug)]
pub enum ComfyuiMessage {
    /// Number of running and waiting prompts of all clients.
    Status {
        queue_remaining: u64,
    },
    Start {
        prompt: Text,
    },
    /// These nodes are answered from the cache.
    Cached {
        prompt: Text,
        nodes: Vec<String>,
    },
    /// `node` is `None` at the end of a prompt, successful or not. A client that connects late receives only the node.
    Executing {
        prompt: Text,
        node: Option<String>,
    },
    Progress {
        prompt: Text,
        node: Text,
        value: f64,
        max: f64,
    },
    /// All nodes that have started so far.
    ProgressState {
        prompt: Text,
        nodes: Vec<(String, NodeState)>,
    },
    /// A node produced output.
    Executed {
        prompt: Text,
        node: Text,
        output: Box<RawValue>,
    },
    /// Sent before the history entry exists.
    Success {
        prompt: Text,
    },
    /// Not always the end of the prompt: a blocked node reports it too.
    Error {
        prompt: Text,
        raised: NodeException,
    },
    Interrupted {
        prompt: Text,
    },
    Preview {
        prompt: Text,
        node: Text,
        mime: String,
        bytes: Vec<u8>,
    },
    /// A text that a node shows while it runs.
    Text {
        node: String,
        text: String,
    },
    /// An unknown type.
    Other {
        kind: String,
        prompt: Text,
    },
    /// A known type with unexpected content.
    Malformed,
}

/// A longer text of a node is cut.
const TEXT_BYTES_MAX: usize = 64 << 10;
const NODE_CHARS_MAX: usize = 200;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeState {
    pub value: f64,
    pub max: f64,
    pub is_finished: bool,
}

impl ComfyuiMessage {
    /// The id of the prompt, if the message names one.
    pub fn prompt(&self) -> Option<&str> {
        match self {
            ComfyuiMessage::Start { prompt }
            | ComfyuiMessage::Cached { prompt, .. }
            | ComfyuiMessage::Executing { prompt, .. }
            | ComfyuiMessage::Progress { prompt, .. }
            | ComfyuiMessage::ProgressState { prompt, .. }
            | ComfyuiMessage::Executed { prompt, .. }
            | ComfyuiMessage::Success { prompt }
            | ComfyuiMessage::Error { prompt, .. }
            | ComfyuiMessage::Interrupted { prompt }
            | ComfyuiMessage::Preview { prompt, .. }
            | ComfyuiMessage::Other { prompt, .. } => prompt.0.as_deref(),
            ComfyuiMessage::Status { .. } | ComfyuiMessage::Text { .. } | ComfyuiMessage::Malformed => None,
        }
    }

    /// Whether the message reports the end of this prompt. `execution_success` is sent before the history entry exists, this
    /// one after.
    pub fn is_end_of(&self, id: &str) -> bool {
        matches!(self, ComfyuiMessage::Executing { node: None, .. }) && self.prompt() == Some(id)
    }

    pub fn from_text(text: &str) -> ComfyuiMessage {
        let Ok(frame) = json::parse::<Frame>(text.as_bytes()) else { return ComfyuiMessage::Malformed };
        match frame.data {
            Some(data) => parse_frame(&frame.kind, &data).unwrap_or(ComfyuiMessage::Malformed),
            None => other(&frame.kind, Text(None)),
        }
    }

    pub fn from_binary(bytes: &[u8]) -> ComfyuiMessage {
        let Some((event, rest)) = number(bytes) else { return ComfyuiMessage::Malformed };
        let message = match event {
            1 => plain_preview(rest),
            3 => progress_text(rest),
            4 => preview(rest),
            _ => Some(other(&format!("binary {event}"), Text(None))),
        };
        message.unwrap_or(ComfyuiMessage::Malformed)
    }
}

#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

/// The fields of all message types; no two types use the same name for different things.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Data {
    prompt_id: Text,
    node: Text,
    value: Option<f64>,
    max: Option<f64>,
}

fn parse_frame(kind: &str, data: &RawValue) -> Option<ComfyuiMessage> {
    if kind == "status" {
        let status: StatusData = parse_data(data)?;
        return Some(ComfyuiMessage::Status { queue_remaining: status.status.exec_info.queue_remaining });
    }
    if !KINDS.contains(&kind) {
        let prompt = parse_data::<Data>(data).unwrap_or_default().prompt_id;
        return Some(other(kind, prompt));
    }
    let fields: Data = parse_data(data)?;
    let prompt = fields.prompt_id;
    Some(match kind {
        "execution_start" => ComfyuiMessage::Start { prompt },
        "execution_cached" => ComfyuiMessage::Cached { prompt, nodes: parse_data::<CachedData>(data)?.nodes },
        "executing" => ComfyuiMessage::Executing { prompt, node: fields.node.0 },
        "progress" => {
            ComfyuiMessage::Progress { prompt, node: fields.node, value: fields.value?, max: fields.max? }
        }
        "progress_state" => {
            let nodes = parse_data::<StateData>(data)?.nodes.0;
            let nodes = nodes.into_iter().map(|(id, node)| (id, node.into_state())).collect();
            ComfyuiMessage::ProgressState { prompt, nodes }
        }
        "executed" => ComfyuiMessage::Executed {
            prompt,
            node: fields.node,
            output: parse_data::<ExecutedData>(data)?.output,
        },
        "execution_success" => ComfyuiMessage::Success { prompt },
        "execution_error" => ComfyuiMessage::Error { prompt, raised: parse_data(data)? },
        "execution_interrupted" => ComfyuiMessage::Interrupted { prompt },
        _ => return None,
    })
}

fn other(kind: &str, prompt: Text) -> ComfyuiMessage {
    ComfyuiMessage::Other { kind: one_line(kind, 40), prompt }
}

const KINDS: [&str; 9] = [
    "execution_start",
    "execution_cached",
    "executing",
    "progress",
    "progress_state",
    "executed",
    "execution_success",
    "execution_error",
    "execution_interrupted",
];

fn parse_data<T: DeserializeOwned>(data: &RawValue) -> Option<T> {
    serde_json::from_str(data.get()).ok()
}

#[derive(Deserialize)]
struct StatusData {
    status: ExecStatus,
}

#[derive(Deserialize)]
struct ExecStatus {
    exec_info: ExecInfo,
}

#[derive(Deserialize)]
struct ExecInfo {
    queue_remaining: u64,
}

#[derive(Deserialize)]
struct CachedData {
    nodes: Vec<String>,
}

#[derive(Deserialize)]
struct ExecutedData {
    output: Box<RawValue>,
}

#[derive(Deserialize)]
struct StateData {
    nodes: JsonMembers<StateNode>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StateNode {
    value: Option<f64>,
    max: Option<f64>,
    state: Text,
}

impl StateNode {
    fn into_state(self) -> NodeState {
        NodeState {
            value: self.value.unwrap_or_default(),
            max: self.max.unwrap_or_default(),
            is_finished: self.state.0.as_deref() == Some("finished"),
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// Splits off a length-prefixed part.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes)?;
    rest.split_at_checked(length as usize)
}

fn plain_preview(bytes: &[u8]) -> Option<ComfyuiMessage> {
    let (format, image) = number(bytes)?;
    let mime = if format == 2 { "image/png" } else { "image/jpeg" };
    Some(ComfyuiMessage::Preview {
        prompt: Text(None),
        node: Text(None),
        mime: mime.to_owned(),
        bytes: image.to_vec(),
    })
}

fn preview(bytes: &[u8]) -> Option<ComfyuiMessage> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct PreviewMetadata {
        prompt_id: Text,
        node_id: Text,
        image_type: Text,
    }
    let (about, image) = sized(bytes)?;
    let about: PreviewMetadata = json::parse(about).ok()?;
    // The type becomes a header where previews are served, so only image types are passed on.
    let mime = about.image_type.0.filter(|mime| matches!(&**mime, "image/png" | "image/webp"));
    Some(ComfyuiMessage::Preview {
        prompt: about.prompt_id,
        node: about.node_id,
        mime: mime.unwrap_or_else(|| "image/jpeg".to_owned()),
        bytes: image.to_vec(),
    })
}

fn progress_text(bytes: &[u8]) -> Option<ComfyuiMessage> {
    let (node, text) = sized(bytes)?;
    let text = &text[..text.len().min(TEXT_BYTES_MAX)];
    Some(ComfyuiMessage::Text {
        node: one_line(&String::from_utf8_lossy(node), NODE_CHARS_MAX),
        text: String::from_utf8_lossy(text).into_owned(),
    })
}

#[cfg(test)]
mod tests;
