//! Embedding look-up, and its gradient as a deterministic scatter-add.

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::simd::vectorised;

/// Rows of the table that one task of the backward owns.
const VOCABULARY_PER_TASK: usize = 512;
/// Tokens of one task of the forward.
const TOKENS_PER_TASK: usize = 64;

/// Rows `ids` of `table [v, c]`: `[n, c]`. Panics if an id is not below `v`.
pub fn forward(table: &[f32], columns: usize, ids: &[usize]) -> Vec<f32> {
    let vocabulary = table.len().checked_div(columns).unwrap_or(0);
    check(ids, vocabulary);
    filled(ids.len() * columns, |y| {
        if columns == 0 {
            return;
        }
        y.par_chunks_mut(TOKENS_PER_TASK * columns).zip(ids.par_chunks(TOKENS_PER_TASK)).for_each(|(y, ids)| {
            for (y, id) in y.chunks_exact_mut(columns).zip(ids) {
                y.copy_from_slice(&table[id * columns..][..columns]);
            }
        });
    })
}

/// Fails with the offending id rather than an index deep in a kernel.
pub fn check(ids: &[usize], vocabulary: usize) {
    if let Some((position, id)) = ids.iter().enumerate().find(|(_, id)| **id >= vocabulary) {
        panic!("token id {id} at position {position} is not below the vocabulary size {vocabulary}");
    }
}

/// Gradient of the table, `[v, c]`: the rows of `dy [n, c]` added up by id.
pub fn backward(dy: &[f32], columns: usize, ids: &[usize], vocabulary: usize) -> Vec<f32> {
    // Zeroed by the allocator, which for most rows costs nothing.
    let mut gradient = vec![0.0; vocabulary * columns];
    if columns == 0 {
        return gradient;
    }
    // Tokens of each vocabulary range, in their own order: so each row adds up in token order on
    // any number of threads.
    let mut tokens = vec![Vec::new(); vocabulary.div_ceil(VOCABULARY_PER_TASK)];
    for (token, id) in ids.iter().enumerate() {
        tokens[id / VOCABULARY_PER_TASK].push(token);
    }
    gradient.par_chunks_mut(VOCABULARY_PER_TASK * columns).zip(&tokens).enumerate().for_each(
        |(task, (rows, tokens))| {
            vectorised!({
                for token in tokens {
                    let row = ids[*token] - task * VOCABULARY_PER_TASK;
                    let sums = &mut rows[row * columns..][..columns];
                    sums.iter_mut().zip(&dy[token * columns..][..columns]).for_each(|(s, d)| *s += d);
                }
            });
        },
    );
    gradient
}
