//! Language models from GGUF files: text to text.
//!
//! ```text
//!  messages ─▶ template ─▶ words (tokens) ─▶ │ queue │ ─▶ Talker ─▶ Network: logits ─▶ sampler ─▶ speech ─▶ pieces
//!  └──────────── caller's thread ─────────┘            └────────────────────── copy ─────────────────────────┘
//! ```
//!
//! On a CPU the llama family is computed by [`lean`], in every build; other families and GPUs are candle's, in builds that
//! have it.

mod dimensions;
mod lean;
mod pieces;
mod prepare;
mod sampler;
mod speech;
mod talk;
mod template;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use self::dimensions::{Dimensions, architecture, room};
use self::lean::Lean;
use self::pieces::Pieces;
use self::prepare::Prompts;
use self::talk::Talker;
use self::template::Template;
use super::gguf::{Gguf, Kind};
use crate::backend::{Backend, Found, Prepare};
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::model::Model;
use crate::spec::{Capability, Isolation, ModelSpec};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chats;

impl Backend for Chats {
    fn name(&self) -> &'static str {
        "gguf"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<Found>, LoadError> {
        let Some(path) = file(spec)? else { return Ok(None) };
        let gguf = Gguf::open(&path)?;
        let dimensions = Dimensions::of(&gguf)?;
        if dimensions.is_none() {
            return Err(unknown(&gguf));
        }
        let (context, memory_bytes) = room(&gguf, dimensions.as_ref(), spec)?;
        // Whatever would keep it from being loaded or asked is better known now.
        Pieces::of(&gguf)?;
        Prompts::of(&gguf, spec)?;
        let kinds = gguf.kinds();
        Ok(Some(Found {
            engine: self.name(),
            capability: Capability::TextToText,
            architecture: format!(
                "{}, {} million weights, {}, {context} tokens",
                architecture(&gguf)?,
                kinds.iter().map(|(_, count)| count).sum::<u64>() / 1_000_000,
                kinds.first().map_or(String::new(), |(kind, _)| kind.to_string()),
            ),
            files: vec![path],
            memory_bytes,
            isolation: Isolation::Thread,
            notes: notes(&gguf, &kinds, context),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<Model, LoadError> {
        let path = file(spec)?.ok_or_else(|| missing(spec))?;
        let gguf = Gguf::open(&path)?;
        beacon.step()?;
        let dimensions = Dimensions::of(&gguf)?.ok_or_else(|| unknown(&gguf))?;
        let (context, _) = room(&gguf, Some(&dimensions), spec)?;
        let pieces = Pieces::of(&gguf)?;
        let network = Lean::load(&gguf, &dimensions, spec.threads, beacon)?;
        let context = usize::try_from(context).unwrap_or(usize::MAX);
        Ok(Model::TextToText(Box::new(Talker::new(Box::new(network), pieces, context))))
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        let path = file(spec)?.ok_or_else(|| missing(spec))?;
        Ok(Arc::new(Prompts::of(&Gguf::open(&path)?, spec)?))
    }
}

/// The file itself, or the only one in the folder.
fn file(spec: &ModelSpec) -> Result<Option<PathBuf>, LoadError> {
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|it| it.eq_ignore_ascii_case("gguf"));
    if spec.path.is_file() {
        return Ok(Some(spec.path.clone()).filter(is_gguf));
    }
    let Ok(entries) = std::fs::read_dir(&spec.path) else { return Ok(None) };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_gguf).collect();
    files.sort();
    match files.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [first, ..] => Err(LoadError::Unsupported {
            path: spec.path.clone(),
            what: format!("{} GGUF files in one folder", files.len()),
            hint: format!("; name the one that is meant, such as {}", first.display()),
        }),
    }
}

fn notes(gguf: &Gguf, kinds: &[(Kind, u64)], context: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let others: Vec<String> = kinds
        .iter()
        .map(|(kind, _)| *kind)
        .filter(|kind| !matches!(kind, Kind::Q8_0 | Kind::F32))
        .map(|kind| kind.to_string())
        .collect();
    if !others.is_empty() {
        notes.push(format!("{} becomes Q8_0 when it is loaded: a byte a weight", others.join(", ")));
    }
    let able = gguf.integer(&format!("{}.context_length", architecture(gguf).unwrap_or_default()));
    if able.is_some_and(|able| able > context) {
        notes.push(format!(
            "it could read {} tokens and is given {context}; more memory_bytes make it more",
            able.unwrap_or(0)
        ));
    }
    if Template::is_chatml(gguf) {
        notes.push("the file has no chat template; ChatML is used".to_owned());
    }
    notes
}

fn unknown(gguf: &Gguf) -> LoadError {
    LoadError::Unsupported {
        path: gguf.path.clone(),
        what: format!("a model of the {} kind", architecture(gguf).unwrap_or("unknown")),
        hint: "; this build runs llama, qwen2 and qwen3 without experts".to_owned(),
    }
}

fn missing(spec: &ModelSpec) -> LoadError {
    LoadError::Missing { path: spec.path.clone(), what: "GGUF file".to_owned(), hint: String::new() }
}

#[cfg(test)]
mod tests;
