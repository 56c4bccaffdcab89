//! The text encoder: CLIP's text transformer with causal attention.

use candle_core::{Device, Tensor};
use candle_nn::{LayerNorm, Linear, Module};

use super::config::{ClipActivation, ClipConfig};
use super::layers::{Attention, ComputeError, TensorResult, layer_norm, linear};
use super::weights::DiffusionWeights;
use crate::beacon::Beacon;
use crate::failure::LoadError;

#[derive(Debug)]
pub(super) struct Clip {
    tokens: Tensor,
    places: Tensor,
    layers: Vec<ClipLayer>,
    norm: LayerNorm,
    activation: ClipActivation,
}

#[derive(Debug)]
struct ClipLayer {
    norm_in: LayerNorm,
    attention: Attention,
    norm_out: LayerNorm,
    wide: Linear,
    narrow: Linear,
}

impl Clip {
    pub(super) fn load(
        weights: &DiffusionWeights,
        config: &ClipConfig,
        device: &Device,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let source = weights.source(device, beacon);
        // All but the newest files put everything below `text_model`.
        let source = if weights.has("text_model.") { source.at("text_model") } else { source };
        let (size, eps) = (config.hidden_size, config.layer_norm_eps);
        let embeddings = source.at("embeddings");
        let layer = |number: usize| {
            let source = source.at("encoder.layers").at(number);
            let attention = source.at("self_attn");
            let projections = [
                linear(&attention.at("q_proj"), size, size)?,
                linear(&attention.at("k_proj"), size, size)?,
                linear(&attention.at("v_proj"), size, size)?,
                linear(&attention.at("out_proj"), size, size)?,
            ];
            Ok(ClipLayer {
                norm_in: layer_norm(&source.at("layer_norm1"), size, eps)?,
                attention: Attention::new(projections, config.num_attention_heads),
                norm_out: layer_norm(&source.at("layer_norm2"), size, eps)?,
                wide: linear(&source.at("mlp.fc1"), size, config.intermediate_size)?,
                narrow: linear(&source.at("mlp.fc2"), config.intermediate_size, size)?,
            })
        };
        Ok(Clip {
            tokens: embeddings.tensor("token_embedding.weight", &[config.vocab_size, size])?,
            places: embeddings
                .tensor("position_embedding.weight", &[config.max_position_embeddings, size])?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_, LoadError>>()?,
            norm: layer_norm(&source.at("final_layer_norm"), size, eps)?,
            activation: config.hidden_act,
        })
    }

    /// One row per token.
    pub(super) fn run(&self, tokens: &[u32], beacon: &Beacon) -> TensorResult {
        let device = self.tokens.device();
        let ids = Tensor::from_slice(tokens, tokens.len(), device)?;
        let places = self.places.narrow(0, 0, tokens.len())?;
        let mut rows = (self.tokens.index_select(&ids, 0)? + places)?;
        let mask = causal_mask(tokens.len(), device)?;
        for layer in &self.layers {
            let normed = layer.norm_in.forward(&rows)?;
            rows = (rows + layer.attention.run(&normed, &normed, Some(&mask), beacon)?)?;
            beacon.step()?;
            let wide = self.activated(&layer.wide.forward(&layer.norm_out.forward(&rows)?)?)?;
            rows = (rows + layer.narrow.forward(&wide)?)?;
        }
        Ok(self.norm.forward(&rows)?)
    }

    fn activated(&self, rows: &Tensor) -> TensorResult {
        Ok(match self.activation {
            ClipActivation::QuickGelu => (rows * candle_nn::ops::sigmoid(&(rows * 1.702)?)?)?,
            ClipActivation::Gelu => rows.gelu_erf()?,
        })
    }
}

/// The causal mask. In 32 bits, because half precision produces NaN here.
fn causal_mask(count: usize, device: &Device) -> Result<Tensor, ComputeError> {
    let mask: Vec<f32> = (0..count)
        .flat_map(|row| (0..count).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    Ok(Tensor::from_vec(mask, (count, count), device)?)
}
