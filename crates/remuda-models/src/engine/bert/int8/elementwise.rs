//! Row operations between int8 products.

use rayon::prelude::*;
use rten_simd::ops::{BitOps, FloatOps, NarrowSaturate, NumOps, ToFloat};
use rten_simd::{Isa, Simd, SimdOp, SimdUnaryOp};
use rten_vecmath::{ApproxGelu, Gelu};

use super::QuantizedMatrix;
use crate::engine::bert::config::Activation;
use crate::engine::bert::elementwise::{Norm, fold, layer_norm, row_max};

/// How many rows a thread takes at once.
const SHARE: usize = 8;

/// The scale and zero point of a quantised row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct QuantParams {
    pub(super) scale: f32,
    pub(super) zero: f32,
}

/// Quantises rows to bytes.
pub(super) fn quantize(rows: &[f32], width: usize, bytes: &mut Vec<u8>, params: &mut Vec<QuantParams>) {
    bytes.resize(rows.len(), 0);
    params.resize(rows.len() / width, QuantParams::default());
    let rows = rows.par_chunks(SHARE * width).zip(bytes.par_chunks_mut(SHARE * width));
    rows.zip(params.par_chunks_mut(SHARE))
        .for_each(|((rows, bytes), params)| Quantize { rows, width, bytes, params }.dispatch());
}

/// Converts sums back to floats, with the matrix's bias.
pub(super) fn dequantize(sums: &[i32], params: &[QuantParams], matrix: &QuantizedMatrix, rows: &mut [f32]) {
    let share = SHARE * matrix.outputs();
    let shares = sums.par_chunks(share).zip(rows.par_chunks_mut(share)).zip(params.par_chunks(SHARE));
    shares.for_each(|((sums, rows), params)| Dequantize { sums, params, matrix, rows }.dispatch());
}

/// Adds the dequantised sums and the bias to the rows, and normalises them.
pub(super) fn dequantize_normalize(
    sums: &[i32],
    params: &[QuantParams],
    matrix: &QuantizedMatrix,
    norm: &Norm,
    rows: &mut [f32],
) {
    let share = SHARE * matrix.outputs();
    let shares = sums.par_chunks(share).zip(rows.par_chunks_mut(share)).zip(params.par_chunks(SHARE));
    shares.for_each(|((sums, rows), params)| {
        DequantizeNormalize { sums, params, matrix, norm, rows }.dispatch();
    });
}

/// Dequantises sums, adds the bias, applies the activation and quantises again.
pub(super) fn bias_act_requant(
    sums: &[i32],
    params: &[QuantParams],
    matrix: &QuantizedMatrix,
    activation: Activation,
    bytes: &mut Vec<u8>,
    made: &mut Vec<QuantParams>,
) {
    let width = matrix.outputs();
    bytes.resize(sums.len(), 0);
    made.resize(sums.len() / width, QuantParams::default());
    let rows = sums.par_chunks(SHARE * width).zip(bytes.par_chunks_mut(SHARE * width));
    rows.zip(made.par_chunks_mut(SHARE)).zip(params.par_chunks(SHARE)).for_each_init(
        || vec![0.0; width],
        |row, (((sums, bytes), made), params)| {
            BiasActRequant { sums, params, matrix, activation, row, bytes, made }.dispatch();
        },
    );
}

struct Quantize<'a> {
    rows: &'a [f32],
    width: usize,
    bytes: &'a mut [u8],
    params: &'a mut [QuantParams],
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let rows = self.rows.chunks_exact(self.width).zip(self.bytes.chunks_exact_mut(self.width));
        for ((row, bytes), param) in rows.zip(self.params) {
            *param = pack(isa, row, bytes);
        }
    }
}

struct Dequantize<'a> {
    sums: &'a [i32],
    params: &'a [QuantParams],
    matrix: &'a QuantizedMatrix,
    rows: &'a mut [f32],
}

impl SimdOp for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let width = self.matrix.outputs();
        let rows = self.sums.chunks_exact(width).zip(self.rows.chunks_exact_mut(width));
        for ((sums, row), param) in rows.zip(self.params) {
            unpack(
                isa,
                sums,
                *param,
                self.matrix,
                row,
                #[inline(always)]
                |x, _| x,
            );
        }
    }
}

