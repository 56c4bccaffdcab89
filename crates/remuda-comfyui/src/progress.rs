//! How far a prompt is, as one fraction that only rises, and in words.
//!
//! Every node weighs one, or as many as it has steps: those a sampler will take stand in its inputs, others are learnt when
//! the node begins to count. Cached nodes are done from the start. Messages come twice, late and in the wrong order, and the
//! weights change on the way, so whatever is less than before changes nothing.

use std::collections::BTreeMap;

use remuda_core::service::{ProbeResult, ServiceFailure};

use super::message::Message;
use super::{Prompt, outputs};

/// A node that counts bytes would leave nothing for the others to add.
const WEIGHT_MAX: f64 = 200.0;

#[derive(Clone, Debug)]
pub struct Progress {
    id: String,
    parts: BTreeMap<String, Part>,
    fraction: f32,
    phase: String,
    /// Who says when a node is finished is believed; otherwise the next one to begin tells.
    has_states: bool,
    running: Option<String>,
    blocked: Option<ServiceFailure>,
}

/// A change worth telling.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// From 0 to 1, never less than before.
    pub fraction: f32,
    pub phase: String,
}

/// All there is to tell of a prompt at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing<'a> {
    /// From 0 to 1, never less than before.
    pub fraction: f32,
    pub nodes_done: usize,
    pub nodes_total: usize,
    /// Which node runs, as far as the server said.
    pub node: Option<&'a str>,
    pub class: Option<&'a str>,
    /// Of how many steps it has done how many, if it counts any.
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

impl Progress {
    pub fn new(prompt: &Prompt) -> Self {
        let parts = prompt.nodes().iter().map(|(id, node)| {
            let weight = node.steps.filter(|steps| steps.is_finite()).unwrap_or(1.0).clamp(1.0, WEIGHT_MAX);
            let (name, class) = (node.name().to_owned(), node.class.clone());
            (id.clone(), Part { name, class, steps: None, weight, done: 0.0 })
        });
        Progress {
            id: prompt.id().to_owned(),
            parts: parts.collect(),
            fraction: 0.0,
            phase: String::new(),
            has_states: false,
            running: None,
            blocked: None,
        }
    }

    pub fn standing(&self) -> Standing<'_> {
        let running = self.running.as_deref().and_then(|id| self.parts.get_key_value(id));
        Standing {
            fraction: self.fraction,
            nodes_done: self.parts.values().filter(|part| part.done >= 1.0).count(),
            nodes_total: self.parts.len(),
            node: running.map(|(id, _)| id.as_str()),
            class: running.map(|(_, part)| part.class.as_str()),
            steps: running.and_then(|(_, part)| part.steps),
            phase: &self.phase,
        }
    }

    /// What a look saw, and what only a message told: a node that bars the way says so on the socket alone. History then
    /// shows a success without outputs, which is also what a prompt looks like that has none to show.
    pub fn judge(&self, seen: ProbeResult) -> ProbeResult {
        match (seen, &self.blocked) {
            (ProbeResult::Succeeded { outputs }, Some(failure)) if outputs::is_empty(&outputs) => {
                ProbeResult::Failed(failure.clone())
            }
            (seen, _) => seen,
        }
    }

    /// Takes a message in; gives back what changed by it. Messages about other prompts change nothing.
    pub fn heard(&mut self, message: &Message) -> Option<Step> {
        if message.prompt().is_some_and(|id| id != self.id) {
            return None;
        }
        let before = (self.fraction, self.phase.clone());
        match message {
            Message::Start { .. } if self.phase.is_empty() => "started".clone_into(&mut self.phase),
            Message::Cached { nodes, .. } => nodes.iter().for_each(|node| self.finish(node)),
            Message::Executing { node: Some(node), .. } => self.begin(node),
            Message::Executing { node: None, prompt } if prompt.0.is_some() => {
                "finishing".clone_into(&mut self.phase);
            }
            Message::Progress { node, value, max, .. } => {
                if let Some(node) = node.0.as_deref() {
                    self.advance(node, *value, *max);
                }
            }
            Message::ProgressState { nodes, .. } => {
                self.has_states = true;
                for (node, state) in nodes {
                    if state.is_finished {
                        self.finish(node);
                    } else {
                        self.advance(node, state.value, state.max);
                    }
                }
            }
            Message::Executed { node, .. } => node.0.iter().for_each(|node| self.finish(node)),
            Message::Error { raised, prompt } if prompt.0.is_some() && raised.is_block() => {
                self.blocked = Some(raised.failure());
            }
            Message::Success { .. } => {
                self.parts.values_mut().for_each(|part| part.done = 1.0);
                self.fraction = 1.0;
                "finishing".clone_into(&mut self.phase);
            }
            _ => {}
        }
        self.fraction = self.fraction.max(self.share());
        let is_news = before != (self.fraction, self.phase.clone());
        is_news.then(|| Step { fraction: self.fraction, phase: self.phase.clone() })
    }

    fn share(&self) -> f32 {
        let total: f64 = self.parts.values().map(|part| part.weight).sum();
        let done: f64 = self.parts.values().map(|part| part.weight * part.done).sum();
        if total > 0.0 { (done / total).clamp(0.0, 1.0) as f32 } else { 0.0 }
    }

    fn begin(&mut self, node: &str) {
        let Some((id, part)) = self.parts.get_key_value(root(node, &self.parts)) else { return };
        self.phase.clone_from(&part.name);
        let id = id.clone();
        let before = self.running.replace(id.clone());
        // Servers without states run one node after the other.
        if !self.has_states
            && let Some(before) = before.filter(|before| *before != id)
        {
            self.finish(&before);
        }
    }

    /// Nodes made at run time have no part of their own, and do not end the node that made them.
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

/// A node made at run time is called after the one that made it: `2.0.0.1` belongs to `2`.
fn root<'a>(node: &'a str, parts: &BTreeMap<String, Part>) -> &'a str {
    if parts.contains_key(node) { node } else { node.split('.').next().unwrap_or(node) }
}

#[cfg(test)]
mod tests;
