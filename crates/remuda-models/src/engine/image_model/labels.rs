//! What is on a picture, in words: for graphs that tell things apart and come with a list of their names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::onnx::header::OnnxHeader;
use crate::failure::LoadError;
use crate::request::ImageLabel;

/// One name a line, in the order of the classes.
const FILE: &str = "labels.txt";
const FILE_BYTES_MAX: u64 = 4 << 20;
/// So many are told, the likeliest first.
const TOLD_MAX: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) file: PathBuf,
    /// The output that says how likely each is.
    pub(super) output: String,
    names: Arc<[String]>,
}

impl Labels {
    /// Those that lie beside a graph; nothing if there are none.
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
                "it names {} things, and the graph tells another number apart",
                names.len()
            ))),
        }
    }

    /// The likeliest, of numbers that are as likely as their exponentials.
    pub(super) fn likeliest(&self, logits: &[f32]) -> Vec<ImageLabel> {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
        let mut order: Vec<usize> = (0..logits.len().min(self.names.len())).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let label = |class: usize| ImageLabel {
            name: self.names[class].clone(),
            confidence: (logits[class] - most).exp() / sum,
        };
        order.into_iter().take(TOLD_MAX).map(label).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_are_told_first_and_all_together_are_certain() {
        let names = ["cat", "dog", "horse"].map(str::to_owned).into();
        let labels = Labels { file: PathBuf::new(), output: String::new(), names };
        let told = labels.likeliest(&[1.0, -2.0, 3.0]);
        let order: Vec<_> = told.iter().map(|label| label.name.as_str()).collect();
        assert_eq!(order, ["horse", "cat", "dog"]);
        assert!((told.iter().map(|label| label.confidence).sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((told[0].confidence - 0.8756).abs() < 1e-3, "{told:?}");
    }
}
