//! The gated delta rule on slices: forward, and the parts that forward and backward share.
//!
//! A task takes the value heads of one key head in one sequence, chunk after chunk. Queries and
//! keys of a chunk are one matrix, `[2 l, k]`, the keys first, because most products need both.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu_scores::{Scores, solve};
use super::shape::Sizes;
use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, vectorised};

/// Sizes and factors.
#[derive(Clone, Copy)]
pub struct Delta {
    pub sizes: Sizes,
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Factor on the queries.
    pub scale: f32,
    /// See [`super::DeltaOptions`].
    pub norm_epsilon: Option<f32>,
}

/// The inputs on slices, see [`super::DeltaInputs`].
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub decay: &'a [f32],
    pub beta: &'a [f32],
    /// The first token of each token's document, `[b, t]`.
    pub starts: &'a [usize],
}

/// Results of the forward pass.
pub struct Forwarded {
    /// `[b, t, h, p]`.
    pub y: Vec<f32>,
    /// The state before each chunk, `[b, h, chunks, k, p]`, if it is kept.
    pub states: Vec<f32>,
    /// The state after the last token, `[b, h, k, p]`.
    pub last: Vec<f32>,
}

/// Tokens of a chunk of one sequence.
#[derive(Clone)]
pub struct Chunk {
    pub batch: usize,
    pub number: usize,
    pub tokens: Range<usize>,
}

impl Delta {
    /// Chunks of a sequence.
    pub fn chunks(&self) -> usize {
        self.sizes.t.div_ceil(self.chunk)
    }

    pub fn chunk(&self, batch: usize, number: usize) -> Chunk {
        Chunk { batch, number, tokens: number * self.chunk..((number + 1) * self.chunk).min(self.sizes.t) }
    }

    /// Value heads of a key head.
    pub fn heads(&self, group: usize) -> Range<usize> {
        let each = self.sizes.h / self.sizes.g;
        group * each..(group + 1) * each
    }

    /// Offset of a head's channels of token `i` of a chunk in `[b, t, heads, width]`.
    pub fn at(&self, chunk: &Chunk, i: usize, heads: usize, head: usize, width: usize) -> usize {
        ((chunk.batch * self.sizes.t + chunk.tokens.start + i) * heads + head) * width
    }

    /// Forward, from a state `[b, h, k, p]` or from zeros.
    pub fn forward(&self, inputs: &Inputs<'_>, state: Option<&[f32]>, keeps_states: bool) -> Forwarded {
        let Sizes { b, t, g, h, k, p, .. } = self.sizes;
        let kept = if keeps_states { self.chunks() } else { 0 };
        let [y, states, last] = all_filled([b * t * h * p, b * h * kept * k * p, b * h * k * p], |outputs| {
            let [y, states, last] = outputs.map(Shared::new);
            (0..b * g).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, task| {
                let (batch, group) = (task / g, task % g);
                for head in self.heads(group) {
                    let at = (batch * h + head) * k * p;
                    // SAFETY: the state of a head belongs to its task alone.
                    let last = unsafe { last.part(at, k * p) };
                    match state {
                        Some(state) => last.copy_from_slice(&state[at..at + k * p]),
                        None => last.fill(0.0),
                    }
                }
                for number in 0..self.chunks() {
                    let chunk = self.chunk(batch, number);
                    scratch.keys.load(self, inputs, &chunk, group);
                    for head in self.heads(group) {
                        let of_head = batch * h + head;
                        // SAFETY: as above.
                        let state = unsafe { last.part(of_head * k * p, k * p) };
                        if keeps_states {
                            let at = (of_head * kept + number) * k * p;
                            // SAFETY: as above.
                            unsafe { states.part(at, k * p) }.copy_from_slice(state);
                        }
                        self.forward_head(inputs, &chunk, head, y, state, scratch);
                    }
                }
            });
        });
        Forwarded { y, states, last }
    }

    fn forward_head(
        &self,
        inputs: &Inputs<'_>,
        chunk: &Chunk,
        head: usize,
        y: Shared<'_>,
        state: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Sizes { h, k, p, .. } = self.sizes;
        let l = chunk.tokens.len();
        let Scratch { keys, scores, values } = scratch;
        scores.form(self, inputs, chunk, head, keys);
        values.write(self, inputs, chunk, head, (keys, scores), state, 2 * l);
        let (through_queries, written) = (&values.through[l * p..2 * l * p], &values.written);
        let start = self.at(chunk, 0, h, head, p);
        vectorised!(
            for (i, (row, decay)) in through_queries.chunks_exact(p).zip(&scores.decays.row_since).enumerate() {
                // SAFETY: the columns of a head belong to its task alone.
                let y = unsafe { y.part(start + i * h * p, p) };
                y.iter_mut().zip(row).for_each(|(y, through)| *y = decay * through);
            }
        );
        let weights = Matrix::new(&scores.raw[l * l..], l, l);
        // SAFETY: as above.
        let rows = unsafe { MatrixMut::shared(y, start, l, p, h * p) };
        gemm(rows, Output::Add, 1.0, weights, Matrix::new(written, l, p), Threads::One);
        let decays = &scores.decays;
        scale_rows(&mut values.written, &decays.row_to_end);
        scale_rows(state, &decays.whole);
        let ends = Matrix::new(scores.ends(keys), l, k).t();
        gemm(MatrixMut::new(state, k, p), Output::Add, 1.0, ends, Matrix::new(&values.written, l, p), Threads::One);
    }
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    keys: Keys,
    scores: Scores,
    values: Values,
}

