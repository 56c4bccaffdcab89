//! The characters a reader knows, and how a row of guesses becomes a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use crate::engine::onnx::header::OnnxHeader;
use crate::failure::{InferenceError, LoadError};

/// Under which name the graph has its characters, one a line.
const KEY: &str = "character";

/// More characters than all scripts together have.
const CLASSES_MAX: usize = 1 << 20;

/// What the classes of the graph mean: nothing is the first, then these, and a space is the last.
#[derive(Clone, Debug)]
pub(super) struct Charset(Arc<[String]>);

impl Charset {
    /// From the graph, or from a text file beside it.
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
                    hint: "; put it beside the graph as keys.txt, one character a line".to_owned(),
                })?;
                let text = std::fs::read_to_string(&file)
                    .map_err(|error| LoadError::Wrong { path: file.clone(), detail: error.to_string() })?;
                (text, Some(file))
            }
        };
        let mut letters: Vec<String> =
            text.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
        if letters.last().is_some_and(String::is_empty) {
            letters.pop();
        }
        letters.push(" ".to_owned());
        match classes {
            Some(classes) if classes != letters.len() + 1 => Err(LoadError::Wrong {
                path: file.unwrap_or_else(|| graph.to_owned()),
                detail: format!(
                    "it lists {} characters for a graph that tells {classes} apart",
                    letters.len() - 1
                ),
            }),
            _ => Ok((Charset(letters.into()), file)),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The likeliest class of every step, told once however long it lasts, nothing left out; and how sure that is.
    pub(super) fn read(&self, guesses: &Tensor<f32>) -> Result<(String, f32), InferenceError> {
        let &[1, _, classes @ 1..=CLASSES_MAX] = guesses.shape() else {
            return Err(InferenceError::Engine(format!(
                "a text was expected and {:?} came",
                guesses.shape()
            )));
        };
        let guesses = guesses.to_vec();
        let (mut text, mut sure, mut told, mut before) = (String::new(), 0.0, 0_u16, 0);
        for step in guesses.chunks_exact(classes) {
            let likeliest = step.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((class, confidence)) = likeliest else { continue };
            if class != 0 && class != before {
                text.push_str(self.0.get(class - 1).map_or("", String::as_str));
                sure += confidence;
                told = told.saturating_add(1);
            }
            before = class;
        }
        Ok((text, sure / f32::from(told.max(1))))
    }
}

/// The list of characters that lies beside a graph, as those who publish them call it.
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
    fn what_lasts_is_told_once_and_what_comes_again_twice() {
        let letters = Charset(["a", "b", " "].map(str::to_owned).into());
        let steps = [0, 1, 1, 0, 1, 3, 2, 2, 0];
        let mut guesses = Vec::new();
        for class in steps {
            guesses.extend((0..4).map(|it| if it == class { 0.8 } else { 0.05 }));
        }
        let (text, sure) = letters.read(&Tensor::from_data(&[1, steps.len(), 4], guesses)).unwrap();
        assert_eq!(text, "aa b");
        assert!((sure - 0.8).abs() < 1e-6);
        let (text, sure) = letters.read(&Tensor::from_data(&[1, 1, 4], vec![1.0, 0.0, 0.0, 0.0])).unwrap();
        assert_eq!((text.as_str(), sure), ("", 0.0));
        assert!(letters.read(&Tensor::from_data(&[2, 2], vec![0.0; 4])).is_err());
    }
}
