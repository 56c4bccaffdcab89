//! The execution order of nodes: the original's order, quirks included. Cached nodes are left out, except output nodes,
//! which are visited so that their outputs are announced again.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::graph::Graph;
use super::nodes::Catalogue;

/// The remaining nodes, and what blocks them.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    graph: &'a Graph,
    catalogue: &'a Catalogue,
    /// In order of discovery, from the outputs upwards.
    pending: Vec<&'a str>,
    blocked_by: HashMap<&'a str, usize>,
    blocking: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        catalogue: &'a Catalogue,
        outputs: &'a [String],
        is_cached: impl Fn(&str) -> bool,
    ) -> Plan<'a> {
        let mut plan = Plan {
            graph,
            catalogue,
            pending: Vec::new(),
            blocked_by: HashMap::new(),
            blocking: HashMap::new(),
        };
        let mut seen = HashSet::new();
        for output in outputs {
            plan.add(output, &mut seen, &is_cached);
        }
        plan
    }

    fn add(&mut self, id: &'a str, seen: &mut HashSet<&'a str>, is_cached: &impl Fn(&str) -> bool) {
        let (mut ahead, mut links) = (vec![id], Vec::new());
        while let Some(id) = ahead.pop() {
            if !seen.insert(id) {
                continue;
            }
            self.pending.push(id);
            let Some(node) = self.graph.node(id) else { continue };
            for (_, from, _) in node.links().filter(|(_, from, _)| !is_cached(from)) {
                ahead.push(from);
                links.push((from, id));
            }
        }
        // Two links between one pair of nodes block it once.
        let unique: BTreeMap<_, _> = links.into_iter().map(|link| (link, ())).collect();
        for ((from, to), ()) in unique {
            *self.blocked_by.entry(to).or_default() += 1;
            self.blocking.entry(from).or_default().push(to);
        }
    }

    /// Number of remaining nodes.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// The next node: a ready output if there is one, else the one closest to an output.
    pub(super) fn next(&self) -> Option<&'a str> {
        let ready: Vec<&str> = self
            .pending
            .iter()
            .copied()
            .filter(|id| self.blocked_by.get(id).copied().unwrap_or(0) == 0)
            .collect();
        let leads_to_output = |id: &str| self.after(id).iter().any(|next| self.is_output(next));
        let found = ready.iter().find(|id| self.is_output(id));
        let found = found.or_else(|| ready.iter().find(|id| leads_to_output(id)));
        let found =
            found.or_else(|| ready.iter().find(|id| self.after(id).iter().any(|next| leads_to_output(next))));
        found.or_else(|| ready.first()).copied()
    }

    /// The nodes that wait for this one.
    fn after(&self, id: &str) -> &[&'a str] {
        self.blocking.get(id).map_or(&[], Vec::as_slice)
    }

    fn is_output(&self, id: &str) -> bool {
        let class = self.graph.node(id).and_then(|node| self.catalogue.class(&node.class));
        class.is_some_and(|class| class.is_output)
    }

    pub(super) fn complete(&mut self, id: &str) {
        self.pending.retain(|pending| *pending != id);
        for freed in self.blocking.remove(id).unwrap_or_default() {
            if let Some(count) = self.blocked_by.get_mut(freed) {
                *count -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::Plan;
    use crate::comfyui::graph::Graph;
    use crate::comfyui::nodes::Catalogue;

    fn order(graph: &str, outputs: &[&str], cached: &[&str]) -> Vec<String> {
        let graph = Graph::parse(&RawValue::from_string(graph.to_owned()).unwrap()).unwrap();
        let outputs: Vec<String> = outputs.iter().map(|&id| id.to_owned()).collect();
        let catalogue = Catalogue::new(&[]);
        let mut plan = Plan::new(&graph, &catalogue, &outputs, |id| cached.contains(&id));
        let mut order = Vec::new();
        while let Some(id) = plan.next() {
            order.push(id.to_owned());
            plan.complete(id);
        }
        order
    }

    const TWO_OUTPUTS: &str = r#"{
        "1": {"class_type": "EmptyImage", "inputs": {}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}}
    }"#;

    #[test]
    fn an_output_runs_as_soon_as_it_can() {
        assert_eq!(order(TWO_OUTPUTS, &["2", "4"], &[]), ["1", "2", "3", "4"]);
    }

    #[test]
    fn what_is_cached_is_left_out_and_cached_outputs_are_visited() {
        assert_eq!(order(TWO_OUTPUTS, &["2", "4"], &["1", "3", "4"]), ["2", "4"]);
        assert_eq!(order(TWO_OUTPUTS, &["4"], &[]), ["1", "3", "4"]);
    }
}
