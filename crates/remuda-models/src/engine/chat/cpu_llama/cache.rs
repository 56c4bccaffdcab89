//! The key-value cache: per layer and key-value head, one row per token.

use crate::failure::InferenceError;

/// Growth step in tokens: small enough not to waste memory, large enough to be cheap.
const GROWTH: usize = 256;

pub(super) struct Cache {
    head: usize,
    heads: usize,
    /// Keys and values, by layer and head.
    rows: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Cache {
    pub(super) fn new(layers: usize, heads: usize, head: usize) -> Self {
        Cache { head, heads, rows: vec![(Vec::new(), Vec::new()); layers * heads] }
    }

    /// Drops all but the first tokens in every layer; a stopped prompt leaves more in some layers than in others.
    pub(super) fn cut(&mut self, tokens: usize) {
        for (keys, values) in &mut self.rows {
            keys.truncate(tokens * self.head);
            values.truncate(tokens * self.head);
        }
    }

    /// Appends one token's keys and values of all heads.
    pub(super) fn push(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), InferenceError> {
        let rows = &mut self.rows[layer * self.heads..(layer + 1) * self.heads];
        let heads = keys.chunks_exact(self.head).zip(values.chunks_exact(self.head));
        for ((held_keys, held_values), (keys, values)) in rows.iter_mut().zip(heads) {
            grow(held_keys, self.head)?;
            grow(held_values, self.head)?;
            held_keys.extend_from_slice(keys);
            held_values.extend_from_slice(values);
        }
        Ok(())
    }

    /// Keys and values of a head for the first tokens.
    pub(super) fn up_to(&self, layer: usize, head: usize, tokens: usize) -> (&[f32], &[f32]) {
        let (keys, values) = &self.rows[layer * self.heads + head];
        (&keys[..tokens * self.head], &values[..tokens * self.head])
    }
}

fn grow(rows: &mut Vec<f32>, head: usize) -> Result<(), InferenceError> {
    if rows.len() + head <= rows.capacity() {
        return Ok(());
    }
    rows.try_reserve_exact(GROWTH * head).map_err(|_| {
        InferenceError::OutOfMemory(format!("the cache cannot grow past {} tokens", rows.len() / head))
    })
}
