//! A model folder as `diffusers` saves it: the parts with their configurations and weights.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::config::{ClipConfig, UnetConfig, VaeConfig, read, unsupported, wrong};
use super::scheduler::SchedulerConfig;
use super::tokenizer::ClipTokenizer;
use super::weights::DiffusionWeights;
use crate::failure::LoadError;

const INDEX: &str = "model_index.json";

/// A model whose configurations are consistent and whose weight headers were read.
#[derive(Debug)]
pub(super) struct DiffusersFolder {
    pub(super) path: PathBuf,
    pub(super) unet: UnetConfig,
    pub(super) vae: VaeConfig,
    pub(super) clip: ClipConfig,
    pub(super) scheduler: SchedulerConfig,
    pub(super) unet_weights: DiffusionWeights,
    pub(super) vae_weights: DiffusionWeights,
    pub(super) clip_weights: DiffusionWeights,
    pub(super) has_safety_checker: bool,
}

#[derive(Deserialize)]
struct ModelIndex {
    _class_name: String,
    #[serde(default)]
    safety_checker: Vec<serde_json::Value>,
}

impl DiffusersFolder {
    /// Whether the folder has all or some parts of such a model.
    pub(super) fn is_at(path: &Path) -> bool {
        path.join(INDEX).is_file() || (path.join("unet").is_dir() && path.join("vae").is_dir())
    }

    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let index_path = path.join(INDEX);
        let index: ModelIndex = read(&index_path)?;
        let class = &index._class_name;
        if class != "StableDiffusionPipeline" {
            let hint =
                "; supported are folders of a StableDiffusionPipeline, which is Stable Diffusion 1 and 2";
            return Err(unsupported(&index_path, format!("a {class}"), hint));
        }
        let [unet, vae, clip] = ["unet", "vae", "text_encoder"].map(|part| path.join(part));
        let folder = DiffusersFolder {
            path: path.to_owned(),
            unet: UnetConfig::read(&unet.join("config.json"))?,
            vae: VaeConfig::read(&vae.join("config.json"))?,
            clip: ClipConfig::read(&clip.join("config.json"))?,
            scheduler: SchedulerConfig::read(&path.join("scheduler").join("scheduler_config.json"))?,
            unet_weights: DiffusionWeights::open(&unet, "diffusion_pytorch_model")?,
            vae_weights: DiffusionWeights::open(&vae, "diffusion_pytorch_model")?,
            clip_weights: DiffusionWeights::open(&clip, "model")?,
            has_safety_checker: index.safety_checker.iter().any(|part| !part.is_null()),
        };
        folder.fits()?;
        Ok(folder)
    }

    /// Checks that the parts belong to one model.
    fn fits(&self) -> Result<(), LoadError> {
        let (context, text) = (self.unet.context, self.clip.hidden_size);
        if context != text {
            let detail =
                format!("it expects {context} values per token, but the text encoder produces {text}");
            return Err(wrong(&self.path.join("unet").join("config.json"), detail));
        }
        let (denoised, decoded) = (self.unet.channels, self.vae.latent_channels);
        if denoised != decoded {
            let detail = format!("it decodes {decoded} channels, but the denoiser produces {denoised}");
            return Err(wrong(&self.path.join("vae").join("config.json"), detail));
        }
        Ok(())
    }

    pub(super) fn files(&self) -> Result<Vec<PathBuf>, LoadError> {
        let parts = [&self.unet_weights, &self.vae_weights, &self.clip_weights];
        let weights = parts.into_iter().flat_map(|weights| weights.files.iter().cloned());
        Ok(weights.chain(ClipTokenizer::files(&self.path)?).collect())
    }

    /// The image size it was trained for.
    pub(super) fn native_size(&self) -> (u32, u32) {
        let (height, width) = self.unet.sample;
        let pixels = |latents: usize| u32::try_from(latents * self.vae.factor()).unwrap_or(u32::MAX);
        (pixels(width), pixels(height))
    }

    /// Memory of the loaded weights, in 32 bits whatever the file type.
    pub(super) fn weights_bytes(&self) -> u64 {
        let decoder = self.vae_weights.bytes(&["decoder.", "post_quant_conv."]);
        self.unet_weights.bytes(&[""]) + decoder + self.clip_weights.bytes(&[""])
    }

    /// The number of values in the decoder's last level, which keeps the channels of the level above at full size.
    pub(super) fn largest(&self, pixels: u64) -> u64 {
        pixels * self.vae.block_out_channels.iter().take(2).max().copied().unwrap_or_default() as u64
    }

    /// Peak scratch memory while one image is generated.
    pub(super) fn drawing_bytes(&self, pixels: u64) -> u64 {
        const NUMBER_BYTES: u64 = 4;
        /// For attention scores, three at a time, and per-thread buffers.
        const FIXED_BYTES: u64 = 256 << 20;
        // Input, norm, activation, the convolution's copy and its output exist at the same time.
        let decoding = self.largest(pixels) * NUMBER_BYTES * 6;
        // The denoiser keeps every layer on its way down; each level has a quarter of the pixels of the one before.
        let latents = pixels / (self.vae.factor() as u64).pow(2);
        let level = |(depth, level): (usize, &super::config::UnetLevel)| {
            (latents >> (2 * depth as u64)) * level.channels as u64 * (level.layers as u64 + 12)
        };
        let denoising = self.unet.levels.iter().enumerate().map(level).sum::<u64>() * NUMBER_BYTES;
        decoding.max(denoising) + FIXED_BYTES
    }
}
