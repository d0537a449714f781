//! Backward of the scan on GPUs.
//!
//! The gradient of the state after each chunk comes by one pass from the last chunk to the first;
//! all else is worked on for all chunks at once. Gradients of time steps need three numbers per
//! token and head, which are products of rows that other kernels compute anyway: `dots` has a plane
//! `[b, h, t]` of each.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use super::cube::{Scan, Shape, scanned};
use super::cube_step_gradients::{BEHIND, DIRECT, DOTS, OUTPUT, WITHIN};
use super::cube_steps::{
    CubePosition, Form, Sizes, cube_position, decayed, line, of_head_at, row_weights, state_start, states_io_at, step,
    to_end, values_at,
};
use crate::cube::Buffer;
use crate::cube::tile::{
    Rows, SIDE, add_combinations, add_products, add_row_products, element, row_sums, share, stage_len, tile_len, zeros,
};
use crate::precision::sum_of_rows;

/// Heads whose terms of the gradients of inputs and outputs of the state one cube adds up.
const HEADS: usize = 8;

/// Gradients of a scan's inputs.
pub(super) struct Gradients {
    pub xbc: Buffer,
    /// Float32, `[b, t, h]`.
    pub dt: Buffer,
    /// Gradients of `a_log`, `dt_bias` and `d`, float32 `[3, h]`.
    pub vectors: Tensor<2>,
}

/// Plane [`OUTPUT`] of `dots`.
#[cube(launch)]
fn output_dots<X: Float>(
    xbc: &[X],
    dy: &[X],
    steps: &[f32],
    states: &[f32],
    dots: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(X)] _storage: ElemType,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let at = cube_position(sizes.heads as usize, (sizes.chunk as usize).div_ceil(rows), &sizes);
    let first = at.begin + at.block * rows;
    if at.batch >= sizes.batches as usize || first >= at.end {
        terminate!();
    }
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let sums = scanned::<X>(xbc, steps, states, &at, &sizes, &mut stage, form);
    let gradients = of_head_at(at.batch, first, at.part, at.end, &sizes);
    let mut products = zeros(r);
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..columns {
            let gradient = element::<X>(dy, &gradients, y + i * SIDE, x + j * SIDE, sizes.head_size as usize);
            products[i] += gradient * sums[i * columns + j];
        }
    }
    row_sums(&mut products, &mut stage, r);
    let line = line(at.batch, at.part, &sizes);
    #[unroll]
    for i in 0..r {
        let token = first + y + i * SIDE;
        if x == 0 && token < at.end {
            dots[OUTPUT * line.plane + line.start + token] = products[i];
        }
    }
}

/// The gradient of the values, and three planes of `dots`; a cube a block of tokens of a head of a
/// chunk. `states` are gradients of the states after the chunks.
#[cube(launch)]
fn value_gradients<X: Float>(
    xbc: &[X],
    dy: &[X],
    vectors: &[f32],
    steps: &[f32],
    states: &[f32],
    d_xbc: &mut [X],
    dots: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(X)] _storage: ElemType,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let at = cube_position(sizes.heads as usize, (sizes.chunk as usize).div_ceil(rows), &sizes);
    let first = at.begin + at.block * rows;
    if at.batch >= sizes.batches as usize || first >= at.end {
        terminate!();
    }
    let (n, p, head) = (sizes.state as usize, sizes.head_size as usize, at.part);
    let group = head / (sizes.heads as usize / sizes.groups as usize);
    let line = line(at.batch, head, &sizes);
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let inputs = states_io_at(at.batch, first, group, at.end, &sizes, false);
    let mut within = zeros(comptime!(form.r * form.columns));
    let mut token = first;
    while token < at.end {
        let outputs = states_io_at(at.batch, token, group, at.end, &sizes, true);
        let mut weights = zeros(comptime!(form.r * form.r));
        add_products::<X, X>(&mut weights, xbc, &inputs, xbc, &outputs, n, &mut stage, r);
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let (earlier, later) = (first + y + i * SIDE, token + x + j * SIDE);
                weights[i * r + j] = decayed(weights[i * r + j], steps, &line, later, earlier, at.end, false);
            }
        }
        share(&mut tile, &weights, r);
        let gradients = of_head_at(at.batch, token, head, at.end, &sizes);
        add_combinations::<X>(&mut within, &mut tile, dy, &gradients, p, r, columns);
        token += rows;
    }
    let mut ones = zeros(r);
    #[unroll]
    for i in 0..r {
        ones[i] = 1.0f32;
    }
    let mut behind = zeros(comptime!(form.r * form.columns));
    let start = state_start(at.batch, head, at.chunk, &sizes);
    let state = Rows { start, stride: p, step: 1usize.runtime(), count: n };
    add_row_products::<X, f32>(&mut behind, &ones, xbc, &inputs, states, &state, p, &mut tile, r, columns);
    let d = vectors[2 * sizes.heads as usize + head];
    write_values::<X>(xbc, dy, steps, d_xbc, dots, &within, &behind, d, &at, &sizes, &mut stage, form);
}

