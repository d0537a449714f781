//! Backward of causal attention: scores are formed again, block by block.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::{Attention, Heads};
use super::buffer::{Shared, filled};
use super::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use super::simd::{dot, exp_or_zero, tanh, vectorised};

/// Gradients of the three inputs.
pub struct AttentionGradients {
    /// `[b, t, h, d]`.
    pub q: Vec<f32>,
    /// `[b, s, g, d]`.
    pub k: Vec<f32>,
    /// `[b, s, g, d]`.
    pub v: Vec<f32>,
}

/// Inputs and results of the forward, and the gradient of its output.
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// `[b, t, h, d]`.
    pub q: Heads<'a>,
    /// `[b, s, g, d]`.
    pub k: Heads<'a>,
    /// `[b, s, g, d]`.
    pub v: Heads<'a>,
    /// `[b, t, h, d]`.
    pub out: Heads<'a>,
    /// `[b, h, t]`.
    pub log_sum_exp: &'a [f32],
    /// Gradient of the output, `[b, t, h, d]`.
    pub d_out: Heads<'a>,
}

/// What one task writes to, and its place there.
#[derive(Clone, Copy)]
struct Targets<'a> {
    q: Shared<'a>,
    k: Shared<'a>,
    v: Shared<'a>,
}

/// Room for one block's scores, their gradients and dropout factors.
#[derive(Default)]
struct Scratch {
    probabilities: Vec<f32>,
    gradients: Vec<f32>,
    factors: Vec<f32>,
}

/// Gradients from those of the output. A task takes one key/value head of one sequence with all its queries.
pub fn backward(saved: Saved<'_>, attention: Attention<'_>) -> AttentionGradients {
    let Attention { b, t, s, h, g, d, .. } = attention;
    let mut k = vec![0.0; b * s * g * d];
    let mut v = vec![0.0; b * s * g * d];
    let q = filled(b * t * h * d, |q| {
        let targets = Targets { q: Shared::new(q), k: Shared::new(&mut k), v: Shared::new(&mut v) };
        (0..b * g).into_par_iter().for_each_init(Scratch::default, |scratch, task| {
            let (batch, group) = (task / g, task % g);
            for head in group * (h / g)..(group + 1) * (h / g) {
                for start in (0..t).step_by(attention.block()) {
                    let queries = start..(start + attention.block()).min(t);
                    block(saved, attention, targets, scratch, (batch, head, group), queries);
                }
            }
        });
    });
    AttentionGradients { q, k, v }
}

/// One block of queries of one head.
fn block(
    saved: Saved<'_>,
    attention: Attention<'_>,
    targets: Targets<'_>,
    scratch: &mut Scratch,
    (batch, head, group): (usize, usize, usize),
    queries: Range<usize>,
) {
    let Attention { t, s, h, g, d, scale, .. } = attention;
    let keys = attention.keys(&queries);
    let (rows, columns) = (queries.len(), keys.len());
    let size = rows * columns;
    scratch.probabilities.resize(size.max(scratch.probabilities.len()), 0.0);
    scratch.gradients.resize(size.max(scratch.gradients.len()), 0.0);
    scratch.factors.resize(columns.max(scratch.factors.len()), 1.0);
    let (p, dp) = (&mut scratch.probabilities[..size], &mut scratch.gradients[..size]);
    let q = saved.q.matrix(batch, head, queries.clone(), d);
    let k = saved.k.matrix(batch, group, keys.clone(), d);
    let v = saved.v.matrix(batch, group, keys.clone(), d);
    let d_out = saved.d_out.matrix(batch, head, queries.clone(), d);
    gemm(MatrixMut::new(p, rows, columns), Output::Set, scale, q, k.t(), Threads::One);
    gemm(MatrixMut::new(dp, rows, columns), Output::Set, 1.0, d_out, v.t(), Threads::One);
    vectorised!({
        let place = Place { batch, head, queries: &queries, keys: &keys };
        score_gradients(p, dp, &mut scratch.factors, saved, attention, place);
    });
    let (p, dp) = (Matrix::new(p, rows, columns), Matrix::new(dp, rows, columns));
    let first_query = ((batch * t + queries.start) * h + head) * d;
    let first_key = ((batch * s + keys.start) * g + group) * d;
    // SAFETY: this key/value head of this sequence and its query heads belong to this task alone.
    let (dq, dk, dv) = unsafe {
        (
            MatrixMut::shared(targets.q, first_query, rows, d, h * d),
            MatrixMut::shared(targets.k, first_key, columns, d, g * d),
            MatrixMut::shared(targets.v, first_key, columns, d, g * d),
        )
    };
    gemm(dv, Output::Add, 1.0, p.t(), d_out, Threads::One);
    gemm(dq, Output::Set, scale, dp, k, Threads::One);
    gemm(dk, Output::Add, scale, dp.t(), q, Threads::One);
}

