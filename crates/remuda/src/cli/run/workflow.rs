//! The workflow to submit: unchanged, or with the changes of `--set` and `--input`.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use remuda_core::workflow::{GraphNode, InputGraph};
use remuda_store::blobs::BlobHash;
use serde_json::json;
use serde_json::value::RawValue;

use super::graph::{self, EditableGraph, InputRef};
use crate::cli::UsageError;

/// `--set NODE.INPUT=VALUE`
#[derive(Clone, Debug)]
pub(super) struct InputChange {
    key: String,
    value: String,
}

/// `--input NODE.INPUT=FILE`
#[derive(Clone, Debug)]
pub(super) struct InputFile {
    key: String,
    pub(super) path: PathBuf,
}

pub(super) fn parse_change(typed: &str) -> Result<InputChange, String> {
    let (key, value) = typed.split_once('=').ok_or("write it as NODE.INPUT=VALUE")?;
    Ok(InputChange { key: key.to_owned(), value: value.to_owned() })
}

pub(super) fn parse_file(typed: &str) -> Result<InputFile, String> {
    let (key, path) = typed.split_once('=').ok_or("write it as NODE.INPUT=FILE")?;
    Ok(InputFile { key: key.to_owned(), path: path.into() })
}

#[derive(Debug)]
pub(super) struct SubmittedWorkflow {
    text: Box<RawValue>,
    graph: Option<EditableGraph>,
    /// Inputs set on the command line: their seeds are not replaced.
    chosen: BTreeSet<InputRef>,
    is_changed: bool,
}

impl SubmittedWorkflow {
    /// With `has_service` the workflow is for another service than ComfyUI and may have any form.
    pub(super) fn read(path: &Path, has_service: bool) -> anyhow::Result<SubmittedWorkflow> {
        let shown = path.display();
        let text = if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(path)
        };
        let text =
            text.map_err(|error| UsageError(format!("cannot read the workflow from {shown}: {error}")))?;
        let text: Box<RawValue> = serde_json::from_str(&text)
            .map_err(|error| UsageError(format!("{shown} is no workflow: it is not JSON ({error})")))?;
        if !text.get().starts_with('{') {
            let message =
                format!("{shown} is no workflow: a workflow is a JSON object, such as a graph in API format");
            return Err(UsageError(message).into());
        }
        let graph = EditableGraph::read(&text);
        if graph.is_none() && !has_service && is_web_ui_format(&text) {
            let message = format!(
                "{shown} is in the format of ComfyUI's web UI: export it there with \"Export (API)\""
            );
            return Err(UsageError(message).into());
        }
        Ok(SubmittedWorkflow { text, graph, chosen: BTreeSet::new(), is_changed: false })
    }

    pub(super) fn apply(&mut self, changes: &[InputChange]) -> anyhow::Result<()> {
        for InputChange { key, value } in changes {
            let input = self.find("--set", key)?;
            self.set(input, &graph::parse_value(value));
        }
        Ok(())
    }

    /// The inputs that the files are for; checks that every file exists.
    pub(super) fn find_inputs(&self, files: &[InputFile]) -> anyhow::Result<Vec<InputRef>> {
        let find = |file: &InputFile| {
            let input = self.find("--input", &file.key)?;
            let problem = match std::fs::metadata(&file.path) {
                Ok(found) if found.is_file() => return Ok(input),
                Ok(_) => "it is not a file".to_owned(),
                Err(error) => error.to_string(),
            };
            Err(UsageError(format!("--input {}: cannot read {}: {problem}", file.key, file.path.display()))
                .into())
        };
        files.iter().map(find).collect()
    }

    /// Sets the input to the blob with this hash.
    pub(super) fn set_file(&mut self, input: &InputRef, path: &Path, hash: BlobHash) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let info = json!({ "hash": hash, "file_path": name.unwrap_or_default() });
        self.set(input.clone(), &json!({ "__type": "core/ASSET", "info": info }));
    }

    fn find(&self, flag: &str, key: &str) -> anyhow::Result<InputRef> {
        let found = match &self.graph {
            Some(graph) => graph.find(key),
            None => {
                Err("the workflow is not a graph in ComfyUI's API format, so it has no inputs".to_owned())
            }
        };
        let key = remuda_net::terminal::escape_control(key);
        found.map_err(|problem| UsageError(format!("{flag} {key}: {problem}")).into())
    }

    fn set(&mut self, input: InputRef, value: &impl serde::Serialize) {
        if let Some(graph) = &mut self.graph {
            graph.set(&input, value);
            self.chosen.insert(input);
            self.is_changed = true;
        }
    }

    pub(super) fn to_json(&self) -> Box<RawValue> {
        match &self.graph {
            Some(graph) if self.is_changed => graph.to_json(),
            Some(_) | None => self.text.clone(),
        }
    }

    /// As `to_json`, with new random seeds.
    pub(super) fn to_json_with_new_seeds(&self) -> Box<RawValue> {
        let Some(graph) = &self.graph else { return self.text.clone() };
        let mut graph = graph.clone();
        graph.replace_seeds(&self.chosen, random_seed);
        graph.to_json()
    }
}

/// 31 bits, which every node accepts; some accept no more.
fn random_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 >> 33
}

fn is_web_ui_format(text: &RawValue) -> bool {
    let Some(graph) = InputGraph::read(text) else { return false };
    ["nodes", "links"].iter().all(|name| graph.nodes.get(*name).is_some_and(GraphNode::is_list))
}
