//! What a service says of one run, made into what the client that submitted it should hear.
//!
//! The service speaks of its own ids and files; the client knows the prompt by another id, and files by names that every
//! server of the fleet keeps apart. Ends are not passed on: a run that failed may be tried again, and a run that succeeded
//! has ended only when its outputs are stored. What names a file waits until the file is there, and what was said after it
//! waits behind it.

use std::collections::{BTreeSet, VecDeque};

use remuda_comfyui::outputs::{self, File};
use remuda_core::id::{JobId, Tenant};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::history_entry::{self, Output};

/// What waits for a file. Beyond it nothing is told before the end, which tells every output that was not.
const HELD_MAX: usize = 4096;
const HELD_BYTES_MAX: usize = 4 << 20;

/// A message for a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word {
    pub(super) kind: String,
    pub(super) data: Value,
}

impl Word {
    pub(super) fn new(kind: &str, data: Value) -> Word {
        Word { kind: kind.to_owned(), data }
    }

    /// Whether the next one of its kind makes up for it.
    pub(super) fn is_light(&self) -> bool {
        matches!(&*self.kind, "progress" | "progress_state")
    }

    pub(super) fn text(&self) -> String {
        json!({ "type": self.kind, "data": self.data }).to_string()
    }
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) job: JobId,
    pub(super) tenant: Tenant,
    pub(super) client: Option<String>,
    pub(super) prompt: String,
    pub(super) attempt: u32,
    /// It was told that this attempt has begun.
    pub(super) has_begun: bool,
    /// The node that runs, as it was last told.
    pub(super) executing: Option<Value>,
    /// Nodes whose outputs were told.
    pub(super) told: BTreeSet<String>,
    /// What the service said last of a failure, or of being stopped.
    pub(super) last_words: Option<Map<String, Value>>,
    /// Nodes that send their results as pictures; nothing before anyone looked.
    pub(super) senders: Option<BTreeSet<String>>,
    held: VecDeque<Word>,
    held_bytes: usize,
}

