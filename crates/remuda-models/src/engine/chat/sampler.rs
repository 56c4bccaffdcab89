//! Chooses the next token.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use crate::failure::InferenceError;
use crate::request::Sampling;

/// How many tokens back the repeat penalty applies, as in llama.cpp.
const REPEAT_LAST: usize = 64;

/// The same seed and the same logits give the same tokens.
pub(super) struct Sampler<'a> {
    sampling: &'a Sampling,
    state: u64,
    /// Reused, so that a token allocates nothing.
    candidates: Vec<(f32, u32)>,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(sampling: &'a Sampling) -> Self {
        // The standard library's hasher is seeded by the system, which avoids a dependency for one random number.
        let seed = sampling.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        Sampler { sampling, state: seed, candidates: Vec::new() }
    }

    /// `before` holds all tokens read and generated so far.
    pub(super) fn next(&mut self, logits: &[f32], before: &[u32]) -> Result<u32, InferenceError> {
        // Non-finite logits mean that weights, memory or the device are broken, so the next answer would be as well.
        if logits.iter().any(|logit| !logit.is_finite()) {
            return Err(InferenceError::Poisoned("the model computed non-finite logits".to_owned()));
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().copied().zip(0..));
        self.apply_repeat_penalty(before);
        let taken = match self.sampling.temperature {
            temperature if temperature > 0.0 => self.draw(temperature),
            // The first of equal candidates, on every CPU.
            _ => self.candidates.iter().copied().reduce(|best, it| if it.0 > best.0 { it } else { best }),
        };
        let taken = taken.map(|(_, token)| token);
        taken.ok_or_else(|| InferenceError::Engine("there is no token to choose from".to_owned()))
    }

    fn apply_repeat_penalty(&mut self, before: &[u32]) {
        let penalty = self.sampling.repeat_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut last = before[before.len().saturating_sub(REPEAT_LAST)..].to_vec();
        last.sort_unstable();
        last.dedup();
        for token in last {
            if let Some((logit, _)) = self.candidates.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    fn draw(&mut self, temperature: f32) -> Option<(f32, u32)> {
        let kept = self.sampling.top_k.map_or(usize::MAX, |top| top.max(1) as usize);
        let order =
            |left: &(f32, u32), right: &(f32, u32)| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1));
        if kept < self.candidates.len() {
            self.candidates.select_nth_unstable_by(kept, order);
            self.candidates.truncate(kept);
        }
        self.candidates.sort_unstable_by(order);
        let largest = self.candidates.first()?.0;
        for (logit, _) in &mut self.candidates {
            *logit = ((*logit - largest) / temperature).exp();
        }
        let total: f32 = self.candidates.iter().map(|it| it.0).sum();
        let mut within = 0.0;
        let enough = self.candidates.iter().position(|(weight, _)| {
            within += weight;
            within >= total * self.sampling.top_p
        });
        self.candidates.truncate(enough.map_or(usize::MAX, |last| last + 1));
        let mut point = self.uniform() * self.candidates.iter().map(|it| it.0).sum::<f32>();
        let drawn = self.candidates.iter().find(|(weight, _)| {
            point -= weight;
            point < 0.0
        });
        drawn.or(self.candidates.first()).copied()
    }

    /// Uniform in 0 to 1 by SplitMix64, which works with every seed.
    fn uniform(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 40) as f32 / (1_u32 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::Sampler;
    use crate::failure::InferenceError;
    use crate::request::Sampling;

    const LOGITS: [f32; 4] = [1.0, 3.0, 2.0, 2.9];

    fn drawn(sampling: &Sampling, before: &[u32]) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling);
        (0..200).map(|_| sampler.next(&LOGITS, before).unwrap()).collect()
    }

    #[test]
    fn zero_temperature_takes_the_likeliest() {
        assert!(drawn(&Sampling::default(), &[]).iter().all(|token| *token == 1));
        let penalty = Sampling { repeat_penalty: 1.3, ..Sampling::default() };
        assert!(drawn(&penalty, &[1]).iter().all(|token| *token == 3), "a repeated token is less likely");
    }

    #[test]
    fn tokens_depend_on_the_seed() {
        let seeded = |seed| Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
        assert_eq!(drawn(&seeded(7), &[]), drawn(&seeded(7), &[]));
        assert_ne!(drawn(&seeded(7), &[]), drawn(&seeded(8), &[]));
        assert!((0..4).all(|token| drawn(&seeded(7), &[]).contains(&token)));
    }

    #[test]
    fn top_k_and_top_p_limit_candidates() {
        let two = Sampling { temperature: 1.0, top_k: Some(2), seed: Some(1), ..Sampling::default() };
        assert!(drawn(&two, &[]).iter().all(|token| [1, 3].contains(token)));
        let most = Sampling { temperature: 1.0, top_p: 0.5, seed: Some(1), ..Sampling::default() };
        assert!(drawn(&most, &[]).iter().all(|token| [1, 3].contains(token)));
    }

    /// Faults: T9.
    #[test]
    fn non_finite_logits_poison_the_copy() {
        let sampling = Sampling::default();
        for bad in [f32::NAN, f32::INFINITY] {
            let result = Sampler::new(&sampling).next(&[1.0, bad], &[]);
            assert!(matches!(result, Err(InferenceError::Poisoned(_))), "{result:?}");
        }
    }
}
