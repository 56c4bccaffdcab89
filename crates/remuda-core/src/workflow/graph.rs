//! A ComfyUI graph in API format: nodes with a class and inputs, of which some are links to other nodes.
//!
//! A link is what ComfyUI takes for one: an array of a string and a number. A list such as `["text", 3]` that is meant as
//! data is a link there too, and fails there too. Nothing here recurses: a chain of nodes may be long.

use std::collections::BTreeSet;
use std::ops::Range;

use super::invalid::{InvalidWorkflow, shown};
use super::json_tree::{Member, Tree, Value, member};

#[derive(Debug)]
pub(super) struct Graph<'a> {
    /// Sorted by id.
    pub(super) nodes: Vec<Node<'a>>,
    inputs: Vec<Input<'a>>,
}

#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) id: &'a str,
    pub(super) class: &'a str,
    inputs: Range<usize>,
    /// ComfyUI raises an exception where the field is missing.
    pub(super) has_inputs: bool,
    /// `_meta.title`, if it is a text.
    pub(super) title: Option<&'a str>,
}

#[derive(Debug)]
pub(super) struct Input<'a> {
    pub(super) name: &'a str,
    /// As it is written.
    pub(super) value: &'a Value<'a>,
    pub(super) feed: Feed<'a>,
}

/// Where an input comes from.
#[derive(Debug)]
pub(super) enum Feed<'a> {
    /// From another node, by its index in `nodes`.
    Link {
        source: usize,
        slot: &'a Value<'a>,
    },
    /// From a node that is not there.
    Dangling {
        to: &'a str,
    },
    Constant(&'a Value<'a>),
}

/// One node makes it a graph; the other members are then validated as nodes.
pub(super) fn is_graph(tree: &Tree<'_>, nodes: &[Member<'_>]) -> bool {
    nodes.iter().any(|(_, node)| match node {
        Value::Object(fields) => member(tree.members(fields), "class_type").is_some(),
        _ => false,
    })
}

/// The graph of `{"prompt": graph, "extra_data": …}`, as ComfyUI's own clients send it. A node whose id is
/// `prompt` is not an envelope.
pub(super) fn wrapped<'a>(
    tree: &'a Tree<'a>,
    members: &'a [Member<'a>],
) -> Option<(&'a Value<'a>, &'a [Member<'a>])> {
    let graph = member(members, "prompt")?;
    let Value::Object(nodes) = graph else { return None };
    let nodes = tree.members(nodes);
    (member(nodes, "class_type").is_none() && is_graph(tree, nodes)).then_some((graph, nodes))
}