impl Run {
    pub(super) fn new(job: JobId, tenant: Tenant, metadata: &Map<String, Value>, attempt: u32) -> Run {
        Run {
            job,
            tenant,
            client: super::prompt::client(metadata),
            prompt: super::prompt::id(job, metadata),
            attempt,
            has_begun: false,
            executing: None,
            told: BTreeSet::new(),
            last_words: None,
            senders: None,
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }

    /// Another attempt: what the last one said is of no more use.
    pub(super) fn begin(&mut self, attempt: u32) {
        if attempt != self.attempt {
            self.attempt = attempt;
            self.has_begun = false;
            self.executing = None;
            self.told.clear();
            self.last_words = None;
            self.held.clear();
            self.held_bytes = 0;
        }
    }

    /// Takes in a message `{"type", "data"}` of the service.
    pub(super) fn hear(&mut self, message: &Value) {
        let (Some(kind), Some(data)) = (message["type"].as_str(), message["data"].as_object()) else {
            return;
        };
        let mut data = data.clone();
        match kind {
            "status" | "execution_success" | "feature_flags" | "logs" => return,
            "execution_interrupted" => {
                self.last_words = Some(data);
                return;
            }
            // A node that bars the way says so and the run goes on; every other error is an end.
            "execution_error" if data.get("exception_type") != Some(&json!("ExecutionBlocked")) => {
                self.last_words = Some(data);
                return;
            }
            "executing" if data.get("node").is_none_or(Value::is_null) => return,
            _ => {}
        }
        self.rename(&mut data);
        if !self.has_begun && self.held.is_empty() && kind != "execution_start" {
            self.hold(self.start(data.get("timestamp")));
        }
        self.has_begun = true;
        self.hold(Word::new(kind, Value::Object(data)));
    }

    /// A word alone is held whatever its size.
    fn hold(&mut self, word: Word) {
        let size = word.text().len();
        let is_room = self.held.len() < HELD_MAX && self.held_bytes + size <= HELD_BYTES_MAX;
        if is_room || self.held.is_empty() {
            self.held_bytes += size;
            self.held.push_back(word);
        }
    }

    /// The service's id of the prompt becomes the client's, also where it stands with each node.
    fn rename(&self, data: &mut Map<String, Value>) {
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

    fn start(&self, timestamp: Option<&Value>) -> Word {
        let timestamp = timestamp.cloned().unwrap_or_default();
        Word::new("execution_start", json!({ "prompt_id": self.prompt, "timestamp": timestamp }))
    }

    /// What may be told now that these outputs are stored.
    pub(super) fn ready(&mut self, stored: &[Output]) -> Vec<Word> {
        let mut ready = Vec::new();
        while let Some(word) = self.held.front() {
            if word.kind == "executed" && !files(word).iter().all(|file| is_stored(file, stored)) {
                break;
            }
            self.held_bytes = self.held_bytes.saturating_sub(word.text().len());
            ready.extend(self.held.pop_front().map(|word| self.tell(word)));
        }
        ready
    }

    /// What was still held when the run ended; outputs only if it gave any.
    pub(super) fn rest(&mut self, is_success: bool) -> Vec<Word> {
        let held: Vec<Word> = self.held.drain(..).collect();
        self.held_bytes = 0;
        let told = held.into_iter().filter(|word| is_success || word.kind != "executed");
        told.map(|word| self.tell(word)).collect()
    }

    fn tell(&mut self, mut word: Word) -> Word {
        match &*word.kind {
            "executing" => self.executing = Some(word.data.clone()),
            "executed" => {
                let files = files(&word);
                if let Some(node) = word.data["node"].as_str() {
                    self.told.insert(node.to_owned());
                }
                if let Some(output) = word.data.get_mut("output") {
                    name_files(output, &files, self.job);
                }
            }
            _ => {}
        }
        word
    }
}

/// The files that an `executed` names.
fn files(word: &Word) -> Vec<File> {
    let node = word.data["node"].as_str().unwrap_or_default();
    let outputs = json!({ node: word.data["output"] });
    to_raw_value(&outputs).map(|raw| outputs::files(&raw)).unwrap_or_default()
}

fn is_stored(file: &File, stored: &[Output]) -> bool {
    stored.iter().any(|it| it.node == file.node && it.key == file.key && it.name == file.name())
}

/// Files under the names by which `/view` finds them; what else stands with them stays.
fn name_files(output: &mut Value, files: &[File], job: JobId) {
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
            if let Value::Object(named) = history_entry::file(job, &file.node, &file.name(), &file.kind) {
                fields.extend(named);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let metadata = json!({"client_id": "c", "prompt_id": "p"}).as_object().unwrap().clone();
        Run::new(JobId::from_u128(7), "t".parse().unwrap(), &metadata, 1)
    }

    fn kinds(words: &[Word]) -> Vec<&str> {
        words.iter().map(|word| &*word.kind).collect()
    }

    fn said(kind: &str, data: &Value) -> Value {
        json!({"type": kind, "data": data})
    }

    fn saved() -> Value {
        let file =
            json!({"filename": "x_1.png", "subfolder": "remuda/1-1", "type": "output", "format": "png"});
        said(
            "executed",
            &json!({"node": "3", "output": {"images": [file], "animated": [false]}, "prompt_id": "s"}),
        )
    }

    #[test]
    fn a_file_is_named_when_it_is_stored_and_nothing_overtakes_it() {
        let mut run = run();
        for message in [
            said("execution_start", &json!({"prompt_id": "s", "timestamp": 1})),
            said("executing", &json!({"node": "3", "prompt_id": "s"})),
            saved(),
            said(
                "progress_state",
                &json!({"prompt_id": "s", "nodes": {"3": {"prompt_id": "s", "value": 1}}}),
            ),
            said("execution_success", &json!({"prompt_id": "s"})),
            said("executing", &json!({"node": null, "prompt_id": "s"})),
        ] {
            run.hear(&message);
        }
        let first = run.ready(&[]);
        assert_eq!(kinds(&first), ["execution_start", "executing"]);
        assert_eq!(first[1].data, json!({"node": "3", "prompt_id": "p"}));
        let stored: Output = serde_json::from_value(
            json!({"node": "3", "key": "images", "name": "x_1.png", "type": "output", "hash": "h"}),
        )
        .unwrap();
        let then = run.ready(&[stored]);
        assert_eq!(kinds(&then), ["executed", "progress_state"]);
        let file = &then[0].data["output"]["images"][0];
        assert_eq!(file["subfolder"], format!("{}/3", run.job));
        assert_eq!((&file["filename"], &file["format"]), (&json!("x_1.png"), &json!("png")));
        assert_eq!(then[1].data["nodes"]["3"]["prompt_id"], "p");
        assert!(run.rest(true).is_empty());
    }

    #[test]
    fn an_error_is_kept_for_the_end_unless_the_run_goes_on_after_it() {
        let mut run = run();
        run.hear(&said("execution_error", &json!({"exception_type": "ExecutionBlocked", "prompt_id": "s"})));
        assert!(run.last_words.is_none());
        assert_eq!(kinds(&run.ready(&[])), ["execution_start", "execution_error"]);
        run.hear(&saved());
        run.hear(&said("execution_error", &json!({"exception_type": "ValueError", "prompt_id": "s"})));
        assert_eq!(run.last_words.as_ref().unwrap()["exception_type"], "ValueError");
        assert!(run.rest(false).is_empty(), "a file of a run that failed is stored nowhere");
    }

    /// Faults: X7.
    #[test]
    fn what_waits_for_a_file_is_bounded() {
        let mut run = run();
        run.hear(&saved());
        for _ in 0..HELD_MAX * 2 {
            run.hear(&said("executing", &json!({"node": "1", "prompt_id": "s"})));
        }
        assert_eq!(run.held.len(), HELD_MAX);
        assert_eq!((run.rest(true).len(), run.held_bytes), (HELD_MAX, 0));
        run.hear(&saved());
        for _ in 0..20 {
            run.hear(&said("executed", &json!({"node": "4", "output": {"text": ["x".repeat(1 << 20)]}})));
        }
        assert_eq!(run.held.len(), 1 + (HELD_BYTES_MAX >> 20) - 1, "the rest is told at the end");
        assert!(run.ready(&[]).is_empty());
        let large = json!({"node": "4", "output": {"text": ["x".repeat(8 << 20)]}});
        run.begin(2);
        run.has_begun = true;
        run.hear(&said("executed", &large));
        assert_eq!((run.ready(&[]).len(), run.held_bytes), (1, 0), "what need not wait is told");
    }

    #[test]
    fn another_attempt_begins_anew() {
        let mut run = run();
        run.hear(&said("executing", &json!({"node": "1", "prompt_id": "s"})));
        assert_eq!(kinds(&run.ready(&[])), ["execution_start", "executing"]);
        run.hear(&saved());
        run.begin(2);
        assert!(run.executing.is_none() && run.ready(&[]).is_empty());
        run.hear(&said("execution_start", &json!({"prompt_id": "s2"})));
        assert_eq!(kinds(&run.ready(&[])), ["execution_start"]);
    }
}
