//! Pictures from text: models of the Stable Diffusion family, from the folders `diffusers` saves.
//!
//! ```text
//!  folder/model_index.json ─ scheduler/ ──▶ Schedule: which times, which numbers
//!         ├ tokenizer/ ─ text_encoder/ ──▶ Tokens ─▶ Clip: a prompt as rows
//!         ├ unet/ ───────────────────────▶ Unet: noise in latents, once or twice a step
//!         └ vae/ ────────────────────────▶ Decoder: latents to pixels
//! ```
//!
//! Everything is computed in 32 bits whatever the files have. Where a configuration asks for something else than this
//! family does, the model is refused by name and not drawn wrongly.

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

/// For what is not a matter of size, as it is for every other engine.
const STALL: Duration = Duration::from_secs(30);
/// A number of the largest layer takes 0.1 µs from one sign of life to the next on one core that others use as well
/// (256 x 256 in 64 channels: half a second), and is given five times that: 80 s for 512 x 768 of Stable Diffusion,
/// and ten minutes for 2048 x 2048.
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
            let what = "pictures from weights of eight bits".to_owned();
            return Err(LoadError::Unsupported {
                path,
                what,
                hint: "; leave the precision as it is".to_owned(),
            });
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
                hint: "name more memory for this model, or take a smaller one".to_owned(),
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
            // A step takes seconds to minutes and cannot be broken off from outside, and an allocation that fails ends
            // the process it is in.
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

    /// By the largest picture that may be asked for: between two signs of life the decoder passes over all of it.
    fn stall_max(&self, spec: &ModelSpec) -> Option<Duration> {
        let folder = DiffusersFolder::open(&spec.path).ok()?;
        let largest = folder.largest(checker(&folder, spec, candle_device::device(spec).ok()?).pixels_max);
        Some(STALL + STALL_A_NUMBER * u32::try_from(largest).unwrap_or(u32::MAX))
    }
}

/// For what is left of what it may take, once its device has its own.
fn checker(folder: &DiffusersFolder, spec: &ModelSpec, device: Device) -> PromptChecker {
    let room = spec.memory_bytes.map(|bytes| bytes.saturating_sub(candle_device::besides_bytes(device)));
    PromptChecker::new(folder, room)
}

/// What a copy takes of its device that draws pictures of so many pixels.
fn need_bytes(folder: &DiffusersFolder, device: Device, pixels: u64) -> u64 {
    candle_device::besides_bytes(device) + folder.weights_bytes() + folder.drawing_bytes(pixels)
}

fn notes(folder: &DiffusersFolder, checker: &PromptChecker) -> Vec<String> {
    let words = folder.clip.max_position_embeddings - 2;
    let (step, pixels) = (checker.side_step, checker.pixels_max);
    let mut notes = vec![
        format!("prompts are cut after {words} tokens"),
        format!(
            "sides are multiples of {step}, pictures have at most {pixels} pixels, and a picture takes at most {} steps",
            checker.steps_max
        ),
    ];
    if let Some(replaced) = &folder.scheduler.replaced {
        let sampler = folder.scheduler.sampler.name();
        notes
            .push(format!("{sampler} samples in place of {replaced}: other steps towards the same pictures"));
    }
    if folder.has_safety_checker {
        notes.push("the safety checker is not run".to_owned());
    }
    notes
}

/// Why a file is none of ours though it is a model of this family.
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
