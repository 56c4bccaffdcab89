//! Translates the messages of a ComfyUI server about one run into messages for the client that submitted it.
//!

use std::collections::{BTreeSet, VecDeque};

use axum::extract::ws::Message;
use remuda_comfyui::outputs::{self, OutputFile};
use remuda_comfyui::restore::attempt_folder;
use remuda_core::id::{Attempt, JobId, Tenant};
use remuda_core::wire::live::PROGRESS_TEXT;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::history_entry::StoredOutput;
use super::output_names::{JobNames, ServerFile};

/// Messages held back for a file. Beyond the limit they are dropped; the final messages report every missing output.
const HELD_MAX: usize = 4096;
const HELD_BYTES_MAX: usize = 4 << 20;

/// A message for a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClientMessage {
    pub(super) kind: String,
    pub(super) data: Value,
}

impl ClientMessage {
    pub(super) fn new(kind: &str, data: Value) -> ClientMessage {
        ClientMessage { kind: kind.to_owned(), data }
    }

    /// True if the next message of this kind supersedes it.
    pub(super) fn is_droppable(&self) -> bool {
        matches!(&*self.kind, "progress" | "progress_state" | PROGRESS_TEXT)
    }

    /// The frame in which ComfyUI sends it: a text of a node is binary, `[3][length][node][text]`.
    pub(super) fn to_frame(&self) -> Message {
        if self.kind != PROGRESS_TEXT {
            return Message::Text(self.to_json().into());
        }
        let part = |key: &str| self.data[key].as_str().unwrap_or_default();
        let length = u32::try_from(part("node").len()).unwrap_or(0);
        let frame = [
            &3_u32.to_be_bytes()[..],
            &length.to_be_bytes(),
            part("node").as_bytes(),
            part("text").as_bytes(),
        ];
        Message::Binary(frame.concat().into())
    }

    pub(super) fn to_json(&self) -> String {
        json!({ "type": self.kind, "data": self.data }).to_string()
    }
}

#[derive(Debug)]
pub(super) struct RunTranslator {
    pub(super) job: JobId,
    pub(super) tenant: Tenant,
    pub(super) client: Option<String>,
    pub(super) prompt: String,
    pub(super) attempt: u32,
    /// `execution_start` was sent for this attempt.
    pub(super) has_started: bool,
    /// The last `executing` message.
    pub(super) executing: Option<Value>,
    /// Nodes that were executed before the one that is executed now.
    pub(super) executed_nodes: BTreeSet<String>,
    /// Nodes whose outputs were sent.
    pub(super) reported_nodes: BTreeSet<String>,
    /// The last error or interruption that the service reported.
    pub(super) final_error: Option<Map<String, Value>>,
    /// Its outputs get names as in ComfyUI; those given so far.
    pub(super) is_named: bool,
    pub(super) names: JobNames,
    /// Nodes that send their results as images; `None` until they are looked up.
    pub(super) websocket_nodes: Option<BTreeSet<String>>,
    held: VecDeque<ClientMessage>,
    held_bytes: usize,
}

