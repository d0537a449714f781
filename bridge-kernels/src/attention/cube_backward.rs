//! Backward of attention on GPUs: one kernel for the gradients of queries and one for those of keys
//! and values, each of which forms the scores again, so that nothing is added up in an order that
//! changes.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::cube::{Problem, Saved};
use super::cube_scores::{Form, Sizes, block_of_queries, keys_at, queries_at, score_gradients, visible_queries};
use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;
use crate::cube::tile::{Rows, SIDE, add_combinations, add_products, share, stage_len, tile_len, zeros};
use crate::dropout::cube::{Mask, mask};

/// Delta of each query: the sum of the products of its output and the gradient of its output, into
/// the second plane of `statistics`. It equals the mean of the gradients of the query's
/// probabilities. One cube computes one query.
#[cube(launch)]
fn compute_deltas<X: Float>(
    out: &[X],
    d_out: &[X],
    statistics: &mut [f32],
    queries: u32,
    heads: u32,
    #[comptime] units: usize,
    #[define(X)] _storage: ElemType,
) {
    let lines = statistics.len() / 2;
    if CUBE_POS >= lines {
        terminate!();
    }
    let (queries, heads) = (queries as usize, heads as usize);
    let width = out.len() / lines;
    let (query, rest) = (CUBE_POS % queries, CUBE_POS / queries);
    let (head, batch) = (rest % heads, rest / heads);
    let start = ((batch * queries + query) * heads + head) * width;
    let mut sum = 0.0f32;
    for i in range_stepped(UNIT_POS as usize, width, units) {
        sum += f32::cast_from(out[start + i]) * f32::cast_from(d_out[start + i]);
    }
    let sum = cube_sum(sum, units);
    if UNIT_POS == 0 {
        statistics[lines + CUBE_POS] = sum;
    }
}

/// A cube a block of queries of a head.
#[cube(launch)]
fn query_gradients<X: Float, P: Int>(
    q: &[X],
    k: &[X],
    v: &[X],
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    d_out: &[X],
    dq: &mut [X],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: Form,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let (d, width) = (sizes.head_size as usize, sizes.width as usize);
    let at = block_of_queries(rows, &sizes);
    if at.batch >= sizes.batches as usize {
        terminate!();
    }
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let own = queries_at(at.batch, at.first, at.head, d, &sizes);
    let own_gradients = queries_at(at.batch, at.first, at.head, width, &sizes);
    let line = at.line - at.first;
    let mut sums = zeros(comptime!(form.r * form.columns));
    let mut key = at.begin;
    while key < at.end {
        let mut scores = zeros(comptime!(form.r * form.r));
        let mut gradients = zeros(comptime!(form.r * form.r));
        let others = keys_at(at.batch, key, at.group, d, &sizes);
        let values = keys_at(at.batch, key, at.group, width, &sizes);
        add_products::<X, X>(&mut scores, q, &own, k, &others, d, &mut stage, r);
        add_products::<X, X>(&mut gradients, d_out, &own_gradients, v, &values, width, &mut stage, r);
        score_gradients::<P>(
            &mut scores,
            &mut gradients,
            documents,
            statistics,
            at.batch,
            line,
            at.first,
            key,
            &sizes,
            &mask,
            form,
            false,
        );
        share(&mut tile, &gradients, r);
        add_combinations::<X>(&mut sums, &mut tile, k, &others, d, r, columns);
        key += rows;
    }
    write::<X>(dq, &own, &sums, sizes.scale, d, r, columns);
}

/// Gradients of keys and values, side by side: `[b, s, g, d + width]`. One cube computes a block of
/// keys of a group, with all query heads of the group in order.
#[cube(launch)]
fn key_gradients<X: Float, P: Int>(
    q: &[X],
    k: &[X],
    v: &[X],
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    d_out: &[X],
    dkv: &mut [X],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: Form,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let (r, columns, value_columns) = (comptime!(form.r), comptime!(form.columns), comptime!(form.value_columns));
    let rows = comptime!(form.r * SIDE);
    let (keys, heads, groups) = (sizes.keys as usize, sizes.heads as usize, sizes.groups as usize);
    let (d, width) = (sizes.head_size as usize, sizes.width as usize);
    let blocks = keys.div_ceil(rows);
    let (first, rest) = (CUBE_POS % blocks * rows, CUBE_POS / blocks);
    let (group, batch) = (rest % groups, rest / groups);
    if batch >= sizes.batches as usize {
        terminate!();
    }
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let own = keys_at(batch, first, group, d, &sizes);
    let own_values = keys_at(batch, first, group, width, &sizes);
    let mut key_sums = zeros(comptime!(form.r * form.columns));
    let mut value_sums = zeros(comptime!(form.r * form.value_columns));
    let span = visible_queries(first, rows, &sizes);
    for head in group * (heads / groups)..(group + 1) * (heads / groups) {
        let line = (batch * heads + head) * sizes.queries as usize;
        let mut query = span.begin;
        while query < span.end {
            let mut scores = zeros(comptime!(form.r * form.r));
            let mut gradients = zeros(comptime!(form.r * form.r));
            let others = queries_at(batch, query, head, d, &sizes);
            let of_out = queries_at(batch, query, head, width, &sizes);
            add_products::<X, X>(&mut scores, k, &own, q, &others, d, &mut stage, r);
            add_products::<X, X>(&mut gradients, v, &own_values, d_out, &of_out, width, &mut stage, r);
            score_gradients::<P>(
                &mut scores,
                &mut gradients,
                documents,
                statistics,
                batch,
                line,
                query,
                first,
                &sizes,
                &mask,
                form,
                true,
            );
            share(&mut tile, &scores, r);
            add_combinations::<X>(&mut value_sums, &mut tile, d_out, &of_out, width, r, value_columns);
            share(&mut tile, &gradients, r);
            add_combinations::<X>(&mut key_sums, &mut tile, q, &others, d, r, columns);
            query += rows;
        }
    }
    let start = ((batch * keys + first) * groups + group) * (d + width);
    let stride = groups * (d + width);
    let target = Rows { start, stride, step: 1usize.runtime(), count: keys - first };
    write::<X>(dkv, &target, &key_sums, sizes.scale, d, r, columns);
    let target = Rows { start: start + d, stride, step: 1usize.runtime(), count: keys - first };
    write::<X>(dkv, &target, &value_sums, 1.0f32, width, r, value_columns);
}

