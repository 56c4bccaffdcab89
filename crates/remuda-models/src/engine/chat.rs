//! Language models from GGUF files: text to text.
//!
//! ```text
//!  messages ─▶ template ─▶ tokenizer ─▶ │ queue │ ─▶ Generator ─▶ LanguageModel: logits ─▶ sampler ─▶ detokenizer
//!  └──────── caller's thread ────────┘            └────────────────────────── copy ─────────────────────────┘
//! ```
//!
//! On a CPU the llama family is computed by [`cpu_llama`] in every build; other families and GPUs use candle, in builds
//! that include it.

#[cfg(feature = "candle")]
mod candle;
mod cpu_llama;
mod detokenizer;
mod dimensions;
mod generation;
mod plan;
mod prepare;
mod sampler;
mod template;
mod tokenizer;
mod vocab;

use std::path::PathBuf;
use std::sync::Arc;

use self::dimensions::architecture;
use self::generation::Generator;
use self::plan::ChatPlan;
use self::prepare::PromptBuilder;
use self::vocab::Vocab;
use super::gguf::Gguf;
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::child_command::ChildCommand;
use crate::failure::LoadError;
use crate::model::LoadedModel;
use crate::spec::{Capability, ModelSpec};

#[derive(Clone, Debug, Default)]
pub(super) struct ChatEngine {
    /// The program that renders chat templates.
    pub(super) child: ChildCommand,
}

impl Backend for ChatEngine {
    fn name(&self) -> &'static str {
        "gguf"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError> {
        let Some(path) = file(spec)? else { return Ok(None) };
        let gguf = Gguf::open(&path)?;
        let plan = ChatPlan::of(&gguf, spec)?;
        // Everything that would prevent loading or prompting is checked now.
        Vocab::of(&gguf)?;
        PromptBuilder::of(&gguf, &spec.name, plan.context, &self.child)?;
        let kinds = gguf.kinds();
        Ok(Some(ModelInfo {
            engine: self.name(),
            capability: Capability::TextToText,
            architecture: format!(
                "{}, {} million weights, {}, {} tokens",
                architecture(&gguf)?,
                kinds.iter().map(|(_, count)| count).sum::<u64>() / 1_000_000,
                kinds.first().map_or(String::new(), |(kind, _)| kind.to_string()),
                plan.context,
            ),
            files: vec![path],
            device: plan.device(),
            device_bytes: plan.device_bytes()?,
            memory_bytes: plan.memory_bytes,
            isolation: plan.isolation(),
            notes: plan.notes(&gguf, &kinds),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError> {
        let path = file(spec)?.ok_or_else(|| missing(spec))?;
        let gguf = Gguf::open(&path)?;
        beacon.step()?;
        let plan = ChatPlan::of(&gguf, spec)?;
        let pieces = Vocab::of(&gguf)?;
        let network = plan.load(&gguf, spec, beacon)?;
        Ok(LoadedModel::TextToText(Box::new(Generator::new(network, pieces, plan.context))))
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        let gguf = Gguf::open(&file(spec)?.ok_or_else(|| missing(spec))?)?;
        let context = ChatPlan::of(&gguf, spec)?.context;
        Ok(Arc::new(PromptBuilder::of(&gguf, &spec.name, context, &self.child)?))
    }
}

/// The file itself, or the only GGUF file in the folder.
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
            hint: format!("; name one of them, for example {}", first.display()),
        }),
    }
}

fn missing(spec: &ModelSpec) -> LoadError {
    LoadError::Missing { path: spec.path.clone(), what: "GGUF file".to_owned(), hint: String::new() }
}

#[cfg(test)]
mod tests;
