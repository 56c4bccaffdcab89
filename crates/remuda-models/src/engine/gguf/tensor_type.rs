//! The encodings of weights, and their conversion to floats.
//!
//! Blocks of a fixed number of weights share a scale, and in some types a minimum. The layouts are ggml's.

use std::fmt;

use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// Code in the file, name, weights per block, bytes per block.
const TYPES: [(u32, TensorType, &str, u64, u64); 13] = [
    (0, TensorType::F32, "F32", 1, 4),
    (1, TensorType::F16, "F16", 1, 2),
    (2, TensorType::Q4_0, "Q4_0", 32, 18),
    (3, TensorType::Q4_1, "Q4_1", 32, 20),
    (6, TensorType::Q5_0, "Q5_0", 32, 22),
    (7, TensorType::Q5_1, "Q5_1", 32, 24),
    (8, TensorType::Q8_0, "Q8_0", 32, 34),
    (10, TensorType::Q2K, "Q2_K", 256, 84),
    (11, TensorType::Q3K, "Q3_K", 256, 110),
    (12, TensorType::Q4K, "Q4_K", 256, 144),
    (13, TensorType::Q5K, "Q5_K", 256, 176),
    (14, TensorType::Q6K, "Q6_K", 256, 210),
    (30, TensorType::Bf16, "BF16", 1, 2),
];

impl TensorType {
    pub(crate) fn of(code: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.0 == code).map(|row| row.1)
    }

    pub(crate) fn names() -> String {
        TYPES.map(|row| row.2).join(", ")
    }

    /// Weights and bytes per block.
    pub(crate) fn block(self) -> (u64, u64) {
        TYPES.iter().find(|row| row.1 == self).map_or((1, 1), |row| (row.3, row.4))
    }

    /// Converts whole blocks; false if this type cannot be converted here.
    pub(crate) fn numbers(self, bytes: &[u8], out: &mut Vec<f32>) -> bool {
        out.clear();
        let (_, size) = self.block();
        let blocks = bytes.chunks_exact(usize::try_from(size).unwrap_or(1));
        match self {
            TensorType::F32 => out.extend(bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it))),
            TensorType::F16 => {
                out.extend(bytes.as_chunks().0.iter().map(|it| f16::from_le_bytes(*it).to_f32()));
            }
            TensorType::Bf16 => {
                out.extend(bytes.as_chunks().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32()));
            }
            TensorType::Q4_0 => blocks.for_each(|block| halves(block, 0, 2, -8.0, out)),
            TensorType::Q4_1 => blocks.for_each(|block| halves(block, 0, 4, 0.0, out)),
            TensorType::Q5_0 => blocks.for_each(|block| halves(block, fifths(block, 2), 6, -16.0, out)),
            TensorType::Q5_1 => blocks.for_each(|block| halves(block, fifths(block, 4), 8, 0.0, out)),
            TensorType::Q8_0 => blocks.for_each(|block| {
                let scale = number(block, 0);
                out.extend(block[2..].iter().map(|it| f32::from(it.cast_signed()) * scale));
            }),
            TensorType::Q4K => blocks.for_each(|block| fours(block, &block[16..], None, out)),
            TensorType::Q5K => blocks.for_each(|block| fours(block, &block[48..], Some(&block[16..48]), out)),
            TensorType::Q6K => blocks.for_each(|block| sixes(block, out)),
            TensorType::Q2K | TensorType::Q3K => return false,
        }
        true
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TYPES.iter().find(|row| row.1 == *self).map_or("?", |row| row.2))
    }
}

fn number(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The fifth bits of 32 weights.
fn fifths(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// 32 weights of four bits, or five with those in `high`: the low halves of 16 bytes, then their high halves. Types
/// without a fixed middle have their own minimum.
fn halves(block: &[u8], high: u32, at: usize, middle: f32, out: &mut Vec<f32>) {
    let scale = number(block, 0);
    let lowest = if middle == 0.0 { number(block, 2) } else { middle * scale };
    let fifth = |place: usize| ((high >> place) & 1) << 4;
    let bytes = &block[at..at + 16];
    let low = bytes.iter().enumerate().map(|(place, it)| u32::from(it & 15) | fifth(place));
    let upper = bytes.iter().enumerate().map(|(place, it)| u32::from(it >> 4) | fifth(place + 16));
    out.extend(low.chain(upper).map(|it| it as f32 * scale + lowest));
}

/// Q4_K and Q5_K: eight runs of 32 weights, each with its scale and minimum in six bits.
fn fours(block: &[u8], quants: &[u8], fifths: Option<&[u8]>, out: &mut Vec<f32>) {
    let (scale, minimum) = (number(block, 0), number(block, 2));
    for run in 0..8 {
        let (scale_six, minimum_six) = six_bits(&block[4..16], run);
        let (scale, minimum) = (scale * f32::from(scale_six), minimum * f32::from(minimum_six));
        let bytes = &quants[run / 2 * 32..run / 2 * 32 + 32];
        out.extend(bytes.iter().enumerate().map(|(place, it)| {
            let four = if run % 2 == 0 { it & 15 } else { it >> 4 };
            let fifth = fifths.map_or(0, |fifths| ((fifths[place] >> run) & 1) << 4);
            f32::from(four | fifth) * scale - minimum
        }));
    }
}

/// The scale and the minimum of a run: twelve bytes hold eight of each.
fn six_bits(packed: &[u8], run: usize) -> (u8, u8) {
    if run < 4 {
        return (packed[run] & 63, packed[run + 4] & 63);
    }
    let low = packed[run + 4];
    (low & 15 | (packed[run - 4] >> 6) << 4, low >> 4 | (packed[run] >> 6) << 4)
}

/// Q6_K: two halves of 128 weights, a scale for every 16.
fn sixes(block: &[u8], out: &mut Vec<f32>) {
    let scale = number(block, 208);
    for half in 0..2 {
        let low = &block[half * 64..half * 64 + 64];
        let high = &block[128 + half * 32..128 + half * 32 + 32];
        let scales = &block[192 + half * 8..192 + half * 8 + 8];
        for quarter in 0..4 {
            out.extend((0..32).map(|place| {
                let byte = low[quarter % 2 * 32 + place];
                let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
                let two = (high[place] >> (quarter * 2)) & 3;
                let sixteenth = f32::from(scales[quarter * 2 + place / 16].cast_signed());
                (f32::from(four | two << 4) - 32.0) * scale * sixteenth
            }));
        }
    }
}
