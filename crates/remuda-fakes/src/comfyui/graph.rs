//! A prompt's graph as received: nodes and inputs in text order, which decides the execution order.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON object in order; of duplicate keys the last counts.
#[derive(Debug)]
pub(super) struct Ordered<T>(pub(super) Vec<(String, T)>);

impl<T> Ordered<T> {
    pub(super) fn get(&self, key: &str) -> Option<&T> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = Ordered<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut pairs: Vec<(String, T)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Ordered(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) class: String,
    /// `_meta.title`.
    pub(super) title: Option<String>,
    /// `None` where the key is missing, which the original notices too late.
    pub(super) inputs: Option<Vec<(String, Value)>>,
}

impl Node {
    pub(super) fn input(&self, name: &str) -> Option<&Value> {
        self.inputs.as_ref()?.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Every input that links to another node: its name, that node's id, and the output slot.
    pub(super) fn links(&self) -> impl Iterator<Item = (&str, &str, i64)> {
        self.inputs.iter().flatten().filter_map(|(name, value)| {
            let (from, slot) = link(value)?;
            Some((name.as_str(), from, slot))
        })
    }
}

/// Reads `[id, slot]` as a link.
pub(super) fn link(value: &Value) -> Option<(&str, i64)> {
    match value.as_array()?.as_slice() {
        [Value::String(from), slot] => Some((from, slot.as_i64()?)),
        _ => None,
    }
}

/// The result in a slot; a negative one counts from the end, as in Python.
pub(super) fn at_slot<T>(results: &[T], slot: i64) -> Option<&T> {
    let last = i64::try_from(results.len()).ok()?;
    results.get(usize::try_from(if slot < 0 { slot + last } else { slot }).ok()?)
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    places: HashMap<String, usize>,
    text: Box<str>,
}

/// Errors found before any node is checked.
#[derive(Debug, PartialEq)]
pub(super) enum BadGraph {
    /// The original raises an exception: HTTP 500.
    Trips,
    MissingClass {
        id: String,
        title: Option<String>,
    },
}

impl Graph {
    pub(super) fn parse(raw: &RawValue) -> Result<Graph, BadGraph> {
        let text = raw.get();
        if text.starts_with('[') {
            // An empty list is a graph without nodes; a non-empty one is indexed by its members.
            let is_empty = serde_json::from_str::<Vec<Value>>(text).is_ok_and(|list| list.is_empty());
            return if is_empty {
                Ok(Graph { text: text.into(), ..Graph::default() })
            } else {
                Err(BadGraph::Trips)
            };
        }
        let pairs: Ordered<&RawValue> = serde_json::from_str(text).map_err(|_| BadGraph::Trips)?;
        let mut graph = Graph { text: text.into(), ..Graph::default() };
        for (id, raw) in pairs.0 {
            let node = read_node(&id, raw)?;
            match graph.places.get(&id) {
                Some(&at) => graph.nodes[at] = node,
                None => {
                    graph.places.insert(id, graph.nodes.len());
                    graph.nodes.push(node);
                }
            }
        }
        Ok(graph)
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn node(&self, id: &str) -> Option<&Node> {
        self.places.get(id).map(|&at| &self.nodes[at])
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Replaces a value, as the original does when it converts one.
    pub(super) fn convert(&mut self, id: &str, input: &str, value: &Value) {
        let Some(&at) = self.places.get(id) else { return };
        let inputs = self.nodes[at].inputs.iter_mut().flatten();
        for (_, old) in inputs.filter(|(name, _)| name == input) {
            *old = value.clone();
        }
    }
}

fn read_node(id: &str, raw: &RawValue) -> Result<Node, BadGraph> {
    let missing = |title: Option<String>| BadGraph::MissingClass { id: id.to_owned(), title };
    match raw.get().as_bytes().first() {
        Some(b'{') => {}
        Some(b'"' | b'[') => return Err(missing(None)),
        _ => return Err(BadGraph::Trips),
    }
    let fields: Ordered<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| BadGraph::Trips)?;
    let meta = fields.get("_meta").and_then(|meta| serde_json::from_str::<Value>(meta.get()).ok());
    let title = meta.and_then(|meta| meta["title"].as_str().map(str::to_owned));
    let Some(class) = fields.get("class_type") else { return Err(missing(title)) };
    let class = match serde_json::from_str(class.get()) {
        Ok(Value::String(class)) => class,
        Ok(Value::Array(_) | Value::Object(_)) | Err(_) => return Err(BadGraph::Trips),
        Ok(other) => other.to_string(),
    };
    let inputs = match fields.get("inputs") {
        None => None,
        Some(inputs) => {
            Some(serde_json::from_str::<Ordered<Value>>(inputs.get()).map_err(|_| BadGraph::Trips)?.0)
        }
    };
    Ok(Node { id: id.to_owned(), class, title, inputs })
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::{BadGraph, Graph};

    fn parse(text: &str) -> Result<Graph, BadGraph> {
        Graph::parse(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn nodes_keep_the_order_in_which_they_were_written() {
        let graph = parse(r#"{"10":{"class_type":"A","inputs":{"b":["2",0],"a":1}},"2":{"class_type":"B"}}"#)
            .unwrap();
        let ids: Vec<_> = graph.nodes().iter().map(|node| node.id.as_str()).collect();
        assert_eq!(ids, ["10", "2"]);
        assert_eq!(graph.nodes()[0].links().collect::<Vec<_>>(), [("b", "2", 0)]);
        assert!(graph.nodes()[1].inputs.is_none());
    }

    #[test]
    fn what_the_original_trips_over_is_told_from_what_it_refuses() {
        assert_eq!(parse("null").unwrap_err(), BadGraph::Trips);
        assert_eq!(parse("[1]").unwrap_err(), BadGraph::Trips);
        assert!(parse("[]").unwrap().nodes().is_empty());
        let missing = |id: &str| BadGraph::MissingClass { id: id.into(), title: None };
        assert_eq!(parse(r#"{"1":"x"}"#).unwrap_err(), missing("1"));
        assert_eq!(parse(r#"{"nodes":[],"version":0.4}"#).unwrap_err(), missing("nodes"));
    }
}
