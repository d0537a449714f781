//! Backward of the scan: chunk after chunk from the last, with the gradient of the state after
//! each.

use rayon::prelude::*;

use super::cpu::{Inputs, Scan, Steps, Task};
use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, exp_or_zero, vectorised};

/// Gradients of the inputs, in their shapes.
pub struct Gradients {
    pub xbc: Vec<f32>,
    pub dt: Vec<f32>,
    pub a_log: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub d: Vec<f32>,
}

/// Outputs of the tasks.
#[derive(Clone, Copy)]
struct Targets<'a> {
    xbc: Shared<'a>,
    dt: Shared<'a>,
    /// Gradients of `a_log`, `dt_bias` and `d`, for each sequence: `[b, h, 3]`.
    vectors: Shared<'a>,
}

/// Inputs of a task.
struct Read<'a> {
    inputs: &'a Inputs<'a>,
    /// States of the forward, `[b, h, chunks, n, p]`.
    states: &'a [f32],
    /// `[b, t, h p]`.
    dy: &'a [f32],
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    /// Products of outputs and inputs of the state, `[q, q]`, and the gradient of them.
    shared: Vec<f32>,
    d_shared: Vec<f32>,
    /// Weights of the values of a head and their gradient, `[q, q]` each.
    own: Vec<f32>,
    d_own: Vec<f32>,
    /// `[q, n]`.
    scaled: Vec<f32>,
    product: Vec<f32>,
    steps: Steps,
    /// `[q]`: gradients of the sums of decays and of the time steps.
    d_sum: Vec<f64>,
    d_dt: Vec<f32>,
    /// Gradients of the states after the chunk, for each head of the task: `[heads, n, p]`.
    d_states: Vec<f32>,
}

impl Scan {
    /// Gradients from that of the output; `states` are those of the forward.
    pub fn backward(&self, inputs: &Inputs<'_>, states: &[f32], dy: &[f32]) -> Gradients {
        let (b, t, h, n, columns) = (self.b, self.t, self.h, self.n, self.columns());
        let read = Read { inputs, states, dy };
        // Gradients of inputs and outputs of the state: each task's terms, `[t, 2 n]`.
        let mut terms = vec![0.0; self.tasks() * t * 2 * n];
        let mut vectors = vec![0.0; b * h * 3];
        let [xbc, dt] = all_filled([b * t * columns, b * t * h], |[xbc, dt]| {
            let targets =
                Targets { xbc: Shared::new(&mut *xbc), dt: Shared::new(dt), vectors: Shared::new(&mut vectors) };
            let tasks = terms.par_chunks_mut((t * 2 * n).max(1)).with_max_len(1).enumerate();
            tasks.for_each_init(Scratch::default, |scratch, (number, terms)| {
                let task = self.task(number);
                scratch.d_states.clear();
                scratch.d_states.resize(task.heads.len() * n * self.p, 0.0);
                for chunk in (0..self.chunks()).rev() {
                    self.backward_chunk(&read, &task, chunk, targets, &mut *terms, scratch);
                }
            });
            self.add_terms(xbc, &terms);
        });
        let of = |which: usize| {
            let sum = |head: usize| (0..b).map(|batch| f64::from(vectors[(batch * h + head) * 3 + which])).sum::<f64>();
            (0..h).map(|head| sum(head) as f32).collect()
        };
        Gradients { xbc, dt, a_log: of(0), dt_bias: of(1), d: of(2) }
    }

    /// Adds up the tasks' terms of each group, in order.
    fn add_terms(&self, xbc: &mut [f32], terms: &[f32]) {
        let (t, n, of_group) = (self.t, self.n, self.tasks_of_group());
        xbc.par_chunks_mut(self.columns()).enumerate().for_each(|(row, xbc)| {
            let (batch, token) = (row / t, row % t);
            for group in 0..self.g {
                let first = (batch * self.g + group) * of_group;
                for (which, column) in self.group_columns(group).into_iter().enumerate() {
                    let sum = &mut xbc[column..column + n];
                    sum.fill(0.0);
                    for task in first..first + of_group {
                        let term = &terms[((task * t + token) * 2 + which) * n..][..n];
                        sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
                    }
                }
            }
        });
    }

