//! What kind of workflow it is: jobs that differ only in texts, seeds and sizes have one shape.
//!
//! A graph's shape does not know the ids of its nodes. Each node gets a *mark* from its class, its inputs' names, the
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

/// Half a SHA-256: enough that no two marks meet by chance.
type Mark = [u8; 16];

const MODEL_ENDINGS: [&str; 9] = ["safetensors", "sft", "ckpt", "pt", "pth", "bin", "gguf", "onnx", "engine"];

/// The longest of the endings, with its point.
const MODEL_ENDING_BYTES_MAX: usize = 12;

/// No path below a model folder is longer; a text that is, or that has several lines, only happens to end like one.
const MODEL_BYTES_MAX: usize = 512;

/// The shape of a graph and the model files in its inputs. `order`: each node after those that feed it.
pub(super) fn of_graph(tree: &Tree<'_>, graph: &Graph<'_>, order: &[usize]) -> (Shape, BTreeSet<String>) {
    let mut models = BTreeSet::new();
    let mut marks = vec![Mark::default(); graph.nodes.len()];
    let mut told = Vec::new();
    for &node in order {
        told.clear();
        put(graph.nodes[node].class, &mut told);
        for input in graph.inputs(node) {
            put(input.name, &mut told);
            match &input.feed {
                Feed::Link { source, slot } => {
                    told.push(b'l');
                    told.extend_from_slice(&marks[*source]);
                    canonical::write(tree, slot, &mut told);
                }
                Feed::Given(value) => put_models(tree, value, &mut told, &mut models),
            }
            told.push(b';');
        }
        marks[node] = mark(&told);
    }
    marks.sort_unstable();
    (Hash::digest(marks.as_flattened()), models)
}

/// All that is told of a value given to a node: the model files in it, however deep they stand.
fn put_models(tree: &Tree<'_>, value: &Value<'_>, told: &mut Vec<u8>, models: &mut BTreeSet<String>) {
    match value {
        Value::Text(text) => {
            if let Some(name) = model_file(text) {
                told.push(b'm');
                put(&name, told);
                note(&name, models);
            }
        }
        Value::Array(elements) => {
            tree.elements(elements).iter().for_each(|element| put_models(tree, element, told, models));
        }
        Value::Object(members) => {
            tree.members(members).iter().for_each(|(_, member)| put_models(tree, member, told, models));
        }
        Value::Null | Value::Bool(_) | Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) => {}
    }
}

/// The shape of a workflow that is no graph: its keys, its kinds of values and its models.
pub(super) fn of_value(tree: &Tree<'_>) -> (Shape, BTreeSet<String>) {
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
            note(&name, models);
            mark(&[b"m", name.as_bytes()].concat())
        }
        // How many elements there are is a size; what kinds of them there are is not.
        Value::Array(elements) => {
            let kinds: BTreeSet<Mark> =
                tree.elements(elements).iter().map(|element| mark_of(tree, "", element, models)).collect();
            let mut told = vec![b'a'];
            told.extend(kinds.iter().flatten());
            mark(&told)
        }
        Value::Object(members) => {
            let mut told = vec![b'o'];
            for (key, member) in tree.members(members) {
                put(key, &mut told);
                told.extend_from_slice(&mark_of(tree, key, member, models));
            }
            mark(&told)
        }
    }
}

fn mark(told: &[u8]) -> Mark {
    let hash = Hash::digest(told);
    let (half, _) = hash.as_bytes().split_first_chunk().expect("a SHA-256 has 32 bytes");
    *half
}

/// A NUL ends each word, and no word has one in it, so no two lists of words look alike.
fn put(word: &str, told: &mut Vec<u8>) {
    told.extend_from_slice(word.as_bytes());
    told.push(0);
}

fn note(name: &str, models: &mut BTreeSet<String>) {
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
