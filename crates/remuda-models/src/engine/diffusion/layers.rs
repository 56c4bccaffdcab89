//! The building blocks of denoiser, decoder and text encoder.
//!
//! The networks of `candle-transformers` are not used: they run in a single call without a beacon step or a way to
//! stop, their sizes are those of known models, and their GELU for text differs from the one the models were trained
//! with. Products, convolutions and norms are candle's.

use candle_core::{D, Tensor};
use candle_nn::ops::{silu, softmax_last_dim};
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, LayerNorm, Linear, Module};

use super::weights::TensorSource;
use crate::beacon::{Beacon, Stopped};
use crate::failure::LoadError;

/// The number of attention scores computed at once: 64 MiB. An image of 512 x 512 would have 512 MiB of them.
const SCORES_MAX: usize = 1 << 24;

/// Multiplications of a convolution between two beacon steps: about a second of one core. The decoder's largest
/// convolution would otherwise take ten seconds for 512 x 512, and minutes for the largest allowed image.
const PRODUCTS_MAX: usize = 10_000_000_000;

/// Why a network did not finish.
#[derive(Debug, thiserror::Error)]
pub(super) enum ComputeError {
    #[error("stopped on request")]
    Stopped(#[from] Stopped),
    #[error(transparent)]
    Engine(#[from] candle_core::Error),
}

pub(super) type TensorResult = Result<Tensor, ComputeError>;

pub(super) fn linear(source: &TensorSource<'_>, into: usize, out: usize) -> Result<Linear, LoadError> {
    Ok(Linear::new(source.tensor("weight", &[out, into])?, Some(source.tensor("bias", &[out])?)))
}

pub(super) fn linear_without_bias(
    source: &TensorSource<'_>,
    into: usize,
    out: usize,
) -> Result<Linear, LoadError> {
    Ok(Linear::new(source.tensor("weight", &[out, into])?, None))
}

/// A 3 x 3 convolution that keeps the image size.
#[derive(Debug)]
pub(super) struct Conv {
    layer: Conv2d,
    /// Multiplications per pixel.
    work: usize,
}

impl Conv {
    pub(super) fn load(source: &TensorSource<'_>, into: usize, out: usize) -> Result<Self, LoadError> {
        let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        Ok(Conv { layer: conv_with(source, into, out, 3, config)?, work: into * out * 9 })
    }

    /// Runs in bands of at most about a second each.
    pub(super) fn run(&self, sample: &Tensor, beacon: &Beacon) -> TensorResult {
        let width = sample.dim(D::Minus1)?;
        self.run_in_bands(sample, (PRODUCTS_MAX / (width * self.work).max(1)).max(1), beacon)
    }

    /// A band is computed with the rows above and below it, whose own results are dropped.
    pub(super) fn run_in_bands(&self, sample: &Tensor, rows: usize, beacon: &Beacon) -> TensorResult {
        let height = sample.dim(2)?;
        let mut bands = Vec::new();
        for first in (0..height).step_by(rows) {
            beacon.step()?;
            let count = rows.min(height - first);
            let (above, below) = (first.min(1), (height - first - count).min(1));
            let band = sample.narrow(2, first - above, above + count + below)?;
            bands.push(self.layer.forward(&band)?.narrow(2, above, count)?);
        }
        match &bands[..] {
            [whole] => Ok(whole.clone()),
            bands => Ok(Tensor::cat(bands, 2)?),
        }
    }
}

pub(super) fn conv_with(
    source: &TensorSource<'_>,
    into: usize,
    out: usize,
    kernel: usize,
    config: Conv2dConfig,
) -> Result<Conv2d, LoadError> {
    let weight = source.tensor("weight", &[out, into, kernel, kernel])?;
    Ok(Conv2d::new(weight, Some(source.tensor("bias", &[out])?), config))
}

pub(super) fn group_norm(
    source: &TensorSource<'_>,
    groups: usize,
    channels: usize,
    eps: f64,
) -> Result<GroupNorm, LoadError> {
    let (weight, bias) = (source.tensor("weight", &[channels])?, source.tensor("bias", &[channels])?);
    GroupNorm::new(weight, bias, channels, groups, eps).map_err(|error| LoadError::Engine(error.to_string()))
}

pub(super) fn layer_norm(source: &TensorSource<'_>, size: usize, eps: f64) -> Result<LayerNorm, LoadError> {
    Ok(LayerNorm::new(source.tensor("weight", &[size])?, source.tensor("bias", &[size])?, eps))
}

/// Several passes over the sample, which for a large image take longer than the computation; hence its own beacon step.
pub(super) fn activated(norm: &GroupNorm, sample: &Tensor, beacon: &Beacon) -> TensorResult {
    beacon.step()?;
    Ok(silu(&norm.forward(sample)?)?)
}

/// Two convolutions with the time embedding between them, and a skip connection.
#[derive(Debug)]
pub(super) struct Residual {
    norm_in: GroupNorm,
    conv_in: Conv,
    time: Option<Linear>,
    norm_out: GroupNorm,
    conv_out: Conv,
    shortcut: Option<Conv2d>,
}

impl Residual {
    /// `time` is the size of the time embedding, if the network uses one.
    pub(super) fn load(
        source: &TensorSource<'_>,
        (into, out): (usize, usize),
        (groups, eps): (usize, f64),
        time: Option<usize>,
    ) -> Result<Self, LoadError> {
        let shortcut = || conv_with(&source.at("conv_shortcut"), into, out, 1, Conv2dConfig::default());
        Ok(Residual {
            norm_in: group_norm(&source.at("norm1"), groups, into, eps)?,
            conv_in: Conv::load(&source.at("conv1"), into, out)?,
            time: time.map(|size| linear(&source.at("time_emb_proj"), size, out)).transpose()?,
            norm_out: group_norm(&source.at("norm2"), groups, out, eps)?,
            conv_out: Conv::load(&source.at("conv2"), out, out)?,
            shortcut: if into == out { None } else { Some(shortcut()?) },
        })
    }

    pub(super) fn run(&self, sample: &Tensor, time: Option<&Tensor>, beacon: &Beacon) -> TensorResult {
        let mut inner = self.conv_in.run(&activated(&self.norm_in, sample, beacon)?, beacon)?;
        if let (Some(layer), Some(time)) = (&self.time, time) {
            let added = layer.forward(&silu(time)?)?.unsqueeze(D::Minus1)?.unsqueeze(D::Minus1)?;
            inner = inner.broadcast_add(&added)?;
        }
        inner = self.conv_out.run(&activated(&self.norm_out, &inner, beacon)?, beacon)?;
        beacon.step()?;
        let skip = match &self.shortcut {
            Some(shortcut) => shortcut.forward(sample)?,
            None => sample.clone(),
        };
        Ok((skip + inner)?)
    }
}

/// Attention of every position to every other, or to every token of the text.
#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
}

impl Attention {
    pub(super) fn new([query, key, value, out]: [Linear; 4], heads: usize) -> Self {
        Attention { query, key, value, out, heads }
    }

