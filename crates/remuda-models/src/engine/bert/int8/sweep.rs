//! What is done to rows between products of bytes.

use rayon::prelude::*;
use rten_simd::ops::{BitOps, FloatOps, NarrowSaturate, NumOps, ToFloat};
use rten_simd::{Isa, Simd, SimdOp, SimdUnaryOp};
use rten_vecmath::{ApproxGelu, Gelu};

use super::Matrix8;
use crate::engine::bert::config::Activation;
use crate::engine::bert::sweep::{Norm, center, fold, greatest};

/// How many rows a thread takes at once.
const SHARE: usize = 8;

/// How fine the bytes of a row are, and which of them is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Grain {
    pub(super) scale: f32,
    pub(super) zero: f32,
}

/// Rows to bytes.
pub(super) fn quantize(rows: &[f32], width: usize, bytes: &mut Vec<u8>, grains: &mut Vec<Grain>) {
    bytes.resize(rows.len(), 0);
    grains.resize(rows.len() / width, Grain::default());
    let rows = rows.par_chunks(SHARE * width).zip(bytes.par_chunks_mut(SHARE * width));
    rows.zip(grains.par_chunks_mut(SHARE))
        .for_each(|((rows, bytes), grains)| Quantize { rows, width, bytes, grains }.dispatch());
}

/// Sums to rows, with the matrix's bias.
pub(super) fn widen(sums: &[i32], grains: &[Grain], matrix: &Matrix8, rows: &mut [f32]) {
    let share = SHARE * matrix.outputs();
    let shares = sums.par_chunks(share).zip(rows.par_chunks_mut(share)).zip(grains.par_chunks(SHARE));
    shares.for_each(|((sums, rows), grains)| Widen { sums, grains, matrix, rows }.dispatch());
}

/// Adds what the sums stand for to the rows, with the matrix's bias, and normalises them.
pub(super) fn settle(sums: &[i32], grains: &[Grain], matrix: &Matrix8, norm: &Norm, rows: &mut [f32]) {
    let share = SHARE * matrix.outputs();
    let shares = sums.par_chunks(share).zip(rows.par_chunks_mut(share)).zip(grains.par_chunks(SHARE));
    shares.for_each(|((sums, rows), grains)| Settle { sums, grains, matrix, norm, rows }.dispatch());
}

/// Sums to rows with the matrix's bias, through the activation, and to bytes again.
pub(super) fn bend(
    sums: &[i32],
    grains: &[Grain],
    matrix: &Matrix8,
    activation: Activation,
    bytes: &mut Vec<u8>,
    made: &mut Vec<Grain>,
) {
    let width = matrix.outputs();
    bytes.resize(sums.len(), 0);
    made.resize(sums.len() / width, Grain::default());
    let rows = sums.par_chunks(SHARE * width).zip(bytes.par_chunks_mut(SHARE * width));
    rows.zip(made.par_chunks_mut(SHARE)).zip(grains.par_chunks(SHARE)).for_each_init(
        || vec![0.0; width],
        |row, (((sums, bytes), made), grains)| {
            Bend { sums, grains, matrix, activation, row, bytes, made }.dispatch();
        },
    );
}

struct Quantize<'a> {
    rows: &'a [f32],
    width: usize,
    bytes: &'a mut [u8],
    grains: &'a mut [Grain],
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let rows = self.rows.chunks_exact(self.width).zip(self.bytes.chunks_exact_mut(self.width));
        for ((row, bytes), grain) in rows.zip(self.grains) {
            *grain = pack(isa, row, bytes);
        }
    }
}

struct Widen<'a> {
    sums: &'a [i32],
    grains: &'a [Grain],
    matrix: &'a Matrix8,
    rows: &'a mut [f32],
}

impl SimdOp for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let width = self.matrix.outputs();
        let rows = self.sums.chunks_exact(width).zip(self.rows.chunks_exact_mut(width));
        for ((sums, row), grain) in rows.zip(self.grains) {
            unpack(
                isa,
                sums,
                *grain,
                self.matrix,
                row,
                #[inline(always)]
                |x, _| x,
            );
        }
    }
}

struct Settle<'a> {
    sums: &'a [i32],
    grains: &'a [Grain],
    matrix: &'a Matrix8,
    norm: &'a Norm,
    rows: &'a mut [f32],
}

impl SimdOp for Settle<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let ops = isa.f32();
        let width = self.matrix.outputs();
        let rows = self.sums.chunks_exact(width).zip(self.rows.chunks_exact_mut(width));
        for ((sums, row), grain) in rows.zip(self.grains) {
            unpack(
                isa,
                sums,
                *grain,
                self.matrix,
                row,
                #[inline(always)]
                |x, was| ops.add(x, was),
            );
            center(isa, row, self.norm);
        }
    }
}

