//! One transformer layer.

use std::ops::Range;

use super::attention::BertAttention;
use super::config::{Activation, BertFamily, Config};
use super::elementwise::{self, Norm};
use super::int8::QuantizedBuffers;
use super::linear::{Linear, ProductMode};
use super::weights::BertWeights;
use crate::failure::{InferenceError, LoadError};

/// Scratch buffers, reused between batches.
#[derive(Debug, Default)]
pub(super) struct LayerBuffers {
    /// Queries, keys and values side by side.
    pub(super) qkv: Vec<f32>,
    pub(super) scores: Vec<f32>,
    pub(super) attended: Vec<f32>,
    inner: Vec<f32>,
    pub(super) int8: QuantizedBuffers,
}

/// A layer's weights as stored, with three simplifications: the attention scale is multiplied into the query weights;
/// the key bias is dropped, because it changes every score of a row equally; the value bias is added to the bias of the
/// output projection, because attention weights sum to one.
pub(super) struct LayerWeights {
    /// Query, key and value weights, one below the other.
    pub(super) qkv: Vec<f32>,
    pub(super) qkv_bias: Vec<f32>,
    pub(super) attention_out: Vec<f32>,
    pub(super) attention_bias: Vec<f32>,
    pub(super) attention_norm: Norm,
    pub(super) up: Vec<f32>,
    pub(super) up_bias: Vec<f32>,
    pub(super) down: Vec<f32>,
    pub(super) down_bias: Vec<f32>,
    pub(super) output_norm: Norm,
}

pub(super) struct BertLayer {
    attention: BertAttention,
    activation: Activation,
    qkv: Linear,
    attention_out: Linear,
    up: Linear,
    down: Linear,
    qkv_bias: Vec<f32>,
    attention_bias: Vec<f32>,
    attention_norm: Norm,
    up_bias: Vec<f32>,
    down_bias: Vec<f32>,
    output_norm: Norm,
}

impl BertLayer {
    pub(super) fn new(config: &Config, plain: LayerWeights) -> Self {
        BertLayer {
            attention: BertAttention::new(config.heads, config.head()),
            activation: config.activation,
            qkv: Linear::new(&plain.qkv, config.hidden),
            attention_out: Linear::new(&plain.attention_out, config.hidden),
            up: Linear::new(&plain.up, config.hidden),
            down: Linear::new(&plain.down, config.intermediate),
            qkv_bias: plain.qkv_bias,
            attention_bias: plain.attention_bias,
            attention_norm: plain.attention_norm,
            up_bias: plain.up_bias,
            down_bias: plain.down_bias,
            output_norm: plain.output_norm,
        }
    }

    /// Processes the packed rows of several texts; `texts` are their row ranges.
    pub(super) fn run(
        &self,
        rows: &mut [f32],
        texts: &[Range<usize>],
        buffers: &mut LayerBuffers,
    ) -> Result<(), InferenceError> {
        let hidden = self.attention_bias.len();
        buffers.qkv.resize(rows.len() * 3, 0.0);
        buffers.attended.resize(rows.len(), 0.0);
        self.qkv.apply(rows, &mut buffers.qkv, ProductMode::Overwrite);
        elementwise::add(&mut buffers.qkv, 3 * hidden, &self.qkv_bias);
        for text in texts {
            let qkv = &buffers.qkv[text.start * 3 * hidden..text.end * 3 * hidden];
            let found = &mut buffers.attended[text.start * hidden..text.end * hidden];
            self.attention.attend(qkv, found, &mut buffers.scores)?;
        }
        self.attention_out.apply(&buffers.attended, rows, ProductMode::Accumulate);
        elementwise::normalize(rows, &self.attention_bias, &self.attention_norm);

        buffers.inner.resize(rows.len() / hidden * self.up_bias.len(), 0.0);
        self.up.apply(rows, &mut buffers.inner, ProductMode::Overwrite);
        elementwise::activate(&mut buffers.inner, &self.up_bias, self.activation);
        self.down.apply(&buffers.inner, rows, ProductMode::Accumulate);
        elementwise::normalize(rows, &self.down_bias, &self.output_norm);
        Ok(())
    }
}

impl LayerWeights {
    pub(super) fn read(config: &Config, weights: &mut BertWeights, number: usize) -> Result<Self, LoadError> {
        let (hidden, inner) = (config.hidden, config.intermediate);
        let [query, key, value, answer, attention_norm, grow, shrink, output_norm] =
            names(config.family, number);
        let mut read =
            |name: &str, part: &str, shape: &[usize]| weights.read(&format!("{name}.{part}"), shape);
        let square = [hidden, hidden];

        let scale = 1.0 / (config.head() as f32).sqrt();
        let mut qkv = read(&query, "weight", &square)?;
        let mut qkv_bias = read(&query, "bias", &[hidden])?;
        for number in qkv.iter_mut().chain(&mut qkv_bias) {
            *number *= scale;
        }
        qkv.extend(read(&key, "weight", &square)?);
        qkv.extend(read(&value, "weight", &square)?);
        let value_bias = read(&value, "bias", &[hidden])?;
        let answer_weights = read(&answer, "weight", &square)?;
        let mut attention_bias = read(&answer, "bias", &[hidden])?;
        for (bias, row) in attention_bias.iter_mut().zip(answer_weights.chunks_exact(hidden)) {
            *bias += row.iter().zip(&value_bias).map(|(weight, value)| weight * value).sum::<f32>();
        }
        Ok(LayerWeights {
            qkv,
            qkv_bias,
            attention_out: answer_weights,
            attention_bias,
            attention_norm: norm(config, &mut read, &attention_norm)?,
            up: read(&grow, "weight", &[inner, hidden])?,
            up_bias: read(&grow, "bias", &[inner])?,
            down: read(&shrink, "weight", &[hidden, inner])?,
            down_bias: read(&shrink, "bias", &[hidden])?,
            output_norm: norm(config, &mut read, &output_norm)?,
        })
    }
}

/// Reads a named tensor of the given shape.
type Reader<'a> = dyn FnMut(&str, &str, &[usize]) -> Result<Vec<f32>, LoadError> + 'a;

pub(super) fn norm(config: &Config, read: &mut Reader<'_>, name: &str) -> Result<Norm, LoadError> {
    Ok(Norm {
        gain: read(name, "weight", &[config.hidden])?,
        shift: read(name, "bias", &[config.hidden])?,
        epsilon: config.epsilon,
    })
}

/// The tensor names of query, key, value, attention output and its norm, up, down, and the output norm.
fn names(family: BertFamily, number: usize) -> [String; 8] {
    let (layers, parts) = match family {
        BertFamily::Bert | BertFamily::Roberta => (
            "encoder.layer",
            [
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ],
        ),
        BertFamily::Distilbert => (
            "transformer.layer",
            [
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ],
        ),
    };
    parts.map(|part| format!("{layers}.{number}.{part}"))
}
