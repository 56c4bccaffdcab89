//! One prompt on its way through its nodes, and everything it says meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use super::super::cache::{self, Shown, Signature};
use super::super::faults::Fault;
use super::super::files::Folder;
use super::super::graph::{Node, link};
use super::super::history::{Entry, Outcome};
use super::super::image::Image;
use super::super::nodes::Data;
use super::super::nodes::work::{Failure, Made, work};
use super::super::plan::Plan;
use super::super::progress::Progress;
use super::super::queue::Item;
use super::super::server::{Server, now_ms};
use super::super::{Version, values};
use super::Ended;

#[derive(Debug)]
pub(in super::super) struct Run {
    pub(super) server: Arc<Server>,
    pub(super) item: Arc<Item>,
    pub(super) client: Option<String>,
    signatures: HashMap<String, Signature>,
    results: HashMap<String, Arc<Vec<Data>>>,
    progress: Progress,
    messages: Vec<(&'static str, Value)>,
    shown: Vec<(String, Shown)>,
    executed: Vec<String>,
    /// Nothing is told and no time passes: how a prompt comes to look cached.
    is_silent: bool,
    pub(super) has_struck: bool,
}

impl Run {
    pub(in super::super) fn new(server: Arc<Server>, item: Arc<Item>) -> Run {
        Run {
            server,
            item,
            client: None,
            signatures: HashMap::new(),
            results: HashMap::new(),
            progress: Progress::default(),
            messages: Vec::new(),
            shown: Vec::new(),
            executed: Vec::new(),
            is_silent: false,
            has_struck: false,
        }
    }

    pub(in super::super) async fn execute(mut self) -> Ended {
        self.server.interrupt.store(false, Ordering::Relaxed);
        self.client = match self.item.client() {
            None => None,
            Some(Ok(client)) => Some(client.to_owned()),
            Some(Err(())) => {
                // The original's delivery stumbles over such a client, and takes the process with it.
                self.server.sockets.poison();
                return Ended::ExecutorDead;
            }
        };
        self.server.focus().client = self.client.clone();
        self.note("execution_start", json!({"prompt_id": self.item.id}), false);
        let prepared =
            self.server.cache().prepare(&self.item.graph, &self.server.catalogue, &self.server.estate.disk);
        let Ok(signatures) = prepared else { return Ended::ExecutorDead };
        self.signatures = signatures;
        if self.item.faults.contains(&Fault::Cached) {
            self.fill_cache().await;
        }
        self.take_from_cache();
        let cached: Vec<&str> = self
            .item
            .graph
            .nodes()
            .iter()
            .map(|node| node.id.as_str())
            .filter(|id| self.results.contains_key(*id))
            .collect();
        self.note("execution_cached", json!({"nodes": cached, "prompt_id": self.item.id}), false);
        let outcome = match self.run_nodes().await {
            Ok(()) => {
                self.note("execution_success", json!({"prompt_id": self.item.id}), false);
                Outcome::Success
            }
            Err((node, failure)) => match self.fail(&node, failure) {
                Ok(outcome) => outcome,
                Err(ended) => return ended,
            },
        };
        self.server.focus().node = None;
        Ended::Well(self.into_entry(outcome))
    }

    /// Results that need not be made again.
    fn take_from_cache(&mut self) {
        if self.item.faults.iter().any(|fault| fault.is_node_error() || *fault == Fault::InterruptedBySomeone)
        {
            return;
        }
        let cache = self.server.cache();
        for node in self.item.graph.nodes() {
            if let Some(entry) = self.signatures.get(&node.id).and_then(|signature| cache.get(signature)) {
                self.results.insert(node.id.clone(), Arc::clone(&entry.results));
            }
        }
    }

    /// Makes every result beforehand, without a word.
    async fn fill_cache(&mut self) {
        self.is_silent = true;
        self.has_struck = true;
        // A failure here shows again when the nodes are run aloud.
        let _ = self.run_nodes().await;
        self.is_silent = false;
        self.has_struck = false;
        self.progress = Progress::default();
        (self.shown, self.executed) = (Vec::new(), Vec::new());
    }

    async fn run_nodes(&mut self) -> Result<(), (String, Failure)> {
        let (item, server) = (Arc::clone(&self.item), Arc::clone(&self.server));
        let mut plan =
            Plan::new(&item.graph, &server.catalogue, &item.outputs, |id| self.results.contains_key(id));
        let strike_at = plan.len() / 2;
        let mut begun = 0;
        while let Some(id) = plan.next() {
            let Some(node) = item.graph.node(id) else { break };
            let is_cached = self.results.contains_key(id);
            if !is_cached {
                self.begin(node);
            }
            if begun == strike_at && !self.has_magic() {
                self.strike(node).await.map_err(|failure| (id.to_owned(), failure))?;
            }
            begun += 1;
            if is_cached {
                self.tell_cached(node);
            } else {
                self.run_node(node).await.map_err(|failure| (id.to_owned(), failure))?;
                tokio::task::yield_now().await;
            }
            plan.complete(id);
        }
        Ok(())
    }

