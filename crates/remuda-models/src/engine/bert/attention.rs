//! Attention: the only step where rows of a text are combined.

use rayon::prelude::*;

use super::elementwise;
use super::linear::{multiply, view};
use crate::failure::InferenceError;

#[derive(Clone, Copy, Debug)]
pub(super) struct BertAttention {
    pub(super) heads: usize,
    /// The number of columns per head.
    pub(super) head: usize,
}

impl BertAttention {
    pub(super) fn new(heads: usize, head: usize) -> Self {
        BertAttention { heads, head }
    }

    /// Rows of one text: queries, keys and values side by side in, attended values out. `scores` is scratch space.
    pub(super) fn attend(
        &self,
        rows: &[f32],
        out: &mut [f32],
        apart: &mut Vec<f32>,
    ) -> Result<(), InferenceError> {
        let hidden = self.heads * self.head;
        let length = out.len() / hidden;
        apart.resize(out.len(), 0.0);
        let heads = apart.par_chunks_exact_mut(length * self.head).enumerate();
        heads.try_for_each_init(
            || (Vec::new(), Vec::new()),
            |(scores, parts), (head, found)| {
                self.attend_one(&rows[head * self.head..], length, found, scores, parts)
            },
        )?;
        for (place, row) in out.chunks_exact_mut(hidden).enumerate() {
            for (part, head) in row.chunks_exact_mut(self.head).zip(apart.chunks_exact(length * self.head)) {
                part.copy_from_slice(&head[place * self.head..][..self.head]);
            }
        }
        Ok(())
    }

    /// One head, whose query starts at the first column of `rows`.
    fn attend_one(
        &self,
        rows: &[f32],
        length: usize,
        found: &mut [f32],
        scores: &mut Vec<f32>,
        parts: &mut Vec<f32>,
    ) -> Result<(), InferenceError> {
        let hidden = self.heads * self.head;
        let (stride, head) = (3 * hidden, self.head);
        let queries = view(rows, [length, head], [stride, 1])?;
        let keys = view(&rows[hidden..], [head, length], [1, stride])?;
        let values = view(&rows[2 * hidden..], [length, head], [stride, 1])?;
        scores.resize(length * length, 0.0);
        multiply(queries, keys, scores)?;
        elementwise::softmax(scores, length, parts);
        let scores = view(scores, [length, length], [length, 1])?;
        multiply(scores, values, found)?;
        for (row, part) in found.chunks_exact_mut(head).zip(parts.iter()) {
            row.iter_mut().for_each(|number| *number *= part);
        }
        Ok(())
    }
}