    /// As in the denoiser's transformers: only the output projection has a bias.
    pub(super) fn load(
        source: &TensorSource<'_>,
        size: usize,
        context: usize,
        heads: usize,
    ) -> Result<Self, LoadError> {
        let layers = [
            linear_without_bias(&source.at("to_q"), size, size)?,
            linear_without_bias(&source.at("to_k"), context, size)?,
            linear_without_bias(&source.at("to_v"), context, size)?,
            linear(&source.at("to_out.0"), size, size)?,
        ];
        Ok(Attention::new(layers, heads))
    }

    /// Both inputs have one row per position; the mask is added to the scores of all heads.
    pub(super) fn run(
        &self,
        sample: &Tensor,
        context: &Tensor,
        mask: Option<&Tensor>,
        beacon: &Beacon,
    ) -> TensorResult {
        let (places, size) = sample.dims2()?;
        let seen = context.dim(0)?;
        let by_head = |rows: Tensor, count: usize| {
            rows.reshape((count, self.heads, size / self.heads))?.transpose(0, 1)?.contiguous()
        };
        let scale = 1.0 / ((size / self.heads) as f64).sqrt();
        let query = by_head((self.query.forward(sample)? * scale)?, places)?;
        let key = by_head(self.key.forward(context)?, seen)?.transpose(1, 2)?.contiguous()?;
        let value = by_head(self.value.forward(context)?, seen)?;
        let at_once = (SCORES_MAX / (self.heads * seen)).clamp(1, places);
        let mut rows = Vec::new();
        for first in (0..places).step_by(at_once) {
            beacon.step()?;
            let count = at_once.min(places - first);
            let mut scores = query.narrow(1, first, count)?.contiguous()?.matmul(&key)?;
            if let Some(mask) = mask {
                scores = scores.broadcast_add(&mask.narrow(0, first, count)?)?;
            }
            rows.push(softmax_last_dim(&scores)?.matmul(&value)?);
        }
        let rows = Tensor::cat(&rows, 1)?.transpose(0, 1)?.reshape((places, size))?;
        Ok(self.out.forward(&rows)?)
    }
}

/// Enlarges by nearest neighbour, to twice the size or to the size on the way down.
pub(super) fn enlarged(sample: &Tensor, size: (usize, usize)) -> TensorResult {
    Ok(sample.upsample_nearest2d(size.0, size.1)?)
}

/// One row per pixel of a single image.
pub(super) fn as_rows(sample: &Tensor) -> TensorResult {
    Ok(sample.squeeze(0)?.flatten_from(1)?.t()?.contiguous()?)
}

pub(super) fn as_image(rows: &Tensor, (height, width): (usize, usize)) -> TensorResult {
    let channels = rows.dim(1)?;
    Ok(rows.t()?.contiguous()?.reshape((1, channels, height, width))?)
}
