//! The product with AVX-512 VNNI, which multiplies and adds four bytes a lane at once, and with AVX2.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm256_abs_epi8, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_sign_epi8, _mm256_xor_si256, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
};

use fearless_simd::prelude::{SimdBase, SimdInto};
use fearless_simd::{f32x8, f32x16, u8x32, u8x64, u16x8, u16x16};

use super::{LANES, Quants, Row, Scales, Sums, TILE, WORDS};

/// Cut to the same length, which spares the loop its bounds checks.
macro_rules! cut {
    ($rows:ident, $count:expr, $blocks:ident) => {{
        let cut: [Row<'_>; $count] = std::array::from_fn(|row| Row {
            words: &$rows[row].words[..$blocks],
            scales: &$rows[row].scales[..$blocks],
        });
        cut
    }};
}

macro_rules! avx512 {
    ($name:ident, $count:expr) => {
        fearless_simd::kernel!(
            pub(super) fn $name(
                level: Avx512,
                quants: &[Quants],
                scales: &[Scales],
                rows: &[Row<'_>; $count],
            ) -> Sums<$count> {
                let blocks = quants.len();
                let (scales, rows) = (&scales[..blocks], cut!(rows, $count, blocks));
                let mut sums = [_mm512_setzero_ps(); $count];
                for block in 0..blocks {
                    let weights: [__m512i; WORDS] =
                        std::array::from_fn(|word| u8x64::from_slice(level, &quants[block].0[word]).into());
                    let halves: __m256i = u16x16::from_slice(level, &scales[block]).into();
                    let scale = _mm512_cvtph_ps(halves);
                    for (sum, row) in sums.iter_mut().zip(&rows) {
                        let (words, of_row) = (&row.words[block], row.scales[block]);
                        let mut dots = _mm512_set1_epi32(of_row.offset);
                        for (weights, word) in weights.iter().zip(words) {
                            dots = _mm512_dpbusd_epi32(dots, *weights, _mm512_set1_epi32(*word));
                        }
                        let both = _mm512_mul_ps(scale, _mm512_set1_ps(of_row.factor));
                        *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), both, *sum);
                    }
                }
                sums.map(|sum| <[f32; LANES]>::from(SimdInto::<f32x16<_>, _>::simd_into(sum, level)))
            }
        );
    };
}

macro_rules! avx2 {
    ($name:ident, $count:expr) => {
        fearless_simd::kernel!(
            /// Without a dot product of bytes: absolute weights by activations that took over their signs, which stays
            /// within 16 bits for a pair, since no weight is below -127.
            pub(super) fn $name(
                level: Avx2,
                quants: &[Quants],
                scales: &[Scales],
                rows: &[Row<'_>; $count],
            ) -> Sums<$count> {
                let blocks = quants.len();
                let (scales, rows) = (&scales[..blocks], cut!(rows, $count, blocks));
                let mut sums = [[_mm256_setzero_ps(); 2]; $count];
                let (middle, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
                for block in 0..blocks {
                    for half in 0..2 {
                        let mut dots = [_mm256_setzero_si256(); $count];
                        for word in 0..WORDS {
                            let stored: __m256i =
                                u8x32::from_slice(level, &quants[block].0[word][half * 32..half * 32 + 32])
                                    .into();
                            let weights = _mm256_xor_si256(stored, middle);
                            let sizes = _mm256_abs_epi8(weights);
                            for (dot, row) in dots.iter_mut().zip(&rows) {
                                let signed =
                                    _mm256_sign_epi8(_mm256_set1_epi32(row.words[block][word]), weights);
                                let pairs = _mm256_maddubs_epi16(sizes, signed);
                                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
                            }
                        }
                        let halves: __m128i =
                            u16x8::from_slice(level, &scales[block][half * 8..half * 8 + 8]).into();
                        let scale = _mm256_cvtph_ps(halves);
                        for ((sum, dot), row) in sums.iter_mut().zip(dots).zip(&rows) {
                            let both = _mm256_mul_ps(scale, _mm256_set1_ps(row.scales[block].factor));
                            sum[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, sum[half]);
                        }
                    }
                }
                sums.map(|halves| {
                    let mut all = [0.0; LANES];
                    for (half, out) in halves.into_iter().zip(all.chunks_exact_mut(8)) {
                        SimdInto::<f32x8<_>, _>::simd_into(half, level).store_slice(out);
                    }
                    all
                })
            }
        );
    };
}

avx512!(avx512_one, 1);
avx512!(avx512_tile, TILE);
avx2!(avx2_one, 1);
avx2!(avx2_tile, TILE);
