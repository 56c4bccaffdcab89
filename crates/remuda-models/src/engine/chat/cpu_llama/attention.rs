//! The computations in 32 bits: norms, rotary positions, attention, and the gate of the feed-forward layer.
//!
//! Plain loops over lanes that the compiler vectorises for each CPU level; `dispatch!` selects the level of this
//! machine.

use fearless_simd::{Level, Simd, dispatch};

use super::super::dimensions::RopeFamily;

/// Sixteen partial sums: a single one would prevent vectorisation.
const LANES: usize = 16;

/// RMS normalisation of the rows of `x`.
pub(super) fn norm(level: Level, x: &[f32], weights: &[f32], epsilon: f32, out: &mut [f32]) {
    dispatch!(level, simd => simd.vectorize(#[inline(always)] || {
        for (x, out) in x.chunks_exact(weights.len()).zip(out.chunks_exact_mut(weights.len())) {
            let factor = 1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weights) {
                *out = x * factor * weight;
            }
        }
    }));
}

/// `gate` becomes silu(gate) * up.
pub(super) fn gated(level: Level, gate: &mut [f32], up: &[f32]) {
    dispatch!(level, simd => simd.vectorize(#[inline(always)] || {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = *gate / (1.0 + exp(-*gate)) * up;
        }
    }));
}

/// Attention of one head of one token over all keys up to its own.
pub(super) fn attend(
    level: Level,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let scale = 1.0 / (query.len() as f32).sqrt();
    dispatch!(level, simd => simd.vectorize(#[inline(always)] || {
        scores.clear();
        scores.extend(keys.chunks_exact(query.len()).map(|key| dot(query, key) * scale));
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for score in &mut *scores {
            *score = exp(*score - largest);
        }
        let sum = scores.iter().sum::<f32>();
        out.fill(0.0);
        for (value, score) in values.chunks_exact(query.len()).zip(&*scores) {
            let weight = score / sum;
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight * value;
            }
        }
    }));
}

/// Rotates every head of `x` by the angles of its position: adjacent pairs, or the two halves of a head.
pub(super) fn turn(family: RopeFamily, x: &mut [f32], head: usize, angles: &[(f32, f32)]) {
    for x in x.chunks_exact_mut(head) {
        match family {
            RopeFamily::Llama => {
                for (pair, (sin, cos)) in x.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    *pair = [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos];
                }
            }
            RopeFamily::Qwen2 | RopeFamily::Qwen3 => {
                let (first, second) = x.split_at_mut(head / 2);
                for ((first, second), (sin, cos)) in first.iter_mut().zip(second).zip(angles) {
                    (*first, *second) = (*first * cos - *second * sin, *first * sin + *second * cos);
                }
            }
        }
    }
}

#[inline(always)]
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

/// exp(x) to within a few ulps, inlined: e^x = 2^n * e^r with small r.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let series = 1.0
        + r * (1.0
            + r * (0.5 + r * (0.166_666_6 + r * (0.041_665_8 + r * (0.008_333_45 + r * 0.001_388_9)))));
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    series * power
}

#[cfg(test)]
mod tests {
    use super::{attend, exp};

    #[test]
    fn exp_is_accurate_everywhere() {
        for step in -8600..8700 {
            let x = step as f32 / 100.0;
            let (ours, right) = (exp(x), f64::from(x).exp() as f32);
            assert!((ours - right).abs() <= right * 1e-6, "{x}: {ours} {right}");
        }
        assert!(exp(f32::NAN).is_nan(), "NaN stays NaN");
    }

    #[test]
    fn attention_follows_the_query() {
        let (keys, values) = ([1.0, 0.0, 0.0, 40.0], [1.0, 2.0, 3.0, 4.0]);
        let mut out = [0.0; 2];
        attend(fearless_simd::Level::new(), &[0.0, 1.0], &keys, &values, &mut Vec::new(), &mut out);
        assert!((out[0] - 3.0).abs() < 1e-5 && (out[1] - 4.0).abs() < 1e-5, "{out:?}");
    }
}
