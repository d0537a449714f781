//! Backward of attention on matrix units: as [`super::cube_backward`], one kernel for the gradients
//! of queries and one for those of keys and values, each of which forms the scores again.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::cube::{Problem, Saved};
use super::cube_scores::{
    MASKED, Sizes, block_of_queries, is_visible, keys_at, queries_at, score_gradient, visible_queries,
};
use super::matrix_units::{UnitForm, is_masked, vector_of};
use crate::cube::Buffer;
use crate::cube::fragments::{
    Pair, Quad, ROWS, UNITS, add_combinations, column_of, exchange_len, first_factor, is_first_of_row, lane, load,
    load_transposed, multiply, row_of, row_sum, second_factor, sums, tile_quads,
};
use crate::cube::tile::Rows;
use crate::dropout::cube::{Mask, mask};

/// Log-sum-exps of a unit's two rows of queries, and their deltas, which are filled in: the sums of
/// the products of output and its gradient.
#[cube]
fn statistics_of_rows<X: Float, N: Size>(
    statistics: &mut [f32],
    out: &[Vector<X, N>],
    d_out: &[Vector<X, N>],
    from: &Rows,
    line: usize,
    exchange: &mut Shared<[f32]>,
    #[comptime] form: UnitForm,
) -> Array<f32> {
    let lanes = N::value();
    let vectors = comptime!(form.d / lanes);
    let deltas = statistics.len() / 2;
    let mut found = Array::new(4usize);
    #[unroll]
    for half in 0..2usize {
        let row = row_of(half);
        let is_there = row < from.count;
        let mut sum = 0.0f32;
        if is_there {
            for vector in range_stepped(lane() % 4, vectors, 4) {
                let index = from.start + row * from.stride + vector;
                let products = Vector::<f32, N>::cast_from(out[index]) * Vector::cast_from(d_out[index]);
                #[unroll]
                for i in 0..lanes {
                    sum += products.extract(i);
                }
            }
        }
        let delta = row_sum(sum, exchange, form.emulated);
        // A row without a query gets probabilities of zero.
        found[half] = -MASKED;
        found[2 + half] = delta;
        if is_there {
            found[half] = statistics[line + row];
            if is_first_of_row() {
                statistics[deltas + line + row] = delta;
            }
        }
    }
    found
}

/// From products of queries and keys and gradients of probabilities to probabilities after dropout
/// and gradients of the products. Log-sum-exps and deltas are those of the rows, or, where rows are
/// keys (`by_key`), of the columns. `line` is the head's first query in `[b, h, t]`.
#[cube]
fn score_gradients(
    scores: &mut Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    of_rows: &Array<f32>,
    of_columns: &Shared<[f32]>,
    line: usize,
    query: usize,
    key: usize,
    sizes: &Sizes,
    mask: &Mask,
    #[comptime] form: UnitForm,
    #[comptime] by_key: bool,
) {
    #[unroll(!form.emulated)]
    for tile in 0..comptime!(form.columns / 8) {
        #[unroll]
        for j in 0..2usize {
            let column = column_of(tile) + j;
            let mut log_sum_exp = 0.0f32;
            let mut delta = 0.0f32;
            if comptime!(by_key) {
                log_sum_exp = of_columns[column];
                delta = of_columns[comptime!(form.columns) + column];
            }
            #[unroll]
            for half in 0..2usize {
                let mut probabilities = scores[2 * tile + half];
                let mut slopes = gradients[2 * tile + half];
                let mut own = row_of(half);
                let mut other = column;
                if comptime!(by_key) {
                    own = column;
                    other = row_of(half);
                } else {
                    log_sum_exp = of_rows[half];
                    delta = of_rows[2 + half];
                }
                // Scaled before it is rounded, for float16.
                let found = score_gradient(
                    probabilities.extract(j),
                    slopes.extract(j),
                    log_sum_exp,
                    delta,
                    sizes.scale,
                    line + query + own,
                    key + other,
                    sizes,
                    mask,
                    form.capped,
                    form.dropped,
                );
                probabilities.insert(j, found.probability);
                slopes.insert(j, found.gradient);
                scores[2 * tile + half] = probabilities;
                gradients[2 * tile + half] = slopes;
            }
        }
    }
}

