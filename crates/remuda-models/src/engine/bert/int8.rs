//! A layer in eight bits: weights with a scale for each output, rows with a scale and a zero of their own.
//!
//! What a row's zero adds to its sums is taken away here, by the sums of the matrix's columns: rten-gemm 0.27 would do it, and
//! gives every eight rows the zeros of the first eight (trap).
//!
//! One scale for all rows is what makes int8 unfaithful: a few tokens reach much further than the rest, and the rest is
//! left with a handful of steps. With a scale a row, every matrix can be int8 and the vectors keep their direction.
//!
//! ```text
//!  rows ─quantize─▶ u8 ─▶ u8×i8→i32 ─widen─▶ queries, keys, values ─▶ attention in float ─quantize─▶ u8 ─▶ i32 ─settle─▶ rows
//!  rows ─quantize─▶ u8 ─▶ i32 ─bend (GELU) and quantize in one pass─▶ u8 ─▶ i32 ─settle─▶ rows
//! ```

mod sweep;

use std::ops::Range;

use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, PackedBMatrix};

use self::sweep::{Grain, bend, quantize, settle, widen};
use super::attention::Attention;
use super::config::{Activation, Config};
use super::layer::{Plain, Room};
use super::linear::{failed, view};
use super::sweep::Norm;
use crate::failure::{Failure, LoadError};

type Gemm8 = GemmExecutor<u8, i8, i32>;

thread_local! {
    /// Kept, because to make one asks the processor what it is, and a virtual machine has to ask its host.
    static GEMM: Gemm8 = Gemm8::default();
}

/// What is kept from batch to batch beside a float layer's room.
#[derive(Debug, Default)]
pub(super) struct Room8 {
    bytes: Vec<u8>,
    grains: Vec<Grain>,
    wide: Vec<u8>,
    wide_grains: Vec<Grain>,
    sums: Vec<i32>,
}

pub(super) struct Layer8 {
    attention: Attention,
    activation: Activation,
    ask: Matrix8,
    answer: Matrix8,
    grow: Matrix8,
    shrink: Matrix8,
    answer_norm: Norm,
    shrink_norm: Norm,
}

/// A weight matrix with what its products are multiplied by and moved by.
pub(super) struct Matrix8 {
    weights: PackedBMatrix<i8>,
    scales: Vec<f32>,
    /// What a row whose every number is one step above nothing would give.
    pulls: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

impl Layer8 {
    pub(super) fn new(config: &Config, plain: &Plain) -> Result<Self, LoadError> {
        let mut ask_bias = plain.ask_bias.clone();
        ask_bias.resize(3 * config.hidden, 0.0);
        Ok(Layer8 {
            attention: Attention::new(config.heads, config.head()),
            activation: config.activation,
            ask: Matrix8::new(&plain.ask, &ask_bias, config.hidden)?,
            answer: Matrix8::new(&plain.answer, &plain.answer_bias, config.hidden)?,
            grow: Matrix8::new(&plain.grow, &plain.grow_bias, config.hidden)?,
            shrink: Matrix8::new(&plain.shrink, &plain.shrink_bias, config.inner)?,
            answer_norm: plain.answer_norm.clone(),
            shrink_norm: plain.shrink_norm.clone(),
        })
    }

    pub(super) fn run(
        &self,
        rows: &mut [f32],
        texts: &[Range<usize>],
        room: &mut Room,
    ) -> Result<(), Failure> {
        let hidden = self.answer.outputs();
        let Room { asked, found, apart, eight, .. } = room;
        let Room8 { bytes, grains, wide, wide_grains, sums } = eight;
        asked.resize(rows.len() * 3, 0.0);
        found.resize(rows.len(), 0.0);

        quantize(rows, hidden, bytes, grains);
        self.ask.multiply(bytes, sums)?;
        widen(sums, grains, &self.ask, asked);
        for text in texts {
            let asked = &asked[text.start * 3 * hidden..text.end * 3 * hidden];
            self.attention.look(asked, &mut found[text.start * hidden..text.end * hidden], apart)?;
        }
        quantize(found, hidden, bytes, grains);
        self.answer.multiply(bytes, sums)?;
        settle(sums, grains, &self.answer, &self.answer_norm, rows);

        quantize(rows, hidden, bytes, grains);
        self.grow.multiply(bytes, sums)?;
        bend(sums, grains, &self.grow, self.activation, wide, wide_grains);
        self.shrink.multiply(wide, sums)?;
        settle(sums, wide_grains, &self.shrink, &self.shrink_norm, rows);
        Ok(())
    }
}

impl Matrix8 {
    fn new(weights: &[f32], bias: &[f32], inputs: usize) -> Result<Self, LoadError> {
        // Processors without a dot product of bytes add pairs in sixteen bits, which hold seven times eight.
        let most = if GEMM.with(Gemm8::may_saturate) { 63.0 } else { 127.0 };
        let mut bytes = Vec::with_capacity(weights.len());
        let mut scales = Vec::with_capacity(bias.len());
        let mut pulls = Vec::with_capacity(bias.len());
        for row in weights.chunks_exact(inputs) {
            let widest = row.iter().fold(0.0, |widest: f32, weight| widest.max(weight.abs()));
            let scale = if widest > 0.0 { widest / most } else { 1.0 };
            let steps = row.iter().map(|weight| (weight / scale).round() as i8);
            pulls.push(steps.clone().map(i32::from).sum::<i32>() as f32 * scale);
            bytes.extend(steps);
            scales.push(scale);
        }
        let columns = view(&bytes, [inputs, bias.len()], [1, inputs])?;
        let packed = GEMM.with(|gemm| gemm.prepack_b(columns));
        Ok(Matrix8 { weights: packed, scales, pulls, bias: bias.to_vec(), inputs })
    }

    fn outputs(&self) -> usize {
        self.bias.len()
    }

    fn multiply(&self, bytes: &[u8], sums: &mut Vec<i32>) -> Result<(), Failure> {
        let count = bytes.len() / self.inputs;
        sums.resize(count * self.outputs(), 0);
        let rows = GemmInputA::Unpacked(view(bytes, [count, self.inputs], [self.inputs, 1])?);
        let columns = GemmInputB::Packed(&self.weights);
        GEMM.with(|gemm| gemm.gemm(sums, rows, columns, GemmOptions::default())).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