/// Writes the gradient of the values, the sum of the terms from `within` the chunk and from
/// `behind` it, and three planes of `dots`.
#[cube]
fn write_values<X: Float>(
    xbc: &[X],
    dy: &[X],
    steps: &[f32],
    d_xbc: &mut [X],
    dots: &mut [f32],
    within: &Array<f32>,
    behind: &Array<f32>,
    d: f32,
    at: &CubePosition,
    sizes: &Sizes,
    stage: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let first = at.begin + at.block * comptime!(form.r * SIDE);
    let line = line(at.batch, at.part, sizes);
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let p = sizes.head_size as usize;
    let values = values_at(at.batch, first, at.part, at.end, sizes);
    let gradients = of_head_at(at.batch, first, at.part, at.end, sizes);
    let mut of_within = zeros(r);
    let mut of_behind = zeros(r);
    let mut direct = zeros(r);
    #[unroll]
    for i in 0..r {
        let row = y + i * SIDE;
        if row < values.count {
            let dt = step(steps, &line, first + row);
            let weight = dt * to_end(steps, &line, first + row);
            #[unroll]
            for j in 0..columns {
                let column = x + j * SIDE;
                let value = element::<X>(xbc, &values, row, column, p);
                let gradient = element::<X>(dy, &gradients, row, column, p);
                of_within[i] += value * within[i * columns + j];
                of_behind[i] += value * behind[i * columns + j];
                direct[i] += value * gradient;
                if column < p {
                    let sum = dt * within[i * columns + j] + weight * behind[i * columns + j] + d * gradient;
                    d_xbc[values.start + row * values.stride + column] = X::cast_from(sum);
                }
            }
        }
    }
    row_sums(&mut of_within, stage, r);
    row_sums(&mut of_behind, stage, r);
    row_sums(&mut direct, stage, r);
    #[unroll]
    for i in 0..r {
        let token = first + y + i * SIDE;
        if x == 0 && token < at.end {
            dots[WITHIN * line.plane + line.start + token] = of_within[i];
            dots[BEHIND * line.plane + line.start + token] = of_behind[i];
            dots[DIRECT * line.plane + line.start + token] = direct[i];
        }
    }
}

/// The weights of tokens `token ..` for a block of tokens, summed over heads, `r r` of a unit:
/// products of values and gradients, decayed.
#[cube]
fn summed_weights<X: Float>(
    xbc: &[X],
    dy: &[X],
    steps: &[f32],
    at: &CubePosition,
    heads: &Heads,
    token: usize,
    sizes: &Sizes,
    stage: &mut Shared<[f32]>,
    #[comptime] outputs: bool,
    #[comptime] r: usize,
) -> Array<f32> {
    let first = at.begin + at.block * comptime!(r * SIDE);
    let (y, x, p) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE, sizes.head_size as usize);
    let mut weights = zeros(comptime!(r * r));
    for head in heads.first..heads.last {
        let line = line(at.batch, head, sizes);
        let mut products = zeros(comptime!(r * r));
        if comptime!(outputs) {
            let own = of_head_at(at.batch, first, head, at.end, sizes);
            let others = values_at(at.batch, token, head, at.end, sizes);
            add_products::<X, X>(&mut products, dy, &own, xbc, &others, p, stage, r);
        } else {
            let own = values_at(at.batch, first, head, at.end, sizes);
            let others = of_head_at(at.batch, token, head, at.end, sizes);
            add_products::<X, X>(&mut products, xbc, &own, dy, &others, p, stage, r);
        }
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let (own, other) = (first + y + i * SIDE, token + x + j * SIDE);
                let mut later = other;
                let mut earlier = own;
                if comptime!(outputs) {
                    later = own;
                    earlier = other;
                }
                weights[i * r + j] += decayed(products[i * r + j], steps, &line, later, earlier, at.end, true);
            }
        }
    }
    weights
}

