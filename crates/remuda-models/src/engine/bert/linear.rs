//! Products of rows with a weight matrix, which is packed for the processor when it is loaded.
//!
//! ```text
//!   rows, twelve at a time      matrix, in panels as wide as two vectors
//!   ┌ k ────────────┐            ┌──┬──┬──
//!   │ a0[k] … a11[k]│    ×     k │  │  │       24 sums in registers while k runs from top to bottom
//!   └───────────────┘            └──┴──┴──
//! ```
//!
//! rten-gemm's float kernel takes six rows at a time and sizes its panels to fill a 32 KiB L1 cache completely; on such
//! processors it reaches two thirds of this speed. Small products that differ every time (attention) still use it.

use rayon::prelude::*;
use rten_gemm::{GemmError, GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, Simd, SimdOp};
use rten_tensor::Matrix;

use crate::failure::{InferenceError, LoadError};

thread_local! {
    /// Not `Send`, and cheap to create per thread.
    static GEMM: GemmExecutor = GemmExecutor::default();
}

/// The size of a block of rows, so that it stays in the L2 cache next to a panel.
const BLOCK_BYTES: usize = 256 << 10;

/// The sums of this many rows in two vectors each fit in 32 registers with their operands.
const TALL: usize = 12;

/// The same for 16 registers.
const SHORT: usize = 6;

/// A float weight matrix.
pub(super) struct Linear {
    /// Panels in order, row after row; the last panel is padded with zeros.
    panels: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

/// What a product does with the existing output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductMode {
    Overwrite,
    /// Adds to it, for residual connections.
    Accumulate,
}

impl Linear {
    /// Packs a matrix with one row per output.
    pub(super) fn new(weights: &[f32], inputs: usize) -> Self {
        let outputs = weights.len() / inputs;
        let wide = Width.dispatch();
        let mut panels = vec![0.0; outputs.div_ceil(wide) * wide * inputs];
        for (panel, columns) in panels.chunks_exact_mut(wide * inputs).zip(weights.chunks(wide * inputs)) {
            for (column, weights) in columns.chunks_exact(inputs).enumerate() {
                for (row, weight) in panel.chunks_exact_mut(wide).zip(weights) {
                    row[column] = *weight;
                }
            }
        }
        Linear { panels, inputs, outputs }
    }

    pub(super) fn apply(&self, rows: &[f32], out: &mut [f32], mode: ProductMode) {
        let count = rows.len() / self.inputs;
        let share = count.div_ceil(rayon::current_num_threads());
        let fitting = (BLOCK_BYTES / size_of::<f32>() / self.inputs / TALL).max(1) * TALL;
        let block = share.min(fitting).max(1);
        let blocks = rows.par_chunks(block * self.inputs).zip(out.par_chunks_mut(block * self.outputs));
        blocks.for_each_init(Vec::new, |packed, (rows, out)| {
            Product { linear: self, rows, packed, out, mode }.dispatch();
        });
    }
}

/// The panel width on this machine.
struct Width;

impl SimdOp for Width {
    type Output = usize;

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) -> usize {
        2 * isa.f32().len()
    }
}

struct Product<'a> {
    linear: &'a Linear,
    rows: &'a [f32],
    /// The packed rows: tile after tile, in each tile column by column.
    packed: &'a mut Vec<f32>,
    out: &'a mut [f32],
    mode: ProductMode,
}