/// Sets probabilities and gradients of masked keys to zero, after [`score_gradients`].
#[cube]
fn apply_mask<P: Int>(
    scores: &mut Array<Pair<f32>>,
    gradients: &mut Array<Pair<f32>>,
    documents: ComptimeOption<&[P]>,
    batch: usize,
    query: usize,
    key: usize,
    sizes: &Sizes,
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
                let mut own = row_of(half);
                let mut other = column_of(tile) + j;
                if comptime!(by_key) {
                    own = column_of(tile) + j;
                    other = row_of(half);
                }
                if !is_visible::<P>(documents, batch, query + own, key + other, sizes) {
                    probabilities.insert(j, 0.0f32);
                    slopes.insert(j, 0.0f32);
                }
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
    rows: &Shared<[Quad<X>]>,
    others: &Shared<[Quad<X>]>,
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
    statistics: &mut [f32],
    out: &[Vector<X, N>],
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
    let mut own = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(ROWS, form.d)));
    let mut own_gradients = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(ROWS, form.d)));
    let mut others = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.columns, form.d)));
    let mut values = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.columns, form.d)));
    let mut transposed = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.d, form.columns)));
    let of_queries = queries_at(at.batch, at.first, at.head, vectors, &sizes);
    load::<X, N>(&mut own, q, &of_queries, ROWS, d);
    load::<X, N>(&mut own_gradients, d_out, &of_queries, ROWS, d);
    let of_rows = statistics_of_rows::<X, N>(statistics, out, d_out, &of_queries, at.line, &mut exchange, form);
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
        let line = at.line - at.first;
        score_gradients(
            &mut scores,
            &mut gradients,
            &of_rows,
            &exchange,
            line,
            at.first,
            key,
            &sizes,
            &mask,
            form,
            false,
        );
        if is_masked::<P>(documents, at.first, ROWS, key, width, &sizes) {
            apply_mask::<P>(&mut scores, &mut gradients, documents, at.batch, at.first, key, &sizes, form, false);
        }
        add_combinations::<X>(&mut found, &gradients, &transposed, &mut exchange, width, d, form.emulated);
        key += width;
    }
    let pairs = comptime!(form.d / 2);
    let start = ((at.batch * queries + at.first) * heads + at.head) * pairs;
    write::<X>(dq, start, heads * pairs, queries - at.first, &found, d);
}

/// Loads log-sum-exps and deltas of `width` queries from a line on, of which `count` exist, into
/// shared memory. The caller must call `sync_cube` afterwards.
#[cube]
fn load_statistics(
    of_columns: &mut Shared<[f32]>,
    statistics: &[f32],
    line: usize,
    count: usize,
    #[comptime] width: usize,
) {
    let unit = UNIT_POS as usize;
    if unit < width {
        // A row without a query gets probabilities of zero.
        let mut log_sum_exp = f32::new(-MASKED);
        let mut delta = 0.0f32;
        if unit < count {
            log_sum_exp = statistics[line + unit];
            delta = statistics[statistics.len() / 2 + line + unit];
        }
        of_columns[unit] = log_sum_exp;
        of_columns[width + unit] = delta;
    }
}

/// Gradients of keys and values, `[b, s, g, d]` each. One cube computes a block of keys of a group,
/// with all query heads of the group in order.
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
    let mut own = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(ROWS, form.d)));
    let mut own_values = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(ROWS, form.d)));
    let mut others = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.columns, form.d)));
    let mut outputs = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.columns, form.d)));
    let mut others_transposed = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.d, form.columns)));
    let mut outputs_transposed = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.d, form.columns)));
    let of_keys = keys_at(batch, first, group, vectors, &sizes);
    load::<X, N>(&mut own, k, &of_keys, ROWS, d);
    load::<X, N>(&mut own_values, v, &of_keys, ROWS, d);
    let mut of_columns = Shared::<[f32]>::new_slice(comptime!(2 * form.columns));
    let mut of_own = sums(comptime!(form.d / 8));
    let mut of_values = sums(comptime!(form.d / 8));
    let (none, span) = (Array::<f32>::new(4usize), visible_queries(first, ROWS, &sizes));
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
            load_statistics(&mut of_columns, statistics, line + query, queries - query, width);
            sync_cube();
            let mut scores = sums(comptime!(form.columns / 8));
            let mut gradients = sums(comptime!(form.columns / 8));
            add_row_products::<X>(&mut scores, &own, &others, &mut exchange, form);
            add_row_products::<X>(&mut gradients, &own_values, &outputs, &mut exchange, form);
            score_gradients(
                &mut scores,
                &mut gradients,
                &none,
                &of_columns,
                line,
                query,
                first,
                &sizes,
                &mask,
                form,
                true,
            );
            if is_masked::<P>(documents, query, width, first, ROWS, &sizes) {
                apply_mask::<P>(&mut scores, &mut gradients, documents, batch, query, first, &sizes, form, true);
            }
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
    /// Gradients of queries, keys and values from that of the output. Fills in the deltas.
    pub(super) fn gradients_on_units(&self, d_out: &Buffer, form: UnitForm) -> [Tensor<4>; 3] {
        let Problem { b, t, s, h, g, .. } = self.problem;
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
            self.out.arg(),
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