/// Heads of one group.
#[derive(CubeType, Clone, Copy)]
struct Heads {
    first: usize,
    /// End of the range, exclusive.
    last: usize,
}

/// Terms of the gradient of inputs of the state, or of `outputs`: a cube a block of tokens of
/// [`HEADS`] heads of a group and chunk. `states` are gradients of the states after the chunks,
/// or, for outputs, the states before them. `terms` is `[parts, b, t, 2, g, n]`.
#[cube(launch)]
fn state_io_terms<X: Float>(
    xbc: &[X],
    dy: &[X],
    steps: &[f32],
    states: &[f32],
    terms: &mut [f32],
    sizes: Sizes,
    #[comptime] outputs: bool,
    #[comptime] form: Form,
    #[define(X)] _storage: ElemType,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let (n, p, groups) = (sizes.state as usize, sizes.head_size as usize, sizes.groups as usize);
    let of_group = sizes.heads as usize / groups;
    let parts = of_group.div_ceil(HEADS);
    let at = cube_position(groups * parts, (sizes.chunk as usize).div_ceil(rows), &sizes);
    let first = at.begin + at.block * rows;
    if at.batch >= sizes.batches as usize || first >= at.end {
        terminate!();
    }
    let (group, part) = (at.part / parts, at.part % parts);
    let start = group * of_group + part * HEADS;
    let heads = Heads { first: start, last: min(start + HEADS, (group + 1) * of_group) };
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let mut sums = zeros(comptime!(form.r * form.columns));
    let mut token = first;
    let mut last = at.end;
    if comptime!(outputs) {
        token = at.begin;
        last = min(first + rows, at.end);
    }
    while token < last {
        let weights = summed_weights::<X>(xbc, dy, steps, &at, &heads, token, &sizes, &mut stage, outputs, r);
        share(&mut tile, &weights, r);
        let others = states_io_at(at.batch, token, group, at.end, &sizes, comptime!(!outputs));
        add_combinations::<X>(&mut sums, &mut tile, xbc, &others, n, r, columns);
        token += rows;
    }
    for head in heads.first..heads.last {
        let line = line(at.batch, head, &sizes);
        let weights = row_weights(steps, &line, first, at.end, outputs, r);
        let start = state_start(at.batch, head, at.chunk, &sizes);
        let state = Rows { start, stride: 1usize.runtime(), step: p, count: p };
        if comptime!(outputs) {
            let own = of_head_at(at.batch, first, head, at.end, &sizes);
            add_row_products::<X, f32>(&mut sums, &weights, dy, &own, states, &state, n, &mut tile, r, columns);
        } else {
            let own = values_at(at.batch, first, head, at.end, &sizes);
            add_row_products::<X, f32>(&mut sums, &weights, xbc, &own, states, &state, n, &mut tile, r, columns);
        }
    }
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut which = 0usize;
    if comptime!(outputs) {
        which = 1usize.runtime();
    }
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..columns {
            let (token, number) = (first + y + i * SIDE, x + j * SIDE);
            if token < at.end && number < n {
                let row = (part * sizes.batches as usize + at.batch) * sizes.tokens as usize + token;
                terms[((row * 2 + which) * groups + group) * n + number] = sums[i * columns + j];
            }
        }
    }
}

