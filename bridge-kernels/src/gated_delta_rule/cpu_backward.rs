//! Backward of the gated delta rule: chunk after chunk from the last, with the gradient of the
//! state after each. Everything but the states between chunks is computed again.

use rayon::prelude::*;

use super::cpu::{Chunk, Delta, Inputs, Keys, Values, scale_rows};
use super::cpu_scores::{Scores, solve_transposed};
use super::cpu_scores_backward::ScoreGradients;
use super::shape::Sizes;
use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, vectorised};

/// Gradients of the inputs, in their shapes.
pub struct Gradients {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub decay: Vec<f32>,
    pub beta: Vec<f32>,
}

/// Outputs of the tasks, gradients of the inputs.
#[derive(Clone, Copy)]
struct Targets<'a> {
    q: Shared<'a>,
    k: Shared<'a>,
    v: Shared<'a>,
    decay: Shared<'a>,
    beta: Shared<'a>,
}

/// Inputs of a task.
struct Read<'a> {
    inputs: &'a Inputs<'a>,
    /// States of the forward, `[b, h, chunks, k, p]`.
    states: &'a [f32],
    /// `[b, t, h, p]`.
    dy: &'a [f32],
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    keys: Keys,
    scores: Scores,
    values: Values,
    gradients: ScoreGradients,
    /// Gradients of the systems' right sides with a minus, then of the outputs; `[2 l, p]`.
    back: Vec<f32>,
    /// Gradients of the values that are written, then of the systems' right sides, `[l, p]`.
    d_written: Vec<f32>,
    /// Gradients of the states after the chunk, for each head of the task: `[heads, k, p]`.
    d_states: Vec<f32>,
}

