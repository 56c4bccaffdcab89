//! How long each node of a run took, from the messages about it. A node begins when the server says that it executes, and ends
//! when it is reported as finished, when the next one begins (servers that send no states run one after the other), or
//! with the run. Nodes from the cache do not execute and have no time.
//!
//! Messages are all there is: ComfyUI keeps no times. A run whose messages were missed, such as one that was found after a
//! restart of the agent, has times for the rest only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use remuda_comfyui::ComfyuiMessage;

#[derive(Debug, Default)]
pub(super) struct NodeTimes {
    running: BTreeMap<String, Instant>,
    ended: BTreeMap<String, Duration>,
    /// The server sends node states.
    has_states: bool,
}

impl NodeTimes {
    /// `classes` are the nodes of the graph; a node created at run time counts for the one that created it.
    pub(super) fn apply(
        &mut self,
        message: &ComfyuiMessage,
        classes: &BTreeMap<String, String>,
        now: Instant,
    ) {
        match message {
            ComfyuiMessage::Executing { node: Some(node), .. } => {
                let Some(node) = known(node, classes) else { return };
                if !self.has_states && !self.running.contains_key(node) {
                    self.end_all(now);
                }
                self.running.entry(node.to_owned()).or_insert(now);
            }
            ComfyuiMessage::ProgressState { nodes, .. } => {
                self.has_states = true;
                for (node, _) in nodes.iter().filter(|(_, state)| state.is_finished) {
                    self.end(node, now);
                }
            }
            ComfyuiMessage::Executed { node, .. } => {
                if let Some(node) = &node.0 {
                    self.end(node, now);
                }
            }
            ComfyuiMessage::Executing { node: None, .. }
            | ComfyuiMessage::Success { .. }
            | ComfyuiMessage::Interrupted { .. } => self.end_all(now),
            _ => {}
        }
    }

    /// The time of each node that ended. A node that ran several times has the sum.
    pub(super) fn ended(&self) -> &BTreeMap<String, Duration> {
        &self.ended
    }

    fn end(&mut self, node: &str, now: Instant) {
        if let Some(began) = self.running.remove(node) {
            *self.ended.entry(node.to_owned()).or_default() += now.saturating_duration_since(began);
        }
    }

    fn end_all(&mut self, now: Instant) {
        for node in self.running.keys().cloned().collect::<Vec<_>>() {
            self.end(&node, now);
        }
    }
}

fn known<'a>(node: &'a str, classes: &BTreeMap<String, String>) -> Option<&'a str> {
    let creator = node.split('.').next().unwrap_or(node);
    // The answer to the submission, and with it the graph, may come after the first messages.
    if classes.is_empty() {
        return Some(creator);
    }
    [node, creator].into_iter().find(|node| classes.contains_key(*node))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays messages, each at its second; the seconds of every node.
    fn times(story: &[(u64, &str)]) -> Vec<(String, u64)> {
        let classes = ["1", "2", "3"].map(|node| (node.to_owned(), "K".to_owned())).into();
        let (mut times, began) = (NodeTimes::default(), Instant::now());
        for (second, text) in story {
            let message = ComfyuiMessage::from_text(text);
            times.apply(&message, &classes, began + Duration::from_secs(*second));
        }
        times.ended().iter().map(|(node, time)| (node.clone(), time.as_secs())).collect()
    }

    fn executing(node: &str) -> String {
        format!(r#"{{"type":"executing","data":{{"node":"{node}","prompt_id":"p"}}}}"#)
    }

    const END: &str = r#"{"type":"executing","data":{"node":null,"prompt_id":"p"}}"#;

    #[test]
    fn next_node_ends_the_one_before() {
        let [one, two, repeated] = ["1", "2", "2"].map(executing);
        let seen = times(&[(0, &one), (3, &two), (4, &repeated), (10, END), (12, END)]);
        assert_eq!(seen, [("1".to_owned(), 3), ("2".to_owned(), 7)]);
    }

    #[test]
    fn states_end_nodes_that_run_side_by_side() {
        let state = |finished: &str| {
            format!(
                r#"{{"type":"progress_state","data":{{"prompt_id":"p","nodes":{{
                    "{finished}":{{"value":1,"max":1,"state":"finished","node_id":"{finished}"}}}}}}}}"#
            )
        };
        let [one, two, made, odd] = ["1", "2", "3.0.1", "9"].map(executing);
        let [nothing, one_ends, two_ends] = ["3", "1", "2"].map(state);
        let story =
            [(0, &nothing), (0, &one), (1, &two), (5, &one_ends), (6, &made), (6, &odd), (8, &two_ends)];
        let mut story: Vec<(u64, &str)> = story.map(|(at, text)| (at, text.as_str())).to_vec();
        story.push((9, END));
        assert_eq!(times(&story), [("1".to_owned(), 5), ("2".to_owned(), 7), ("3".to_owned(), 3)]);
    }
}