struct DequantizeNormalize<'a> {
    sums: &'a [i32],
    params: &'a [QuantParams],
    matrix: &'a QuantizedMatrix,
    norm: &'a Norm,
    rows: &'a mut [f32],
}

impl SimdOp for DequantizeNormalize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let ops = isa.f32();
        let width = self.matrix.outputs();
        let rows = self.sums.chunks_exact(width).zip(self.rows.chunks_exact_mut(width));
        for ((sums, row), param) in rows.zip(self.params) {
            unpack(
                isa,
                sums,
                *param,
                self.matrix,
                row,
                #[inline(always)]
                |x, was| ops.add(x, was),
            );
            layer_norm(isa, row, self.norm);
        }
    }
}

struct BiasActRequant<'a> {
    sums: &'a [i32],
    params: &'a [QuantParams],
    matrix: &'a QuantizedMatrix,
    activation: Activation,
    row: &'a mut Vec<f32>,
    bytes: &'a mut [u8],
    made: &'a mut [QuantParams],
}

impl SimdOp for BiasActRequant<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let width = self.matrix.outputs();
        let none = isa.f32().zero();
        let rows = self.sums.chunks_exact(width).zip(self.bytes.chunks_exact_mut(width)).zip(self.params);
        for (((sums, bytes), param), made) in rows.zip(self.made) {
            let row = &mut self.row[..];
            match self.activation {
                Activation::Gelu => unpack(
                    isa,
                    sums,
                    *param,
                    self.matrix,
                    row,
                    #[inline(always)]
                    |x, _| SimdUnaryOp::eval(&Gelu {}, isa, x),
                ),
                Activation::GeluTanh => unpack(
                    isa,
                    sums,
                    *param,
                    self.matrix,
                    row,
                    #[inline(always)]
                    |x, _| SimdUnaryOp::eval(&ApproxGelu {}, isa, x),
                ),
                Activation::Relu => unpack(
                    isa,
                    sums,
                    *param,
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

/// Dequantises one row; `with` gets the new value and the old value of the row.
#[inline(always)]
fn unpack<I: Isa>(
    isa: I,
    sums: &[i32],
    param: QuantParams,
    matrix: &QuantizedMatrix,
    row: &mut [f32],
    with: impl Fn(I::F32, I::F32) -> I::F32,
) {
    let (ops, int_ops) = (isa.f32(), isa.i32());
    let lanes = ops.len();
    let scale = ops.splat(param.scale);
    let drop = ops.splat(-param.zero * param.scale);
    let columns =
        matrix.scales.chunks(lanes).zip(matrix.column_sums.chunks(lanes).zip(matrix.bias.chunks(lanes)));
    for ((sums, row), (scales, (column_sums, bias))) in
        sums.chunks(lanes).zip(row.chunks_mut(lanes)).zip(columns)
    {
        let sums = int_ops.to_float(int_ops.load_pad(sums).0);
        let each = ops.mul(ops.load_pad(scales).0, scale);
        let moved = ops.mul_add(ops.load_pad(column_sums).0, drop, ops.load_pad(bias).0);
        let number = ops.mul_add(sums, each, moved);
        let number = with(number, ops.load_pad(row).0);
        if row.len() == lanes {
            ops.store(number, row);
        } else {
            row.copy_from_slice(&number.to_array().as_ref()[..row.len()]);
        }
    }
}

/// Quantises one row between its minimum and maximum, such that zero is represented exactly.
#[inline(always)]
fn pack<I: Isa>(isa: I, row: &[f32], bytes: &mut [u8]) -> QuantParams {
    let ops = isa.f32();
    let least = fold(
        isa,
        row,
        ops.zero(),
        #[inline(always)]
        |least, x| ops.min(least, x),
    );
    let least = least.to_array().as_ref().iter().copied().fold(0.0, f32::min);
    let most = row_max(isa, row, 0.0);
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
    QuantParams { scale, zero }
}
