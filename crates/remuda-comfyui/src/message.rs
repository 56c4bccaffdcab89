//! What the socket says, one message at a time. All of it is a hint: messages are lost, doubled and late, and those of
//! other people's prompts come along too.
//!
//! Text frames are `{"type", "data"}`. Binary frames begin with a number, all numbers being 32 bits, big end first:
//! `[1][format][image]`, `[4][length][about it, as JSON][image]`, `[3][length][node][text]`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::fault::Raised;
use super::json::{self, Members, Text};
use remuda_net::text::one_line;

#[derive(Clone, Debug)]
pub enum Message {
    /// How many prompts run or wait, of everybody.
    Status {
        queue_remaining: u64,
    },
    Start {
        prompt: Text,
    },
    /// These nodes need not run.
    Cached {
        prompt: Text,
        nodes: Vec<String>,
    },
    /// `node` is none at the end, whatever the end was. Whoever connects late is told the node alone.
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
    /// All nodes that were begun so far.
    ProgressState {
        prompt: Text,
        nodes: Vec<(String, NodeState)>,
    },
    /// A node put something out.
    Executed {
        prompt: Text,
        node: Text,
        output: Box<RawValue>,
    },
    /// Sent before history is written.
    Success {
        prompt: Text,
    },
    /// Not always the end: a blocked node says so too.
    Error {
        prompt: Text,
        raised: Raised,
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
    Text {
        node: String,
        text: String,
    },
    /// Of a kind that means nothing to us.
    Other {
        kind: String,
        prompt: Text,
    },
    /// Of a kind we know, and not as we know it.
    Malformed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeState {
    pub value: f64,
    pub max: f64,
    pub is_finished: bool,
}

impl Message {
    /// Whose prompt it is about, if it says so.
    pub fn prompt(&self) -> Option<&str> {
        match self {
            Message::Start { prompt }
            | Message::Cached { prompt, .. }
            | Message::Executing { prompt, .. }
            | Message::Progress { prompt, .. }
            | Message::ProgressState { prompt, .. }
            | Message::Executed { prompt, .. }
            | Message::Success { prompt }
            | Message::Error { prompt, .. }
            | Message::Interrupted { prompt }
            | Message::Preview { prompt, .. }
            | Message::Other { prompt, .. } => prompt.0.as_deref(),
            Message::Status { .. } | Message::Text { .. } | Message::Malformed => None,
        }
    }

    /// Whether it says that this prompt is over. `execution_success` comes before history is written, this one after.
    pub fn is_end_of(&self, id: &str) -> bool {
        matches!(self, Message::Executing { node: None, .. }) && self.prompt() == Some(id)
    }

    pub fn of_text(text: &str) -> Message {
        let Ok(frame) = json::read::<Frame>(text.as_bytes()) else { return Message::Malformed };
        match frame.data {
            Some(data) => of_frame(&frame.kind, &data).unwrap_or(Message::Malformed),
            None => other(&frame.kind, Text(None)),
        }
    }

    pub fn of_binary(bytes: &[u8]) -> Message {
        let Some((event, rest)) = number(bytes) else { return Message::Malformed };
        let message = match event {
            1 => plain_preview(rest),
            3 => progress_text(rest),
            4 => preview(rest),
            _ => Some(other(&format!("binary {event}"), Text(None))),
        };
        message.unwrap_or(Message::Malformed)
    }
}

#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

/// The fields of all kinds of messages; no two kinds use one word for different things.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Data {
    prompt_id: Text,
    node: Text,
    value: Option<f64>,
    max: Option<f64>,
}

fn of_frame(kind: &str, data: &RawValue) -> Option<Message> {
    if kind == "status" {
        let status: StatusData = of(data)?;
        return Some(Message::Status { queue_remaining: status.status.exec_info.queue_remaining });
    }
    if !KINDS.contains(&kind) {
        let prompt = of::<Data>(data).unwrap_or_default().prompt_id;
        return Some(other(kind, prompt));
    }
    let fields: Data = of(data)?;
    let prompt = fields.prompt_id;
    Some(match kind {
        "execution_start" => Message::Start { prompt },
        "execution_cached" => Message::Cached { prompt, nodes: of::<CachedData>(data)?.nodes },
        "executing" => Message::Executing { prompt, node: fields.node.0 },
        "progress" => Message::Progress { prompt, node: fields.node, value: fields.value?, max: fields.max? },
        "progress_state" => {
            let nodes = of::<StateData>(data)?.nodes.0;
            let nodes = nodes.into_iter().map(|(id, node)| (id, node.read())).collect();
            Message::ProgressState { prompt, nodes }
        }
        "executed" => {
            Message::Executed { prompt, node: fields.node, output: of::<ExecutedData>(data)?.output }
        }
        "execution_success" => Message::Success { prompt },
        "execution_error" => Message::Error { prompt, raised: of(data)? },
        "execution_interrupted" => Message::Interrupted { prompt },
        _ => return None,
    })
}

fn other(kind: &str, prompt: Text) -> Message {
    Message::Other { kind: one_line(kind, 40), prompt }
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

fn of<T: DeserializeOwned>(data: &RawValue) -> Option<T> {
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
    nodes: Members<StateNode>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StateNode {
    value: Option<f64>,
    max: Option<f64>,
    state: Text,
}

impl StateNode {
    fn read(self) -> NodeState {
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

/// A length, so many bytes, and the rest.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = number(bytes)?;
    rest.split_at_checked(length as usize)
}

fn plain_preview(bytes: &[u8]) -> Option<Message> {
    let (format, image) = number(bytes)?;
    let mime = if format == 2 { "image/png" } else { "image/jpeg" };
    Some(Message::Preview {
        prompt: Text(None),
        node: Text(None),
        mime: mime.to_owned(),
        bytes: image.to_vec(),
    })
}

fn preview(bytes: &[u8]) -> Option<Message> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct About {
        prompt_id: Text,
        node_id: Text,
        image_type: Text,
    }
    let (about, image) = sized(bytes)?;
    let about: About = json::read(about).ok()?;
    // It becomes a header where previews are served: nothing but a picture may be announced there.
    let mime = about.image_type.0.filter(|mime| matches!(&**mime, "image/png" | "image/webp"));
    Some(Message::Preview {
        prompt: about.prompt_id,
        node: about.node_id,
        mime: mime.unwrap_or_else(|| "image/jpeg".to_owned()),
        bytes: image.to_vec(),
    })
}

fn progress_text(bytes: &[u8]) -> Option<Message> {
    let (node, text) = sized(bytes)?;
    let text = String::from_utf8_lossy(text);
    Some(Message::Text { node: String::from_utf8_lossy(node).into_owned(), text: one_line(&text, 500) })
}

#[cfg(test)]
mod tests;