/// Keys and queries of one key head in one chunk.
#[derive(Default)]
pub struct Keys {
    /// Keys, then scaled queries, `[2 l, k]`.
    pub rows: Vec<f32>,
    /// Factor of the norm of each row, `[2 l]`.
    pub factors: Vec<f32>,
    /// Products of all rows with the keys, `[2 l, l]`; not with a decay for each channel.
    pub products: Vec<f32>,
}

impl Keys {
    pub fn load(&mut self, delta: &Delta, inputs: &Inputs<'_>, chunk: &Chunk, group: usize) {
        let Sizes { g, k, e, .. } = delta.sizes;
        let l = chunk.tokens.len();
        self.rows.resize(2 * l * k, 0.0);
        self.factors.resize(2 * l, 0.0);
        let (keys, queries) = self.rows.split_at_mut(l * k);
        let (key_factors, query_factors) = self.factors.split_at_mut(l);
        for (rows, factors, x, scale) in
            [(keys, key_factors, inputs.k, 1.0), (queries, query_factors, inputs.q, delta.scale)]
        {
            vectorised!(for (i, (row, factor)) in rows.chunks_exact_mut(k).zip(factors).enumerate() {
                let x = &x[delta.at(chunk, i, g, group, k)..][..k];
                *factor = match delta.norm_epsilon {
                    Some(epsilon) => (dot(x, x) + epsilon).sqrt().recip(),
                    None => 1.0,
                };
                row.iter_mut().zip(x).for_each(|(row, x)| *row = x * *factor * scale);
            });
        }
        if e == 1 {
            self.products.resize(2 * l * l, 0.0);
            let out = MatrixMut::new(&mut self.products, 2 * l, l);
            let keys = Matrix::new(&self.rows[..l * k], l, k).t();
            gemm(out, Output::Set, 1.0, Matrix::new(&self.rows, 2 * l, k), keys, Threads::One);
        }
    }
}

/// Values of one head in one chunk.
#[derive(Default)]
pub struct Values {
    /// Products of the keys, and of the queries where they are asked for, with the state before,
    /// `[2 l, p]`.
    pub through: Vec<f32>,
    /// Values less those that the state before has for their keys, `[l, p]`.
    pub fresh: Vec<f32>,
    /// Values that are added to the state, `[l, p]`.
    pub written: Vec<f32>,
}

impl Values {
    /// Computes the values that are written, and products of the first `rows` rows with the state.
    pub fn write(
        &mut self,
        delta: &Delta,
        inputs: &Inputs<'_>,
        chunk: &Chunk,
        head: usize,
        (keys, scores): (&Keys, &Scores),
        state: &[f32],
        rows: usize,
    ) {
        let Sizes { h, k, p, .. } = delta.sizes;
        let l = chunk.tokens.len();
        let Self { through, fresh, written } = self;
        through.resize(2 * l * p, 0.0);
        fresh.resize(l * p, 0.0);
        written.resize(l * p, 0.0);
        let left = Matrix::new(scores.left(keys), rows, k);
        gemm(MatrixMut::new(through, rows, p), Output::Set, 1.0, left, Matrix::new(state, k, p), Threads::One);
        vectorised!({
            let rows = fresh.chunks_exact_mut(p).zip(written.chunks_exact_mut(p)).zip(through.chunks_exact(p));
            for (i, ((fresh, written), through)) in rows.enumerate() {
                let v = &inputs.v[delta.at(chunk, i, h, head, p)..][..p];
                let beta = inputs.beta[delta.at(chunk, i, h, head, 1)];
                let decay = scores.decays.row_since[i];
                for (((fresh, written), v), through) in fresh.iter_mut().zip(written).zip(v).zip(through) {
                    *fresh = v - decay * through;
                    *written = beta * *fresh;
                }
            }
        });
        solve(&scores.below, written, l);
    }
}

/// Multiplies each row by its factor, except by 1.
pub fn scale_rows(rows: &mut [f32], factors: &[f32]) {
    if factors.iter().all(|factor| *factor == 1.0) || rows.is_empty() {
        return;
    }
    let width = rows.len() / factors.len();
    vectorised!(for (row, factor) in rows.chunks_exact_mut(width).zip(factors) {
        row.iter_mut().for_each(|x| *x *= *factor);
    });
}
