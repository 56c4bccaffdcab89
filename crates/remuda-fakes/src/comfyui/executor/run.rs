//! One prompt on its way through its nodes, with all its messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};

use super::super::Version;
use super::super::cache::{self, Shown, Signature};
use super::super::faults::Fault;
use super::super::graph::{Node, at_slot, link};
use super::super::history::{Entry, Outcome};
use super::super::nodes::Data;
use super::super::nodes::work::{Failure, Made, work};
use super::super::plan::Plan;
use super::super::progress::Progress;
use super::super::queue::Item;
use super::super::server::Server;
use super::Ended;

#[derive(Debug)]
pub(in super::super) struct Run {
    pub(super) server: Arc<Server>,
    pub(super) item: Arc<Item>,
    pub(super) client: Option<String>,
    pub(super) signatures: HashMap<String, Signature>,
    pub(super) results: HashMap<String, Arc<Vec<Data>>>,
    pub(super) progress: Progress,
    pub(super) messages: Vec<(&'static str, Value)>,
    shown: Vec<(String, Shown)>,
    executed: Vec<String>,
    /// No messages and no time: used to make a prompt look cached.
    pub(super) is_silent: bool,
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
                // The original's sender raises an exception for such a client, which ends the process.
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

    /// Takes results from the cache.
    fn take_from_cache(&mut self) {
        let item = Arc::clone(&self.item);
        for node in item.graph.nodes() {
            self.is_cached(node);
        }
    }

    /// Whether a node has its result already: from the prompt before, or from a node of this one that is just the same.
    fn is_cached(&mut self, node: &Node) -> bool {
        if self.results.contains_key(&node.id) {
            return true;
        }
        if self.item.faults.iter().any(|fault| fault.is_node_error() || *fault == Fault::InterruptedBySomeone)
        {
            return false;
        }
        let cache = self.server.cache();
        let entry = self.signatures.get(&node.id).and_then(|signature| cache.get(signature));
        let results = entry.map(|entry| Arc::clone(&entry.results));
        drop(cache);
        let is_cached = results.is_some();
        self.results.extend(results.map(|results| (node.id.clone(), results)));
        is_cached
    }

    /// Computes every result in advance, silently.
    async fn fill_cache(&mut self) {
        self.is_silent = true;
        self.has_struck = true;
        // A failure here occurs again in the real run.
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
            let is_cached = self.is_cached(node);
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

    /// Announces a cached output again, if there is a client.
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

    /// The first blocked input.
    fn blocker(&self, node: &Node) -> Option<Option<Arc<str>>> {
        node.links().find_map(|(_, from, slot)| match at_slot(self.results.get(from)?, slot)? {
            Data::Blocked(message) => Some(message.clone()),
            _ => None,
        })
    }

    /// Reports the message once; nodes further down are skipped silently.
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
