//! The messages of a run, to its client or to all clients, and the faults that suppress them.

use serde_json::{Value, json};

use super::super::faults::Fault;
use super::super::graph::Node;
use super::super::server::now_ms;
use super::run::Run;

impl Run {
    /// Sends a message to the client, unless a fault suppresses it.
    pub(super) fn tell(&self, kind: &str, data: &Value) {
        let faults = &self.item.faults;
        let is_end = matches!(kind, "executed" | "execution_success");
        let is_swallowed = faults.contains(&Fault::DropAllMessages)
            || (is_end && faults.contains(&Fault::DropCompletion))
            // Answered from a cache whose outputs are gone: no node runs, and none has anything to show.
            || (matches!(kind, "executing" | "executed") && faults.contains(&Fault::EmptyOutputs));
        if !self.is_silent && !is_swallowed {
            self.server.sockets.post(self.client.as_deref(), kind, data);
        }
    }

    pub(super) fn tell_binary(&self, frame: Vec<u8>) {
        if !self.is_silent && !self.item.faults.contains(&Fault::DropAllMessages) {
            self.server.sockets.post_binary(self.client.as_deref(), frame);
        }
    }

    /// Records a message for history, and sends it if there is a client or it concerns all clients.
    pub(super) fn note(&mut self, kind: &'static str, mut data: Value, is_for_all: bool) {
        data["timestamp"] = now_ms().into();
        if self.client.is_some() || is_for_all {
            self.tell(kind, &data);
        }
        self.messages.push((kind, data));
    }

    pub(super) fn tell_executed(&self, node: &str, output: &Value) {
        let data = json!({"node": node, "display_node": node, "output": output, "prompt_id": self.item.id});
        self.tell("executed", &data);
    }

    pub(super) fn tell_progress(&self) {
        if !self.is_silent {
            self.tell("progress_state", &self.progress.to_json(&self.item.id));
        }
    }

    /// A step of a node, perhaps with a preview.
    pub(in super::super) fn progress(
        &mut self,
        node: &Node,
        value: u64,
        max: u64,
        preview: Option<(&str, &[u8])>,
    ) {
        self.progress.update(&node.id, value, max);
        self.tell_progress();
        let has_metadata = self.server.sockets.has_preview_metadata(self.client.as_deref());
        if let Some((kind, bytes)) = preview.filter(|_| has_metadata) {
            let metadata = json!({
                "node_id": node.id, "prompt_id": self.item.id, "display_node_id": node.id, "parent_node_id": null,
                "real_node_id": node.id, "image_type": kind,
            });
            let metadata = metadata.to_string();
            self.tell_binary(frame(
                4,
                u32::try_from(metadata.len()).unwrap_or(0),
                metadata.as_bytes(),
                bytes,
            ));
        }
        let data = json!({"value": value, "max": max, "prompt_id": self.item.id, "node": node.id});
        self.tell("progress", &data);
        if let Some((kind, bytes)) = preview.filter(|_| !has_metadata) {
            self.tell_binary(frame(1, if kind == "image/png" { 2 } else { 1 }, &[], bytes));
        }
    }

    pub(in super::super) fn progress_text(&self, node: &Node, text: &str) {
        let length = u32::try_from(node.id.len()).unwrap_or(0);
        self.tell_binary(frame(3, length, node.id.as_bytes(), text.as_bytes()));
    }
}

/// `[event][number][head][body]`, with 32-bit big-endian numbers.
pub(super) fn frame(event: u32, number: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + head.len() + body.len());
    frame.extend(event.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend(head);
    frame.extend(body);
    frame
}
