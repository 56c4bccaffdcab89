//! The matrix product that dominates the run time: rows of int8 weights by rows of activations.
//!
//! Weights come in blocks of 32 with a scale each, as in Q8_0. Sixteen rows are interleaved in words of four weights,
//! so that one register holds the same four columns of sixteen rows and no sum crosses lanes. Weights are stored with
//! an offset of 128, because the CPU's dot product needs one unsigned operand; the offset's contribution is the same
//! for all sixteen rows.
//!
//! CPU features are detected at run time, so a default build is as fast as one for this machine. With every kernel a
//! row's product does not depend on how many rows are computed together.

#[cfg(target_arch = "x86_64")]
mod x86;

use fearless_simd::Level;
use half::f16;

/// Interleaved rows.
pub(super) const LANES: usize = 16;
/// Weights per scale.
pub(super) const BLOCK: usize = 32;
/// Words of four weights per block.
pub(super) const WORDS: usize = BLOCK / 4;
/// Activation rows multiplied at once while a prompt is read: four chains of dot products hide each other's latency,
/// and weights are fetched a quarter as often.
pub(super) const TILE: usize = 4;
/// Weight groups, far apart in memory, multiplied at once for a single row: one stream leaves a core waiting for memory
/// half of the time, and four reach more than twice the bandwidth.
pub(super) const STREAMS: usize = 4;

/// A block of sixteen rows. Aligned, because a load across cache lines costs twice.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Quants(pub(super) [[u8; 4 * LANES]; WORDS]);

/// The scales of a block of sixteen rows, as 16-bit floats.
pub(super) type Scales = [u16; LANES];

/// A row of int8 activations.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) words: &'a [[i32; WORDS]],
    pub(super) scales: &'a [Scale],
}

/// A block's scale, and the correction for the weights' offset of 128.
#[derive(Clone, Copy, Default)]
pub(super) struct Scale {
    pub(super) factor: f32,
    pub(super) offset: i32,
}

/// Indexed by group and row.
pub(super) type Sums<const GROUPS: usize, const ROWS: usize> = [[[f32; LANES]; ROWS]; GROUPS];

/// Sixteen rows of weights.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) quants: &'a [Quants],
    pub(super) scales: &'a [Scales],
}

/// Selects the best kernel of this CPU.
macro_rules! best {
    ($name:ident, $avx512:ident, $avx2:ident, $groups:expr, $rows:expr) => {
        pub(super) fn $name(
            level: Level,
            groups: &[Group<'_>; $groups],
            rows: &[Row<'_>; $rows],
        ) -> Sums<$groups, $rows> {
            #[cfg(target_arch = "x86_64")]
            if let Some(level) = level.as_avx512() {
                return x86::$avx512(level, groups, rows);
            } else if let Some(level) = level.as_avx2() {
                return x86::$avx2(level, groups, rows);
            }
            let _ = level;
            plain(groups, rows)
        }
    };
}

best!(one, avx512_one, avx2_one, 1, 1);
best!(far, avx512_far, avx2_far, STREAMS, 1);
best!(tile, avx512_tile, avx2_tile, 1, TILE);

/// The portable kernel, also the reference for the others.
pub(super) fn plain<const GROUPS: usize, const ROWS: usize>(
    groups: &[Group<'_>; GROUPS],
    rows: &[Row<'_>; ROWS],
) -> Sums<GROUPS, ROWS> {
    groups.map(|group| rows.map(|row| product(group, row)))
}

fn product(group: Group<'_>, row: Row<'_>) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    let weights = group.quants.iter().zip(group.scales);
    for ((block, scales), (words, scale)) in weights.zip(row.words.iter().zip(row.scales)) {
        let mut dots = [scale.offset; LANES];
        for (weights, word) in block.0.iter().zip(words) {
            let word = word.to_le_bytes().map(|it| i32::from(it.cast_signed()));
            for (dot, weights) in dots.iter_mut().zip(weights.as_chunks::<4>().0) {
                *dot += weights.iter().zip(word).map(|(weight, it)| i32::from(*weight) * it).sum::<i32>();
            }
        }
        for ((sum, dot), weight_scale) in sums.iter_mut().zip(dots).zip(scales) {
            *sum += dot as f32 * (f16::from_bits(*weight_scale).to_f32() * scale.factor);
        }
    }
    sums
}

#[cfg(test)]
mod tests;