/// Adds up the terms of each group in order, into the gradient's columns after the values.
#[cube(launch)]
fn add_terms<X: Float>(terms: &[f32], d_xbc: &mut [X], parts: u32, sizes: Sizes, #[define(X)] _storage: ElemType) {
    let width = 2 * sizes.groups as usize * sizes.state as usize;
    let elements = terms.len() / parts as usize;
    if ABSOLUTE_POS >= elements {
        terminate!();
    }
    let mut sum = 0.0f32;
    for part in 0..parts as usize {
        sum += terms[part * elements + ABSOLUTE_POS];
    }
    let values = sizes.heads as usize * sizes.head_size as usize;
    let (row, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
    d_xbc[row * (values + width) + values + column] = X::cast_from(sum);
}

impl Scan {
    /// Gradients from that of the output; `states` are those before the chunks.
    pub(super) fn backward(&self, states: &Buffer, dy: &Buffer) -> Option<Gradients> {
        let behind = self.sum_chunks(dy, true)?;
        self.pass_states(&behind, None, true);
        let Shape { b, t, h, .. } = self.shape;
        let dots = self.xbc.uninitialised([DOTS, b, h, t], DType::F32);
        let xbc = self.xbc.uninitialised_like();
        self.by_rows(states, &behind, dy, [&xbc, &dots])?;
        self.state_io(states, &behind, dy, &xbc)?;
        let [dt, vectors] = self.step_gradients(states, &behind, &dots);
        let blocks = vectors.len() / (3 * h);
        let vectors = sum_of_rows(vectors.tensor::<3>().reshape([blocks, 3 * h]), DType::F32).reshape([3, h]);
        Some(Gradients { xbc, dt, vectors })
    }

    /// The gradient of the values into `d_xbc`, and `dots`.
    fn by_rows(&self, states: &Buffer, behind: &Buffer, dy: &Buffer, [d_xbc, dots]: [&Buffer; 2]) -> Option<()> {
        let Shape { b, h, p, chunk, .. } = self.shape;
        let form = self.form(chunk, p)?;
        let (client, storage) = (&self.xbc.0.client, self.xbc.storage());
        let (count, dim) = self.xbc.cube_per_tile(b * h * self.shape.chunks() * chunk.div_ceil(form.r * SIDE));
        output_dots::launch(
            client,
            count.clone(),
            dim,
            self.xbc.arg(),
            dy.arg(),
            self.steps.arg(),
            states.arg(),
            dots.arg(),
            self.shape.launch(),
            form,
            storage,
        );
        value_gradients::launch(
            client,
            count,
            dim,
            self.xbc.arg(),
            dy.arg(),
            self.vectors.arg(),
            self.steps.arg(),
            behind.arg(),
            d_xbc.arg(),
            dots.arg(),
            self.shape.launch(),
            form,
            storage,
        );
        Some(())
    }

    /// The gradients of inputs and outputs of the state, into `d_xbc`.
    fn state_io(&self, states: &Buffer, behind: &Buffer, dy: &Buffer, d_xbc: &Buffer) -> Option<()> {
        let Shape { b, t, h, g, n, chunk, .. } = self.shape;
        let form = self.form(chunk, n)?;
        let (client, storage, parts) = (&self.xbc.0.client, self.xbc.storage(), (h / g).div_ceil(HEADS));
        let terms = self.xbc.uninitialised([parts, b, t, 2 * g * n], DType::F32);
        let blocks = b * g * parts * self.shape.chunks() * chunk.div_ceil(form.r * SIDE);
        for (outputs, states) in [(false, behind), (true, states)] {
            let (count, dim) = self.xbc.cube_per_tile(blocks);
            state_io_terms::launch(
                client,
                count,
                dim,
                self.xbc.arg(),
                dy.arg(),
                self.steps.arg(),
                states.arg(),
                terms.arg(),
                self.shape.launch(),
                outputs,
                form,
                storage,
            );
        }
        let (count, dim) = terms.grid(terms.len() / parts);
        add_terms::launch(client, count, dim, terms.arg(), d_xbc.arg(), parts as u32, self.shape.launch(), storage);
        Some(())
    }
}