impl Delta {
    /// Gradients from that of the output; `states` are those of the forward.
    pub fn backward(&self, inputs: &Inputs<'_>, states: &[f32], dy: &[f32]) -> Gradients {
        let Sizes { b, t, g, h, k, p, e } = self.sizes;
        let read = Read { inputs, states, dy };
        let sizes = [b * t * g * k, b * t * g * k, b * t * h * p, b * t * h * e, b * t * h];
        let [q, k, v, decay, beta] = all_filled(sizes, |outputs| {
            let [q, k_, v, decay, beta] = outputs.map(Shared::new);
            let targets = Targets { q, k: k_, v, decay, beta };
            (0..b * g).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, task| {
                let (batch, group) = (task / g, task % g);
                scratch.d_states.clear();
                scratch.d_states.resize(self.heads(group).len() * k * p, 0.0);
                for number in (0..self.chunks()).rev() {
                    let chunk = self.chunk(batch, number);
                    scratch.keys.load(self, inputs, &chunk, group);
                    scratch.gradients.begin(&chunk, k);
                    for (index, head) in self.heads(group).enumerate() {
                        self.backward_head(&read, &chunk, head, index, targets, scratch);
                    }
                    scratch.gradients.finish(self, &scratch.keys, &chunk);
                    self.backward_keys(&chunk, group, targets, scratch);
                }
            });
        });
        Gradients { q, k, v, decay, beta }
    }

    fn backward_head(
        &self,
        read: &Read<'_>,
        chunk: &Chunk,
        head: usize,
        index: usize,
        targets: Targets<'_>,
        scratch: &mut Scratch,
    ) {
        let Sizes { h, k, p, .. } = self.sizes;
        let (l, inputs) = (chunk.tokens.len(), read.inputs);
        let Scratch { keys, scores, values, gradients, back, d_written, d_states } = scratch;
        let at = ((chunk.batch * h + head) * self.chunks() + chunk.number) * k * p;
        let (state, d_state) = (&read.states[at..at + k * p], &mut d_states[index * k * p..(index + 1) * k * p]);
        scores.form(self, inputs, chunk, head, keys);
        values.write(self, inputs, chunk, head, (keys, scores), state, l);
        let decays = &scores.decays;
        let written = Matrix::new(&values.written, l, p);

        // The values that are written: read by later tokens, and by the state after.
        d_written.resize(l * p, 0.0);
        back.resize(2 * l * p, 0.0);
        let (back_keys, back_queries) = back.split_at_mut(l * p);
        for (i, row) in back_queries.chunks_exact_mut(p).enumerate() {
            row.copy_from_slice(&read.dy[self.at(chunk, i, h, head, p)..][..p]);
        }
        let ends = Matrix::new(scores.ends(keys), l, k);
        gemm(MatrixMut::new(d_written, l, p), Output::Set, 1.0, ends, Matrix::new(d_state, k, p), Threads::One);
        scale_rows(d_written, &decays.row_to_end);
        let (weights, dy) = (Matrix::new(&scores.raw[l * l..], l, l), Matrix::new(back_queries, l, p));
        gemm(MatrixMut::new(d_written, l, p), Output::Add, 1.0, weights.t(), dy, Threads::One);
        solve_transposed(&scores.below, d_written, l);
        gradients.d_beta.resize(l, 0.0);
        vectorised!({
            let rows = back_keys.chunks_exact_mut(p).zip(d_written.chunks_exact(p)).zip(values.fresh.chunks_exact(p));
            for (i, ((back, d_right), fresh)) in rows.enumerate() {
                let beta = inputs.beta[self.at(chunk, i, h, head, 1)];
                // SAFETY: the columns of a head belong to its task alone.
                let dv = unsafe { targets.v.part(self.at(chunk, i, h, head, p), p) };
                for ((dv, back), d) in dv.iter_mut().zip(back).zip(d_right) {
                    *dv = beta * d;
                    *back = -d;
                }
                gradients.d_beta[i] = dot(d_right, fresh);
            }
        });
        gradients.of_scores(Matrix::new(back, 2 * l, p), written);

        // The state after: by its decay and by the keys that wrote to it.
        gradients.of_state_decay(self, scores, state, d_state);
        scale_rows(&mut values.written, &decays.row_to_end);
        let written = Matrix::new(&values.written, l, p);
        gradients.of_ends(written, Matrix::new(d_state, k, p));

        // The state before.
        let (back_keys, back_queries) = back.split_at_mut(l * p);
        vectorised!(for (i, row) in back_keys.chunks_exact_mut(p).enumerate() {
            let factor = inputs.beta[self.at(chunk, i, h, head, 1)] * decays.row_since[i];
            row.iter_mut().for_each(|x| *x *= factor);
        });
        scale_rows(back_queries, &decays.row_since);
        let back = Matrix::new(back, 2 * l, p);
        gradients.of_left(back, Matrix::new(state, k, p));
        scale_rows(d_state, &decays.whole);
        let left = Matrix::new(scores.left(keys), 2 * l, k).t();
        gemm(MatrixMut::new(d_state, k, p), Output::Add, 1.0, left, back, Threads::One);

        gradients.finish_head(self, inputs, keys, scores, chunk, head);
        let e = self.sizes.e;
        let gradients = gradients.d_beta.iter().zip(gradients.d_decay.chunks_exact(e)).enumerate();
        for (i, (d_beta, d_decay)) in gradients {
            // SAFETY: as above.
            unsafe { targets.beta.part(self.at(chunk, i, h, head, 1), 1) }.fill(*d_beta);
            // SAFETY: as above.
            unsafe { targets.decay.part(self.at(chunk, i, h, head, e), e) }.copy_from_slice(d_decay);
        }
    }

    /// Gradients of keys and queries before their norm.
    fn backward_keys(&self, chunk: &Chunk, group: usize, targets: Targets<'_>, scratch: &mut Scratch) {
        let Sizes { g, k, .. } = self.sizes;
        let l = chunk.tokens.len();
        let Scratch { keys, gradients, .. } = scratch;
        vectorised!(for (row, d_row) in gradients.d_rows.chunks_exact(k).enumerate() {
            let (target, scale) = if row < l { (targets.k, 1.0) } else { (targets.q, self.scale) };
            // SAFETY: the columns of a key head belong to its task alone.
            let target = unsafe { target.part(self.at(chunk, row % l, g, group, k), k) };
            let (x, factor) = (&keys.rows[row * k..(row + 1) * k], keys.factors[row]);
            // The norm takes away the part of the gradient along the row.
            let along = if self.norm_epsilon.is_some() { dot(x, d_row) / (scale * scale) } else { 0.0 };
            let terms = target.iter_mut().zip(d_row).zip(x);
            terms.for_each(|((target, d), x)| *target = factor * scale * (d - x * along));
        });
    }
}
