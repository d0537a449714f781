//! Attention on GPUs with matrix units (FlashAttention-2, arXiv:2307.08691). As in [`super::cube`]
//! there is no score matrix; products are those of `cube::fragments`. As in the paper, a
//! query's delta (`D` there) is computed from its rounded output.
//!
//! For heads of 16-bit elements whose size is a multiple of 16, up to
//! `LARGEST_HEAD`. A cube has 64 queries of a head.

use burn::backend::Cube;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::cubecl;
use burn::cubecl::ir::features::MmaConfig;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::cube::{Operands, Problem, Saved, with_backward};
use super::cube_scores::{MASKED, Sizes, block_of_queries, is_visible, keys_at, queries_at, score};
use super::options::AttentionOptions;
use super::parts::fits_matrix_units;
use crate::cube::Buffer;
use crate::cube::fragments::{
    LANES, Pair, Quad, ROWS, UNITS, add_combinations, column_of, exchange_len, first_factor, is_first_of_row, load,
    load_transposed, multiply, row_max, row_of, row_sum, second_factor, sums, tile_quads,
};
use crate::dropout::cube::{Mask, factor, mask};

/// Keys of a tile, forward.
const KEYS: usize = 64;

/// Compile-time constants of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnitForm {
    /// Head size.
    pub d: usize,
    /// Columns of a tile of scores, backward.
    pub columns: usize,
    pub capped: bool,
    pub dropped: bool,
    /// True if matrix units are emulated.
    pub emulated: bool,
}

/// True if a tile has a key that may be masked for one of its queries.
#[cube]
pub(super) fn is_masked<P: Int>(
    documents: ComptimeOption<&[P]>,
    query: usize,
    queries: usize,
    key: usize,
    keys: usize,
    sizes: &Sizes,
) -> bool {
    let first = (sizes.keys - sizes.queries) as usize + query;
    let last = first + queries - 1;
    // Without a window this has the largest number, to which nothing can be added.
    let mut masked = query + queries > sizes.queries as usize
        || key + keys > first + 1
        || last - min(key, last) > sizes.window as usize;
    #[comptime]
    match documents {
        ComptimeOption::Some(_) => masked = true,
        ComptimeOption::None => {}
    }
    masked
}

/// Running softmax of a unit's two rows. Sums are the unit's share.
#[derive(CubeType)]
struct OnlineSoftmax {
    /// Running maximum of scores and sink.
    row_max: Array<f32>,
    row_sum: Array<f32>,
    /// Running maximum of the scores alone.
    max_logit: Array<f32>,
}

#[cube]
fn init_online_softmax(sinks: ComptimeOption<&[f32]>, head: usize) -> OnlineSoftmax {
    let mut softmax =
        OnlineSoftmax { row_max: Array::new(2usize), row_sum: Array::new(2usize), max_logit: Array::new(2usize) };
    #[unroll]
    for half in 0..2usize {
        softmax.row_max[half] = MASKED;
        softmax.row_sum[half] = 0.0f32;
        softmax.max_logit[half] = MASKED;
        #[comptime]
        match sinks {
            ComptimeOption::Some(sinks) => {
                softmax.row_max[half] = sinks[head];
                // One of the four units of a row counts it.
                if is_first_of_row() {
                    softmax.row_sum[half] = 1.0f32;
                }
            }
            ComptimeOption::None => {}
        }
    }
    softmax
}

/// Scores of masked keys become [`MASKED`].
#[cube]
fn apply_mask<P: Int>(
    scores: &mut Array<Pair<f32>>,
    documents: ComptimeOption<&[P]>,
    batch: usize,
    first: usize,
    key: usize,
    sizes: &Sizes,
    #[comptime] form: UnitForm,
) {
    #[unroll]
    for half in 0..2usize {
        let query = first + row_of(half);
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(KEYS / 8) {
            let mut pair = scores[2 * tile + half];
            #[unroll]
            for j in 0..2usize {
                if !is_visible::<P>(documents, batch, query, key + column_of(tile) + j, sizes) {
                    pair.insert(j, MASKED);
                }
            }
            scores[2 * tile + half] = pair;
        }
    }
}

/// Adds a block of keys: turns scores into exponentials, and rescales `outputs` to the new maximum.
#[cube]
fn online_softmax_step(
    softmax: &mut OnlineSoftmax,
    scores: &mut Array<Pair<f32>>,
    outputs: &mut Array<Pair<f32>>,
    exchange: &mut Shared<[f32]>,
    #[comptime] form: UnitForm,
) {
    #[unroll]
    for half in 0..2usize {
        let mut own = f32::new(MASKED);
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(KEYS / 8) {
            let pair = scores[2 * tile + half];
            own = max(own, max(pair.extract(0usize), pair.extract(1usize)));
        }
        let own = row_max(own, exchange, form.emulated);
        softmax.max_logit[half] = max(softmax.max_logit[half], own);
        let new_max = max(softmax.row_max[half], own);
        // With only masked keys so far, exponentials must still be zero.
        let mut base = new_max;
        if new_max <= MASKED {
            base = 0.0f32;
        }
        let rescale = (softmax.row_max[half] - base).exp();
        softmax.row_max[half] = new_max;
        let mut added = 0.0f32;
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(KEYS / 8) {
            let mut pair = scores[2 * tile + half];
            #[unroll]
            for j in 0..2usize {
                let exponential = (pair.extract(j) - base).exp();
                added += exponential;
                pair.insert(j, exponential);
            }
            scores[2 * tile + half] = pair;
        }
        softmax.row_sum[half] = softmax.row_sum[half] * rescale + added;
        let factor = Pair::<f32>::new(rescale);
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(form.d / 8) {
            outputs[2 * tile + half] *= factor;
        }
    }
}

