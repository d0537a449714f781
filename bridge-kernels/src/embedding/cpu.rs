//! Embedding look-up, and its gradient as a deterministic scatter-add.

use bytemuck::zeroed_vec;
use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::element::{Element, narrow_into};
use crate::cpu::simd::vectorised;

/// Rows of the table that one task of the backward owns.
const VOCABULARY_PER_TASK: usize = 512;
/// Tokens of one task of the forward.
const TOKENS_PER_TASK: usize = 64;

/// Rows `ids` of `table [v, c]`: `[n, c]`. Panics if an id is not below `v`.
pub fn forward<E: Element>(table: &[E], columns: usize, ids: &[usize]) -> Vec<E> {
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
pub fn backward<E: Element>(dy: &[E], columns: usize, ids: &[usize], vocabulary: usize) -> Vec<E> {
    // Zeroed by the allocator, which for most rows costs nothing.
    let mut gradient = zeroed_vec(vocabulary * columns);
    if columns == 0 {
        return gradient;
    }
    // Tokens of each vocabulary range, in their own order: so each row adds up in token order on
    // any number of threads.
    let mut tokens = vec![Vec::new(); vocabulary.div_ceil(VOCABULARY_PER_TASK)];
    for (token, id) in ids.iter().enumerate() {
        tokens[id / VOCABULARY_PER_TASK].push(token);
    }
    gradient.par_chunks_mut(VOCABULARY_PER_TASK * columns).zip(&mut tokens).enumerate().for_each(
        |(task, (rows, tokens))| {
            // Tokens of one id next to each other, in their own order.
            tokens.sort_by_key(|token| ids[*token]);
            let mut sums = vec![0.0; columns];
            for tokens in tokens.chunk_by(|one, other| ids[*one] == ids[*other]) {
                let row = ids[tokens[0]] - task * VOCABULARY_PER_TASK;
                vectorised!({
                    sums.fill(0.0);
                    for token in tokens {
                        let dy = &dy[token * columns..][..columns];
                        sums.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy.wide());
                    }
                    narrow_into(&mut rows[row * columns..][..columns], &sums);
                });
            }
        },
    );
    gradient
}
