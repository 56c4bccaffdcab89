//! How long the longest chain of links in a graph is. ComfyUI follows links by recursion, in every node of the graph: past
//! some 970 of them, in nodes that no output needs, Python gives up and its worker thread is dead, while the server goes
//! on answering. (In nodes that an output needs, checking the prompt gives up first, and all is well.)

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::graph::Node;

/// Half of what Python follows: it has used some of that before it comes to the graph. The longest graphs that people
/// share have chains of less than a hundred.
pub(super) const CHAIN_MAX: usize = 500;

/// Whether a chain, or a loop, of more than [`CHAIN_MAX`] nodes is in it.
pub(super) fn is_too_long(nodes: &BTreeMap<String, Node>) -> bool {
    // Nearly every graph is smaller than the longest chain that is allowed.
    nodes.len() > CHAIN_MAX && longest(nodes) > CHAIN_MAX
}

/// Takes away, again and again, the nodes that wait for no other. How often it can be done is the longest chain; what
/// cannot be taken away is in loops, or behind them, and counts as one chain.
fn longest(nodes: &BTreeMap<String, Node>) -> usize {
    let mut feeds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut waits: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, node) in nodes {
        let sources =
            node.inputs.values().filter_map(|value| source(value)).filter_map(|to| nodes.get_key_value(&to));
        for (source, _) in sources {
            feeds.entry(source).or_default().push(id);
            *waits.entry(id).or_default() += 1;
        }
    }
    let mut free: Vec<&str> = nodes.keys().map(String::as_str).filter(|id| !waits.contains_key(id)).collect();
    let mut left = nodes.len();
    let mut rounds = 0;
    while !free.is_empty() {
        rounds += 1;
        left -= free.len();
        let fed = std::mem::take(&mut free).into_iter().flat_map(|id| feeds.remove(id).unwrap_or_default());
        for id in fed {
            if let Some(count) = waits.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    free.push(id);
                }
            }
        }
    }
    rounds + left
}

/// The node that a value is a link to: a list of a text and a number.
fn source(value: &RawValue) -> Option<String> {
    let (source, _): (String, f64) = serde_json::from_str(value.get()).ok()?;
    Some(source)
}
