//! What is done to rows between the products, each in as few passes as it takes.
//!
//! Written on rten-simd: the same lines become AVX-512, AVX2 or NEON, chosen when the program runs. A scalar erf alone
//! would be a quarter of the work of a model (trap).

use rayon::prelude::*;
use rten_simd::functional::simd_map;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, Simd, SimdIterable, SimdOp, SimdUnaryOp};
use rten_vecmath::{ApproxGelu, Exp, Gelu};

use super::config::Activation;

/// How many numbers a thread takes at once: enough to be worth handing over, few enough to stay in its first cache.
const SHARE: usize = 8192;

/// Layer normalisation's own weights.
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

/// Each row to its exponents, and what to divide it by to make them a whole.
pub(super) fn soften(rows: &mut [f32], width: usize, sums: &mut Vec<f32>) {
    sums.clear();
    Soften { rows, width, sums }.dispatch();
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
            bend(isa, &mut row[..self.bias.len()], self.bias, |x| x);
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
        let zero = isa.f32().zero();
        for row in self.rows.chunks_exact_mut(self.bias.len()) {
            match self.activation {
                Activation::Gelu => bend(isa, row, self.bias, |x| SimdUnaryOp::eval(&Gelu {}, isa, x)),
                Activation::GeluTanh => {
                    bend(isa, row, self.bias, |x| SimdUnaryOp::eval(&ApproxGelu {}, isa, x))
                }
                Activation::Relu => bend(isa, row, self.bias, |x| isa.f32().max(x, zero)),
            }
        }
    }
}

/// Adds a bias to a row, and does something to it.
#[inline(always)]
fn bend<I: Isa>(isa: I, row: &mut [f32], bias: &[f32], by: impl Fn(I::F32) -> I::F32) {
    let ops = isa.f32();
    let mut bias = bias.simd_iter_pad(ops);
    simd_map(
        ops,
        row,
        #[inline(always)]
        |x| by(ops.add(x, bias.next().unwrap_or_else(|| ops.zero()))),
    );
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
            bend(isa, row, self.bias, |x| x);
            center(isa, row, self.norm);
        }
    }
}

/// Normalises one row.
#[inline(always)]
pub(super) fn center<I: Isa>(isa: I, row: &mut [f32], norm: &Norm) {
    let ops = isa.f32();
    let zero = ops.zero();
    let count = row.len() as f32;
    let sum = row.simd_iter(ops).fold_unroll::<4>(
        zero,
        #[inline(always)]
        |sum, x| ops.add(sum, x),
        #[inline(always)]
        |a, b| ops.add(a, b),
    );
    let mean = ops.splat(ops.sum(sum) / count);
    let squares = row.simd_iter(ops).fold_unroll::<4>(
        zero,
        #[inline(always)]
        |sum, x| {
            let off = ops.sub(x, mean);
            ops.mul_add(off, off, sum)
        },
        #[inline(always)]
        |a, b| ops.add(a, b),
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

struct Soften<'a> {
    rows: &'a mut [f32],
    width: usize,
    sums: &'a mut Vec<f32>,
}

impl SimdOp for Soften<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let ops = isa.f32();
        let lowest = ops.splat(f32::MIN);
        for row in self.rows.chunks_exact_mut(self.width) {
            let greatest = row.simd_iter(ops).fold(
                lowest,
                #[inline(always)]
                |most, x| ops.max(most, x),
            );
            let greatest = greatest.to_array().as_ref().iter().copied().fold(f32::MIN, f32::max);
            let greatest = ops.splat(greatest);
            simd_map(
                ops,
                &mut *row,
                #[inline(always)]
                |x| Exp::apply(isa, ops.sub(x, greatest)),
            );
            let sum = row.simd_iter(ops).fold(
                ops.zero(),
                #[inline(always)]
                |sum, x| ops.add(sum, x),
            );
            self.sums.push(ops.sum(sum));
        }
    }
}
