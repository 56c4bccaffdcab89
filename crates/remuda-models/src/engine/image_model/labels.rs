//! Class labels, for classifiers with a list of class names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::onnx::header::OnnxHeader;
use crate::failure::LoadError;
use crate::request::ImageLabel;

/// One name per line, in class order.
const FILE: &str = "labels.txt";
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The number of labels returned, likeliest first.
const LABELS_MAX: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) file: PathBuf,
    /// The output with the class scores.
    pub(super) output: String,
    names: Arc<[String]>,
}

impl Labels {
    /// The labels next to a graph, if there are any.
    pub(super) fn beside(graph: &Path, header: &OnnxHeader) -> Result<Option<Labels>, LoadError> {
        let file = graph.with_file_name(FILE);
        if !file.is_file() {
            return Ok(None);
        }
        let wrong = |detail: String| LoadError::Wrong { path: file.clone(), detail };
        if file.metadata().is_ok_and(|found| found.len() > FILE_BYTES_MAX) {
            return Err(wrong(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(&file).map_err(|error| wrong(error.to_string()))?;
        let names: Arc<[String]> = text.lines().map(str::to_owned).collect();
        let fits =
            |shape: &[Option<u64>]| matches!(shape, [_, Some(classes)] if *classes == names.len() as u64);
        match header.outputs.iter().find(|info| fits(&info.shape)) {
            Some(info) => Ok(Some(Labels { output: info.name.clone(), names, file })),
            None => Err(wrong(format!(
                "it has {} names, but the graph has another number of classes",
                names.len()
            ))),
        }
    }

    /// The likeliest classes, by softmax of the logits.
    pub(super) fn likeliest(&self, logits: &[f32]) -> Vec<ImageLabel> {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
        let mut order: Vec<usize> = (0..logits.len().min(self.names.len())).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let label = |class: usize| ImageLabel {
            name: self.names[class].clone(),
            confidence: (logits[class] - most).exp() / sum,
        };
        order.into_iter().take(LABELS_MAX).map(label).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_confidences_sum_to_one() {
        let names = ["cat", "dog", "horse"].map(str::to_owned).into();
        let labels = Labels { file: PathBuf::new(), output: String::new(), names };
        let labels_found = labels.likeliest(&[1.0, -2.0, 3.0]);
        let order: Vec<_> = labels_found.iter().map(|label| label.name.as_str()).collect();
        assert_eq!(order, ["horse", "cat", "dog"]);
        assert!((labels_found.iter().map(|label| label.confidence).sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((labels_found[0].confidence - 0.8756).abs() < 1e-3, "{labels_found:?}");
    }
}
