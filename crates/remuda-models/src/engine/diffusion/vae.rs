//! The decoder from latents to pixels. The encoder's weights are not read.

use candle_core::{Device, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, Module};

use super::config::VaeConfig;
use super::layers::{
    Attention, Conv, Residual, TensorResult, activated, as_image, as_rows, conv_with, enlarged, group_norm,
    linear,
};
use super::weights::{DiffusionWeights, TensorSource};
use crate::beacon::Beacon;
use crate::failure::LoadError;

/// The epsilon of all its norms; no configuration defines it.
const EPS: f64 = 1e-6;

#[derive(Debug)]
pub(super) struct Decoder {
    latents_in: Option<Conv2d>,
    conv_in: Conv,
    first: Residual,
    attention: Option<(GroupNorm, Attention)>,
    second: Residual,
    levels: Vec<(Vec<Residual>, Option<Conv>)>,
    norm_out: GroupNorm,
    conv_out: Conv,
    scaling_factor: f64,
}

impl Decoder {
    pub(super) fn load(
        weights: &DiffusionWeights,
        config: &VaeConfig,
        device: &Device,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let root = weights.source(device, beacon);
        let source = root.at("decoder");
        let (groups, latents) = (config.norm_num_groups, config.latent_channels);
        let widest = config.block_out_channels.last().copied().unwrap_or_default();
        let finest = config.block_out_channels.first().copied().unwrap_or_default();
        let residual = |source: &TensorSource<'_>, sides| Residual::load(source, sides, (groups, EPS), None);
        let middle = source.at("mid_block");
        let latents_in =
            || conv_with(&root.at("post_quant_conv"), latents, latents, 1, Conv2dConfig::default());
        let attention = || attention(&middle.at("attentions.0"), groups, widest);
        let mut levels = Vec::new();
        let mut into = widest;
        for (number, channels) in config.block_out_channels.iter().rev().enumerate() {
            let source = source.at("up_blocks").at(number);
            let mut layers = Vec::new();
            for layer in 0..=config.layers_per_block {
                layers.push(residual(&source.at("resnets").at(layer), (into, *channels))?);
                into = *channels;
            }
            let is_last = number + 1 == config.block_out_channels.len();
            let resize = || Conv::load(&source.at("upsamplers.0.conv"), into, into);
            levels.push((layers, if is_last { None } else { Some(resize()?) }));
        }
        Ok(Decoder {
            latents_in: config.use_post_quant_conv.then(latents_in).transpose()?,
            conv_in: Conv::load(&source.at("conv_in"), latents, widest)?,
            first: residual(&middle.at("resnets.0"), (widest, widest))?,
            attention: config.mid_block_add_attention.then(attention).transpose()?,
            second: residual(&middle.at("resnets.1"), (widest, widest))?,
            levels,
            norm_out: group_norm(&source.at("conv_norm_out"), groups, finest, EPS)?,
            conv_out: Conv::load(&source.at("conv_out"), finest, 3)?,
            scaling_factor: config.scaling_factor,
        })
    }

    /// An image with values from -1 to 1, and slightly beyond.
    pub(super) fn run(&self, latents: &Tensor, beacon: &Beacon) -> TensorResult {
        let mut sample = (latents / self.scaling_factor)?;
        if let Some(layer) = &self.latents_in {
            sample = layer.forward(&sample)?;
        }
        sample = self.first.run(&self.conv_in.run(&sample, beacon)?, None, beacon)?;
        if let Some((norm, attention)) = &self.attention {
            beacon.step()?;
            let (_, _, height, width) = sample.dims4()?;
            let rows = as_rows(&norm.forward(&sample)?)?;
            let inner = attention.run(&rows, &rows, None, beacon)?;
            sample = (sample + as_image(&inner, (height, width))?)?;
        }
        sample = self.second.run(&sample, None, beacon)?;
        for (layers, resize) in &self.levels {
            for layer in layers {
                sample = layer.run(&sample, None, beacon)?;
            }
            if let Some(resize) = resize {
                beacon.step()?;
                let (_, _, height, width) = sample.dims4()?;
                sample = resize.run(&enlarged(&sample, (height * 2, width * 2))?, beacon)?;
            }
        }
        self.conv_out.run(&activated(&self.norm_out, &sample, beacon)?, beacon)
    }
}

fn attention(
    source: &TensorSource<'_>,
    groups: usize,
    size: usize,
) -> Result<(GroupNorm, Attention), LoadError> {
    let norm = group_norm(&source.at("group_norm"), groups, size, EPS)?;
    // The files of Stable Diffusion 1 use older names for these.
    let names = match source.has("query.weight") {
        true => ["query", "key", "value", "proj_attn"],
        false => ["to_q", "to_k", "to_v", "to_out.0"],
    };
    let [query, key, value, out] = names.map(|name| linear(&source.at(name), size, size));
    Ok((norm, Attention::new([query?, key?, value?, out?], 1)))
}