impl RunTranslator {
    pub(super) fn new(
        job: JobId,
        tenant: Tenant,
        metadata: &Map<String, Value>,
        attempt: u32,
    ) -> RunTranslator {
        RunTranslator {
            job,
            tenant,
            client: super::prompt::client_id(metadata),
            prompt: super::prompt::prompt_id(job, metadata),
            attempt,
            has_started: false,
            executing: None,
            executed_nodes: BTreeSet::new(),
            reported_nodes: BTreeSet::new(),
            final_error: None,
            is_named: super::prompt::is_named(metadata),
            names: JobNames::default(),
            websocket_nodes: None,
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }

    /// Another attempt started: forget the messages of the previous one.
    pub(super) fn start_attempt(&mut self, attempt: u32) {
        if attempt != self.attempt {
            self.attempt = attempt;
            self.has_started = false;
            self.executing = None;
            self.executed_nodes.clear();
            self.reported_nodes.clear();
            self.final_error = None;
            self.held.clear();
            self.held_bytes = 0;
        }
    }

    /// Accepts a message `{"type", "data"}` of the service.
    pub(super) fn accept(&mut self, message: &Value) {
        let (Some(kind), Some(data)) = (message["type"].as_str(), message["data"].as_object()) else {
            return;
        };
        let mut data = data.clone();
        match kind {
            "status" | "execution_success" | "feature_flags" | "logs" => return,
            "execution_interrupted" => {
                self.final_error = Some(data);
                return;
            }
            // A blocked node reports an error and the run continues; every other error ends the run.
            "execution_error" if data.get("exception_type") != Some(&json!("ExecutionBlocked")) => {
                let folder = format!("{}/", attempt_folder(self.job, Attempt(self.attempt)));
                data.get_mut("current_inputs").into_iter().for_each(|inputs| remove_folder(inputs, &folder));
                self.final_error = Some(data);
                return;
            }
            "executing" if data.get("node").is_none_or(Value::is_null) => return,
            _ => {}
        }
        self.replace_prompt_ids(&mut data);
        if !self.has_started && self.held.is_empty() && kind != "execution_start" {
            self.hold(self.start_message(data.get("timestamp")));
        }
        self.has_started = true;
        self.hold(ClientMessage::new(kind, Value::Object(data)));
    }

    /// A single message is held regardless of its size.
    fn hold(&mut self, message: ClientMessage) {
        let size = message.to_json().len();
        let has_room = self.held.len() < HELD_MAX && self.held_bytes + size <= HELD_BYTES_MAX;
        if has_room || self.held.is_empty() {
            self.held_bytes += size;
            self.held.push_back(message);
        }
    }

    /// Replaces the service's prompt id by the client's, also inside node entries.
    fn replace_prompt_ids(&self, data: &mut Map<String, Value>) {
        if let Some(id) = data.get_mut("prompt_id") {
            *id = self.prompt.as_str().into();
        }
        let nodes = data.get_mut("nodes").and_then(Value::as_object_mut);
        for node in nodes.into_iter().flat_map(|nodes| nodes.values_mut()) {
            if let Some(id) = node.get_mut("prompt_id") {
                *id = self.prompt.as_str().into();
            }
        }
    }

    fn start_message(&self, timestamp: Option<&Value>) -> ClientMessage {
        let timestamp = timestamp.cloned().unwrap_or_default();
        ClientMessage::new("execution_start", json!({ "prompt_id": self.prompt, "timestamp": timestamp }))
    }

    /// Messages that can be sent now that these outputs are stored.
    pub(super) fn take_ready(&mut self, stored: &[StoredOutput]) -> Vec<ClientMessage> {
        let mut ready = Vec::new();
        while let Some(message) = self.held.front() {
            if message.kind == "executed" && !files_of(message).iter().all(|file| is_stored(file, stored)) {
                break;
            }
            self.held_bytes = self.held_bytes.saturating_sub(message.to_json().len());
            ready.extend(self.held.pop_front().map(|message| self.emit(message)));
        }
        ready
    }

    /// Messages still held when the run ended; outputs only if it succeeded.
    pub(super) fn take_held(&mut self, is_success: bool) -> Vec<ClientMessage> {
        let held: Vec<ClientMessage> = self.held.drain(..).collect();
        self.held_bytes = 0;
        let messages = held.into_iter().filter(|message| is_success || message.kind != "executed");
        messages.map(|message| self.emit(message)).collect()
    }

    fn emit(&mut self, mut message: ClientMessage) -> ClientMessage {
        match &*message.kind {
            "executing" => {
                let before = self.executing.replace(message.data.clone());
                self.executed_nodes.extend(before.and_then(|data| data["node"].as_str().map(str::to_owned)));
            }
            "executed" => {
                let files = files_of(&message);
                if let Some(node) = message.data["node"].as_str() {
                    self.reported_nodes.insert(node.to_owned());
                }
                if let Some(output) = message.data.get_mut("output") {
                    rename_files(output, &files, self.job, &self.names);
                }
            }
            _ => {}
        }
        message
    }
}

/// Removes the attempt's folder from all texts: it was put before every `filename_prefix`.
fn remove_folder(value: &mut Value, folder: &str) {
    match value {
        Value::String(text) if text.starts_with(folder) => *text = text.split_off(folder.len()),
        Value::Array(items) => items.iter_mut().for_each(|item| remove_folder(item, folder)),
        Value::Object(members) => members.values_mut().for_each(|member| remove_folder(member, folder)),
        _ => {}
    }
}

/// Files that a message of a service names, as they will be stored.
pub(super) fn reported_outputs(message: &Value) -> Vec<StoredOutput> {
    if message["type"] != "executed" {
        return Vec::new();
    }
    let files = files_of(&ClientMessage::new("executed", message["data"].clone()));
    let outputs = files.into_iter().map(|file| StoredOutput {
        name: file.display_name(),
        folder: file.display_folder(),
        node: file.node,
        key: file.key,
        kind: file.kind,
        hash: String::new(),
    });
    outputs.collect()
}

/// Files named by an `executed` message.
fn files_of(message: &ClientMessage) -> Vec<OutputFile> {
    let node = message.data["node"].as_str().unwrap_or_default();
    let outputs = json!({ node: message.data["output"] });
    to_raw_value(&outputs).map(|raw| outputs::files(&raw)).unwrap_or_default()
}

fn is_stored(file: &OutputFile, stored: &[StoredOutput]) -> bool {
    stored.iter().any(|it| it.node == file.node && it.key == file.key && it.name == file.display_name())
}

/// Renames files to the names by which `/view` finds them; other fields stay.
fn rename_files(output: &mut Value, files: &[OutputFile], job: JobId, names: &JobNames) {
    let lists = output.as_object_mut().into_iter().flatten();
    for (key, list) in lists {
        let mut files = files.iter().filter(|file| file.key == *key);
        let items: Vec<&mut Value> = match list {
            Value::Array(items) => items.iter_mut().collect(),
            one => vec![one],
        };
        for item in
            items.into_iter().filter(|item| item["filename"].as_str().is_some_and(|it| !it.is_empty()))
        {
            let (Some(file), Some(fields)) = (files.next(), item.as_object_mut()) else { continue };
            let server_file =
                ServerFile { node: file.node.clone(), key: file.key.clone(), name: file.display_name() };
            if let Value::Object(named) = names.file_ref(job, &server_file, &file.kind) {
                fields.extend(named);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunTranslator {
        let metadata = json!({"client_id": "c", "prompt_id": "p"}).as_object().unwrap().clone();
        RunTranslator::new(JobId::from_u128(7), "t".parse().unwrap(), &metadata, 1)
    }

    fn kinds(messages: &[ClientMessage]) -> Vec<&str> {
        messages.iter().map(|message| &*message.kind).collect()
    }

    fn service_message(kind: &str, data: &Value) -> Value {
        json!({"type": kind, "data": data})
    }

    fn executed_with_file() -> Value {
        let file =
            json!({"filename": "x_1.png", "subfolder": "remuda/1-1", "type": "output", "format": "png"});
        service_message(
            "executed",
            &json!({"node": "3", "output": {"images": [file], "animated": [false]}, "prompt_id": "s"}),
        )
    }

    #[test]
    fn file_is_reported_once_stored_and_nothing_overtakes_it() {
        let mut run = run();
        for message in [
            service_message("execution_start", &json!({"prompt_id": "s", "timestamp": 1})),
            service_message("executing", &json!({"node": "3", "prompt_id": "s"})),
            executed_with_file(),
            service_message(
                "progress_state",
                &json!({"prompt_id": "s", "nodes": {"3": {"prompt_id": "s", "value": 1}}}),
            ),
            service_message("execution_success", &json!({"prompt_id": "s"})),
            service_message("executing", &json!({"node": null, "prompt_id": "s"})),
        ] {
            run.accept(&message);
        }
        let first = run.take_ready(&[]);
        assert_eq!(kinds(&first), ["execution_start", "executing"]);
        assert_eq!(first[1].data, json!({"node": "3", "prompt_id": "p"}));
        let stored: StoredOutput = serde_json::from_value(
            json!({"node": "3", "key": "images", "name": "x_1.png", "type": "output", "hash": "h"}),
        )
        .unwrap();
        let then = run.take_ready(&[stored]);
        assert_eq!(kinds(&then), ["executed", "progress_state"]);
        let file = &then[0].data["output"]["images"][0];
        assert_eq!(file["subfolder"], format!("{}/3", run.job));
        assert_eq!((&file["filename"], &file["format"]), (&json!("x_1.png"), &json!("png")));
        assert_eq!(then[1].data["nodes"]["3"]["prompt_id"], "p");
        assert!(run.take_held(true).is_empty());
    }

    #[test]
    fn error_is_held_until_the_end_unless_the_run_continues() {
        let mut run = run();
        run.accept(&service_message(
            "execution_error",
            &json!({"exception_type": "ExecutionBlocked", "prompt_id": "s"}),
        ));
        assert!(run.final_error.is_none());
        assert_eq!(kinds(&run.take_ready(&[])), ["execution_start", "execution_error"]);
        run.accept(&executed_with_file());
        run.accept(&service_message(
            "execution_error",
            &json!({"exception_type": "ValueError", "prompt_id": "s", "current_inputs": {
                "filename_prefix": [format!("{}/cats/x", attempt_folder(run.job, Attempt(1)))], "other": [1, "remuda/x"],
            }}),
        ));
        let inputs = &run.final_error.as_ref().unwrap()["current_inputs"];
        assert_eq!(
            *inputs,
            json!({"filename_prefix": ["cats/x"], "other": [1, "remuda/x"]}),
            "as it was submitted"
        );
        assert_eq!(run.final_error.as_ref().unwrap()["exception_type"], "ValueError");
        assert!(run.take_held(false).is_empty(), "files of a failed run are not stored");
    }

    /// Faults: X7.
    #[test]
    fn messages_held_for_a_file_are_bounded() {
        let mut run = run();
        run.accept(&executed_with_file());
        for _ in 0..HELD_MAX * 2 {
            run.accept(&service_message("executing", &json!({"node": "1", "prompt_id": "s"})));
        }
        assert_eq!(run.held.len(), HELD_MAX);
        assert_eq!((run.take_held(true).len(), run.held_bytes), (HELD_MAX, 0));
        run.accept(&executed_with_file());
        for _ in 0..20 {
            run.accept(&service_message(
                "executed",
                &json!({"node": "4", "output": {"text": ["x".repeat(1 << 20)]}}),
            ));
        }
        assert_eq!(run.held.len(), 1 + (HELD_BYTES_MAX >> 20) - 1, "the rest is reported at the end");
        assert!(run.take_ready(&[]).is_empty());
        let large = json!({"node": "4", "output": {"text": ["x".repeat(8 << 20)]}});
        run.start_attempt(2);
        run.has_started = true;
        run.accept(&service_message("executed", &large));
        assert_eq!(
            (run.take_ready(&[]).len(), run.held_bytes),
            (1, 0),
            "a message that need not wait is sent"
        );
    }

    #[test]
    fn next_attempt_starts_with_empty_state() {
        let mut run = run();
        run.accept(&service_message("executing", &json!({"node": "1", "prompt_id": "s"})));
        run.accept(&service_message("executing", &json!({"node": "2", "prompt_id": "s"})));
        assert_eq!(kinds(&run.take_ready(&[])), ["execution_start", "executing", "executing"]);
        assert_eq!(run.executed_nodes, BTreeSet::from(["1".to_owned()]), "the second is at work");
        run.accept(&executed_with_file());
        run.start_attempt(2);
        assert!(run.executing.is_none() && run.executed_nodes.is_empty() && run.take_ready(&[]).is_empty());
        run.accept(&service_message("execution_start", &json!({"prompt_id": "s2"})));
        assert_eq!(kinds(&run.take_ready(&[])), ["execution_start"]);
    }

    #[test]
    fn text_of_a_node_is_a_binary_frame() {
        let mut run = run();
        run.accept(&service_message(PROGRESS_TEXT, &json!({"node": "12", "text": "höhe"})));
        let messages = run.take_ready(&[]);
        assert_eq!(kinds(&messages), ["execution_start", PROGRESS_TEXT]);
        let Message::Binary(frame) = messages[1].to_frame() else { panic!() };
        assert_eq!(frame[..], ["\0\0\0\u{3}\0\0\0\u{2}12", "höhe"].concat().into_bytes());
        assert!(matches!(messages[0].to_frame(), Message::Text(_)));
    }
}
