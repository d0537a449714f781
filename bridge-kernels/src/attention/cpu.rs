//! Causal attention by blocks of queries: forward, and the parts that forward and backward share.
//!
//! A task takes a block of queries, one head after the other. The scores of one block and head are
//! all that exists of the score matrix; the backward forms them again from the log-sum-exp of each
//! row (FlashAttention, arXiv:2205.14135, with the keys in one block: on a CPU the scores of a
//! block stay in the second-level cache).

use std::ops::Range;

use rayon::prelude::*;

use super::choice::KeyChoice;
use super::heads::Heads;
use super::max_logit::MaxLogitProbe;
use crate::cpu::buffer::{Shared, filled};
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{exp_in_place, max, tanh, vectorised};
use crate::dropout::cpu::Mask;

/// Queries of one block.
const QUERIES: usize = 64;
/// Scores of one block, at most: 1 MiB of float32. Very long sequences take fewer queries at a
/// time.
const SCORES: usize = 1 << 18;
/// Fewest queries of a block.
const FEWEST_QUERIES: usize = 8;

/// Shapes and options, see [`super::AttentionOptions`].
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Batch size.
    pub b: usize,
    /// Queries of a sequence.
    pub t: usize,
    /// Keys of a sequence.
    pub s: usize,
    /// Query heads.
    pub h: usize,
    /// Key/value heads.
    pub g: usize,
    /// Head size of queries and keys.
    pub d: usize,
    /// Head size of values, and of the output.
    pub width: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Keys to the left that are visible to a query.
    pub window: Option<usize>,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// Dropout on the probabilities, counted in `[b, h, t, s]` order.
    pub dropout: Option<Mask>,
    /// Document of each token, `[b, t]`.
    pub documents: Option<&'a [i64]>,
    /// Keys of each query, in place of earlier ones, the window and the documents.
    pub choice: Option<&'a KeyChoice>,
    /// A score without a value for each query head, `[h]`.
    pub sinks: Option<&'a [f32]>,
    /// Destination of the max logit of the forward pass.
    pub probe: Option<&'a MaxLogitProbe>,
}

/// Output of the forward.
pub struct Attended<E> {
    /// `[b, t, h, width]`.
    pub out: Vec<E>,
    /// Log-sum-exp of the scores and the sink, `[b, h, t]`.
    pub log_sum_exp: Vec<f32>,
}

/// Keys of one query among `keys` of its block; an empty range may begin elsewhere.
pub(super) fn within(visible: Range<usize>, keys: &Range<usize>) -> Range<usize> {
    if visible.is_empty() { keys.start..keys.start } else { visible }
}

/// Queries of one block of `t` queries over `s` keys: by the shapes alone.
pub fn block(t: usize, s: usize) -> usize {
    let fitting = (SCORES / s.max(1)).max(FEWEST_QUERIES);
    QUERIES.min(fitting).min(t.max(1))
}

