//! The denoiser: predicts the noise in a sample from the sample, the time and the text.
//!
//! ```text
//!  sample ─▶ level 0 ─▶ level 1 ─▶ ... ─▶ middle ─▶ ... ─▶ level 1 ─▶ level 0 ─▶ output
//!               └──────────┴── kept on the way down ──────────┴──────────┘
//! ```

use candle_core::{Device, Tensor};
use candle_nn::ops::silu;
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, Linear, Module};

use super::config::{UnetConfig, UnetLevel};
use super::layers::{
    ComputeError, Conv, Residual, TensorResult, activated, conv_with, enlarged, group_norm, linear,
};
use super::transformer::Transformer;
use super::weights::{DiffusionWeights, TensorSource};
use crate::beacon::Beacon;
use crate::failure::LoadError;

#[derive(Debug)]
pub(super) struct Unet {
    time: TimeEmbedding,
    conv_in: Conv,
    down: Vec<UnetBlock<Conv2d>>,
    middle: (Residual, Transformer, Residual),
    up: Vec<UnetBlock<Conv>>,
    norm_out: GroupNorm,
    conv_out: Conv,
}

/// A level on the way down or up.
#[derive(Debug)]
struct UnetBlock<Resize> {
    layers: Vec<(Residual, Option<Transformer>)>,
    /// Halves the size, or restores that of the level above; `None` at the last level.
    resize: Option<Resize>,
}

impl Unet {
    pub(super) fn load(
        weights: &DiffusionWeights,
        config: &UnetConfig,
        device: &Device,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let source = weights.source(device, beacon);
        let (Some(first), Some(deepest)) = (config.levels.first(), config.levels.last()) else {
            return Err(LoadError::Engine("a denoiser without levels".to_owned()));
        };
        let time = first.channels * 4;
        let middle = source.at("mid_block");
        let sides = (deepest.channels, deepest.channels);
        let residual = |source: &TensorSource<'_>, sides: (usize, usize)| {
            Residual::load(source, sides, (config.groups, config.eps), Some(time))
        };
        Ok(Unet {
            time: TimeEmbedding::load(&source.at("time_embedding"), config, first.channels)?,
            conv_in: Conv::load(&source.at("conv_in"), config.channels, first.channels)?,
            down: down(&source.at("down_blocks"), config, &residual)?,
            middle: (
                residual(&middle.at("resnets.0"), sides)?,
                Transformer::load(&middle.at("attentions.0"), config, deepest, deepest.blocks)?,
                residual(&middle.at("resnets.1"), sides)?,
            ),
            up: up(&source.at("up_blocks"), config, &residual)?,
            norm_out: group_norm(&source.at("conv_norm_out"), config.groups, first.channels, config.eps)?,
            conv_out: Conv::load(&source.at("conv_out"), first.channels, config.channels)?,
        })
    }

    /// For one sample; the text has one row per token. Advances the beacon many times.
    pub(super) fn run(&self, sample: &Tensor, time: f64, text: &Tensor, beacon: &Beacon) -> TensorResult {
        let time = self.time.run(time, sample.device())?;
        let mut sample = self.conv_in.run(sample, beacon)?;
        let mut kept = vec![sample.clone()];
        for block in &self.down {
            for (residual, transformer) in &block.layers {
                sample = residual.run(&sample, Some(&time), beacon)?;
                sample = read(transformer.as_ref(), sample, text, beacon)?;
                kept.push(sample.clone());
            }
            if let Some(resize) = &block.resize {
                beacon.step()?;
                sample = resize.forward(&sample)?;
                kept.push(sample.clone());
            }
        }
        let (first, transformer, second) = &self.middle;
        sample = first.run(&sample, Some(&time), beacon)?;
        sample = transformer.run(&sample, text, beacon)?;
        sample = second.run(&sample, Some(&time), beacon)?;
        for block in &self.up {
            for (residual, transformer) in &block.layers {
                let beside = kept.pop().ok_or_else(unbalanced)?;
                sample = residual.run(&Tensor::cat(&[&sample, &beside], 1)?, Some(&time), beacon)?;
                sample = read(transformer.as_ref(), sample, text, beacon)?;
            }
            if let Some(resize) = &block.resize {
                beacon.step()?;
                // The size of the kept layer, which is not always twice as large, because halving rounds up.
                let (_, _, height, width) = kept.last().ok_or_else(unbalanced)?.dims4()?;
                sample = resize.run(&enlarged(&sample, (height, width))?, beacon)?;
            }
        }
        self.conv_out.run(&activated(&self.norm_out, &sample, beacon)?, beacon)
    }
}

