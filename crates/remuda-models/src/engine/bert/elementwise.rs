//! Elementwise and row operations between the matrix products, each in as few passes as possible.
//!
//! Written with rten-simd: the same code becomes AVX-512, AVX2 or NEON, chosen at run time. A scalar erf alone would be
//! a quarter of a model's time. Code that is not inlined into the dispatched function is compiled without the vector
//! instructions and costs a call per instruction, so every function and closure here is `inline(always)`.

use rayon::prelude::*;
use rten_simd::functional::simd_map;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, Simd, SimdIterable, SimdOp, SimdUnaryOp};
use rten_vecmath::{ApproxGelu, Exp, Gelu};

use super::config::Activation;

/// How many values a thread takes at once: enough to be worth the hand-over, few enough to stay in its L1 cache.
const SHARE: usize = 8192;

/// The weights of a layer normalisation.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub(super) gain: Vec<f32>,
    pub(super) shift: Vec<f32>,
    pub(super) epsilon: f32,
}

/// Adds a bias to the first columns of every row.
pub(super) fn add(rows: &mut [f32], width: usize, bias: &[f32]) {
    share(rows, width, |rows| AddBias { rows, width, bias }.dispatch());
}

/// Adds a bias and applies the activation.
pub(super) fn activate(rows: &mut [f32], bias: &[f32], activation: Activation) {
    share(rows, bias.len(), |rows| Activate { rows, bias, activation }.dispatch());
}

/// Adds a bias and normalises each row.
pub(super) fn normalize(rows: &mut [f32], bias: &[f32], norm: &Norm) {
    share(rows, bias.len(), |rows| Normalize { rows, bias, norm }.dispatch());
}

/// Exponentials of each row, and the factors that make each row sum to one.
pub(super) fn softmax(rows: &mut [f32], width: usize, parts: &mut Vec<f32>) {
    parts.clear();
    Softmax { rows, width, parts }.dispatch();
}

fn share(rows: &mut [f32], width: usize, sweep: impl Fn(&mut [f32]) + Send + Sync) {
    let share = (SHARE / width).max(1) * width;
    rows.par_chunks_mut(share).for_each(sweep);
}

struct AddBias<'a> {
    rows: &'a mut [f32],
    width: usize,
    bias: &'a [f32],
}

impl SimdOp for AddBias<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        for row in self.rows.chunks_exact_mut(self.width) {
            let some = &mut row[..self.bias.len()];
            map_biased(
                isa,
                some,
                self.bias,
                #[inline(always)]
                |x| x,
            );
        }
    }
}

struct Activate<'a> {
    rows: &'a mut [f32],
    bias: &'a [f32],
    activation: Activation,
}

impl SimdOp for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Activate { rows, bias, activation } = self;
        for row in rows.chunks_exact_mut(bias.len()) {
            match activation {
                Activation::Gelu => map_biased(
                    isa,
                    row,
                    bias,
                    #[inline(always)]
                    |x| SimdUnaryOp::eval(&Gelu {}, isa, x),
                ),
                Activation::GeluTanh => map_biased(
                    isa,
                    row,
                    bias,
                    #[inline(always)]
                    |x| SimdUnaryOp::eval(&ApproxGelu {}, isa, x),
                ),
                Activation::Relu => map_biased(
                    isa,
                    row,
                    bias,
                    #[inline(always)]
                    |x| isa.f32().max(x, isa.f32().zero()),
                ),
            }
        }
    }
}

struct Normalize<'a> {
    rows: &'a mut [f32],
    bias: &'a [f32],
    norm: &'a Norm,
}

impl SimdOp for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        for row in self.rows.chunks_exact_mut(self.bias.len()) {
            map_biased(
                isa,
                row,
                self.bias,
                #[inline(always)]
                |x| x,
            );
            layer_norm(isa, row, self.norm);
        }
    }
}

struct Softmax<'a> {
    rows: &'a mut [f32],
    width: usize,
    parts: &'a mut Vec<f32>,
}

impl SimdOp for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let ops = isa.f32();
        for row in self.rows.chunks_exact_mut(self.width) {
            let row_max = ops.splat(row_max(isa, row, f32::MIN));
            let mut sum = ops.zero();
            let full = self.width / ops.len() * ops.len();
            let (body, tail) = row.split_at_mut(full);
            for part in body.chunks_exact_mut(ops.len()) {
                let power = Exp::apply(isa, ops.sub(ops.load(part), row_max));
                ops.store(power, part);
                sum = ops.add(sum, power);
            }
            let mut sum = ops.sum(sum);
            if !tail.is_empty() {
                let powers = Exp::apply(isa, ops.sub(ops.load_pad(tail).0, row_max)).to_array();
                tail.copy_from_slice(&powers.as_ref()[..tail.len()]);
                sum += tail.iter().sum::<f32>();
            }
            self.parts.push(1.0 / sum);
        }
    }
}

/// Adds a bias to a row and applies a function.
#[inline(always)]
fn map_biased<I: Isa>(isa: I, row: &mut [f32], bias: &[f32], by: impl Fn(I::F32) -> I::F32) {
    let ops = isa.f32();
    let mut bias = bias.simd_iter_pad(ops);
    simd_map(
        ops,
        row,
        #[inline(always)]
        |x| by(ops.add(x, bias.next().unwrap_or(x))),
    );
}

/// Normalises one row.
#[inline(always)]
pub(super) fn layer_norm<I: Isa>(isa: I, row: &mut [f32], norm: &Norm) {
    let ops = isa.f32();
    let zero = ops.zero();
    let count = row.len() as f32;
    let sum = fold(
        isa,
        row,
        zero,
        #[inline(always)]
        |sum, x| ops.add(sum, x),
    );
    let mean = ops.splat(ops.sum(sum) / count);
    let squares = fold(
        isa,
        row,
        zero,
        #[inline(always)]
        |sum, x| {
            let off = ops.sub(x, mean);
            ops.mul_add(off, off, sum)
        },
    );
    let scale = ops.splat(1.0 / (ops.sum(squares) / count + norm.epsilon).sqrt());
    let mut gain = norm.gain.simd_iter_pad(ops);
    let mut shift = norm.shift.simd_iter_pad(ops);
    simd_map(
        ops,
        row,
        #[inline(always)]
        |x| {
            let even = ops.mul(ops.sub(x, mean), scale);
            ops.mul_add(even, gain.next().unwrap_or(zero), shift.next().unwrap_or(zero))
        },
    );
}

/// The maximum of a row, at least `least`.
#[inline(always)]
pub(super) fn row_max<I: Isa>(isa: I, row: &[f32], least: f32) -> f32 {
    let ops = isa.f32();
    let most = fold(
        isa,
        row,
        ops.splat(least),
        #[inline(always)]
        |most, x| ops.max(most, x),
    );
    most.to_array().as_ref().iter().copied().fold(least, f32::max)
}

#[inline(always)]
pub(super) fn fold<I: Isa>(
    isa: I,
    row: &[f32],
    from: I::F32,
    by: impl Fn(I::F32, I::F32) -> I::F32,
) -> I::F32 {
    let ops = isa.f32();
    let mut folded = from;
    let parts = row.chunks_exact(ops.len());
    let tail = parts.remainder();
    for part in parts {
        folded = by(folded, ops.load(part));
    }
    if !tail.is_empty() {
        let (last, mask) = ops.load_pad(tail);
        folded = ops.select(by(folded, last), folded, mask);
    }
    folded
}