/// Writes a unit's rows, times a factor.
#[cube]
fn write<X: Float>(
    all: &mut [X],
    target: &Rows,
    sums: &Array<f32>,
    factor: f32,
    width: usize,
    #[comptime] r: usize,
    #[comptime] columns: usize,
) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..columns {
            let (row, column) = (y + i * SIDE, x + j * SIDE);
            if row < target.count && column < width {
                all[target.start + row * target.stride + column] = X::cast_from(sums[i * columns + j] * factor);
            }
        }
    }
}

impl Saved {
    /// Gradients of queries, keys and values from that of the output. Fills in the deltas.
    pub(super) fn gradients(&self, d_out: &Buffer) -> Option<[Tensor<4>; 3]> {
        let Problem { b, t, s, h, g, d, width, .. } = self.problem;
        self.fill_in_deltas(d_out);
        let q = &self.q;
        let dq = q.uninitialised_like();
        let form = self.problem.form(q, t, |of_key, _| of_key)?;
        let (count, dim) = q.cube_per_tile(b * h * t.div_ceil(form.r * SIDE));
        query_gradients::launch(
            &q.0.client,
            count,
            dim,
            q.arg(),
            self.k.arg(),
            self.v.arg(),
            self.documents.as_ref().map(Buffer::arg).into(),
            self.statistics.arg(),
            d_out.arg(),
            dq.arg(),
            self.problem.sizes(),
            mask(self.problem.dropout),
            form,
            self.storage(),
        );
        let dkv = q.uninitialised([b, s, g, d + width], q.0.dtype);
        let form = self.problem.form(q, s, |of_key, of_value| of_key + of_value)?;
        let (count, dim) = q.cube_per_tile(b * g * s.div_ceil(form.r * SIDE));
        key_gradients::launch(
            &q.0.client,
            count,
            dim,
            q.arg(),
            self.k.arg(),
            self.v.arg(),
            self.documents.as_ref().map(Buffer::arg).into(),
            self.statistics.arg(),
            d_out.arg(),
            dkv.arg(),
            self.problem.sizes(),
            mask(self.problem.dropout),
            form,
            self.storage(),
        );
        let dkv: Tensor<4> = dkv.tensor();
        let [dk, dv] = [(0, d), (d, width)].map(|(from, size)| dkv.clone().narrow(3, from, size));
        Some([dq.tensor(), dk, dv])
    }

    /// Fills in the deltas, in place of the max logits.
    pub(super) fn fill_in_deltas(&self, d_out: &Buffer) {
        let Problem { b, t, h, width, .. } = self.problem;
        let (count, dim, units) = self.q.cube_per_row(b * h * t, width);
        compute_deltas::launch(
            &self.q.0.client,
            count,
            dim,
            self.out.arg(),
            d_out.arg(),
            self.statistics.arg(),
            t as u32,
            h as u32,
            units,
            self.q.storage(),
        );
    }

    /// Gradients of the sinks `[h]`, once the deltas are filled in. A sink's probability goes to no
    /// value, so that it only takes from the others.
    pub(super) fn sink_gradients(&self, sinks_h: Tensor<1>) -> Tensor<1> {
        let Problem { b, t, h, .. } = self.problem;
        let statistics: Tensor<4> = self.statistics.clone().tensor();
        let [log_sum_exp, deltas] = [0, 1].map(|i| statistics.clone().narrow(0, i, 1).reshape([b, h, t]));
        let probabilities = (sinks_h.reshape([1, h, 1]) - log_sum_exp).exp();
        (probabilities * deltas).sum_dim(2).sum_dim(0).reshape([h]).neg()
    }
}
