//! The denoiser's transformer: self-attention over pixels, then cross-attention to the text.

use candle_core::{D, Tensor};
use candle_nn::{GroupNorm, LayerNorm, Linear, Module};

use super::config::{UnetConfig, UnetLevel};
use super::layers::{Attention, TensorResult, as_image, as_rows, group_norm, layer_norm, linear};
use super::weights::TensorSource;
use crate::beacon::Beacon;
use crate::failure::LoadError;

/// The epsilon of the norm before the transformer, independent of `norm_eps`.
const NORM_EPS: f64 = 1e-6;
const LAYER_NORM_EPS: f64 = 1e-5;

#[derive(Debug)]
pub(super) struct Transformer {
    norm: GroupNorm,
    project_in: Linear,
    blocks: Vec<TransformerBlock>,
    project_out: Linear,
}

#[derive(Debug)]
struct TransformerBlock {
    norm_pixels: LayerNorm,
    pixels: Attention,
    norm_text: LayerNorm,
    text: Attention,
    norm_out: LayerNorm,
    wide: Linear,
    narrow: Linear,
}

impl Transformer {
    pub(super) fn load(
        source: &TensorSource<'_>,
        config: &UnetConfig,
        level: &UnetLevel,
        blocks: usize,
    ) -> Result<Self, LoadError> {
        let size = level.channels;
        let block = |number: usize| {
            let source = source.at("transformer_blocks").at(number);
            Ok(TransformerBlock {
                norm_pixels: layer_norm(&source.at("norm1"), size, LAYER_NORM_EPS)?,
                pixels: Attention::load(&source.at("attn1"), size, size, level.heads)?,
                norm_text: layer_norm(&source.at("norm2"), size, LAYER_NORM_EPS)?,
                text: Attention::load(&source.at("attn2"), size, config.context, level.heads)?,
                norm_out: layer_norm(&source.at("norm3"), size, LAYER_NORM_EPS)?,
                wide: linear(&source.at("ff.net.0.proj"), size, size * 8)?,
                narrow: linear(&source.at("ff.net.2"), size * 4, size)?,
            })
        };
        Ok(Transformer {
            norm: group_norm(&source.at("norm"), config.groups, size, NORM_EPS)?,
            project_in: linear(&source.at("proj_in"), size, size)?,
            blocks: (0..blocks).map(block).collect::<Result<_, LoadError>>()?,
            project_out: linear(&source.at("proj_out"), size, size)?,
        })
    }

    pub(super) fn run(&self, sample: &Tensor, text: &Tensor, beacon: &Beacon) -> TensorResult {
        beacon.step()?;
        let (_, _, height, width) = sample.dims4()?;
        let mut rows = self.project_in.forward(&as_rows(&self.norm.forward(sample)?)?)?;
        for block in &self.blocks {
            rows = block.run(rows, text, beacon)?;
        }
        beacon.step()?;
        let inner = as_image(&self.project_out.forward(&rows)?, (height, width))?;
        Ok((sample + inner)?)
    }
}

impl TransformerBlock {
    fn run(&self, rows: Tensor, text: &Tensor, beacon: &Beacon) -> TensorResult {
        let normed = self.norm_pixels.forward(&rows)?;
        let rows = (rows + self.pixels.run(&normed, &normed, None, beacon)?)?;
        let rows = (&rows + self.text.run(&self.norm_text.forward(&rows)?, text, None, beacon)?)?;
        beacon.step()?;
        let wide = self.wide.forward(&self.norm_out.forward(&rows)?)?;
        let parts = wide.chunk(2, D::Minus1)?;
        let gated = (&parts[0] * parts[1].contiguous()?.gelu_erf()?)?;
        Ok((rows + self.narrow.forward(&gated)?)?)
    }
}
