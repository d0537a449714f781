//! The scan on slices: forward, and the parts that forward and backward share.
//!
//! A task takes some heads of one group in one sequence, chunk after chunk: the products of inputs
//! and outputs of the state, which these heads share, are formed once a chunk. Sums of decays are
//! kept in float64, because only their differences count.

use std::ops::Range;

use rayon::prelude::*;

use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{exp_or_zero, vectorised};

/// Heads of one task, at most.
const HEADS: usize = 4;

/// Sizes, and the range of time steps.
#[derive(Clone, Copy)]
pub struct Scan {
    /// Sequences.
    pub b: usize,
    /// Tokens of a sequence.
    pub t: usize,
    /// Heads.
    pub h: usize,
    /// Channels of a head.
    pub p: usize,
    /// Groups.
    pub g: usize,
    /// Numbers of the state for each channel.
    pub n: usize,
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Least and largest time step.
    pub time_steps: [f32; 2],
}

/// The inputs on slices, see [`super::ScanInputs`].
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub xbc: &'a [f32],
    pub dt: &'a [f32],
    pub a_log: &'a [f32],
    pub dt_bias: &'a [f32],
    pub d: &'a [f32],
    /// The first token of each token's document, `[b, t]`.
    pub starts: &'a [usize],
}

/// Results of the forward pass.
pub struct Scanned {
    /// `[b, t, h p]`.
    pub y: Vec<f32>,
    /// The state before each chunk, `[b, h, chunks, n, p]`.
    pub states: Vec<f32>,
    /// The state after the last token, `[b, h, n, p]`.
    pub last: Vec<f32>,
}

/// Some heads of a group in a sequence.
pub struct Task {
    pub batch: usize,
    pub group: usize,
    pub heads: Range<usize>,
}

/// The time steps of one head in one chunk, and the decays computed from them. `[q]` each.
#[derive(Default)]
pub struct Steps {
    /// Time steps before their range is applied, and inputs of the softplus.
    pub raw: Vec<(f32, f32)>,
    pub dt: Vec<f32>,
    /// Sums of the logarithms of decay, this token's included.
    pub sum: Vec<f64>,
    /// The first token of the chunk that is of the same document.
    pub first: Vec<usize>,
    /// Decay since the chunk's begin; 0 where another document has begun.
    pub since_start: Vec<f32>,
    /// Decay until the chunk's end; 0 where another document begins.
    pub to_end: Vec<f32>,
}

impl Scan {
    /// Columns of `xbc`.
    pub fn columns(&self) -> usize {
        self.h * self.p + 2 * self.g * self.n
    }

    /// Chunks of a sequence.
    pub fn chunks(&self) -> usize {
        self.t.div_ceil(self.chunk)
    }

    /// Tokens of a chunk.
    pub fn tokens(&self, chunk: usize) -> Range<usize> {
        chunk * self.chunk..((chunk + 1) * self.chunk).min(self.t)
    }

    /// Tasks, by the shapes alone.
    pub fn tasks(&self) -> usize {
        self.b * self.g * self.tasks_of_group()
    }

    /// Tasks of one group in one sequence.
    pub fn tasks_of_group(&self) -> usize {
        (self.h / self.g).div_ceil(HEADS)
    }

    pub fn task(&self, number: usize) -> Task {
        let (of_group, each) = (self.tasks_of_group(), self.h / self.g);
        let (pair, part) = (number / of_group, number % of_group);
        let (batch, group) = (pair / self.g, pair % self.g);
        let end = group * each + ((part + 1) * HEADS).min(each);
        Task { batch, group, heads: group * each + part * HEADS..end }
    }

    /// Offset in `xbc` of column `column` of the first of these tokens.
    pub fn start(&self, batch: usize, tokens: &Range<usize>, column: usize) -> usize {
        (batch * self.t + tokens.start) * self.columns() + column
    }

