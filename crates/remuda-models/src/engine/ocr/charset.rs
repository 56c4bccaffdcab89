//! The characters of a recognition graph, and decoding of its output to text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use crate::engine::onnx::header::OnnxHeader;
use crate::failure::{InferenceError, LoadError};

/// The metadata key under which the graph stores its characters, one per line.
const KEY: &str = "character";

/// More characters than all scripts together have.
const CLASSES_MAX: usize = 1 << 20;

/// The meaning of the graph's classes: blank first, then these, and a space last.
#[derive(Clone, Debug)]
pub(super) struct Charset(Arc<[String]>);

impl Charset {
    /// From the graph, or from a text file next to it.
    pub(super) fn find(
        graph: &Path,
        header: &OnnxHeader,
        classes: Option<usize>,
    ) -> Result<(Charset, Option<PathBuf>), LoadError> {
        let (text, file) = match header.metadata.get(KEY) {
            Some(text) => (text.clone(), None),
            None => {
                let file = beside(graph).ok_or_else(|| LoadError::Missing {
                    path: graph.to_owned(),
                    what: "list of characters".to_owned(),
                    hint: "; put it next to the graph as keys.txt, one character per line".to_owned(),
                })?;
                let text = std::fs::read_to_string(&file)
                    .map_err(|error| LoadError::Wrong { path: file.clone(), detail: error.to_string() })?;
                (text, Some(file))
            }
        };
        let mut characters: Vec<String> =
            text.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
        if characters.last().is_some_and(String::is_empty) {
            characters.pop();
        }
        characters.push(" ".to_owned());
        match classes {
            Some(classes) if classes != characters.len() + 1 => Err(LoadError::Wrong {
                path: file.unwrap_or_else(|| graph.to_owned()),
                detail: format!(
                    "it lists {} characters for a graph with {classes} classes",
                    characters.len() - 1
                ),
            }),
            _ => Ok((Charset(characters.into()), file)),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// CTC decoding: the likeliest class of every step, repetitions collapsed, blanks dropped; and the mean confidence.
    pub(super) fn read(&self, guesses: &Tensor<f32>) -> Result<(String, f32), InferenceError> {
        let &[1, _, classes @ 1..=CLASSES_MAX] = guesses.shape() else {
            return Err(InferenceError::Engine(format!(
                "expected character scores, got {:?}",
                guesses.shape()
            )));
        };
        let guesses = guesses.to_vec();
        let (mut text, mut sure, mut count, mut before) = (String::new(), 0.0, 0_u16, 0);
        for step in guesses.chunks_exact(classes) {
            let likeliest = step.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((class, confidence)) = likeliest else { continue };
            if class != 0 && class != before {
                text.push_str(self.0.get(class - 1).map_or("", String::as_str));
                sure += confidence;
                count = count.saturating_add(1);
            }
            before = class;
        }
        Ok((text, sure / f32::from(count.max(1))))
    }
}

/// The character list next to a graph, under its usual names.
fn beside(graph: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(graph.parent()?).ok()?.flatten().map(|entry| entry.path());
    let mut lists: Vec<_> = entries
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            name.ends_with(".txt") && (name.contains("keys") || name.contains("dict"))
        })
        .collect();
    lists.sort();
    lists.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_steps_collapse_unless_a_blank_separates_them() {
        let characters = Charset(["a", "b", " "].map(str::to_owned).into());
        let steps = [0, 1, 1, 0, 1, 3, 2, 2, 0];
        let mut guesses = Vec::new();
        for class in steps {
            guesses.extend((0..4).map(|it| if it == class { 0.8 } else { 0.05 }));
        }
        let (text, sure) = characters.read(&Tensor::from_data(&[1, steps.len(), 4], guesses)).unwrap();
        assert_eq!(text, "aa b");
        assert!((sure - 0.8).abs() < 1e-6);
        let (text, sure) = characters.read(&Tensor::from_data(&[1, 1, 4], vec![1.0, 0.0, 0.0, 0.0])).unwrap();
        assert_eq!((text.as_str(), sure), ("", 0.0));
        assert!(characters.read(&Tensor::from_data(&[2, 2], vec![0.0; 4])).is_err());
    }
}