impl<'a> Graph<'a> {
    pub(super) fn read(
        tree: &'a Tree<'a>,
        members: &'a [Member<'a>],
        nodes_max: usize,
    ) -> Result<Self, InvalidWorkflow> {
        if members.len() > nodes_max {
            return Err(InvalidWorkflow::TooWide { what: "nodes", max: nodes_max });
        }
        let ids = Ids::new(members);
        let mut graph = Graph { nodes: Vec::with_capacity(members.len()), inputs: Vec::new() };
        for (id, node) in members {
            let Parts { class, inputs, title } = Parts::read(tree, id, node)?;
            let start = graph.inputs.len();
            for (name, value) in inputs.unwrap_or_default() {
                graph.inputs.push(Input { name, value, feed: feed(tree, value, &ids) });
            }
            let inputs_at = start..graph.inputs.len();
            graph.nodes.push(Node { id, class, inputs: inputs_at, has_inputs: inputs.is_some(), title });
        }
        Ok(graph)
    }

    pub(super) fn find(&self, id: &str) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.id.cmp(id)).ok()
    }

    /// Numbers first, as most graphs are written.
    pub(super) fn usual_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|at| (self.nodes[*at].id.parse::<u64>().unwrap_or(u64::MAX), *at));
        order
    }

    pub(super) fn inputs(&self, node: usize) -> &[Input<'a>] {
        &self.inputs[self.nodes[node].inputs.clone()]
    }

    pub(super) fn classes(&self) -> BTreeSet<String> {
        let mut classes = BTreeSet::new();
        for node in &self.nodes {
            if !classes.contains(node.class) {
                classes.insert(node.class.to_owned());
            }
        }
        classes
    }

    /// Topological order of these nodes and all that feed them: each after its sources. Fails if there is a loop, or a link
    /// to a node that is not there.
    pub(super) fn sources_first(
        &self,
        roots: impl IntoIterator<Item = usize>,
    ) -> Result<Vec<usize>, InvalidWorkflow> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut seen = vec![Visited::No; self.nodes.len()];
        let mut path: Vec<Visit> = Vec::new();
        for root in roots {
            if seen[root] == Visited::No {
                seen[root] = Visited::OnPath;
                path.push(Visit { node: root, inputs_visited: 0 });
            }
            while let Some(visit) = path.last_mut() {
                let Some(input) = self.inputs(visit.node).get(visit.inputs_visited) else {
                    seen[visit.node] = Visited::Done;
                    order.push(visit.node);
                    path.pop();
                    continue;
                };
                visit.inputs_visited += 1;
                let source = match input.feed {
                    Feed::Link { source, .. } => source,
                    Feed::Constant(_) => continue,
                    Feed::Dangling { to } => {
                        let node = shown(self.nodes[visit.node].id);
                        return Err(InvalidWorkflow::DanglingLink {
                            node,
                            input: shown(input.name),
                            to: shown(to),
                        });
                    }
                };
                match seen[source] {
                    Visited::Done => {}
                    Visited::OnPath => return Err(self.loop_through(source, &path)),
                    Visited::No => {
                        seen[source] = Visited::OnPath;
                        path.push(Visit { node: source, inputs_visited: 0 });
                    }
                }
            }
        }
        Ok(order)
    }

    /// The loop at the end of the path, from `node` on, in the direction of data flow.
    fn loop_through(&self, node: usize, path: &[Visit]) -> InvalidWorkflow {
        let back = path.iter().rev().map(|visit| visit.node);
        let mut nodes: Vec<usize> = back.take_while(|&other| other != node).collect();
        nodes.push(node);
        let first = (0..nodes.len()).min_by_key(|&at| nodes[at]).unwrap_or(0);
        nodes.rotate_left(first);
        InvalidWorkflow::Loop { nodes: nodes.into_iter().map(|node| shown(self.nodes[node].id)).collect() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visited {
    No,
    OnPath,
    Done,
}

struct Visit {
    node: usize,
    inputs_visited: usize,
}

/// What a node consists of.
struct Parts<'a> {
    class: &'a str,
    inputs: Option<&'a [Member<'a>]>,
    title: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn read(tree: &'a Tree<'a>, id: &str, node: &'a Value<'a>) -> Result<Self, InvalidWorkflow> {
        let Value::Object(fields) = node else {
            return Err(InvalidWorkflow::NoClass { node: shown(id) });
        };
        let fields = tree.members(fields);
        let class = match member(fields, "class_type") {
            Some(Value::Text(class)) if !class.is_empty() => class,
            _ => return Err(InvalidWorkflow::NoClass { node: shown(id) }),
        };
        let inputs = match member(fields, "inputs") {
            Some(Value::Object(inputs)) => Some(tree.members(inputs)),
            Some(_) => return Err(InvalidWorkflow::BadInputs { node: shown(id) }),
            None => None,
        };
        let title = match member(fields, "_meta") {
            Some(Value::Object(meta)) => member(tree.members(meta), "title"),
            _ => None,
        };
        let title = match title {
            Some(Value::Text(title)) => Some(&**title),
            _ => None,
        };
        Ok(Parts { class, inputs, title })
    }
}

/// Where an input comes from.
fn feed<'a>(tree: &'a Tree<'a>, value: &'a Value<'a>, ids: &Ids<'_>) -> Feed<'a> {
    match link(tree, value) {
        None => Feed::Constant(value),
        Some((to, slot)) => match ids.find(to) {
            Some(source) => Feed::Link { source, slot },
            None => Feed::Dangling { to },
        },
    }
}

fn link<'a>(tree: &'a Tree<'a>, value: &'a Value<'a>) -> Option<(&'a str, &'a Value<'a>)> {
    let Value::Array(pair) = value else { return None };
    let [Value::Text(to), slot] = tree.elements(pair) else { return None };
    matches!(slot, Value::Unsigned(_) | Value::Negative(_) | Value::Float(_)).then_some((&**to, slot))
}

/// A search index over node ids. Ids are short: their first eight bytes, as a number, mostly differ.
struct Ids<'a> {
    members: &'a [Member<'a>],
    heads: Vec<u64>,
}

impl<'a> Ids<'a> {
    fn new(members: &'a [Member<'a>]) -> Self {
        Ids { members, heads: members.iter().map(|(id, _)| head(id)).collect() }
    }

    fn find(&self, id: &str) -> Option<usize> {
        let target = head(id);
        let first = self.heads.partition_point(|&head| head < target);
        if self.members.get(first)?.0 == id {
            return Some(first);
        }
        let alike = self.heads[first..].partition_point(|&head| head == target);
        let found = self.members[first..first + alike].binary_search_by(|(other, _)| (**other).cmp(id));
        found.ok().map(|at| first + at)
    }
}

/// Sorts like the strings, as far as eight bytes go.
fn head(text: &str) -> u64 {
    let first = text.as_bytes().iter().take(8);
    first.enumerate().fold(0, |head, (at, &byte)| head | u64::from(byte) << (56 - 8 * at))
}
