//! Checks image requests and fills in defaults before they are queued.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::folder::DiffusersFolder;
use crate::backend::Prepare;
use crate::failure::ModelError;
use crate::request::{ImagePrompt, ModelRequest, RequestPart};

/// Enough for any sampler here; a larger number is a mistake that would occupy a copy for hours.
const STEPS_MAX: u32 = 150;
/// Enough for good images with DDIM and Euler.
const STEPS: u32 = 25;
/// The usual value of this model family.
const GUIDANCE: f32 = 7.5;
const GUIDANCE_MAX: f32 = 50.0;
/// A prompt is truncated to 75 tokens; a text hundreds of times longer is a mistake.
const PROMPT_BYTES_MAX: usize = 16 << 10;
/// Without a memory setting, images may be as much larger than native as 512 x 768 is than 512 x 512.
const PIXELS_OVER_NATIVE: (u64, u64) = (3, 2);
/// Regardless of memory: larger images of this model family repeat themselves.
const PIXELS_MAX: u64 = 2048 * 2048;

/// The limits of one model's images.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PromptChecker {
    pub(super) native: (u32, u32),
    /// Both sides are multiples of this.
    pub(super) side_step: u32,
    pub(super) side_min: u32,
    pub(super) pixels_max: u64,
    pub(super) steps_max: u32,
}

impl PromptChecker {
    /// The largest image that fits into the copy's memory, or into its default reservation.
    pub(super) fn new(folder: &DiffusersFolder, memory_bytes: Option<u64>) -> Self {
        let factor = u32::try_from(folder.vae.factor()).unwrap_or(u32::MAX);
        // Smaller latents would vanish at the deepest level, since every level halves them.
        let latents_min = 1 << (folder.unet.levels.len() - 1);
        let (width, height) = folder.native_size();
        let native = u64::from(width) * u64::from(height);
        let larger = native * PIXELS_OVER_NATIVE.0 / PIXELS_OVER_NATIVE.1;
        let fits = |pixels: &u64| {
            memory_bytes.is_none_or(|bytes| folder.weights_bytes() + folder.drawing_bytes(*pixels) <= bytes)
        };
        let sizes =
            std::iter::successors(Some(PIXELS_MAX), |pixels| Some(pixels / 4 * 3).filter(|less| *less > 0));
        let largest = if memory_bytes.is_some() { sizes.into_iter().find(fits).unwrap_or(0) } else { larger };
        PromptChecker {
            native: (width, height),
            side_step: factor.max(8),
            side_min: (factor * latents_min).next_multiple_of(factor.max(8)),
            pixels_max: largest.min(PIXELS_MAX),
            steps_max: STEPS_MAX.min(u32::try_from(folder.scheduler.train_steps).unwrap_or(u32::MAX)),
        }
    }

    /// The smallest possible image.
    pub(super) fn smallest(&self) -> (u32, u32) {
        (self.side_min, self.side_min)
    }

    /// Fills in defaults, so that a second copy generates the same image; refuses impossible requests.
    fn settled(&self, draw: ImagePrompt) -> Result<ImagePrompt, ModelError> {
        let refuse = |why: String| Err(ModelError::Input(why));
        for (name, text) in [("prompt", &draw.prompt), ("negative_prompt", &draw.negative_prompt)] {
            if text.len() > PROMPT_BYTES_MAX {
                return refuse(format!(
                    "the {name} has {} bytes; the limit is {PROMPT_BYTES_MAX}",
                    text.len()
                ));
            }
        }
        let (width, height) = draw.size.unwrap_or(self.native);
        let (step, min) = (self.side_step, self.side_min);
        if !width.is_multiple_of(step) || !height.is_multiple_of(step) || width < min || height < min {
            return refuse(format!(
                "{width} x {height}: sides must be multiples of {step} and at least {min}"
            ));
        }
        let (pixels, max) = (u64::from(width) * u64::from(height), self.pixels_max);
        if pixels > max {
            return refuse(format!(
                "{width} x {height} are {pixels} pixels; this model generates at most {max}: request a smaller image, or raise its memory_bytes"
            ));
        }
        let steps = draw.steps.unwrap_or(STEPS.min(self.steps_max));
        if !(1..=self.steps_max).contains(&steps) {
            return refuse(format!("{steps} steps: must be from 1 to {}", self.steps_max));
        }
        let guidance = draw.guidance.unwrap_or(GUIDANCE);
        if !(0.0..=GUIDANCE_MAX).contains(&guidance) {
            return refuse(format!(
                "a guidance of {guidance}: must be from 0 to {GUIDANCE_MAX}, usually {GUIDANCE}"
            ));
        }
        let seed = draw.seed.unwrap_or_else(any_seed);
        Ok(ImagePrompt {
            size: Some((width, height)),
            steps: Some(steps),
            guidance: Some(guidance),
            seed: Some(seed),
            ..draw
        })
    }
}

impl Prepare for PromptChecker {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        let ModelRequest::TextToImage(draw) = request else {
            return Err(ModelError::Input(
                "this model generates images, but got another kind of request".to_owned(),
            ));
        };
        Ok(vec![RequestPart::GenerateImage(self.settled(draw)?)])
    }

    /// Two steps of the smallest image use every weight.
    fn golden(&self) -> RequestPart {
        RequestPart::GenerateImage(ImagePrompt {
            prompt: "a horse".to_owned(),
            negative_prompt: String::new(),
            size: Some(self.smallest()),
            steps: Some(2.min(self.steps_max)),
            guidance: Some(GUIDANCE),
            seed: Some(1),
        })
    }
}

/// The standard library seeds its hasher from the system's randomness, so no dependency is needed.
fn any_seed() -> u64 {
    // Below 2^53, so that every JSON reader keeps the exact number.
    RandomState::new().build_hasher().finish() >> 11
}
