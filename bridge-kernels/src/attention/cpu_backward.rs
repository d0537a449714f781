//! Backward of causal attention: scores are formed again, block by block.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu::{Attention, within};
use super::heads::{HeadStrides, Heads, HeadsMut};
use crate::cpu::buffer::{Shared, filled};
use crate::cpu::element::{Element, narrow_into};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, exp_or_zero, tanh, vectorised};

/// Inputs and results of the forward, and the gradient of its output.
#[derive(Clone, Copy)]
pub struct Saved<'a, E> {
    /// `[b, t, h, d]`.
    pub q: Heads<'a, E>,
    /// `[b, s, g, d]`.
    pub k: Heads<'a, E>,
    /// `[b, s, g, width]`.
    pub v: Heads<'a, E>,
    /// `[b, t, h, width]`.
    pub out: Heads<'a, E>,
    /// `[b, h, t]`.
    pub log_sum_exp: &'a [f32],
    /// Gradient of the output, `[b, t, h, width]`.
    pub d_out: Heads<'a, E>,
}

/// Outputs for the gradients. All elements are written.
#[derive(Clone, Copy)]
pub struct Targets<'a, E, K = E> {
    /// `[b, t, h, d]`.
    pub q: HeadsMut<'a, E>,
    /// `[b, s, g, d]`.
    pub k: HeadsMut<'a, K>,
    /// `[b, s, g, width]`.
    pub v: HeadsMut<'a, K>,
}

/// Room for one block's scores, their gradients and dropout factors, and for the gradients of one
/// head's keys and values.
#[derive(Default)]
struct Scratch {
    probabilities: Vec<f32>,
    gradients: Vec<f32>,
    factors: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Gradients of the inputs from the output's gradient. A task takes one query head of one sequence
/// with all its queries.
///
/// Query heads that share a key each form its gradient for themselves, `[b, h, s, d + width]` in
/// all; these are then added in the order of the heads, independent of the assignment to threads.
pub fn backward<E: Element>(saved: Saved<'_, E>, attention: Attention<'_>, targets: Targets<'_, E>) {
    let Attention { b, s, h, g, d, width, .. } = attention;
    if h == g {
        return all_heads(saved, attention, targets);
    }
    let rows = b * h * s;
    filled(rows * (d + width), |terms: &mut [f32]| {
        let strides = |size| HeadStrides::even([h * s * size, size, s * size]);
        let data = Shared::new(terms);
        let k = HeadsMut { data, offset: 0, strides: strides(d) };
        let v = HeadsMut { data, offset: rows * d, strides: strides(width) };
        all_heads(saved, attention, Targets { q: targets.q, k, v });
        (0..b * s).into_par_iter().with_min_len(SUMMED_TOKENS).for_each_init(Vec::new, |total, token| {
            let (batch, token) = (token / s, token % s);
            for (terms, sum, d) in [(k, targets.k, d), (v, targets.v, width)] {
                for group in 0..g {
                    total.clear();
                    total.resize(d, 0.0);
                    for head in group * (h / g)..(group + 1) * (h / g) {
                        // SAFETY: this token's gradients belong to this task alone, and the terms
                        // are complete.
                        let term = unsafe { terms.row(batch, head, token, d) };
                        total.iter_mut().zip(term).for_each(|(total, term)| *total += *term);
                    }
                    // SAFETY: as above.
                    narrow_into(unsafe { sum.row(batch, group, token, d) }, total);
                }
            }
        });
    });
}

/// Gradients of the sinks, `[h]`: a sink has no value, so its probability only lowers the
/// probabilities of keys.
pub fn sink_gradients<E: Element>(saved: Saved<'_, E>, attention: Attention<'_>) -> Vec<f32> {
    let Attention { b, t, h, width, .. } = attention;
    let of_head = |head: usize| {
        let of_query = |batch: usize, query: usize| {
            let log_sum_exp = saved.log_sum_exp[(batch * h + head) * t + query];
            let delta = dot(saved.d_out.row(batch, head, query, width), saved.out.row(batch, head, query, width));
            f64::from((attention.sink(head) - log_sum_exp).exp()) * f64::from(delta)
        };
        let sum: f64 =
            (0..b).flat_map(|batch| (0..t).map(move |query| (batch, query))).map(|(b, q)| of_query(b, q)).sum();
        -sum as f32
    };
    (0..h).into_par_iter().map(of_head).collect()
}

/// Tokens whose gradients one task adds up, at least.
const SUMMED_TOKENS: usize = 32;

/// The gradients of all query heads; `targets.k` and `targets.v` have one head for each.
fn all_heads<E: Element, K: Element>(saved: Saved<'_, E>, attention: Attention<'_>, targets: Targets<'_, E, K>) {
    let Attention { b, t, s, h, d, width, .. } = attention;
    (0..b * h).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, task| {
        let (batch, head) = (task / h, task % h);
        for (sums, d) in [(&mut scratch.k, d), (&mut scratch.v, width)] {
            sums.clear();
            sums.resize(s * d, 0.0);
        }
        for start in (0..t).step_by(attention.block()) {
            let queries = start..(start + attention.block()).min(t);
            // SAFETY: this head of this sequence belongs to this task alone.
            let dq = unsafe { targets.q.matrix(batch, head, queries.clone(), d) };
            block(saved, attention, dq, scratch, batch, head, queries);
        }
        for (sums, target, d) in [(&scratch.k, targets.k, d), (&scratch.v, targets.v, width)] {
            for (token, sum) in sums.chunks_exact(d.max(1)).enumerate() {
                // SAFETY: as above.
                narrow_into(unsafe { target.row(batch, head, token, d) }, sum);
            }
        }
    });
}