    /// An output that was made before is told again, if there is someone to tell it to.
    fn tell_cached(&mut self, node: &Node) {
        let entry =
            self.signatures.get(&node.id).and_then(|signature| self.server.cache().get(signature).cloned());
        let shown = entry.and_then(|entry| entry.shown);
        if self.client.is_some() {
            let output = shown.as_ref().map(|shown| shown.output.clone());
            self.tell_executed(&node.id, &output.unwrap_or_default());
        }
        if let Some(shown) = shown
            && (self.client.is_some() || self.server.options().version >= Version::V0_30_0)
        {
            self.shown.push((node.id.clone(), shown));
        }
        self.progress.finish(&node.id);
        self.tell_progress();
    }

    fn begin(&mut self, node: &Node) {
        self.progress.start(&node.id);
        self.tell_progress();
        if self.client.is_some() && !self.is_silent {
            self.server.focus().node = Some(node.id.clone());
            let data = json!({"node": node.id, "display_node": node.id, "prompt_id": self.item.id});
            self.tell("executing", &data);
        }
    }

    async fn run_node(&mut self, node: &Node) -> Result<(), Failure> {
        let made = match self.blocker(node) {
            Some(message) => self.blocked(node, message),
            None => {
                self.heed_interrupt()?;
                work(self, node).await?
            }
        };
        let shown = made.shown.map(|output| Shown { output: self.spoil(output), node: node.id.clone() });
        if let Some(shown) = &shown {
            if self.client.is_some() {
                self.tell_executed(&node.id, &shown.output);
            }
            self.shown.push((node.id.clone(), shown.clone()));
        }
        let results = Arc::new(made.results);
        self.results.insert(node.id.clone(), Arc::clone(&results));
        if let Some(signature) = self.signatures.get(&node.id) {
            self.server.cache().put(*signature, cache::Entry { shown, results });
        }
        self.progress.finish(&node.id);
        self.tell_progress();
        self.executed.push(node.id.clone());
        Ok(())
    }

    /// The first input that says: no further.
    fn blocker(&self, node: &Node) -> Option<Option<Arc<str>>> {
        node.links().find_map(|(_, from, slot)| match self.results.get(from)?.get(slot)? {
            Data::Blocked(message) => Some(message.clone()),
            _ => None,
        })
    }

    /// Tells the message once; what comes after hears only silence.
    fn blocked(&self, node: &Node, message: Option<Arc<str>>) -> Made {
        if let Some(message) = message {
            let data = json!({
                "prompt_id": self.item.id, "node_id": node.id, "node_type": node.class, "executed": self.executed,
                "exception_message": format!("Execution Blocked: {message}"),
                "exception_type": "ExecutionBlocked", "traceback": [], "current_inputs": [], "current_outputs": [],
            });
            self.tell("execution_error", &data);
        }
        let class = self.server.catalogue.class(&node.class);
        let count = class.map_or(0, |class| class.results.len());
        Made { results: vec![Data::Blocked(None); count], shown: None }
    }

    fn fail(&mut self, id: &str, failure: Failure) -> Result<Outcome, Ended> {
        let class = self.item.graph.node(id).map(|node| node.class.clone()).unwrap_or_default();
        let mut data = json!({
            "prompt_id": self.item.id, "node_id": id, "node_type": class, "executed": self.executed,
        });
        match failure {
            Failure::Exit => Err(Ended::ExecutorDead),
            Failure::Crash => Err(Ended::ProcessDead),
            Failure::Interrupted => {
                self.note("execution_interrupted", data, true);
                Ok(Outcome::Interrupted)
            }
            Failure::Error { kind, message } => {
                data["exception_message"] = message.into();
                data["exception_type"] = kind.into();
                data["traceback"] =
                    json!(["  File \"<comfyui>/execution.py\", line 518, in execute\n    <code line>\n"]);
                data["current_inputs"] = self.current_inputs(id);
                let nodes: Vec<&str> = self.item.graph.nodes().iter().map(|node| node.id.as_str()).collect();
                data["current_outputs"] = json!(nodes);
                self.note("execution_error", data, false);
                Ok(Outcome::Error)
            }
        }
    }

    fn current_inputs(&self, id: &str) -> Value {
        let inputs = self.item.graph.node(id).and_then(|node| node.inputs.as_ref());
        let told = inputs.into_iter().flatten().map(|(name, value)| {
            let value =
                if link(value).is_some() { json!("tensor([[[[0., 0., 0.], ...]]])") } else { value.clone() };
            (name.clone(), json!([value]))
        });
        told.collect::<Map<_, _>>().into()
    }

