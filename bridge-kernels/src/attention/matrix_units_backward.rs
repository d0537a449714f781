//! Backward of attention on matrix units: as [`super::cube_backward`], one kernel for the gradients of queries and one for those of keys and values, each of
//! which forms the scores again.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::cube::{Problem, Saved};
use super::cube_scores::{Sizes, block_of_queries, differentiated, keys_at, queries_at, seeing};
use super::matrix_units::{UnitForm, is_masked, vector_of};
use crate::cube::Buffer;
use crate::cube::fragments::{
    Pair, ROWS, UNITS, add_combinations, column_of, exchange_len, first_factor, load, load_transposed, multiply,
    row_of, second_factor, sums, tile_pairs,
};
use crate::dropout::cube::{Mask, mask};

/// From products of queries and keys and gradients of probabilities to probabilities after dropout and gradients of the products. Rows are
/// keys if `by_key`. `line` is the head's first query in `[b, h, t]`.
#[cube]
fn differentiate<P: Int>(
    scores: &mut Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    batch: usize,
    line: usize,
    query: usize,
    key: usize,
    masked: bool,
    sizes: &Sizes,
    mask: &Mask,
    #[comptime] form: UnitForm,
    #[comptime] by_key: bool,
) {
    #[unroll]
    for half in 0..2usize {
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(form.columns / 8) {
            let mut probabilities = scores[2 * tile + half];
            let mut slopes = gradients[2 * tile + half];
            #[unroll]
            for j in 0..2usize {
                let (row, column) = (row_of(half), column_of(tile) + j);
                let mut own = row;
                let mut other = column;
                if comptime!(by_key) {
                    own = column;
                    other = row;
                }
                let found = differentiated::<P>(
                    probabilities.extract(j),
                    slopes.extract(j),
                    documents,
                    statistics,
                    batch,
                    line,
                    query + own,
                    key + other,
                    masked,
                    sizes,
                    mask,
                    form.capped,
                    form.dropped,
                );
                probabilities.insert(j, found.probability);
                // Scaled before it is rounded, for float16.
                slopes.insert(j, found.gradient * sizes.scale);
            }
            scores[2 * tile + half] = probabilities;
            gradients[2 * tile + half] = slopes;
        }
    }
}

/// Adds the products of rows in one tile with rows in another: `rows others^T`.
#[cube]
fn add_row_products<X: Float>(
    into: &mut Array<Pair<f32>>,
    rows: &Shared<[Pair<X>]>,
    others: &Shared<[Pair<X>]>,
    exchange: &mut Shared<[f32]>,
    #[comptime] form: UnitForm,
) {
    #[unroll(!form.emulated)]
    for step in 0..comptime!(form.d / 16) {
        let first = first_factor::<X>(rows, form.d, step);
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(form.columns / 8) {
            let second = second_factor::<X>(others, form.d, tile, step);
            multiply::<X>(&first, &second, into, tile, exchange, form.emulated);
        }
    }
}

/// Writes a unit's sums to rows of which `count` are there.
#[cube]
fn write<X: Float>(
    all: &mut [Pair<X>],
    start: usize,
    stride: usize,
    count: usize,
    sums: &Array<Pair<f32>>,
    #[comptime] d: usize,
) {
    #[unroll]
    for half in 0..2usize {
        let row = row_of(half);
        if row < count {
            #[unroll]
            for tile in 0..comptime!(d / 8) {
                all[start + row * stride + column_of(tile) / 2] = Vector::cast_from(sums[2 * tile + half]);
            }
        }
    }
}

/// A cube a block of queries of a head.
#[cube(launch)]
fn query_gradients<X: Float, P: Int, N: Size>(
    q: &[Vector<X, N>],
    k: &[Vector<X, N>],
    v: &[Vector<X, N>],
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    d_out: &[Vector<X, N>],
    dq: &mut [Vector<X, Const<2>>],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: UnitForm,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let lanes = N::value();
    let (d, vectors, width) = (comptime!(form.d), comptime!(form.d / lanes), comptime!(form.columns));
    let at = block_of_queries(ROWS, &sizes);
    if at.batch >= sizes.batches as usize {
        terminate!();
    }
    let (queries, heads) = (sizes.queries as usize, sizes.heads as usize);
    let mut exchange = Shared::<[f32]>::new_slice(comptime!(exchange_len(form.emulated)));
    let mut own = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(ROWS, form.d)));
    let mut own_gradients = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(ROWS, form.d)));
    let mut others = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.columns, form.d)));
    let mut values = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.columns, form.d)));
    let mut transposed = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.d, form.columns)));
    let of_queries = queries_at(at.batch, at.first, at.head, vectors, &sizes);
    load::<X, N>(&mut own, q, &of_queries, ROWS, d);
    load::<X, N>(&mut own_gradients, d_out, &of_queries, ROWS, d);
    let mut found = sums(comptime!(form.d / 8));
    let mut key = at.begin;
    while key < at.end {
        // The tiles are still read.
        sync_cube();
        let of_keys = keys_at(at.batch, key, at.group, vectors, &sizes);
        load::<X, N>(&mut others, k, &of_keys, width, d);
        load::<X, N>(&mut values, v, &of_keys, width, d);
        load_transposed::<X, N>(&mut transposed, k, &of_keys, width, d);
        sync_cube();
        let mut scores = sums(comptime!(form.columns / 8));
        let mut gradients = sums(comptime!(form.columns / 8));
        add_row_products::<X>(&mut scores, &own, &others, &mut exchange, form);
        add_row_products::<X>(&mut gradients, &own_gradients, &values, &mut exchange, form);
        let masked = is_masked::<P>(documents, at.first, ROWS, key, width, &sizes);
        let line = at.line - at.first;
        differentiate::<P>(
            &mut scores,
            &mut gradients,
            documents,
            statistics,
            at.batch,
            line,
            at.first,
            key,
            masked,
            &sizes,
            &mask,
            form,
            false,
        );
        add_combinations::<X>(&mut found, &gradients, &transposed, &mut exchange, width, d, form.emulated);
        key += width;
    }
    let pairs = comptime!(form.d / 2);
    let start = ((at.batch * queries + at.first) * heads + at.head) * pairs;
    write::<X>(dq, start, heads * pairs, queries - at.first, &found, d);
}