struct Bend<'a> {
    sums: &'a [i32],
    grains: &'a [Grain],
    matrix: &'a Matrix8,
    activation: Activation,
    row: &'a mut Vec<f32>,
    bytes: &'a mut [u8],
    made: &'a mut [Grain],
}

impl SimdOp for Bend<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let width = self.matrix.outputs();
        let none = isa.f32().zero();
        let rows = self.sums.chunks_exact(width).zip(self.bytes.chunks_exact_mut(width)).zip(self.grains);
        for (((sums, bytes), grain), made) in rows.zip(self.made) {
            let row = &mut self.row[..];
            match self.activation {
                Activation::Gelu => unpack(
                    isa,
                    sums,
                    *grain,
                    self.matrix,
                    row,
                    #[inline(always)]
                    |x, _| SimdUnaryOp::eval(&Gelu {}, isa, x),
                ),
                Activation::GeluTanh => unpack(
                    isa,
                    sums,
                    *grain,
                    self.matrix,
                    row,
                    #[inline(always)]
                    |x, _| SimdUnaryOp::eval(&ApproxGelu {}, isa, x),
                ),
                Activation::Relu => unpack(
                    isa,
                    sums,
                    *grain,
                    self.matrix,
                    row,
                    #[inline(always)]
                    |x, _| isa.f32().max(x, none),
                ),
            }
            *made = pack(isa, row, bytes);
        }
    }
}

/// One row of sums to what it stands for; `with` is given that and what the row was.
#[inline(always)]
fn unpack<I: Isa>(
    isa: I,
    sums: &[i32],
    grain: Grain,
    matrix: &Matrix8,
    row: &mut [f32],
    with: impl Fn(I::F32, I::F32) -> I::F32,
) {
    let (ops, int_ops) = (isa.f32(), isa.i32());
    let lanes = ops.len();
    let scale = ops.splat(grain.scale);
    let drop = ops.splat(-grain.zero * grain.scale);
    let columns = matrix.scales.chunks(lanes).zip(matrix.pulls.chunks(lanes).zip(matrix.bias.chunks(lanes)));
    for ((sums, row), (scales, (pulls, bias))) in sums.chunks(lanes).zip(row.chunks_mut(lanes)).zip(columns) {
        let sums = int_ops.to_float(int_ops.load_pad(sums).0);
        let each = ops.mul(ops.load_pad(scales).0, scale);
        let moved = ops.mul_add(ops.load_pad(pulls).0, drop, ops.load_pad(bias).0);
        let number = ops.mul_add(sums, each, moved);
        let number = with(number, ops.load_pad(row).0);
        if row.len() == lanes {
            ops.store(number, row);
        } else {
            row.copy_from_slice(&number.to_array().as_ref()[..row.len()]);
        }
    }
}

/// One row to bytes between its least and its greatest number, of which one is nothing exactly.
#[inline(always)]
fn pack<I: Isa>(isa: I, row: &[f32], bytes: &mut [u8]) -> Grain {
    let ops = isa.f32();
    let least = fold(
        isa,
        row,
        ops.zero(),
        #[inline(always)]
        |least, x| ops.min(least, x),
    );
    let least = least.to_array().as_ref().iter().copied().fold(0.0, f32::min);
    let most = greatest(isa, row, 0.0);
    let span = most - least;
    let scale = if span > 0.0 { span / 255.0 } else { 1.0 };
    let zero = (-least / scale).round();
    let (finer, shift) = (ops.splat(1.0 / scale), isa.i32().splat(zero as i32));
    let lanes = ops.len();
    for (row, bytes) in row.chunks(4 * lanes).zip(bytes.chunks_mut(4 * lanes)) {
        let mut steps = [shift; 4];
        for (step, part) in steps.iter_mut().zip(row.chunks(lanes)) {
            let part = ops.mul(ops.load_pad(part).0, finer);
            *step = isa.i32().add(ops.to_int_round(part), shift);
        }
        let low = isa.i32().narrow_saturate(steps[0], steps[1]);
        let high = isa.i32().narrow_saturate(steps[2], steps[3]);
        let packed = isa.i16().narrow_saturate(low, high);
        if bytes.len() == 4 * lanes {
            isa.u8().store(packed, bytes);
        } else {
            let count = bytes.len();
            bytes.copy_from_slice(&packed.to_array().as_ref()[..count]);
        }
    }
    Grain { scale, zero }
}