    fn into_entry(self, outcome: Outcome) -> Entry {
        let shown = if self.item.faults.contains(&Fault::EmptyOutputs) { Vec::new() } else { self.shown };
        let meta = shown.iter().map(|(id, shown)| {
            let node = &shown.node;
            (
                id.clone(),
                json!({"node_id": node, "display_node": node, "parent_node": null, "real_node_id": node}),
            )
        });
        let meta = meta.collect();
        let outputs = shown.into_iter().map(|(id, shown)| (id, shown.output)).collect();
        Entry { item: self.item, outcome, outputs, meta, messages: self.messages }
    }
}

/// What it says.
impl Run {
    /// Says it to the client, unless a fault swallows it.
    fn tell(&self, kind: &str, data: &Value) {
        let faults = &self.item.faults;
        let is_end = matches!(kind, "executed" | "execution_success");
        let is_swallowed = faults.contains(&Fault::DropAllMessages)
            || (is_end && faults.contains(&Fault::DropCompletion))
            || (kind == "executed" && faults.contains(&Fault::EmptyOutputs));
        if !self.is_silent && !is_swallowed {
            self.server.sockets.post(self.client.as_deref(), kind, data);
        }
    }

    fn tell_binary(&self, frame: Vec<u8>) {
        if !self.is_silent && !self.item.faults.contains(&Fault::DropAllMessages) {
            self.server.sockets.post_binary(self.client.as_deref(), frame);
        }
    }

    /// Keeps it for history, and says it if there is a client, or to everyone where it concerns everyone.
    fn note(&mut self, kind: &'static str, mut data: Value, is_for_all: bool) {
        data["timestamp"] = now_ms().into();
        if self.client.is_some() || is_for_all {
            self.tell(kind, &data);
        }
        self.messages.push((kind, data));
    }

    fn tell_executed(&self, node: &str, output: &Value) {
        let data = json!({"node": node, "display_node": node, "output": output, "prompt_id": self.item.id});
        self.tell("executed", &data);
    }

    fn tell_progress(&self) {
        if !self.is_silent {
            self.tell("progress_state", &self.progress.to_json(&self.item.id));
        }
    }

    /// A step of a node, perhaps with a picture of how it looks by now.
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

/// `[event][number][head][body]`, numbers as 32 bits with the highest first.
pub(super) fn frame(event: u32, number: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + head.len() + body.len());
    frame.extend(event.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend(head);
    frame.extend(body);
    frame
}

/// What nodes ask of it.
impl Run {
    pub(in super::super) fn server(&self) -> &Server {
        &self.server
    }

    pub(in super::super) fn item(&self) -> &Item {
        &self.item
    }

    /// Lets the imagined GPU work for so many seconds.
    pub(in super::super) async fn pause(&self, seconds: f64) {
        let factor = if self.item.faults.contains(&Fault::Slow) { 10.0 } else { 1.0 };
        let seconds = seconds * factor / self.server.options().speed;
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() && !self.is_silent => tokio::time::sleep(time).await,
            _ => tokio::task::yield_now().await,
        }
    }

    /// The flag is looked at here and nowhere else.
    pub(in super::super) fn heed_interrupt(&self) -> Result<(), Failure> {
        let is_set = !self.is_silent && self.server.interrupt.swap(false, Ordering::Relaxed);
        if is_set { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Writes pictures and answers with what the node shows.
    pub(in super::super) fn keep(
        &self,
        image: Image,
        folder: Folder,
        subfolder: &str,
        prefix: &str,
    ) -> Value {
        let faults = &self.item.faults;
        let disk = &self.server.estate.disk;
        let mut file = Image { batch: 1, ..image }.to_png(&[("prompt", self.item.graph.text())]);
        if faults.contains(&Fault::ShortOutput) {
            file.truncate(file.len() / 2);
        }
        let file = Bytes::from(file);
        let kept = (0..image.batch).map(|_| {
            let place = disk.write_numbered(folder, subfolder, prefix, file.clone());
            if faults.contains(&Fault::MissingOutput) {
                disk.remove(&place);
            }
            json!({"filename": place.name, "subfolder": place.subfolder, "type": folder.name()})
        });
        json!({"images": kept.collect::<Vec<_>>()})
    }

    fn spoil(&self, mut output: Value) -> Value {
        if self.item.faults.contains(&Fault::Nan) {
            output["score"] = json!([values::nan()]);
        }
        output
    }

    pub(in super::super) fn linked(&self, node: &Node, name: &str) -> Option<Data> {
        let (from, slot) = link(node.input(name)?)?;
        self.results.get(from)?.get(slot).cloned()
    }

    pub(in super::super) fn image(&self, node: &Node, name: &str) -> Image {
        match self.linked(node, name) {
            Some(Data::Image(image) | Data::Latent(image)) => image,
            _ => Image { width: 64, height: 64, batch: 1, rgb: [0, 0, 0] },
        }
    }

    pub(in super::super) fn integer(&self, node: &Node, name: &str, default: u64) -> u64 {
        node.input(name).and_then(Value::as_u64).unwrap_or(default)
    }

    pub(in super::super) fn float(&self, node: &Node, name: &str, default: f64) -> f64 {
        node.input(name).and_then(Value::as_f64).unwrap_or(default)
    }

    pub(in super::super) fn text(&self, node: &Node, name: &str) -> String {
        node.input(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(in super::super) fn truth(&self, node: &Node, name: &str) -> bool {
        node.input(name).is_some_and(values::is_truthy)
    }
}
