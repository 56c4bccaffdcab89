//! Progress of a prompt as a fraction that never decreases, and as a phase in words.
//!
//! Each node has weight one, or the number of its steps: a sampler's inputs contain them, other nodes report them once they
//! run. Cached nodes are done from the start. Messages arrive twice, late and out of order, and weights change during the
//! run, so a smaller fraction than before is ignored.

use std::collections::BTreeMap;

use remuda_core::service::outputs::shows_outputs;

use super::message::ComfyuiMessage;
use super::prompt_node::PromptNode;

/// Upper bound: a node that counts bytes as steps would hide all others.
const WEIGHT_MAX: f64 = 200.0;

#[derive(Clone, Debug)]
pub struct ProgressTracker {
    id: String,
    parts: BTreeMap<String, Part>,
    fraction: f32,
    phase: String,
    /// The server sends node states. Without them, the start of the next node ends the previous one.
    has_states: bool,
    running: Option<String>,
    is_blocked: bool,
    /// A node has announced an output.
    has_output: bool,
    /// A node that always shows its outputs has run.
    has_run_output_node: bool,
    /// The run ended in success, and every message since its start was heard.
    is_complete: bool,
    was_heard_from_start: bool,
}

/// A change of the progress.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressStep {
    /// From 0 to 1, never less than before.
    pub fraction: f32,
    pub phase: String,
}

/// The current progress of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressState<'a> {
    /// From 0 to 1, never less than before.
    pub fraction: f32,
    pub nodes_done: usize,
    pub nodes_total: usize,
    /// The running node, if the server has named one.
    pub node: Option<&'a str>,
    pub class: Option<&'a str>,
    /// Steps done and total steps of the running node, if it reports steps.
    pub steps: Option<(u64, u64)>,
    pub phase: &'a str,
}

#[derive(Clone, Debug)]
struct Part {
    name: String,
    class: String,
    steps: Option<(u64, u64)>,
    weight: f64,
    /// From 0 to 1.
    done: f64,
}

impl ProgressTracker {
    pub fn new(id: &str, nodes: &BTreeMap<String, PromptNode>) -> Self {
        let parts = nodes.iter().map(|(id, node)| {
            let weight = node.steps.filter(|steps| steps.is_finite()).unwrap_or(1.0).clamp(1.0, WEIGHT_MAX);
            let (name, class) = (node.name().to_owned(), node.class.clone());
            (id.clone(), Part { name, class, steps: None, weight, done: 0.0 })
        });
        ProgressTracker {
            id: id.to_owned(),
            parts: parts.collect(),
            fraction: 0.0,
            phase: String::new(),
            has_states: false,
            running: None,
            is_blocked: false,
            has_output: false,
            has_run_output_node: false,
            is_complete: false,
            was_heard_from_start: false,
        }
    }