    fn backward_chunk(
        &self,
        read: &Read<'_>,
        task: &Task,
        chunk: usize,
        targets: Targets<'_>,
        terms: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (tokens, n) = (self.tokens(chunk), self.n);
        let q = tokens.len();
        let [b_qn, c_qn] = self.in_and_out(read.inputs.xbc, task.batch, &tokens, task.group);
        for square in [&mut scratch.shared, &mut scratch.d_shared, &mut scratch.own, &mut scratch.d_own] {
            square.resize(q * q, 0.0);
        }
        scratch.scaled.resize(q * n, 0.0);
        scratch.product.resize(q * n, 0.0);
        scratch.d_shared.fill(0.0);
        gemm(MatrixMut::new(&mut scratch.shared, q, q), Output::Set, 1.0, c_qn, b_qn.t(), Threads::One);
        let terms = &mut terms[tokens.start * 2 * n..tokens.end * 2 * n];
        for (index, head) in task.heads.clone().enumerate() {
            self.backward_head(read, task, chunk, head, index, targets, &mut *terms, scratch);
        }
        let d_shared = Matrix::new(&scratch.d_shared, q, q);
        let shared = Shared::new(terms);
        for (which, left, right) in [(0, d_shared.t(), c_qn), (1, d_shared, b_qn)] {
            // SAFETY: one matrix is alive at a time.
            let rows = unsafe { MatrixMut::shared(shared, which * n, q, n, 2 * n) };
            gemm(rows, Output::Add, 1.0, left, right, Threads::One);
        }
    }

    /// One head of a chunk; `terms` are those of the chunk's tokens, `[q, 2 n]`.
    fn backward_head(
        &self,
        read: &Read<'_>,
        task: &Task,
        chunk: usize,
        head: usize,
        index: usize,
        targets: Targets<'_>,
        terms: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (tokens, batch, inputs) = (self.tokens(chunk), task.batch, read.inputs);
        let (q, p, n, columns) = (tokens.len(), self.p, self.n, self.columns());
        let Scratch { shared, d_shared, own, d_own, scaled, product, steps, d_sum, d_dt, d_states } = scratch;
        let [in_column, out_column] = self.group_columns(task.group);
        self.steps(inputs, batch, &tokens, head, steps);
        let (x_qp, dy_qp) = (self.x(inputs.xbc, batch, &tokens, head), self.of_head(read.dy, batch, &tokens, head));
        gemm(MatrixMut::new(d_own, q, q), Output::Set, 1.0, dy_qp, x_qp.t(), Threads::One);
        d_sum.clear();
        d_sum.resize(q, 0.0);
        d_dt.clear();
        d_dt.resize(q, 0.0);
        vectorised!(weigh_backward(own, d_own, shared, d_shared, steps, d_sum, d_dt));

        // Values: from later tokens of the chunk, and from the state after it.
        let start = self.start(batch, &tokens, head * p);
        // SAFETY: the columns of a head belong to its task alone.
        let dx = || unsafe { MatrixMut::shared(targets.xbc, start, q, p, columns) };
        gemm(dx(), Output::Set, 1.0, Matrix::new(own, q, q).t(), dy_qp, Threads::One);
        let d_state = &mut d_states[index * n * p..(index + 1) * n * p];
        let weights: Vec<f32> = steps.to_end.iter().zip(&steps.dt).map(|(decay, dt)| decay * dt).collect();
        self.scale(batch, &tokens, in_column, inputs.xbc, &weights, scaled);
        gemm(dx(), Output::Add, 1.0, Matrix::new(scaled, q, n), Matrix::new(d_state, n, p), Threads::One);
        gemm(MatrixMut::new(product, q, n), Output::Set, 1.0, x_qp, Matrix::new(d_state, n, p).t(), Threads::One);
        let mut d_whole = 0.0;
        for (i, (product, terms)) in product.chunks_exact(n).zip(terms.chunks_exact_mut(2 * n)).enumerate() {
            let b = &inputs.xbc[self.start(batch, &(tokens.start + i..tokens.end), in_column)..][..n];
            terms[..n].iter_mut().zip(product).for_each(|(term, v)| *term += weights[i] * v);
            let d_weight = dot(b, product);
            d_dt[i] += d_weight * steps.to_end[i];
            let d_decay = f64::from(d_weight * weights[i]);
            d_sum[i] -= d_decay;
            d_whole += d_decay;
        }

        // Outputs of the state before the chunk.
        let at = ((batch * self.h + head) * self.chunks() + chunk) * n * p;
        let state = &read.states[at..at + n * p];
        gemm(MatrixMut::new(product, q, n), Output::Set, 1.0, dy_qp, Matrix::new(state, n, p).t(), Threads::One);
        for (i, (product, terms)) in product.chunks_exact(n).zip(terms.chunks_exact_mut(2 * n)).enumerate() {
            let c = &inputs.xbc[self.start(batch, &(tokens.start + i..tokens.end), out_column)..][..n];
            let decay = steps.since_start[i];
            terms[n..].iter_mut().zip(product).for_each(|(term, v)| *term += decay * v);
            d_sum[i] += f64::from(decay * dot(c, product));
        }
        let whole = steps.since_start[q - 1];
        d_whole += f64::from(whole * dot(d_state, state));
        d_state.iter_mut().for_each(|d| *d *= whole);
        self.scale(batch, &tokens, out_column, inputs.xbc, &steps.since_start, scaled);
        gemm(MatrixMut::new(d_state, n, p), Output::Add, 1.0, Matrix::new(scaled, q, n).t(), dy_qp, Threads::One);
        d_sum[q - 1] += d_whole;
        self.finish_head(read, targets, batch, head, &tokens, steps, d_sum, d_dt);
    }