/// Where a block is.
struct Place<'a> {
    batch: usize,
    head: usize,
    queries: &'a Range<usize>,
    keys: &'a Range<usize>,
}

/// From scores and the gradients of the probabilities after dropout to those probabilities (in `p`) and the gradients of
/// the scores (in `dp`).
#[inline(always)]
fn score_gradients(
    p: &mut [f32],
    dp: &mut [f32],
    factors: &mut [f32],
    saved: Saved<'_>,
    attention: Attention<'_>,
    place: Place<'_>,
) {
    let Place { batch, head, queries, keys } = place;
    let rows = p.chunks_exact_mut(keys.len()).zip(dp.chunks_exact_mut(keys.len()));
    for (query, (p, dp)) in queries.clone().zip(rows) {
        let visible = attention.visible(query);
        let (from, to) = (visible.start - keys.start, visible.end - keys.start);
        p[..from].fill(0.0);
        p[to..].fill(0.0);
        dp[..from].fill(0.0);
        dp[to..].fill(0.0);
        let (p, dp) = (&mut p[from..to], &mut dp[from..to]);
        let factors = &mut factors[..p.len()];
        if let Some(mask) = attention.dropout {
            mask.factors(attention.dropout_start(batch, head, query, visible.start), factors);
        }
        let log_sum_exp = saved.log_sum_exp[(batch * attention.h + head) * attention.t + query];
        // The sum over keys of probability times gradient is the same as that over the head's elements.
        let mean =
            dot(saved.d_out.row(batch, head, query, attention.d), saved.out.row(batch, head, query, attention.d));
        match attention.softcap {
            None => {
                attention.hide_documents(p, batch, query, visible.start);
                for ((p, dp), factor) in p.iter_mut().zip(dp).zip(factors) {
                    let probability = exp_or_zero(*p - log_sum_exp);
                    *dp = probability * (*dp * *factor - mean);
                    *p = probability * *factor;
                }
            }
            Some(cap) => {
                p.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
                // The slope of the cap goes into the gradient first, while the capped score is there.
                for ((s, dp), factor) in p.iter().zip(dp.iter_mut()).zip(factors.iter()) {
                    let ratio = *s / cap;
                    *dp = (*dp * factor - mean) * (1.0 - ratio * ratio);
                }
                attention.hide_documents(p, batch, query, visible.start);
                for ((p, dp), factor) in p.iter_mut().zip(dp).zip(factors) {
                    let probability = exp_or_zero(*p - log_sum_exp);
                    *dp *= probability;
                    *p = probability * *factor;
                }
            }
        }
    }
}

impl<'a> Heads<'a> {
    /// One query's elements.
    #[inline(always)]
    fn row(self, batch: usize, head: usize, row: usize, d: usize) -> &'a [f32] {
        let [batch_stride, row_stride, head_stride] = self.strides;
        &self.data[batch * batch_stride + head * head_stride + row * row_stride..][..d]
    }
}
