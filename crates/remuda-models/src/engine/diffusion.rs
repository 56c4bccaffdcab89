//! Text to image: models of the Stable Diffusion family, from folders that `diffusers` saves.
//!
//! ```text
//!  folder/model_index.json ─ scheduler/ ──▶ Schedule: which times, which numbers
//!         ├ tokenizer/ ─ text_encoder/ ──▶ ClipTokenizer ─▶ Clip: one row per token
//!         ├ unet/ ───────────────────────▶ Unet: noise in latents, once or twice a step
//!         └ vae/ ────────────────────────▶ Decoder: latents to pixels
//! ```
//!
//! Everything is computed in 32 bits, whatever the files have. A configuration that differs from this family is refused
//! with a reason, instead of producing wrong images.

mod clip;
mod config;
mod folder;
mod layers;
mod noise;
mod pipeline;
mod png_file;
mod prepare;
mod schedule;
mod scheduler;
#[cfg(test)]
mod tests;
mod tokenizer;
mod transformer;
mod unet;
mod vae;
mod weights;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::folder::DiffusersFolder;
use self::pipeline::DiffusionPipeline;
use self::prepare::PromptChecker;
use self::tokenizer::ClipTokenizer;
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::engine::candle_device;
use crate::failure::LoadError;
use crate::model::LoadedModel;
use crate::spec::{Capability, Device, Isolation, ModelSpec, Precision};

/// The part of the stall limit that does not depend on the image size, as for every other engine.
const STALL: Duration = Duration::from_secs(30);
/// A value of the largest layer takes 0.1 µs between two beacon steps on one shared core (256 x 256 in 64 channels:
/// half a second). The limit is five times that: 80 s for 512 x 768 of Stable Diffusion, ten minutes for 2048 x 2048.
const STALL_A_NUMBER: Duration = Duration::from_nanos(500);

/// Reads folders with a `model_index.json`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Diffusion;

impl Backend for Diffusion {
    fn name(&self) -> &'static str {
        "diffusion"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError> {
        if spec.path.is_file() {
            return single(&spec.path).map_or(Ok(None), Err);
        }
        if !DiffusersFolder::is_at(&spec.path) {
            return Ok(None);
        }
        let folder = DiffusersFolder::open(&spec.path)?;
        if spec.precision == Precision::Int8 {
            let path = spec.path.clone();
            let what = "int8 weights for image models".to_owned();
            return Err(LoadError::Unsupported { path, what, hint: "; use the native precision".to_owned() });
        }
        let device = candle_device::device(spec)?;
        let checker = checker(&folder, spec, device);
        ClipTokenizer::load(&folder.path, folder.clip.max_position_embeddings, folder.clip.vocab_size)?;
        let (width, height) = checker.native;
        let (sampler, prediction) = (folder.scheduler.sampler.name(), folder.scheduler.prediction.name());
        let (smallest, _) = checker.smallest();
        let smallest = u64::from(smallest).pow(2);
        if checker.pixels_max < smallest {
            return Err(LoadError::Memory {
                need_bytes: need_bytes(&folder, device, smallest),
                free_bytes: spec.memory_bytes.unwrap_or_default(),
                hint: "raise memory_bytes of this model, or use a smaller one".to_owned(),
            });
        }
        Ok(Some(ModelInfo {
            engine: self.name(),
            capability: Capability::TextToImage,
            architecture: format!("stable-diffusion {width}x{height} {prediction} {sampler}"),
            files: folder.files()?,
            device,
            device_bytes: candle_device::memory_bytes(device)?,
            memory_bytes: need_bytes(&folder, device, checker.pixels_max),
            // A step takes seconds to minutes and cannot be interrupted from outside, and a failed allocation aborts
            // the process.
            isolation: Isolation::Process,
            notes: notes(&folder, &checker),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError> {
        beacon.step()?;
        let folder = DiffusersFolder::open(&spec.path)?;
        let device = candle_device::device(spec)?;
        let need_bytes = need_bytes(&folder, device, checker(&folder, spec, device).pixels_max);
        Ok(LoadedModel::TextToImage(Box::new(DiffusionPipeline::load(
            &folder,
            (device, need_bytes),
            spec.threads,
            beacon,
        )?)))
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        Ok(Arc::new(checker(&DiffusersFolder::open(&spec.path)?, spec, candle_device::device(spec)?)))
    }

    /// Based on the largest allowed image: the decoder processes all of it between two beacon steps.
    fn stall_max(&self, spec: &ModelSpec) -> Option<Duration> {
        let folder = DiffusersFolder::open(&spec.path).ok()?;
        let largest = folder.largest(checker(&folder, spec, candle_device::device(spec).ok()?).pixels_max);
        Some(STALL + STALL_A_NUMBER * u32::try_from(largest).unwrap_or(u32::MAX))
    }
}

/// For the memory that is left after the device's overhead.
fn checker(folder: &DiffusersFolder, spec: &ModelSpec, device: Device) -> PromptChecker {
    let room = spec.memory_bytes.map(|bytes| bytes.saturating_sub(candle_device::besides_bytes(device)));
    PromptChecker::new(folder, room)
}

/// Device memory of a copy for images of this many pixels.
fn need_bytes(folder: &DiffusersFolder, device: Device, pixels: u64) -> u64 {
    candle_device::besides_bytes(device) + folder.weights_bytes() + folder.drawing_bytes(pixels)
}

fn notes(folder: &DiffusersFolder, checker: &PromptChecker) -> Vec<String> {
    let words = folder.clip.max_position_embeddings - 2;
    let (step, pixels) = (checker.side_step, checker.pixels_max);
    let mut notes = vec![
        format!("prompts are truncated to {words} tokens"),
        format!(
            "image sides are multiples of {step}, images have at most {pixels} pixels and take at most {} steps",
            checker.steps_max
        ),
    ];
    if let Some(replaced) = &folder.scheduler.replaced {
        let sampler = folder.scheduler.sampler.name();
        notes.push(format!(
            "using {sampler} instead of {replaced}: the steps differ, the images are comparable"
        ));
    }
    if folder.has_safety_checker {
        notes.push("the safety checker is not used".to_owned());
    }
    notes
}

/// Why a single file cannot be loaded, although it is a model of this family.
fn single(path: &Path) -> Option<LoadError> {
    let is = |kinds: &[&str]| path.extension().is_some_and(|kind| kinds.iter().any(|name| kind == *name));
    if is(&["ckpt", "pt", "pth", "bin"]) && weights::is_pickle(path) {
        return Some(LoadError::Pickle { path: path.to_owned() });
    }
    let is_checkpoint = |name: &String| name.starts_with("model.diffusion_model.");
    let (_, header) = is(&["safetensors"]).then(|| weights::header(path).ok()).flatten()?;
    if !header.offset_keys().iter().any(is_checkpoint) {
        return None;
    }
    let what = "a Stable Diffusion checkpoint in one file".to_owned();
    let hint = "; save it as a folder with diffusers: StableDiffusionPipeline.from_single_file(FILE).save_pretrained(FOLDER)".to_owned();
    Some(LoadError::Unsupported { path: path.to_owned(), what, hint })
}