/// Of keys and values, `[b, s, g, d]` each. A cube a block of keys of a group, with all query heads of the group in order.
#[cube(launch)]
fn key_gradients<X: Float, P: Int, N: Size>(
    q: &[Vector<X, N>],
    k: &[Vector<X, N>],
    v: &[Vector<X, N>],
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    d_out: &[Vector<X, N>],
    dk: &mut [Vector<X, Const<2>>],
    dv: &mut [Vector<X, Const<2>>],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: UnitForm,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let lanes = N::value();
    let (d, vectors, width) = (comptime!(form.d), comptime!(form.d / lanes), comptime!(form.columns));
    let (queries, keys) = (sizes.queries as usize, sizes.keys as usize);
    let (heads, groups) = (sizes.heads as usize, sizes.groups as usize);
    let blocks = keys.div_ceil(ROWS);
    let (first, rest) = (CUBE_POS % blocks * ROWS, CUBE_POS / blocks);
    let (group, batch) = (rest % groups, rest / groups);
    if batch >= sizes.batches as usize {
        terminate!();
    }
    let mut exchange = Shared::<[f32]>::new_slice(comptime!(exchange_len(form.emulated)));
    let mut own = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(ROWS, form.d)));
    let mut own_values = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(ROWS, form.d)));
    let mut others = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.columns, form.d)));
    let mut outputs = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.columns, form.d)));
    let mut others_transposed = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.d, form.columns)));
    let mut outputs_transposed = Shared::<[Pair<X>]>::new_slice(comptime!(tile_pairs(form.d, form.columns)));
    let of_keys = keys_at(batch, first, group, vectors, &sizes);
    load::<X, N>(&mut own, k, &of_keys, ROWS, d);
    load::<X, N>(&mut own_values, v, &of_keys, ROWS, d);
    let mut of_own = sums(comptime!(form.d / 8));
    let mut of_values = sums(comptime!(form.d / 8));
    let span = seeing(first, ROWS, &sizes);
    for head in group * (heads / groups)..(group + 1) * (heads / groups) {
        let line = (batch * heads + head) * queries;
        let mut query = span.begin;
        while query < span.end {
            // The tiles are still read.
            sync_cube();
            let of_queries = queries_at(batch, query, head, vectors, &sizes);
            load::<X, N>(&mut others, q, &of_queries, width, d);
            load::<X, N>(&mut outputs, d_out, &of_queries, width, d);
            load_transposed::<X, N>(&mut others_transposed, q, &of_queries, width, d);
            load_transposed::<X, N>(&mut outputs_transposed, d_out, &of_queries, width, d);
            sync_cube();
            let mut scores = sums(comptime!(form.columns / 8));
            let mut gradients = sums(comptime!(form.columns / 8));
            add_row_products::<X>(&mut scores, &own, &others, &mut exchange, form);
            add_row_products::<X>(&mut gradients, &own_values, &outputs, &mut exchange, form);
            let masked = is_masked::<P>(documents, query, width, first, ROWS, &sizes);
            differentiate::<P>(
                &mut scores,
                &mut gradients,
                documents,
                statistics,
                batch,
                line,
                query,
                first,
                masked,
                &sizes,
                &mask,
                form,
                true,
            );
            add_combinations::<X>(&mut of_values, &scores, &outputs_transposed, &mut exchange, width, d, form.emulated);
            add_combinations::<X>(&mut of_own, &gradients, &others_transposed, &mut exchange, width, d, form.emulated);
            query += width;
        }
    }
    let pairs = comptime!(form.d / 2);
    let start = ((batch * keys + first) * groups + group) * pairs;
    write::<X>(dk, start, groups * pairs, keys - first, &of_own, d);
    write::<X>(dv, start, groups * pairs, keys - first, &of_values, d);
}

impl Saved {
    /// Gradients of queries, keys and values from that of the output; the means of gradients are filled in.
    pub(super) fn gradients_on_units(&self, d_out: &Buffer, form: UnitForm) -> [Tensor<4>; 3] {
        let Problem { b, t, s, h, g, .. } = self.problem;
        self.means(d_out);
        let (q, lanes) = (&self.q, vector_of(&self.q, form.d));
        let [dq, dk, dv] = [q, &self.k, &self.v].map(Buffer::uninitialised_like);
        let (count, dim) = q.cubes(b * h * t.div_ceil(ROWS), UNITS);
        query_gradients::launch(
            &q.0.client,
            count,
            dim,
            lanes,
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
        let (count, dim) = q.cubes(b * g * s.div_ceil(ROWS), UNITS);
        key_gradients::launch(
            &q.0.client,
            count,
            dim,
            lanes,
            q.arg(),
            self.k.arg(),
            self.v.arg(),
            self.documents.as_ref().map(Buffer::arg).into(),
            self.statistics.arg(),
            d_out.arg(),
            dk.arg(),
            dv.arg(),
            self.problem.sizes(),
            mask(self.problem.dropout),
            form,
            self.storage(),
        );
        [dq, dk, dv].map(Buffer::tensor)
    }
}
