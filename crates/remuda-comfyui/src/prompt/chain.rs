//! The longest chain of links in a graph. ComfyUI follows links by recursion from every node. After some 970 links among
//! nodes that no output needs, Python exceeds its recursion limit and the worker thread dies, while the server still answers
//! requests. (Among nodes that an output needs, the validation of the prompt fails first, which is harmless.)

use std::collections::BTreeMap;

use remuda_core::workflow::link_source;

use super::graph::SentNode;

/// Half of Python's limit, part of which is used before it reaches the graph. Published graphs have chains of less than a
/// hundred.
pub(super) const CHAIN_MAX: usize = 500;

/// Whether the graph contains a chain or loop of more than [`CHAIN_MAX`] nodes.
pub(super) fn is_too_long(nodes: &BTreeMap<String, SentNode>) -> bool {
    // Nearly every graph has fewer nodes than that.
    nodes.len() > CHAIN_MAX && longest(nodes) > CHAIN_MAX
}

/// Repeatedly removes the nodes that depend on no other. The number of rounds is the longest chain; the nodes that remain
/// are in loops or behind them and count as one chain.
fn longest(nodes: &BTreeMap<String, SentNode>) -> usize {
    let mut feeds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut waits: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, node) in nodes {
        let sources = node
            .inputs
            .values()
            .filter_map(|value| link_source(value))
            .filter_map(|to| nodes.get_key_value(&to));
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
