//! The workflow that is submitted: as it was read, or with what `--set` and `--input` change in it.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::graph::{self, EditableGraph, InputRef};
use crate::cli::Usage;

/// `--set NODE.INPUT=VALUE`
#[derive(Clone, Debug)]
pub(super) struct Change {
    key: String,
    value: String,
}

/// `--input NODE.INPUT=FILE`
#[derive(Clone, Debug)]
pub(super) struct File {
    key: String,
    pub(super) path: PathBuf,
}

pub(super) fn change(typed: &str) -> Result<Change, String> {
    let (key, value) = typed.split_once('=').ok_or("write it as NODE.INPUT=VALUE")?;
    Ok(Change { key: key.to_owned(), value: value.to_owned() })
}

pub(super) fn file(typed: &str) -> Result<File, String> {
    let (key, path) = typed.split_once('=').ok_or("write it as NODE.INPUT=FILE")?;
    Ok(File { key: key.to_owned(), path: path.into() })
}

#[derive(Debug)]
pub(super) struct Workflow {
    text: Box<RawValue>,
    graph: Option<EditableGraph>,
    /// What was chosen by hand: no seed is drawn there.
    chosen: BTreeSet<InputRef>,
    is_changed: bool,
}

impl Workflow {
    /// `is_for_another`: a service was named, so that it may be anything.
    pub(super) fn read(path: &Path, is_for_another: bool) -> anyhow::Result<Workflow> {
        let text = if path.as_os_str() == "-" {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.context("cannot read the workflow from standard input")?;
            text
        } else {
            std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the workflow from {}", path.display()))?
        };
        let text: Box<RawValue> =
            serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
        let graph = EditableGraph::read(&text);
        if graph.is_none() && !is_for_another && is_of_the_web_interface(&text) {
            let message = format!(
                "{} is in the format of ComfyUI's web interface, which only that can run: export it there with \"Export (API)\"",
                path.display()
            );
            return Err(Usage(message).into());
        }
        Ok(Workflow { text, graph, chosen: BTreeSet::new(), is_changed: false })
    }

    pub(super) fn change(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        for Change { key, value } in changes {
            let place = self.find("--set", key)?;
            self.put(place, &graph::value(value));
        }
        Ok(())
    }

    /// Which inputs the files are for; all of them are there and can be read.
    pub(super) fn places(&self, files: &[File]) -> anyhow::Result<Vec<InputRef>> {
        let place = |file: &File| {
            let place = self.find("--input", &file.key)?;
            let problem = match std::fs::metadata(&file.path) {
                Ok(found) if found.is_file() => return Ok(place),
                Ok(_) => "it is no file".to_owned(),
                Err(error) => error.to_string(),
            };
            Err(Usage(format!("--input {}: cannot read {}: {problem}", file.key, file.path.display())).into())
        };
        files.iter().map(place).collect()
    }

    /// The input becomes what lies on the plane under this hash.
    pub(super) fn place(&mut self, place: &InputRef, path: &Path, hash: BlobHash) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let info = json!({ "hash": hash, "file_path": name.unwrap_or_default() });
        self.put(place.clone(), &json!({ "__type": "core/ASSET", "info": info }));
    }

    fn find(&self, flag: &str, key: &str) -> anyhow::Result<InputRef> {
        let found = match &self.graph {
            Some(graph) => graph.find(key),
            None => {
                Err("the workflow is no graph in ComfyUI's API format, so that it has no inputs".to_owned())
            }
        };
        let key = remuda_net::terminal::escape_control(key);
        found.map_err(|problem| Usage(format!("{flag} {key}: {problem}")).into())
    }

    fn put(&mut self, place: InputRef, value: &impl serde::Serialize) {
        if let Some(graph) = &mut self.graph {
            graph.set(&place, value);
            self.chosen.insert(place);
            self.is_changed = true;
        }
    }

    pub(super) fn written(&self) -> Box<RawValue> {
        match &self.graph {
            Some(graph) if self.is_changed => graph.written(),
            Some(_) | None => self.text.clone(),
        }
    }

    /// As `written`, with seeds of its own.
    pub(super) fn copy(&self) -> Box<RawValue> {
        let Some(graph) = &self.graph else { return self.text.clone() };
        let mut graph = graph.clone();
        graph.draw_seeds(&self.chosen, draw_seed);
        graph.written()
    }
}

/// 31 bits: every node takes as many, and some take no more.
fn draw_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 >> 33
}

fn is_of_the_web_interface(text: &RawValue) -> bool {
    let workflow: Value = serde_json::from_str(text.get()).unwrap_or_default();
    workflow["nodes"].is_array() && workflow["links"].is_array()
}