/// One block of queries of one head. Gradients of keys and values are added to those in `scratch`.
fn block<E: Element>(
    saved: Saved<'_, E>,
    attention: Attention<'_>,
    dq: MatrixMut<'_, E>,
    scratch: &mut Scratch,
    batch: usize,
    head: usize,
    queries: Range<usize>,
) {
    let Attention { h, g, d, width, scale, .. } = attention;
    let group = head / (h / g);
    let keys = attention.keys(batch, head, &queries);
    let (rows, columns) = (queries.len(), keys.len());
    let size = rows * columns;
    scratch.probabilities.resize(size.max(scratch.probabilities.len()), 0.0);
    scratch.gradients.resize(size.max(scratch.gradients.len()), 0.0);
    scratch.factors.resize(columns.max(scratch.factors.len()), 1.0);
    let (p, dp) = (&mut scratch.probabilities[..size], &mut scratch.gradients[..size]);
    let q = saved.q.matrix(batch, head, queries.clone(), d);
    let k = saved.k.matrix(batch, group, keys.clone(), d);
    let v = saved.v.matrix(batch, group, keys.clone(), width);
    let d_out = saved.d_out.matrix(batch, head, queries.clone(), width);
    gemm(MatrixMut::new(p, rows, columns), Output::Set, scale, q, k.t(), Threads::One);
    gemm(MatrixMut::new(dp, rows, columns), Output::Set, 1.0, d_out, v.t(), Threads::One);
    vectorised!({
        let position = BlockPosition { batch, head, queries: &queries, keys: &keys };
        score_gradients(p, dp, &mut scratch.factors, saved, attention, position);
    });
    let (p, dp) = (Matrix::new(p, rows, columns), Matrix::new(dp, rows, columns));
    let dk = &mut scratch.k[keys.start * d..keys.end * d];
    let dv = &mut scratch.v[keys.start * width..keys.end * width];
    gemm(MatrixMut::new(dv, columns, width), Output::Add, 1.0, p.t(), d_out, Threads::One);
    gemm(dq, Output::Set, scale, dp, k, Threads::One);
    gemm(MatrixMut::new(dk, columns, d), Output::Add, scale, dp.t(), q, Threads::One);
}

/// Position of a block.
struct BlockPosition<'a> {
    batch: usize,
    head: usize,
    queries: &'a Range<usize>,
    keys: &'a Range<usize>,
}

/// From scores and the gradients of the probabilities after dropout to those probabilities (in `p`)
/// and the gradients of the scores (in `dp`).
#[inline(always)]
fn score_gradients<E: Element>(
    p: &mut [f32],
    dp: &mut [f32],
    factors: &mut [f32],
    saved: Saved<'_, E>,
    attention: Attention<'_>,
    position: BlockPosition<'_>,
) {
    let BlockPosition { batch, head, queries, keys } = position;
    let rows = p.chunks_exact_mut(keys.len().max(1)).zip(dp.chunks_exact_mut(keys.len().max(1)));
    for (query, (p, dp)) in queries.clone().zip(rows) {
        let visible = within(attention.visible([batch, head, query]), keys);
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
        // FlashAttention-2's `D`: the sum over keys of probability times gradient equals the sum
        // over the head's elements of output times gradient.
        let width = attention.width;
        let delta = dot(saved.d_out.row(batch, head, query, width), saved.out.row(batch, head, query, width));
        match attention.softcap {
            None => {
                attention.mask_hidden(p, [batch, head, query], visible.start);
                for ((p, dp), factor) in p.iter_mut().zip(dp).zip(factors) {
                    let probability = exp_or_zero(*p - log_sum_exp);
                    *dp = probability * (*dp * *factor - delta);
                    *p = probability * *factor;
                }
            }
            Some(cap) => {
                p.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
                // The slope of the cap goes into the gradient first, while the capped score is
                // there.
                for ((s, dp), factor) in p.iter().zip(dp.iter_mut()).zip(factors.iter()) {
                    let ratio = *s / cap;
                    *dp = (*dp * factor - delta) * (1.0 - ratio * ratio);
                }
                attention.mask_hidden(p, [batch, head, query], visible.start);
                for ((p, dp), factor) in p.iter_mut().zip(dp).zip(factors) {
                    let probability = exp_or_zero(*p - log_sum_exp);
                    *dp *= probability;
                    *p = probability * *factor;
                }
            }
        }
    }
}