impl SimdOp for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Product { linear, rows, packed, out, mode } = self;
        let Linear { panels, inputs, outputs } = linear;
        // CPUs with 256-bit vectors have 16 registers.
        let most = if isa.f32().len() == 8 { SHORT } else { TALL };
        let count = rows.len() / inputs;
        let tiles = count.div_ceil(most);
        // Tiles of even size: a tile of two rows takes as long as one of four.
        let begin = |tile: usize| tile * count / tiles;
        packed.resize(rows.len(), 0.0);
        for tile in 0..tiles {
            let tall = begin(tile + 1) - begin(tile);
            let range = begin(tile) * inputs..begin(tile + 1) * inputs;
            let packed = &mut packed[range.clone()];
            for (place, row) in rows[range].chunks_exact(*inputs).enumerate() {
                for (numbers, number) in packed.chunks_exact_mut(tall).zip(row) {
                    numbers[place] = *number;
                }
            }
        }
        let wide = 2 * isa.f32().len();
        for (number, panel) in panels.chunks_exact(wide * inputs).enumerate() {
            let first = number * wide;
            let columns = wide.min(outputs - first);
            for tile in 0..tiles {
                let packed = &packed[begin(tile) * inputs..begin(tile + 1) * inputs];
                let out = OutputTile {
                    out: &mut out[begin(tile) * outputs + first..],
                    stride: *outputs,
                    columns,
                    mode,
                };
                match begin(tile + 1) - begin(tile) {
                    1 => tile_of::<I, 1>(isa, packed, panel, out),
                    2 => tile_of::<I, 2>(isa, packed, panel, out),
                    3 => tile_of::<I, 3>(isa, packed, panel, out),
                    4 => tile_of::<I, 4>(isa, packed, panel, out),
                    5 => tile_of::<I, 5>(isa, packed, panel, out),
                    6 => tile_of::<I, 6>(isa, packed, panel, out),
                    7 => tile_of::<I, 7>(isa, packed, panel, out),
                    8 => tile_of::<I, 8>(isa, packed, panel, out),
                    9 => tile_of::<I, 9>(isa, packed, panel, out),
                    10 => tile_of::<I, 10>(isa, packed, panel, out),
                    11 => tile_of::<I, 11>(isa, packed, panel, out),
                    _ => tile_of::<I, TALL>(isa, packed, panel, out),
                }
            }
        }
    }
}

/// Where a tile is written: its first value, the row stride, and the used width of the panel.
struct OutputTile<'a> {
    out: &'a mut [f32],
    stride: usize,
    columns: usize,
    mode: ProductMode,
}

#[inline(always)]
fn tile_of<I: Isa, const ROWS: usize>(isa: I, packed: &[f32], panel: &[f32], tile: OutputTile<'_>) {
    let ops = isa.f32();
    let lanes = ops.len();
    let mut sums = [[ops.zero(); 2]; ROWS];
    for (numbers, weights) in packed.as_chunks::<ROWS>().0.iter().zip(panel.chunks_exact(2 * lanes)) {
        let (left, right) = (ops.load(&weights[..lanes]), ops.load(&weights[lanes..]));
        for row in 0..ROWS {
            let number = ops.splat(numbers[row]);
            sums[row][0] = ops.mul_add(number, left, sums[row][0]);
            sums[row][1] = ops.mul_add(number, right, sums[row][1]);
        }
    }
    let OutputTile { out, stride, columns, mode } = tile;
    for (row, sums) in sums.iter().enumerate() {
        let out = &mut out[row * stride..][..columns];
        for (out, sum) in out.chunks_mut(lanes).zip(sums) {
            let sum = if mode == ProductMode::Accumulate { ops.add(*sum, ops.load_pad(out).0) } else { *sum };
            if out.len() == lanes {
                ops.store(sum, out);
            } else {
                out.copy_from_slice(&sum.to_array().as_ref()[..out.len()]);
            }
        }
    }
}

/// A float product of matrices that are not packed in advance.
pub(super) fn multiply(rows: Matrix<'_>, columns: Matrix<'_>, out: &mut [f32]) -> Result<(), InferenceError> {
    let (rows, columns) = (GemmInputA::Unpacked(rows), GemmInputB::Unpacked(columns));
    GEMM.with(|gemm| gemm.gemm(out, rows, columns, GemmOptions::default())).map_err(failed)
}

/// A matrix view with the given strides.
pub(super) fn view<T>(
    numbers: &[T],
    shape: [usize; 2],
    strides: [usize; 2],
) -> Result<Matrix<'_, T>, ShapeMismatch> {
    Matrix::from_slice_with_strides(shape, numbers, strides).map_err(|error| ShapeMismatch(error.to_string()))
}

/// Mismatched shapes. Shapes are checked at load time, so this is a bug.
#[derive(Debug)]
pub(super) struct ShapeMismatch(String);

impl From<ShapeMismatch> for InferenceError {
    fn from(ShapeMismatch(what): ShapeMismatch) -> Self {
        InferenceError::Engine(what)
    }
}

impl From<ShapeMismatch> for LoadError {
    fn from(ShapeMismatch(what): ShapeMismatch) -> Self {
        LoadError::Engine(what)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "signature of map_err")]
pub(super) fn failed(error: GemmError) -> InferenceError {
    InferenceError::Engine(error.to_string())
}