/// The first factors of a unit's rows in a tile, for each step of 16 columns.
#[cube]
fn all_factors<X: Float>(tile: &Shared<[Quad<X>]>, #[comptime] form: UnitForm) -> Array<Pair<X>> {
    let mut factors = Array::<Pair<X>>::new(comptime!(form.d / 4));
    #[unroll(!form.emulated)]
    for step in 0..comptime!(form.d / 16) {
        let factor = first_factor::<X>(tile, form.d, step);
        #[unroll]
        for i in 0..4usize {
            factors[4 * step + i] = factor[i];
        }
    }
    factors
}

/// The scores of queries and keys.
#[cube]
fn scores_of<X: Float>(
    queries: &Array<Pair<X>>,
    keys: &Shared<[Quad<X>]>,
    sizes: &Sizes,
    exchange: &mut Shared<[f32]>,
    #[comptime] form: UnitForm,
) -> Array<Pair<f32>> {
    let mut scores = sums(comptime!(KEYS / 8));
    #[unroll(!form.emulated)]
    for step in 0..comptime!(form.d / 16) {
        let mut of_queries = Array::<Pair<X>>::new(4usize);
        #[unroll]
        for i in 0..4usize {
            of_queries[i] = queries[4 * step + i];
        }
        #[unroll(!form.emulated)]
        for tile in 0..comptime!(KEYS / 8) {
            let of_keys = second_factor::<X>(keys, form.d, tile, step);
            multiply::<X>(&of_queries, &of_keys, &mut scores, tile, exchange, form.emulated);
        }
    }
    #[unroll(!form.emulated)]
    for i in 0..comptime!(KEYS / 4) {
        let mut pair = scores[i];
        #[unroll]
        for j in 0..2usize {
            pair.insert(j, score(pair.extract(j), sizes, form.capped));
        }
        scores[i] = pair;
    }
    scores
}

/// Output and statistics: for each query the log-sum-exp and the maximum of its scores, `[2, b, h,
/// t]`. One cube computes a block of queries of a head.
#[cube(launch)]
fn forward<X: Float, P: Int, N: Size>(
    q: &[Vector<X, N>],
    k: &[Vector<X, N>],
    v: &[Vector<X, N>],
    sinks: ComptimeOption<&[f32]>,
    documents: ComptimeOption<&[P]>,
    out: &mut [Vector<X, Const<2>>],
    statistics: &mut [f32],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: UnitForm,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let d = comptime!(form.d);
    let lanes = N::value();
    let vectors = comptime!(form.d / lanes);
    let at = block_of_queries(ROWS, &sizes);
    if at.batch >= sizes.batches as usize {
        terminate!();
    }
    let (queries, heads) = (sizes.queries as usize, sizes.heads as usize);
    let mut exchange = Shared::<[f32]>::new_slice(comptime!(exchange_len(form.emulated)));
    let mut own = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(KEYS, form.d)));
    let mut values = Shared::<[Quad<X>]>::new_slice(comptime!(tile_quads(form.d, KEYS)));
    load::<X, N>(&mut own, q, &queries_at(at.batch, at.first, at.head, vectors, &sizes), ROWS, d);
    sync_cube();
    let factors = all_factors::<X>(&own, form);
    let mut softmax = init_online_softmax(sinks, at.head);
    let mut outputs = sums(comptime!(form.d / 8));
    let mut key = at.begin;
    while key < at.end {
        // The tiles are still read.
        sync_cube();
        let of_keys = keys_at(at.batch, key, at.group, vectors, &sizes);
        load::<X, N>(&mut own, k, &of_keys, KEYS, d);
        load_transposed::<X, N>(&mut values, v, &of_keys, KEYS, d);
        sync_cube();
        let mut scores = scores_of::<X>(&factors, &own, &sizes, &mut exchange, form);
        if is_masked::<P>(documents, at.first, ROWS, key, KEYS, &sizes) {
            apply_mask::<P>(&mut scores, documents, at.batch, at.first, key, &sizes, form);
        }
        online_softmax_step(&mut softmax, &mut scores, &mut outputs, &mut exchange, form);
        if comptime!(form.dropped) {
            drop_out(&mut scores, &mask, at.line, key, &sizes, comptime!(KEYS / 8));
        }
        add_combinations::<X>(&mut outputs, &scores, &values, &mut exchange, KEYS, d, form.emulated);
        key += KEYS;
    }
    let pairs = comptime!(form.d / 2);
    #[unroll]
    for half in 0..2usize {
        let total = row_sum(softmax.row_sum[half], &mut exchange, form.emulated);
        let row = row_of(half);
        if at.first + row < queries {
            if is_first_of_row() {
                statistics[at.line + row] = softmax.row_max[half] + total.ln();
                statistics[statistics.len() / 2 + at.line + row] = softmax.max_logit[half];
            }
            let start = ((at.batch * queries + at.first + row) * heads + at.head) * pairs;
            let divisor = Pair::<f32>::new(total);
            #[unroll(!form.emulated)]
            for tile in 0..comptime!(form.d / 8) {
                out[start + column_of(tile) / 2] = Vector::cast_from(outputs[2 * tile + half] / divisor);
            }
        }
    }
}