impl Attention<'_> {
    /// Queries of one block.
    pub(super) fn block(&self) -> usize {
        block(self.t, self.s)
    }

    /// Keys from the first to the last that are visible to any query of a block.
    pub(super) fn keys(&self, batch: usize, head: usize, queries: &Range<usize>) -> Range<usize> {
        let visible = |query| self.visible([batch, head, query]);
        if self.choice.is_none() {
            return visible(queries.start).start..visible(queries.end - 1).end;
        }
        let all = queries.clone().map(visible).filter(|keys| !keys.is_empty());
        all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// Keys from the first to the last that are visible to a query of a sequence and head.
    pub(super) fn visible(&self, place: [usize; 3]) -> Range<usize> {
        if let Some(choice) = self.choice {
            return choice.range(self.h, place);
        }
        let [_, _, query] = place;
        let position = self.s - self.t + query;
        let first = self.window.map_or(0, |window| position.saturating_sub(window));
        first..position + 1
    }

    /// Number of the first key of a row among the elements of `[b, h, t, s]`.
    pub(super) fn dropout_start(&self, batch: usize, head: usize, query: usize, key: usize) -> u64 {
        (((batch * self.h + head) * self.t + query) * self.s + key) as u64
    }

    /// Sink of a query head; `-inf`, which changes no softmax, without sinks.
    pub(super) fn sink(&self, head: usize) -> f32 {
        self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head])
    }

    /// Puts `-inf` where a key belongs to another document or is not chosen.
    #[inline(always)]
    pub(super) fn mask_hidden(&self, scores: &mut [f32], place: [usize; 3], first_key: usize) {
        let [batch, _, query] = place;
        if let Some(choice) = self.choice {
            choice.mask(self.h, place, first_key, scores);
        } else if let Some(documents) = self.documents {
            let documents = &documents[batch * self.t..][..self.t];
            let own = documents[query];
            for (score, document) in scores.iter_mut().zip(&documents[first_key..]) {
                *score = if *document == own { *score } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Attention of `q [b, t, h, d]` over `k [b, s, g, d]` and `v [b, s, g, width]`.
pub fn forward<E: Element>(q: Heads<'_, E>, k: Heads<'_, E>, v: Heads<'_, E>, attention: Attention<'_>) -> Attended<E> {
    let Attention { b, t, h, d, width, .. } = attention;
    let block = attention.block();
    let blocks = t.div_ceil(block);
    let mut log_sum_exp = vec![0.0; b * h * t];
    let out = filled(b * t * h * width, |out| {
        let (out, log_sum_exp) = (Shared::new(out), Shared::new(&mut log_sum_exp));
        (0..b * blocks).into_par_iter().for_each_init(Vec::new, |scores, task| {
            let (batch, start) = (task / blocks, task % blocks * block);
            let queries = start..(start + block).min(t);
            for head in 0..h {
                let keys = attention.keys(batch, head, &queries);
                scores.resize((block * keys.len()).max(scores.len()), 0.0);
                let scores = &mut scores[..queries.len() * keys.len()];
                let group = head / (h / attention.g);
                let matrix = MatrixMut::new(scores, queries.len(), keys.len());
                let (q, k) = (q.matrix(batch, head, queries.clone(), d), k.matrix(batch, group, keys.clone(), d));
                gemm(matrix, Output::Set, attention.scale, q, k.t(), Threads::One);
                // SAFETY: the rows of this block and head belong to this task alone.
                let log_sum_exp = unsafe { log_sum_exp.part((batch * h + head) * t + start, queries.len()) };
                vectorised!(softmax_block(scores, log_sum_exp, attention, batch, head, &queries, &keys));
                let probabilities = Matrix::new(scores, queries.len(), keys.len());
                let first = ((batch * t + start) * h + head) * width;
                // SAFETY: as above.
                let rows = unsafe { MatrixMut::shared(out, first, queries.len(), width, h * width) };
                let v = v.matrix(batch, group, keys.clone(), width);
                gemm(rows, Output::Set, 1.0, probabilities, v, Threads::One);
            }
        });
    });
    Attended { out, log_sum_exp }
}

/// Soft cap, mask, softmax and dropout of the scores of one block and head.
#[inline(always)]
fn softmax_block(
    scores: &mut [f32],
    log_sum_exp: &mut [f32],
    attention: Attention<'_>,
    batch: usize,
    head: usize,
    queries: &Range<usize>,
    keys: &Range<usize>,
) {
    let mut factors = Vec::new();
    if attention.dropout.is_some() {
        factors.resize(keys.len(), 0.0);
    }
    let first_recorded = attention.probe.map_or(usize::MAX, |probe| probe.first_query);
    let mut block_max = None;
    for ((query, row), log_sum_exp) in queries.clone().zip(scores.chunks_exact_mut(keys.len().max(1))).zip(log_sum_exp)
    {
        let visible = within(attention.visible([batch, head, query]), keys);
        let (row, masked_right) = row.split_at_mut(visible.end - keys.start);
        let (masked_left, row) = row.split_at_mut(visible.start - keys.start);
        masked_left.fill(0.0);
        masked_right.fill(0.0);
        if let Some(cap) = attention.softcap {
            row.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
        }
        attention.mask_hidden(row, [batch, head, query], visible.start);
        let sink = attention.sink(head);
        let max_logit = max(row);
        if query >= first_recorded {
            block_max = Some(block_max.map_or(max_logit, |earlier: f32| earlier.max(max_logit)));
        }
        let row_max = max_logit.max(sink);
        let row_sum = exp_in_place(row, row_max) + (sink - row_max).exp();
        *log_sum_exp = (f64::from(row_max) + f64::from(row_sum).ln()) as f32;
        let inverse = 1.0 / row_sum;
        match attention.dropout {
            None => row.iter_mut().for_each(|p| *p *= inverse),
            Some(mask) => {
                let factors = &mut factors[..row.len()];
                mask.factors(attention.dropout_start(batch, head, query, visible.start), factors);
                row.iter_mut().zip(factors).for_each(|(p, factor)| *p *= inverse * *factor);
            }
        }
    }
    if let (Some(probe), Some(score)) = (attention.probe, block_max) {
        probe.max_logit.record(score);
    }
}