    fn matrix<'a>(&self, xbc: &'a [f32], batch: usize, tokens: &Range<usize>, of: Range<usize>) -> Matrix<'a> {
        let data = &xbc[self.start(batch, tokens, of.start)..];
        Matrix::strided(data, tokens.len(), of.len(), self.columns(), 1)
    }

    /// The values of a head, `[q, p]`.
    pub fn x<'a>(&self, xbc: &'a [f32], batch: usize, tokens: &Range<usize>, head: usize) -> Matrix<'a> {
        self.matrix(xbc, batch, tokens, head * self.p..(head + 1) * self.p)
    }

    /// First column of a group's inputs, and of its outputs.
    pub fn group_columns(&self, group: usize) -> [usize; 2] {
        let first = self.h * self.p + group * self.n;
        [first, first + self.g * self.n]
    }

    /// Inputs and outputs of the state of a group, `[q, n]` each.
    pub fn in_and_out<'a>(&self, xbc: &'a [f32], batch: usize, tokens: &Range<usize>, group: usize) -> [Matrix<'a>; 2] {
        self.group_columns(group).map(|first| self.matrix(xbc, batch, tokens, first..first + self.n))
    }

    /// The heads' columns of `[b, t, h p]`, `[q, p]`.
    pub fn of_head<'a>(&self, y: &'a [f32], batch: usize, tokens: &Range<usize>, head: usize) -> Matrix<'a> {
        let width = self.h * self.p;
        let data = &y[(batch * self.t + tokens.start) * width + head * self.p..];
        Matrix::strided(data, tokens.len(), self.p, width, 1)
    }

    /// Fills in the time steps of a head.
    pub fn steps(&self, inputs: &Inputs<'_>, batch: usize, tokens: &Range<usize>, head: usize, steps: &mut Steps) {
        let rate = -f64::from(inputs.a_log[head]).exp();
        let [least, largest] = self.time_steps;
        let (mut sum, bias) = (0.0, inputs.dt_bias[head]);
        steps.raw.clear();
        steps.dt.clear();
        steps.sum.clear();
        steps.first.clear();
        for token in tokens.clone() {
            let before = inputs.dt[(batch * self.t + token) * self.h + head] + bias;
            let raw = softplus(before);
            let dt = raw.max(least).min(largest);
            let dt = if raw.is_nan() { raw } else { dt };
            sum += rate * f64::from(dt);
            steps.raw.push((raw, before));
            steps.dt.push(dt);
            steps.sum.push(sum);
            let start = inputs.starts[batch * self.t + token];
            steps.first.push(start.saturating_sub(tokens.start));
        }
        let Steps { sum: sums, first, since_start, to_end, .. } = steps;
        since_start.resize(sums.len(), 0.0);
        to_end.resize(sums.len(), 0.0);
        vectorised!({
            let sums = sums.iter().zip(since_start.iter_mut()).zip(to_end.iter_mut());
            sums.for_each(|((at, since_start), to_end)| {
                *since_start = exp_or_zero(*at as f32);
                *to_end = exp_or_zero((sum - at) as f32);
            });
        });
        let last = first[first.len() - 1];
        for (i, token) in tokens.clone().enumerate() {
            let start = inputs.starts[batch * self.t + token];
            let goes_on = start == 0 || start < tokens.start;
            since_start[i] = if goes_on { since_start[i] } else { 0.0 };
            to_end[i] = if first[i] == last { to_end[i] } else { 0.0 };
        }
    }

    /// Forward, from a state `[b, h, n, p]` or from zeros.
    pub fn forward(&self, inputs: &Inputs<'_>, state: Option<&[f32]>) -> Scanned {
        let (b, h, of_state) = (self.b, self.h, self.n * self.p);
        let sizes = [b * self.t * h * self.p, b * h * self.chunks() * of_state, b * h * of_state];
        let [y, states, last] = all_filled(sizes, |outputs| {
            let [y, states, last] = outputs.map(Shared::new);
            (0..self.tasks()).into_par_iter().with_max_len(1).for_each_init(Scratch::default, |scratch, number| {
                let task = self.task(number);
                for head in task.heads.clone() {
                    let at = (task.batch * h + head) * of_state;
                    // SAFETY: the state of a head belongs to its task alone.
                    let last = unsafe { last.part(at, of_state) };
                    match state {
                        Some(state) => last.copy_from_slice(&state[at..at + of_state]),
                        None => last.fill(0.0),
                    }
                }
                for chunk in 0..self.chunks() {
                    self.forward_chunk(inputs, &task, chunk, y, states, last, scratch);
                }
            });
        });
        Scanned { y, states, last }
    }

    fn forward_chunk(
        &self,
        inputs: &Inputs<'_>,
        task: &Task,
        chunk: usize,
        y: Shared<'_>,
        states: Shared<'_>,
        last: Shared<'_>,
        scratch: &mut Scratch,
    ) {
        let (tokens, batch) = (self.tokens(chunk), task.batch);
        let (q, p, n, width) = (tokens.len(), self.p, self.n, self.h * self.p);
        let [b_qn, c_qn] = self.in_and_out(inputs.xbc, batch, &tokens, task.group);
        let Scratch { shared, own, scaled, steps } = scratch;
        shared.resize(q * q, 0.0);
        own.resize(q * q, 0.0);
        scaled.resize(q * n, 0.0);
        gemm(MatrixMut::new(shared, q, q), Output::Set, 1.0, c_qn, b_qn.t(), Threads::One);
        for head in task.heads.clone() {
            self.steps(inputs, batch, &tokens, head, steps);
            vectorised!(weigh(own, shared, steps));
            let x_qp = self.x(inputs.xbc, batch, &tokens, head);
            let first = (batch * self.t + tokens.start) * width + head * p;
            // SAFETY: the columns of a head belong to its task alone.
            let rows = || unsafe { MatrixMut::shared(y, first, q, p, width) };
            gemm(rows(), Output::Set, 1.0, Matrix::new(own, q, q), x_qp, Threads::One);
            let of_head = batch * self.h + head;
            // SAFETY: as above.
            let last = unsafe { last.part(of_head * n * p, n * p) };
            // SAFETY: as above.
            unsafe { states.part((of_head * self.chunks() + chunk) * n * p, n * p) }.copy_from_slice(last);
            self.scale(batch, &tokens, self.group_columns(task.group)[1], inputs.xbc, &steps.since_start, scaled);
            gemm(rows(), Output::Add, 1.0, Matrix::new(scaled, q, n), Matrix::new(last, n, p), Threads::One);
            for (i, token) in tokens.clone().enumerate() {
                // SAFETY: as above.
                let y = unsafe { y.part(first + i * width, p) };
                let x = &inputs.xbc[self.start(batch, &(token..token + 1), head * p)..][..p];
                y.iter_mut().zip(x).for_each(|(y, x)| *y += inputs.d[head] * x);
            }
            let whole = steps.since_start[q - 1];
            last.iter_mut().for_each(|s| *s *= whole);
            steps.to_end.iter_mut().zip(&steps.dt).for_each(|(w, dt)| *w *= dt);
            self.scale(batch, &tokens, self.group_columns(task.group)[0], inputs.xbc, &steps.to_end, scaled);
            gemm(MatrixMut::new(last, n, p), Output::Add, 1.0, Matrix::new(scaled, q, n).t(), x_qp, Threads::One);
        }
    }

    /// `n` columns of `xbc` from `column` on, each row times its factor: `[q, n]`.
    pub fn scale(
        &self,
        batch: usize,
        tokens: &Range<usize>,
        column: usize,
        xbc: &[f32],
        factors: &[f32],
        scaled: &mut [f32],
    ) {
        for ((scaled, factor), token) in scaled.chunks_exact_mut(self.n).zip(factors).zip(tokens.clone()) {
            let row = &xbc[self.start(batch, &(token..token + 1), column)..][..self.n];
            scaled.iter_mut().zip(row).for_each(|(scaled, x)| *scaled = factor * x);
        }
    }
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    /// Products of outputs and inputs of the state, `[q, q]`.
    shared: Vec<f32>,
    /// Weights of a head, with decay and time steps.
    own: Vec<f32>,
    /// `[q, n]`.
    scaled: Vec<f32>,
    steps: Steps,
}

/// Weight of each earlier token's values in the output of each token, `[q, q]`; later tokens have
/// none.
#[inline(always)]
fn weigh(own: &mut [f32], shared: &[f32], steps: &Steps) {
    let q = steps.dt.len();
    for (i, (own, shared)) in own.chunks_exact_mut(q).zip(shared.chunks_exact(q)).enumerate() {
        own.fill(0.0);
        let (at, seen) = (steps.sum[i], steps.first[i]..i + 1);
        let weights = own[seen.clone()].iter_mut().zip(&shared[seen.clone()]);
        for (((own, shared), sum), dt) in weights.zip(&steps.sum[seen.clone()]).zip(&steps.dt[seen]) {
            *own = shared * exp_or_zero((at - sum) as f32) * dt;
        }
    }
}

/// `ln(1 + e^x)`, in float64 and rounded once.
fn softplus(x: f32) -> f32 {
    let wide = f64::from(x);
    if wide > 30.0 { x } else { wide.exp().ln_1p() as f32 }
}
