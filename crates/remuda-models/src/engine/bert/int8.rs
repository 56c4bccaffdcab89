//! A layer in int8: weights with a scale per output, rows with their own scale and zero point.
//!
//! The contribution of a row's zero point is subtracted here, using the column sums of the matrix: rten-gemm 0.27 could
//! do it, but applies the zero points of the first eight rows to every eight rows.
//!
//! A single scale for all rows makes int8 inaccurate: a few tokens have much larger values than the rest, which then
//! gets only a few levels. With a scale per row every matrix can be int8 and the vectors keep their direction.
//!
//! ```text
//!  rows ─quantize─▶ u8 ─▶ u8×i8→i32 ─dequantize─▶ qkv ─▶ attention in float ─quantize─▶ u8 ─▶ i32 ─dequantize_normalize─▶ rows
//!  rows ─quantize─▶ u8 ─▶ i32 ─bias_act_requant (GELU, one pass)─▶ u8 ─▶ i32 ─dequantize_normalize─▶ rows
//! ```

mod elementwise;

use std::ops::Range;

use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, PackedBMatrix};

use self::elementwise::{QuantParams, bias_act_requant, dequantize, dequantize_normalize, quantize};
use super::attention::BertAttention;
use super::config::{Activation, Config};
use super::elementwise::Norm;
use super::layer::{LayerBuffers, LayerWeights};
use super::linear::{failed, view};
use crate::failure::{InferenceError, LoadError};

type Gemm8 = GemmExecutor<u8, i8, i32>;

thread_local! {
    /// Kept per thread, because creating one runs CPUID, which traps in a virtual machine.
    static GEMM: Gemm8 = Gemm8::default();
}

/// Scratch buffers of the int8 path, reused between batches.
#[derive(Debug, Default)]
pub(super) struct QuantizedBuffers {
    bytes: Vec<u8>,
    params: Vec<QuantParams>,
    wide: Vec<u8>,
    inner_params: Vec<QuantParams>,
    sums: Vec<i32>,
}

pub(super) struct QuantizedLayer {
    attention: BertAttention,
    activation: Activation,
    qkv: QuantizedMatrix,
    attention_out: QuantizedMatrix,
    up: QuantizedMatrix,
    down: QuantizedMatrix,
    attention_norm: Norm,
    output_norm: Norm,
}

/// A weight matrix with the scale and offset of its products.
pub(super) struct QuantizedMatrix {
    weights: PackedBMatrix<i8>,
    scales: Vec<f32>,
    /// The product of each column with a row of ones.
    column_sums: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

impl QuantizedLayer {
    pub(super) fn new(config: &Config, plain: &LayerWeights) -> Result<Self, LoadError> {
        let mut qkv_bias = plain.qkv_bias.clone();
        qkv_bias.resize(3 * config.hidden, 0.0);
        Ok(QuantizedLayer {
            attention: BertAttention::new(config.heads, config.head()),
            activation: config.activation,
            qkv: QuantizedMatrix::new(&plain.qkv, &qkv_bias, config.hidden)?,
            attention_out: QuantizedMatrix::new(&plain.attention_out, &plain.attention_bias, config.hidden)?,
            up: QuantizedMatrix::new(&plain.up, &plain.up_bias, config.hidden)?,
            down: QuantizedMatrix::new(&plain.down, &plain.down_bias, config.intermediate)?,
            attention_norm: plain.attention_norm.clone(),
            output_norm: plain.output_norm.clone(),
        })
    }

    pub(super) fn run(
        &self,
        rows: &mut [f32],
        texts: &[Range<usize>],
        buffers: &mut LayerBuffers,
    ) -> Result<(), InferenceError> {
        let hidden = self.attention_out.outputs();
        let LayerBuffers { qkv, attended, scores, int8, .. } = buffers;
        let QuantizedBuffers { bytes, params, wide, inner_params, sums } = int8;
        qkv.resize(rows.len() * 3, 0.0);
        attended.resize(rows.len(), 0.0);

        quantize(rows, hidden, bytes, params);
        self.qkv.multiply(bytes, sums)?;
        dequantize(sums, params, &self.qkv, qkv);
        for text in texts {
            let qkv = &qkv[text.start * 3 * hidden..text.end * 3 * hidden];
            self.attention.attend(qkv, &mut attended[text.start * hidden..text.end * hidden], scores)?;
        }
        quantize(attended, hidden, bytes, params);
        self.attention_out.multiply(bytes, sums)?;
        dequantize_normalize(sums, params, &self.attention_out, &self.attention_norm, rows);

        quantize(rows, hidden, bytes, params);
        self.up.multiply(bytes, sums)?;
        bias_act_requant(sums, params, &self.up, self.activation, wide, inner_params);
        self.down.multiply(wide, sums)?;
        dequantize_normalize(sums, inner_params, &self.down, &self.output_norm, rows);
        Ok(())
    }
}

impl QuantizedMatrix {
    fn new(weights: &[f32], bias: &[f32], inputs: usize) -> Result<Self, LoadError> {
        // Processors without an int8 dot product add pairs in 16 bits, which only hold 7-bit weights.
        let most = if GEMM.with(Gemm8::may_saturate) { 63.0 } else { 127.0 };
        let mut bytes = Vec::with_capacity(weights.len());
        let mut scales = Vec::with_capacity(bias.len());
        let mut column_sums = Vec::with_capacity(bias.len());
        for row in weights.chunks_exact(inputs) {
            let widest = row.iter().fold(0.0, |widest: f32, weight| widest.max(weight.abs()));
            let scale = if widest > 0.0 { widest / most } else { 1.0 };
            let steps = row.iter().map(|weight| (weight / scale).round() as i8);
            column_sums.push(steps.clone().map(i32::from).sum::<i32>() as f32 * scale);
            bytes.extend(steps);
            scales.push(scale);
        }
        let columns = view(&bytes, [inputs, bias.len()], [1, inputs])?;
        let packed = GEMM.with(|gemm| gemm.prepack_b(columns));
        Ok(QuantizedMatrix { weights: packed, scales, column_sums, bias: bias.to_vec(), inputs })
    }

    fn outputs(&self) -> usize {
        self.bias.len()
    }

    fn multiply(&self, bytes: &[u8], sums: &mut Vec<i32>) -> Result<(), InferenceError> {
        let count = bytes.len() / self.inputs;
        sums.resize(count * self.outputs(), 0);
        let rows = GemmInputA::Unpacked(view(bytes, [count, self.inputs], [self.inputs, 1])?);
        let columns = GemmInputB::Packed(&self.weights);
        GEMM.with(|gemm| gemm.gemm(sums, rows, columns, GemmOptions::default())).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