fn read(transformer: Option<&Transformer>, sample: Tensor, text: &Tensor, beacon: &Beacon) -> TensorResult {
    match transformer {
        Some(transformer) => transformer.run(&sample, text, beacon),
        None => Ok(sample),
    }
}

fn unbalanced() -> ComputeError {
    ComputeError::Engine(candle_core::Error::Msg(
        "the down and up paths have different numbers of layers".to_owned(),
    ))
}

type LoadResidual<'a> = dyn Fn(&TensorSource<'_>, (usize, usize)) -> Result<Residual, LoadError> + 'a;

fn down(
    source: &TensorSource<'_>,
    config: &UnetConfig,
    residual: &LoadResidual<'_>,
) -> Result<Vec<UnetBlock<Conv2d>>, LoadError> {
    let mut into = config.levels.first().map_or(0, |level| level.channels);
    let mut blocks = Vec::new();
    for (number, level) in config.levels.iter().enumerate() {
        let source = source.at(number);
        let mut layers = Vec::new();
        for layer in 0..level.layers {
            let block = residual(&source.at("resnets").at(layer), (into, level.channels))?;
            layers.push((block, transformer(&source, config, level, level.down_blocks, layer)?));
            into = level.channels;
        }
        let is_last = number + 1 == config.levels.len();
        let halving =
            Conv2dConfig { stride: 2, padding: config.downsample_padding, ..Conv2dConfig::default() };
        let resize = || conv_with(&source.at("downsamplers.0.conv"), into, into, 3, halving);
        blocks.push(UnetBlock { layers, resize: if is_last { None } else { Some(resize()?) } });
    }
    Ok(blocks)
}

fn up(
    source: &TensorSource<'_>,
    config: &UnetConfig,
    residual: &LoadResidual<'_>,
) -> Result<Vec<UnetBlock<Conv>>, LoadError> {
    let mut into = config.levels.last().map_or(0, |level| level.channels);
    let mut blocks = Vec::new();
    for (number, level) in config.levels.iter().rev().enumerate() {
        let source = source.at(number);
        let above = config.levels.iter().rev().nth(number + 1).unwrap_or(&config.levels[0]);
        let mut layers = Vec::new();
        for layer in 0..=level.layers {
            // The last layer takes the input of the level, the others the outputs of its layers.
            let beside = if layer == level.layers { above.channels } else { level.channels };
            let block = residual(&source.at("resnets").at(layer), (into + beside, level.channels))?;
            layers.push((block, transformer(&source, config, level, level.up_blocks, layer)?));
            into = level.channels;
        }
        let is_last = number + 1 == config.levels.len();
        let resize = || Conv::load(&source.at("upsamplers.0.conv"), into, into);
        blocks.push(UnetBlock { layers, resize: if is_last { None } else { Some(resize()?) } });
    }
    Ok(blocks)
}

fn transformer(
    source: &TensorSource<'_>,
    config: &UnetConfig,
    level: &UnetLevel,
    blocks: usize,
    layer: usize,
) -> Result<Option<Transformer>, LoadError> {
    if blocks == 0 {
        return Ok(None);
    }
    Transformer::load(&source.at("attentions").at(layer), config, level, blocks).map(Some)
}

/// Sinusoidal embedding of the time, and two linear layers.
#[derive(Debug)]
struct TimeEmbedding {
    size: usize,
    is_cosine_first: bool,
    shift: f64,
    first: Linear,
    second: Linear,
}

impl TimeEmbedding {
    fn load(source: &TensorSource<'_>, config: &UnetConfig, size: usize) -> Result<Self, LoadError> {
        Ok(TimeEmbedding {
            size,
            is_cosine_first: config.is_cosine_first,
            shift: config.frequency_shift,
            first: linear(&source.at("linear_1"), size, size * 4)?,
            second: linear(&source.at("linear_2"), size * 4, size * 4)?,
        })
    }

    fn run(&self, time: f64, device: &Device) -> TensorResult {
        let half = self.size / 2;
        let angle =
            |place: usize| time * (-(10_000_f64.ln()) * place as f64 / (half as f64 - self.shift)).exp();
        let sines = (0..half).map(|place| angle(place).sin() as f32);
        let cosines = (0..half).map(|place| angle(place).cos() as f32);
        let mut waves: Vec<f32> = if self.is_cosine_first {
            cosines.chain(sines).collect()
        } else {
            sines.chain(cosines).collect()
        };
        waves.resize(self.size, 0.0);
        let waves = Tensor::from_vec(waves, (1, self.size), device)?;
        Ok(self.second.forward(&silu(&self.first.forward(&waves)?)?)?)
    }
}