/// Drops probabilities out. Rows are queries, of which the cube's first is at `line` of `[b, h,
/// t]`.
#[cube]
fn drop_out(
    probabilities: &mut Array<Pair<f32>>,
    mask: &Mask,
    line: usize,
    key: usize,
    sizes: &Sizes,
    #[comptime] tiles: usize,
) {
    #[unroll]
    for half in 0..2usize {
        #[unroll]
        for tile in 0..tiles {
            let mut pair = probabilities[2 * tile + half];
            #[unroll]
            for j in 0..2usize {
                let (row, column) = (line + row_of(half), key + column_of(tile) + j);
                let kept = pair.extract(j) * factor(mask, row as u32, column as u32, sizes.keys);
                pair.insert(j, kept);
            }
            probabilities[2 * tile + half] = pair;
        }
    }
}

impl Problem {
    /// `None` for heads that this form does not take.
    fn unit_form(&self, emulated: Option<usize>) -> Option<UnitForm> {
        let Self { d, width, .. } = *self;
        fits_matrix_units(d, width).then_some(())?;
        // Fewer where a unit has many sums of a head.
        let columns = emulated.unwrap_or(if d > 64 { 32 } else { 64 });
        let (capped, dropped) = (self.softcap.is_some(), self.dropout.is_some());
        Some(UnitForm { d, columns, capped, dropped, emulated: emulated.is_some() })
    }
}

/// Elements of a vector of a head that is read at once: tiles have four side by side.
pub(super) fn vector_of(x: &Buffer, d: usize) -> usize {
    x.lanes_of(x.0.dtype.size(), d).max(4)
}

impl Saved {
    /// Fills in output and statistics.
    fn forward_on_units(&self, sinks: Option<&Buffer>, form: UnitForm) {
        let Self { problem, q, k, v, out, documents, statistics } = self;
        let (count, dim) = q.cubes(problem.b * problem.h * problem.t.div_ceil(ROWS), UNITS);
        forward::launch(
            &q.0.client,
            count,
            dim,
            vector_of(q, form.d),
            q.arg(),
            k.arg(),
            v.arg(),
            sinks.map(Buffer::arg).into(),
            documents.as_ref().map(Buffer::arg).into(),
            out.arg(),
            statistics.arg(),
            problem.sizes(),
            mask(problem.dropout),
            form,
            self.storage(),
        );
    }
}

/// True if the device of `x` has matrix units for its elements, and planes of the size that the
/// kernels need. Does not copy.
fn has_matrix_units(x: &Tensor<4>) -> bool {
    let Ok(x) = x.clone().without_autodiff().try_into_primitive::<Cube>() else { return false };
    let (properties, element) = (x.client.properties(), dtype_to_storage_type(x.dtype));
    let sums = f32::elem_type_native();
    let wanted = MmaConfig { a_type: element, b_type: element, cd_type: sums, m: 16, n: 8, k: 16 };
    properties.features.matmul.mma.contains(&wanted) && properties.hardware.plane_size_min == LANES as u32
}

/// See [`crate::attention()`] and [`super::cube::attention`], whose conditions apply too. It
/// requires matrix units for the elements, unless they are `emulated`, which is for tests, in 32
/// bits too: with this number of columns of a tile of scores in backward, 32 or 64.
pub fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
    emulated: Option<usize>,
) -> Option<Tensor<4>> {
    (emulated.is_some() || has_matrix_units(q_bthd)).then_some(())?;
    let Operands { mut saved, sinks } = Operands::from_tensors([q_bthd, k_bsgd, v_bsgd], options)?;
    let form = saved.problem.unit_form(emulated)?;
    saved.out = saved.q.uninitialised_like();
    saved.forward_on_units(sinks.as_ref(), form);
    Some(with_backward(saved, sinks, [q_bthd, k_bsgd, v_bsgd], options, move |saved, d_out| {
        saved.gradients_on_units(d_out, form)
    }))
}
