//! The shape of a workflow: jobs that differ only in texts, seeds and sizes share one.
//!
//! A graph's shape is independent of its node ids. Each node gets a *mark* from its class, its inputs' names, the
//! marks of the nodes that feed it and the model files it names; the shape is the hash of all marks, sorted:
//!
//! ```text
//!   Load(x.safetensors) ─▶ Sample(model, seed: ·, text: ·) ─▶ Save(images, name: ·)
//!          mark a ────────▶ mark b = H(Sample, a, ...) ─────▶ mark c = H(Save, b, ...)     shape = H(sort(a, b, c))
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::canonical;
use super::graph::{Feed, Graph};
use super::json_tree::{Tree, Value};
use crate::id::{Hash, Shape};

/// Half a SHA-256: collisions are negligible.
type Mark = [u8; 16];

const MODEL_ENDINGS: [&str; 9] = ["safetensors", "sft", "ckpt", "pt", "pth", "bin", "gguf", "onnx", "engine"];

/// The longest extension with its dot.
const MODEL_ENDING_BYTES_MAX: usize = 12;

/// No path below a model folder is longer; a longer or multi-line text only happens to end like one.
const MODEL_BYTES_MAX: usize = 512;

/// The shape of a graph, and the model files in inputs of the nodes that run. `order`: each node after those that feed it.
pub(super) fn for_graph(
    tree: &Tree<'_>,
    graph: &Graph<'_>,
    order: &[usize],
    runs: impl Fn(usize) -> bool,
) -> (Shape, BTreeSet<String>) {
    let (mut models, mut unused) = (BTreeSet::new(), BTreeSet::new());
    let mut marks = vec![Mark::default(); graph.nodes.len()];
    let mut encoded = Vec::new();
    for &node in order {
        let models = if runs(node) { &mut models } else { &mut unused };
        encoded.clear();
        put(graph.nodes[node].class, &mut encoded);
        for input in graph.inputs(node) {
            put(input.name, &mut encoded);
            match &input.feed {
                Feed::Link { source, slot } => {
                    encoded.push(b'l');
                    encoded.extend_from_slice(&marks[*source]);
                    canonical::write(tree, slot, &mut encoded);
                }
                Feed::Constant(value) => put_models(tree, value, &mut encoded, models),
                Feed::Dangling { .. } => {}
            }
            encoded.push(b';');
        }
        marks[node] = mark(&encoded);
    }
    marks.sort_unstable();
    (Hash::digest(marks.as_flattened()), models)
}

/// A constant input contributes only the model files in it, at any depth.
fn put_models(tree: &Tree<'_>, value: &Value<'_>, encoded: &mut Vec<u8>, models: &mut BTreeSet<String>) {
    match value {
        Value::Text(text) => {
            if let Some(name) = model_file(text) {
                encoded.push(b'm');
                put(&name, encoded);
                add_model(&name, models);
            }
        }
        Value::Array(elements) => {
            tree.elements(elements).iter().for_each(|element| put_models(tree, element, encoded, models));
        }
        Value::Object(members) => {
            tree.members(members).iter().for_each(|(_, member)| put_models(tree, member, encoded, models));
        }
        Value::Null | Value::Bool(_) | Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) => {}
    }
}

/// The shape of a workflow that is not a graph: its keys, value types and models.
pub(super) fn for_value(tree: &Tree<'_>) -> (Shape, BTreeSet<String>) {
    let mut models = BTreeSet::new();
    let mark = mark_of(tree, "", &tree.root, &mut models);
    (Hash::digest(&mark), models)
}

fn mark_of(tree: &Tree<'_>, key: &str, value: &Value<'_>, models: &mut BTreeSet<String>) -> Mark {
    match value {
        Value::Null => [b'0'; 16],
        Value::Bool(_) => [b'b'; 16],
        Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) => [b'n'; 16],
        Value::Text(text) => {
            let name = if key == "model" { Some(Cow::Borrowed(&**text)) } else { model_file(text) };
            let Some(name) = name else { return [b't'; 16] };
            add_model(&name, models);
            mark(&[b"m", name.as_bytes()].concat())
        }
        // The number of elements is a size and does not count; their types do.
        Value::Array(elements) => {
            let kinds: BTreeSet<Mark> =
                tree.elements(elements).iter().map(|element| mark_of(tree, "", element, models)).collect();
            let mut encoded = vec![b'a'];
            encoded.extend(kinds.iter().flatten());
            mark(&encoded)
        }
        Value::Object(members) => {
            let mut encoded = vec![b'o'];
            for (key, member) in tree.members(members) {
                put(key, &mut encoded);
                encoded.extend_from_slice(&mark_of(tree, key, member, models));
            }
            mark(&encoded)
        }
    }
}

fn mark(encoded: &[u8]) -> Mark {
    let hash = Hash::digest(encoded);
    let (half, _) = hash.as_bytes().split_first_chunk().expect("a SHA-256 has 32 bytes");
    *half
}

/// NUL-terminated; no text contains a NUL, so different lists encode differently.
fn put(word: &str, encoded: &mut Vec<u8>) {
    encoded.extend_from_slice(word.as_bytes());
    encoded.push(0);
}

fn add_model(name: &str, models: &mut BTreeSet<String>) {
    if !models.contains(name) {
        models.insert(name.to_owned());
    }
}

/// The name of a model file, if the text is one. Servers on Windows write `\` between folders; it is the same file.
pub fn model_file(text: &str) -> Option<Cow<'_, str>> {
    let bytes = text.as_bytes();
    let tail = &bytes[bytes.len().saturating_sub(MODEL_ENDING_BYTES_MAX)..];
    let ending = &tail[tail.iter().rposition(|&byte| byte == b'.')? + 1..];
    if !MODEL_ENDINGS.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(ending)) {
        return None;
    }
    if bytes.len() > MODEL_BYTES_MAX || bytes.len() == ending.len() + 1 || bytes.contains(&b'\n') {
        return None;
    }
    if bytes.contains(&b'\\') { Some(text.replace('\\', "/").into()) } else { Some(text.into()) }
}
