//! Backward of the scan on GPUs, last part: gradients of the inputs of the time steps.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::DType;

use super::cube::{Scan, Shape};
use super::cube_steps::{Sizes, Sum, add, chunks, line, since, softplus, step, to_end};
use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;

/// Planes of `dots`, dot products: of the value and its gradient from later tokens of the chunk,
/// without its time step; of the value and its gradient from the state after the chunk, without
/// its weight; of the value and its output's gradient; of the output without the term of `d` and
/// the output's gradient.
pub(super) const DOTS: usize = 4;
pub(super) const WITHIN: usize = 0;
pub(super) const BEHIND: usize = 1;
pub(super) const DIRECT: usize = 2;
pub(super) const OUTPUT: usize = 3;

/// For each chunk, the product of the state before it and the gradient of that after it; a cube
/// each.
#[cube(launch)]
fn state_dots(before: &[f32], behind: &[f32], products: &mut [f32], #[comptime] units: usize) {
    if CUBE_POS >= products.len() {
        terminate!();
    }
    let size = before.len() / products.len();
    let mut sum = 0.0f32;
    for i in range_stepped(UNIT_POS as usize, size, units) {
        sum += before[CUBE_POS * size + i] * behind[CUBE_POS * size + i];
    }
    let sum = cube_sum(sum, units);
    if UNIT_POS == 0 {
        products[CUBE_POS] = sum;
    }
}

/// Gradients of the inputs of the time steps, one unit per head and chunk: `d_dt [b, t, h]`, and
/// for each chunk those of `a_log`, `dt_bias` and `d`, `[b, chunks, 3, h]`.
#[cube(launch)]
fn step_gradients(
    dt: &[f32],
    vectors: &[f32],
    steps: &[f32],
    dots: &[f32],
    products: &[f32],
    d_dt: &mut [f32],
    d_vectors: &mut [f32],
    sizes: Sizes,
    least: f32,
    largest: f32,
) {
    let (heads, tokens) = (sizes.heads as usize, sizes.tokens as usize);
    let (head, rest) = (ABSOLUTE_POS % heads, ABSOLUTE_POS / heads);
    if 3 * ABSOLUTE_POS >= d_vectors.len() {
        terminate!();
    }
    let chunks = chunks(&sizes);
    let (chunk, batch) = (rest % chunks, rest / chunks);
    let line = line(batch, head, &sizes);
    let (begin, end) = (chunk * sizes.chunk as usize, min((chunk + 1) * sizes.chunk as usize, tokens));
    let rate = -vectors[head].exp();
    // Gradients of the sums of logarithms of decay: all of them end in that of the chunk's last
    // token.
    let whole = since(steps, &line, end - 1) * products[(batch * heads + head) * chunks + chunk];
    let mut after = Sum { whole, rest: 0.0f32 };
    for token in begin..end {
        let weight = step(steps, &line, token) * to_end(steps, &line, token);
        add(&mut after, weight * dots[BEHIND * line.plane + line.start + token]);
    }
    let mut d_a_log = Sum { whole: 0.0f32, rest: 0.0f32 };
    let mut d_bias = 0.0f32;
    let mut d_d = 0.0f32;
    for number in 0..end - begin {
        let token = end - 1 - number;
        let place = line.start + token;
        let (value, decay) = (step(steps, &line, token), to_end(steps, &line, token));
        let (within, behind) = (dots[WITHIN * line.plane + place], dots[BEHIND * line.plane + place]);
        add(&mut after, dots[OUTPUT * line.plane + place]);
        add(&mut after, -(within * value));
        add(&mut after, -(behind * value * decay));
        let d_sum = after.whole + after.rest;
        add(&mut d_a_log, d_sum * value * rate);
        let before = dt[(batch * tokens + token) * heads + head] + vectors[heads + head];
        let raw = softplus(before);
        let mut slope = 0.0f32;
        if raw >= least && raw <= largest {
            slope = 1.0f32 / (1.0f32 + (-before).exp());
        }
        let gradient = (within + behind * decay + d_sum * rate) * slope;
        d_dt[(batch * tokens + token) * heads + head] = gradient;
        d_bias += gradient;
        d_d += dots[DIRECT * line.plane + place];
    }
    let first = 3 * rest * heads + head;
    d_vectors[first] = d_a_log.whole + d_a_log.rest;
    d_vectors[first + heads] = d_bias;
    d_vectors[first + 2 * heads] = d_d;
}

impl Scan {
    /// The gradient of the time steps `[b, t, h]`, and the chunks' terms of those of the vectors,
    /// `[b chunks, 3, h]`.
    pub(super) fn step_gradients(&self, states: &Buffer, behind: &Buffer, dots: &Buffer) -> [Buffer; 2] {
        let Shape { b, t, h, n, p, time_steps: [least, largest], .. } = self.shape;
        let chunks = self.shape.chunks();
        let products = self.xbc.uninitialised([b, h, chunks], DType::F32);
        let (count, dim, units) = products.cube_per_row(products.len(), n * p);
        state_dots::launch(&self.xbc.0.client, count, dim, states.arg(), behind.arg(), products.arg(), units);
        let d_dt = self.xbc.uninitialised([b, t, h], DType::F32);
        let d_vectors = self.xbc.uninitialised([b * chunks, 3, h], DType::F32);
        let (count, dim) = products.unit_per_element();
        step_gradients::launch(
            &self.xbc.0.client,
            count,
            dim,
            self.dt.arg(),
            self.vectors.arg(),
            self.steps.arg(),
            dots.arg(),
            products.arg(),
            d_dt.arg(),
            d_vectors.arg(),
            self.shape.launch(),
            least,
            largest,
        );
        [d_dt, d_vectors]
    }
}