    /// The gradient term of the skip connection `d x`, and gradients of the inputs of the time
    /// steps.
    fn finish_head(
        &self,
        read: &Read<'_>,
        targets: Targets<'_>,
        batch: usize,
        head: usize,
        tokens: &std::ops::Range<usize>,
        steps: &Steps,
        d_sum: &[f64],
        d_dt: &[f32],
    ) {
        let (p, inputs) = (self.p, read.inputs);
        let (rate, [least, largest]) = (-f64::from(inputs.a_log[head]).exp(), self.time_steps);
        let (mut after, mut d_a_log, mut d_bias, mut d_d) = (0.0, 0.0, 0.0, 0.0);
        for (i, token) in tokens.clone().enumerate().rev() {
            after += d_sum[i];
            d_a_log += after * f64::from(steps.dt[i]) * rate;
            let (raw, before) = steps.raw[i];
            let is_inside = raw >= least && raw <= largest;
            let slope = if is_inside { 1.0 / (1.0 + (-f64::from(before)).exp()) } else { 0.0 };
            let d_before = (f64::from(d_dt[i]) + after * rate) * slope;
            d_bias += d_before;
            // SAFETY: a head's column belongs to its task alone.
            let d_step = unsafe { targets.dt.part((batch * self.t + token) * self.h + head, 1) };
            d_step[0] = d_before as f32;
            let start = self.start(batch, &(token..token + 1), head * p);
            let dy = &read.dy[((batch * self.t + token) * self.h + head) * p..][..p];
            d_d += f64::from(dot(&inputs.xbc[start..start + p], dy));
            // SAFETY: as above.
            let dx = unsafe { targets.xbc.part(start, p) };
            dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += inputs.d[head] * dy);
        }
        // SAFETY: as above.
        let vectors = unsafe { targets.vectors.part((batch * self.h + head) * 3, 3) };
        vectors.iter_mut().zip([d_a_log, d_bias, d_d]).for_each(|(sum, term)| *sum += term as f32);
    }
}

/// From the gradient `d_own` of the weights of values: the weights, the head's term of `d_shared`,
/// and gradients of the sums of decays and of the time steps.
#[inline(always)]
fn weigh_backward(
    own: &mut [f32],
    d_own: &mut [f32],
    shared: &[f32],
    d_shared: &mut [f32],
    steps: &Steps,
    d_sum: &mut [f64],
    d_dt: &mut [f32],
) {
    let q = steps.dt.len();
    let rows = own.chunks_exact_mut(q).zip(d_own.chunks_exact_mut(q));
    let of_group = shared.chunks_exact(q).zip(d_shared.chunks_exact_mut(q));
    for (i, ((own, d_own), (shared, d_shared))) in rows.zip(of_group).enumerate() {
        own.fill(0.0);
        let (at, seen) = (steps.sum[i], steps.first[i]..i + 1);
        let (dts, sums) = (&steps.dt[seen.clone()], &steps.sum[seen.clone()]);
        let (d_own, d_shared) = (&mut d_own[seen.clone()], &mut d_shared[seen.clone()]);
        let weights = own[seen.clone()].iter_mut().zip(&shared[seen.clone()]).zip(d_own.iter_mut().zip(d_shared));
        for (((own, shared), (d_own, d_shared)), (sum, dt)) in weights.zip(sums.iter().zip(dts)) {
            let decay = exp_or_zero((at - sum) as f32);
            let decayed = shared * decay;
            *own = decayed * dt;
            *d_shared += *d_own * decay * dt;
            *d_own *= decayed;
        }
        d_dt[seen].iter_mut().zip(d_own.iter()).for_each(|(d_dt, term)| *d_dt += term);
        d_sum[i] += f64::from(dot(d_own, dts));
    }
    d_sum.iter_mut().zip(d_dt).zip(&steps.dt).for_each(|((d_sum, d_dt), dt)| *d_sum -= f64::from(*d_dt * dt));
}
