use fearless_simd::Level;

use super::{BLOCK, Group, LANES, Quants, Row, Scale, Scales, Sums, WORDS, far, one, plain, tile};
use crate::engine::gguf::sample::RandomWeights;

const BLOCKS: usize = 5;

struct Activations {
    words: Vec<[i32; WORDS]>,
    scales: Vec<Scale>,
}

impl Activations {
    fn drawn(seed: u64) -> Self {
        let mut draw = RandomWeights(seed);
        let mut it = Activations { words: Vec::new(), scales: Vec::new() };
        for _ in 0..BLOCKS {
            // Values at the ends of the range, which overflow first.
            let bytes: [i8; BLOCK] =
                std::array::from_fn(|place| if place < 8 { 127 } else { (draw.draw() * 127.0) as i8 });
            let sum: i32 = bytes.iter().map(|it| i32::from(*it)).sum();
            it.scales.push(Scale { factor: 0.01 + draw.draw().abs(), offset: -128 * sum });
            it.words.push(std::array::from_fn(|word| {
                i32::from_le_bytes(std::array::from_fn(|at| bytes[word * 4 + at].cast_unsigned()))
            }));
        }
        it
    }

    fn row(&self) -> Row<'_> {
        Row { words: &self.words, scales: &self.scales }
    }
}

fn weights(seed: u64) -> (Vec<Quants>, Vec<Scales>) {
    let mut draw = RandomWeights(seed);
    let mut byte = |place: usize| match place % 5 {
        0 => 255,
        1 => 1,
        _ => 128_u8.wrapping_add_signed((draw.draw() * 127.0) as i8),
    };
    let quants =
        (0..BLOCKS).map(|_| Quants(std::array::from_fn(|_| std::array::from_fn(&mut byte)))).collect();
    let scales = (0..BLOCKS)
        .map(|block| std::array::from_fn(|lane| half::f16::from_f32(0.001 * (block + lane) as f32).to_bits()))
        .collect();
    (quants, scales)
}

fn close(ours: &[f32; LANES], right: &[f32; LANES]) {
    for (ours, right) in ours.iter().zip(right) {
        assert!((ours - right).abs() <= 1e-4 * right.abs().max(1.0), "{ours} is not {right}");
    }
}

#[test]
fn every_kernel_computes_the_same_product() {
    let rows: Vec<Activations> = (0..4).map(Activations::drawn).collect();
    let rows = [rows[0].row(), rows[1].row(), rows[2].row(), rows[3].row()];
    let held: Vec<_> = (5..9).map(weights).collect();
    let groups: [Group<'_>; 4] =
        std::array::from_fn(|group| Group { quants: &held[group].0, scales: &held[group].1 });
    let right = plain(&groups, &rows);
    let level = Level::new();
    check(
        &groups,
        &rows,
        &right,
        |groups, rows| one(level, groups, rows),
        |groups, rows| far(level, groups, rows),
        |groups, rows| tile(level, groups, rows),
    );
    #[cfg(target_arch = "x86_64")]
    if let Some(level) = level.as_avx2() {
        use super::x86::{avx2_far, avx2_one, avx2_tile};
        check(
            &groups,
            &rows,
            &right,
            |groups, rows| avx2_one(level, groups, rows),
            |groups, rows| avx2_far(level, groups, rows),
            |groups, rows| avx2_tile(level, groups, rows),
        );
    }
}

/// A product is correct, and bit-identical however many others are computed with it.
fn check(
    groups: &[Group<'_>; 4],
    rows: &[Row<'_>; 4],
    right: &Sums<4, 4>,
    one: impl Fn(&[Group<'_>; 1], &[Row<'_>; 1]) -> Sums<1, 1>,
    far: impl Fn(&[Group<'_>; 4], &[Row<'_>; 1]) -> Sums<4, 1>,
    tile: impl Fn(&[Group<'_>; 1], &[Row<'_>; 4]) -> Sums<1, 4>,
) {
    for row in 0..4 {
        let streams = far(groups, &[rows[row]]);
        for group in 0..4 {
            let [[alone]] = one(&[groups[group]], &[rows[row]]);
            assert_eq!(alone, streams[group][0]);
            assert_eq!(alone, tile(&[groups[group]], rows)[0][row]);
            close(&alone, &right[group][row]);
        }
    }
}
