//! The kernels for AVX-512 VNNI, which multiplies and adds four bytes per lane, and for AVX2.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_sign_epi8, _mm256_xor_si256, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
};

use fearless_simd::prelude::{SimdBase, SimdInto};
use fearless_simd::{f32x8, f32x16, u8x32, u8x64, u16x8, u16x16};

use super::{Group, LANES, Row, STREAMS, Sums, TILE, WORDS};

/// Slices everything to the same length, which removes bounds checks from the loop.
macro_rules! cut {
    ($groups:ident, $groups_count:expr, $rows:ident, $rows_count:expr) => {{
        let blocks = $groups[0].quants.len();
        let groups: [Group<'_>; $groups_count] = std::array::from_fn(|group| Group {
            quants: &$groups[group].quants[..blocks],
            scales: &$groups[group].scales[..blocks],
        });
        let rows: [Row<'_>; $rows_count] = std::array::from_fn(|row| Row {
            words: &$rows[row].words[..blocks],
            scales: &$rows[row].scales[..blocks],
        });
        (blocks, groups, rows)
    }};
}

macro_rules! avx512 {
    ($name:ident, $groups:expr, $rows:expr) => {
        fearless_simd::kernel!(
            pub(super) fn $name(
                level: Avx512,
                groups: &[Group<'_>; $groups],
                rows: &[Row<'_>; $rows],
            ) -> Sums<$groups, $rows> {
                let (blocks, groups, rows) = cut!(groups, $groups, rows, $rows);
                let mut sums = [[_mm512_setzero_ps(); $rows]; $groups];
                for block in 0..blocks {
                    let mut dots: [[__m512i; $rows]; $groups] =
                        [std::array::from_fn(|row| _mm512_set1_epi32(rows[row].scales[block].offset));
                            $groups];
                    for word in 0..WORDS {
                        for (group, dots) in groups.iter().zip(&mut dots) {
                            // Loaded where it is used, so that addresses ascend: with an array of all eight the
                            // compiler reorders the loads, and reading memory becomes a third slower.
                            let weights: __m512i =
                                u8x64::from_slice(level, &group.quants[block].0[word]).into();
                            for (dot, row) in dots.iter_mut().zip(&rows) {
                                let four = _mm512_set1_epi32(row.words[block][word]);
                                *dot = _mm512_dpbusd_epi32(*dot, weights, four);
                            }
                        }
                    }
                    for ((group, sums), dots) in groups.iter().zip(&mut sums).zip(dots) {
                        let halves: __m256i = u16x16::from_slice(level, &group.scales[block]).into();
                        let scale = _mm512_cvtph_ps(halves);
                        for ((sum, dot), row) in sums.iter_mut().zip(dots).zip(&rows) {
                            let both = _mm512_mul_ps(scale, _mm512_set1_ps(row.scales[block].factor));
                            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, *sum);
                        }
                    }
                }
                sums.map(|sums| {
                    sums.map(|sum| <[f32; LANES]>::from(SimdInto::<f32x16<_>, _>::simd_into(sum, level)))
                })
            }
        );
    };
}

macro_rules! avx2 {
    ($name:ident, $groups:expr, $rows:expr) => {
        fearless_simd::kernel!(
            /// Without an int8 dot product: absolute weights times activations with the weights' signs, which stays
            /// within 16 bits for a pair because no weight is below -127.
            pub(super) fn $name(
                level: Avx2,
                groups: &[Group<'_>; $groups],
                rows: &[Row<'_>; $rows],
            ) -> Sums<$groups, $rows> {
                let (blocks, groups, rows) = cut!(groups, $groups, rows, $rows);
                let mut sums = [[[_mm256_setzero_ps(); 2]; $rows]; $groups];
                let (middle, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
                for block in 0..blocks {
                    for (group, sums) in groups.iter().zip(&mut sums) {
                        let mut dots = [[_mm256_setzero_si256(); 2]; $rows];
                        for word in 0..WORDS {
                            for half in 0..2 {
                                let bytes = &group.quants[block].0[word][half * 32..half * 32 + 32];
                                let stored: __m256i = u8x32::from_slice(level, bytes).into();
                                let weights = _mm256_xor_si256(stored, middle);
                                let sizes = _mm256_abs_epi8(weights);
                                for (dot, row) in dots.iter_mut().zip(&rows) {
                                    let four = _mm256_set1_epi32(row.words[block][word]);
                                    let pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(four, weights));
                                    dot[half] = _mm256_add_epi32(dot[half], _mm256_madd_epi16(pairs, ones));
                                }
                            }
                        }
                        for half in 0..2 {
                            let halves = &group.scales[block][half * 8..half * 8 + 8];
                            let halves: __m128i = u16x8::from_slice(level, halves).into();
                            let scale = _mm256_cvtph_ps(halves);
                            for ((sum, dot), row) in sums.iter_mut().zip(dots).zip(&rows) {
                                let both = _mm256_mul_ps(scale, _mm256_set1_ps(row.scales[block].factor));
                                sum[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[half]), both, sum[half]);
                            }
                        }
                    }
                }
                sums.map(|sums| {
                    sums.map(|halves| {
                        let mut all = [0.0; LANES];
                        for (half, out) in halves.into_iter().zip(all.chunks_exact_mut(8)) {
                            SimdInto::<f32x8<_>, _>::simd_into(half, level).store_slice(out);
                        }
                        all
                    })
                })
            }
        );
    };
}

avx512!(avx512_one, 1, 1);
avx512!(avx512_far, STREAMS, 1);
avx512!(avx512_tile, 1, TILE);
avx2!(avx2_one, 1, 1);
avx2!(avx2_far, STREAMS, 1);
avx2!(avx2_tile, 1, TILE);
