//! The forms in which a program may pass a workflow.

use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// A workflow in ComfyUI's API format: a JSON value, JSON text, or a file with it.
///
/// Text and files are passed on byte for byte, so that a seed of twenty digits keeps its value.
#[derive(Clone, Debug)]
pub struct WorkflowSource(Source);

#[derive(Clone, Debug)]
enum Source {
    Text(String),
    File(PathBuf),
}

impl WorkflowSource {
    pub(super) async fn read(self) -> Result<Box<RawValue>, String> {
        let (text, origin) = match self.0 {
            Source::Text(text) => (text, "the workflow".to_owned()),
            Source::File(path) => {
                let origin = path.display().to_string();
                let text = tokio::fs::read_to_string(path).await;
                (text.map_err(|error| format!("{origin} cannot be read: {error}"))?, origin)
            }
        };
        let raw = serde_json::from_str::<Box<RawValue>>(&text);
        raw.map_err(|error| {
            let hint = if text.trim_start().starts_with('{') { "" } else { "; for a file, pass a Path" };
            format!("{origin} is not JSON: {error}{hint}")
        })
    }
}

impl From<Value> for WorkflowSource {
    fn from(value: Value) -> Self {
        WorkflowSource::from(&value)
    }
}

impl From<&Value> for WorkflowSource {
    fn from(value: &Value) -> Self {
        let raw = to_raw_value(value).expect("a JSON value can be written");
        WorkflowSource::from(raw)
    }
}

impl From<Box<RawValue>> for WorkflowSource {
    fn from(raw: Box<RawValue>) -> Self {
        WorkflowSource(Source::Text(raw.get().to_owned()))
    }
}

impl From<&str> for WorkflowSource {
    fn from(json: &str) -> Self {
        WorkflowSource(Source::Text(json.to_owned()))
    }
}

impl From<String> for WorkflowSource {
    fn from(json: String) -> Self {
        WorkflowSource(Source::Text(json))
    }
}

impl From<&Path> for WorkflowSource {
    fn from(path: &Path) -> Self {
        WorkflowSource(Source::File(path.to_owned()))
    }
}

impl From<PathBuf> for WorkflowSource {
    fn from(path: PathBuf) -> Self {
        WorkflowSource(Source::File(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workflow_text_is_passed_on_unchanged() {
        let text = r#"{"1": {"class_type": "KSampler", "inputs": {"seed": 18446744073709551615}}}"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workflow.json");
        std::fs::write(&path, text).unwrap();
        for workflow in [WorkflowSource::from(text), text.to_owned().into(), path.as_path().into()] {
            assert_eq!(workflow.read().await.unwrap().get(), text);
        }
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(WorkflowSource::from(value).read().await.unwrap().get().contains("18446744073709551615"));
    }

    #[tokio::test]
    async fn invalid_source_is_explained() {
        for (workflow, expected) in [
            (WorkflowSource::from("workflow.json"), "pass a Path"),
            (WorkflowSource::from(r#"{"1": "#), "not JSON"),
            (Path::new("/nowhere/workflow.json").into(), "/nowhere/workflow.json cannot be read"),
        ] {
            let error = workflow.read().await.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