    pub fn state(&self) -> ProgressState<'_> {
        let running = self.running.as_deref().and_then(|id| self.parts.get_key_value(id));
        ProgressState {
            fraction: self.fraction,
            nodes_done: self.parts.values().filter(|part| part.done >= 1.0).count(),
            nodes_total: self.parts.len(),
            node: running.map(|(id, _)| id.as_str()),
            class: running.map(|(_, part)| part.class.as_str()),
            steps: running.and_then(|(_, part)| part.steps),
            phase: &self.phase,
        }
    }

    /// Whether the workflow blocked nodes of its own: a node said so, or one that always shows its outputs ran and showed
    /// none. Only the socket reports that; history then shows a success without outputs, which is also how a prompt looks
    /// that was answered from a cache whose outputs are gone.
    pub fn was_blocked(&self) -> bool {
        self.is_blocked || self.is_complete && self.has_run_output_node && !self.has_output
    }

    /// Applies a message and returns the change. Messages about other prompts are ignored.
    pub fn apply(&mut self, message: &ComfyuiMessage) -> Option<ProgressStep> {
        if message.prompt().is_some_and(|id| id != self.id) {
            return None;
        }
        let before = (self.fraction, self.phase.clone());
        match message {
            ComfyuiMessage::Start { .. } => {
                self.was_heard_from_start = true;
                if self.phase.is_empty() {
                    "started".clone_into(&mut self.phase);
                }
            }
            ComfyuiMessage::Cached { nodes, .. } => nodes.iter().for_each(|node| self.finish(node)),
            ComfyuiMessage::Executing { node: Some(node), .. } => self.begin(node),
            ComfyuiMessage::Executing { node: None, prompt } if prompt.0.is_some() => {
                "finishing".clone_into(&mut self.phase);
            }
            ComfyuiMessage::Progress { node, value, max, .. } => {
                if let Some(node) = node.0.as_deref() {
                    self.advance(node, *value, *max);
                }
            }
            ComfyuiMessage::ProgressState { nodes, .. } => {
                self.has_states = true;
                for (node, state) in nodes {
                    if state.is_finished {
                        self.finish(node);
                    } else {
                        self.advance(node, state.value, state.max);
                    }
                }
            }
            ComfyuiMessage::Executed { node, .. } => {
                self.has_output = true;
                node.0.iter().for_each(|node| self.finish(node));
            }
            ComfyuiMessage::Error { raised, prompt } if prompt.0.is_some() && raised.is_block() => {
                self.is_blocked = true;
            }
            ComfyuiMessage::Success { .. } => {
                self.is_complete = self.was_heard_from_start;
                self.parts.values_mut().for_each(|part| part.done = 1.0);
                self.fraction = 1.0;
                "finishing".clone_into(&mut self.phase);
            }
            _ => {}
        }
        self.fraction = self.fraction.max(self.share());
        let has_changed = before != (self.fraction, self.phase.clone());
        has_changed.then(|| ProgressStep { fraction: self.fraction, phase: self.phase.clone() })
    }

    fn share(&self) -> f32 {
        let total: f64 = self.parts.values().map(|part| part.weight).sum();
        let done: f64 = self.parts.values().map(|part| part.weight * part.done).sum();
        if total > 0.0 { (done / total).clamp(0.0, 1.0) as f32 } else { 0.0 }
    }

    fn begin(&mut self, node: &str) {
        let Some((id, part)) = self.parts.get_key_value(root(node, &self.parts)) else { return };
        self.has_run_output_node |= shows_outputs(&part.class);
        self.phase.clone_from(&part.name);
        let id = id.clone();
        let before = self.running.replace(id.clone());
        // Servers that send no states run one node after the other.
        if !self.has_states
            && let Some(before) = before.filter(|before| *before != id)
        {
            self.finish(&before);
        }
    }

    /// Nodes created at run time have no entry, and their end does not end the node that created them.
    fn finish(&mut self, node: &str) {
        if let Some(part) = self.parts.get_mut(node) {
            part.done = 1.0;
        }
    }

    fn advance(&mut self, node: &str, value: f64, max: f64) {
        if !(max.is_finite() && value.is_finite() && max > 0.0) {
            return;
        }
        let steps = max.clamp(1.0, WEIGHT_MAX);
        let is_root = self.parts.contains_key(node);
        let root = root(node, &self.parts).to_owned();
        let Some(part) = self.parts.get_mut(&root) else { return };
        if is_root {
            part.weight = part.weight.max(steps);
            part.done = part.done.max((value / max).clamp(0.0, 1.0));
            if max > 1.0 {
                part.steps = Some((value.clamp(0.0, max) as u64, max as u64));
            }
        }
        if max > 1.0 && value < max {
            self.phase = format!("{} {value:.0}/{max:.0}", part.name);
        }
    }
}

/// A node created at run time is named after its creator: `2.0.0.1` belongs to `2`.
fn root<'a>(node: &'a str, parts: &BTreeMap<String, Part>) -> &'a str {
    if parts.contains_key(node) { node } else { node.split('.').next().unwrap_or(node) }
}

#[cfg(test)]
mod tests;
