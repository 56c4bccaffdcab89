//! Matrices of int8 weights, and activation rows quantised to int8.

use fearless_simd::{Level, Simd, dispatch};
use half::f16;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::kernel::{self, BLOCK, Group, LANES, Quants, Row, STREAMS, Scale, Scales, TILE, WORDS};
use crate::beacon::Beacon;
use crate::engine::gguf::{Gguf, TensorType};
use crate::failure::LoadError;

/// Rows read between two beacon steps.
const ROWS_A_STEP: usize = 1024;

/// The CPU's SIMD level, and threads if there are several.
pub(super) struct CpuResources {
    pub(super) level: Level,
    pub(super) threads: Option<rayon::ThreadPool>,
}

/// Weight rows in groups of sixteen; the last group is padded with zeros.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    quants: Vec<Quants>,
    scales: Vec<Scales>,
}

impl Matrix {
    /// Reads a tensor of exactly this shape and converts it to Q8_0; 4-bit weights lose nothing by that.
    pub(super) fn read(
        gguf: &Gguf,
        name: &str,
        rows: usize,
        columns: usize,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let tensor = gguf.tensor(name)?;
        let wrong = |detail: String| LoadError::Wrong { path: gguf.path.clone(), detail };
        if tensor.shape != [columns as u64, rows as u64] || !columns.is_multiple_of(BLOCK) {
            return Err(wrong(format!("{name} has shape {:?} instead of {columns} by {rows}", tensor.shape)));
        }
        let (blocks, groups) = (columns / BLOCK, rows.div_ceil(LANES));
        let nothing = (Quants([[128; 4 * LANES]; WORDS]), [0; LANES]);
        let mut matrix =
            Matrix { rows, columns, quants: Vec::new(), scales: vec![nothing.1; groups * blocks] };
        matrix.quants.try_reserve_exact(groups * blocks).map_err(|_| LoadError::Memory {
            need_bytes: (rows * columns) as u64,
            free_bytes: 0,
            hint: format!("{name} does not fit into memory"),
        })?;
        matrix.quants.resize(groups * blocks, nothing.0);
        let (mut numbers, mut index) = (Vec::new(), 0);
        gguf.each(name, tensor.bytes() / rows as u64, |row| {
            if index % ROWS_A_STEP == 0 {
                beacon.step()?;
            }
            if tensor.kind == TensorType::Q8_0 {
                for (block, written) in row.as_chunks::<34>().0.iter().enumerate() {
                    let scale = u16::from_le_bytes([written[0], written[1]]);
                    // No writer produces -128, and the kernels could not sum it.
                    let quants = std::array::from_fn(|at| written[at + 2].cast_signed().max(-127));
                    matrix.put(index, block, scale, quants);
                }
            } else if tensor.kind.numbers(row, &mut numbers) {
                for (block, numbers) in numbers.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let (scale, quants) = quantise(numbers);
                    matrix.put(index, block, scale, quants);
                }
            } else {
                return Err(LoadError::Unsupported {
                    path: gguf.path.clone(),
                    what: format!("weights of type {} on a CPU", tensor.kind),
                    hint: "; use the model in Q8_0, Q4_K or Q6_K".to_owned(),
                });
            }
            index += 1;
            Ok(())
        })?;
        if matrix.scales.iter().flatten().any(|scale| !f16::from_bits(*scale).is_finite()) {
            return Err(wrong(format!("{name} has non-finite weights")));
        }
        Ok(matrix)
    }

    fn put(&mut self, row: usize, block: usize, scale: u16, quants: [i8; BLOCK]) {
        let (place, lane) = (row / LANES * (self.columns / BLOCK) + block, row % LANES);
        self.scales[place][lane] = scale;
        for (word, four) in self.quants[place].0.iter_mut().zip(quants.as_chunks::<4>().0) {
            let bytes = four.map(|quant| quant.cast_unsigned().wrapping_add(128));
            word[lane * 4..lane * 4 + 4].copy_from_slice(&bytes);
        }
    }

    /// One row as floats; the embedding table is a matrix as well.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let (blocks, lane) = (self.columns / BLOCK, row % LANES);
        let first = row / LANES * blocks;
        for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let scale = f16::from_bits(self.scales[first + block][lane]).to_f32();
            for (word, out) in self.quants[first + block].0.iter().zip(out.chunks_exact_mut(4)) {
                for (out, weight) in out.iter_mut().zip(&word[lane * 4..]) {
                    *out = (f32::from(*weight) - 128.0) * scale;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.quants.as_slice()) + size_of_val(self.scales.as_slice())
    }

    /// Writes a row of products for every activation row.
    pub(super) fn multiply(&self, cpu: &CpuResources, activations: &Activations, out: &mut [f32]) {
        let Some(threads) = &cpu.threads else {
            return match activations.rows {
                1 => self.multiply_groups(cpu.level, activations, 0, out),
                _ => self.multiply_rows(cpu.level, activations, 0, out),
            };
        };
        let share = |parts: usize| parts.div_ceil(threads.current_num_threads()).max(1);
        threads.install(|| {
            if activations.rows == 1 {
                let groups = share(self.rows.div_ceil(LANES));
                out.par_chunks_mut(groups * LANES).enumerate().for_each(|(part, out)| {
                    self.multiply_groups(cpu.level, activations, part * groups, out);
                });
            } else {
                let rows = share(activations.rows);
                out.par_chunks_mut(rows * self.rows).enumerate().for_each(|(part, out)| {
                    self.multiply_rows(cpu.level, activations, part * rows, out);
                });
            }
        });
    }

    /// Some products of a single row, from several parts of the matrix at once.
    fn multiply_groups(&self, level: Level, activations: &Activations, first: usize, out: &mut [f32]) {
        let rows = [activations.row(0)];
        let all = out.len().div_ceil(LANES);
        let stride = all / STREAMS;
        let mut put = |group: usize, sums: &[f32; LANES]| {
            let out = &mut out[group * LANES..];
            let lanes = LANES.min(out.len());
            out[..lanes].copy_from_slice(&sums[..lanes]);
        };
        for group in 0..stride {
            let groups = std::array::from_fn(|stream| self.group(first + group + stream * stride));
            for (stream, [sums]) in kernel::far(level, &groups, &rows).iter().enumerate() {
                put(group + stream * stride, sums);
            }
        }
        for group in stride * STREAMS..all {
            let [[sums]] = kernel::one(level, &[self.group(first + group)], &rows);
            put(group, &sums);
        }
    }

    /// All products of some rows.
    fn multiply_rows(&self, level: Level, activations: &Activations, first: usize, out: &mut [f32]) {
        let rows = out.len() / self.rows;
        for group in 0..self.rows.div_ceil(LANES) {
            let weights = [self.group(group)];
            let lanes = LANES.min(self.rows - group * LANES);
            let mut put = |row: usize, sums: &[f32; LANES]| {
                let at = row * self.rows + group * LANES;
                out[at..at + lanes].copy_from_slice(&sums[..lanes]);
            };
            let tiles = rows / TILE * TILE;
            for row in (0..tiles).step_by(TILE) {
                let of_tile = std::array::from_fn(|place| activations.row(first + row + place));
                let [sums] = kernel::tile(level, &weights, &of_tile);
                for (place, sums) in sums.iter().enumerate() {
                    put(row + place, sums);
                }
            }
            for row in tiles..rows {
                let [[sums]] = kernel::one(level, &weights, &[activations.row(first + row)]);
                put(row, &sums);
            }
        }
    }

    fn group(&self, group: usize) -> Group<'_> {
        let blocks = self.columns / BLOCK;
        let range = group * blocks..(group + 1) * blocks;
        Group { quants: &self.quants[range.clone()], scales: &self.scales[range] }
    }
}

/// Activation rows in int8.
#[derive(Default)]
pub(super) struct Activations {
    rows: usize,
    blocks: usize,
    words: Vec<[i32; WORDS]>,
    scales: Vec<Scale>,
}

impl Activations {
    /// Quantises rows of `columns` values each.
    pub(super) fn quantize(&mut self, level: Level, numbers: &[f32], columns: usize) {
        self.blocks = columns / BLOCK;
        self.rows = numbers.len() / columns;
        self.words.resize(numbers.len() / BLOCK, [0; WORDS]);
        self.scales.resize(numbers.len() / BLOCK, Scale::default());
        let (words, scales) = (&mut self.words, &mut self.scales);
        dispatch!(level, simd => simd.vectorize(#[inline(always)] || quantize_row(numbers, words, scales)));
    }

    fn row(&self, row: usize) -> Row<'_> {
        let range = row * self.blocks..(row + 1) * self.blocks;
        Row { words: &self.words[range.clone()], scales: &self.scales[range] }
    }
}

#[inline(always)]
fn quantize_row(numbers: &[f32], words: &mut [[i32; WORDS]], scales: &mut [Scale]) {
    for ((numbers, words), scale) in numbers.as_chunks::<BLOCK>().0.iter().zip(words).zip(scales) {
        // Compared as integers, so that NaN is the largest and yields NaN; 0 would hide it.
        let largest = numbers.iter().map(|it| it.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
        let largest = f32::from_bits(largest);
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let bytes = numbers.map(|it| nearest(it * inverse));
        *scale = Scale {
            factor: largest / 127.0,
            offset: -128 * bytes.iter().map(|it| i32::from(*it)).sum::<i32>(),
        };
        for (word, four) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = i32::from_le_bytes(four.map(i8::cast_unsigned));
        }
    }
}

/// Rounds values of at most 127 by adding a large number that pushes out the fraction bits.
#[inline(always)]
fn nearest(number: f32) -> i8 {
    (number + 12_582_912.0).to_bits().to_le_bytes()[0].cast_signed()
}

/// As ggml does for Q8_0.
fn quantise(numbers: &[f32; BLOCK]) -> (u16, [i8; BLOCK]) {
    let largest = numbers.iter().fold(0.0_f32, |largest, it| largest.max(it.abs()));
    let poisoned = numbers.iter().any(|it| !it.is_finite());
    let scale = f16::from_f32(if poisoned { f32::NAN } else { largest / 127.0 });
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (scale.to_bits(), numbers.map(|it| (it * inverse).round() as i8))
}
