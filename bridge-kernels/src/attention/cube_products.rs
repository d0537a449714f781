//! Attention on GPUs by matrix products, which run on matrix units: scores of a part of the
//! queries, of some sequences, exist at once, with the keys that are visible to any of them.
//! Between the products are one kernel forward and one backward, which reads scores formed again
//! and the log-sum-exp of each query.
//!
//! A table of products writes scores and gradients of probabilities in float32 for any storage
//! dtype. The kernels read these, and write the inputs of the next product in the storage dtype to
//! memory of their own. Burn's products round to the storage dtype.

use std::convert::Infallible;

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::cube::{Operands, Problem, Saved, with_backward};
use super::cube_scores::{MASKED, Sizes, is_visible, score, score_gradient};
use super::options::AttentionOptions;
use super::parts::{BYTES, Part, SCORE_BYTES, parts};
use super::products::{Products, Sums};
use crate::cube::Buffer;
use crate::cube::reduce::{cube_max, cube_sum};
use crate::cublaslt::Table;
#[cfg(feature = "cuda")]
use crate::cublaslt::cuda::CublasLt;
use crate::dropout::cube::{Mask, factor, mask};

impl Part {
    fn launch(&self) -> PartPositionLaunch {
        let Self { batch, query, queries, key, keys, .. } = *self;
        let [batch, query, queries, key, keys] = [batch, query, queries, key, keys].map(|x| x as u32);
        PartPositionLaunch::new(batch, query, queries, key, keys)
    }

    /// Queries of this part, `[batches, g, heads of a group * queries, columns]`, from `x [b, g,
    /// heads of a group, t, columns]`.
    fn of_queries(&self, x: &Tensor<5>) -> Tensor<4> {
        let [_, g, heads, _, columns] = x.dims();
        let own = x.clone().narrow(0, self.batch, self.batches).narrow(3, self.query, self.queries);
        own.reshape([self.batches, g, heads * self.queries, columns])
    }

    /// Keys of this part, from `x [b, g, s, columns]`.
    fn of_keys(&self, x: &Tensor<4>) -> Tensor<4> {
        x.clone().narrow(0, self.batch, self.batches).narrow(2, self.key, self.keys)
    }

    /// From `[batches, g, heads of a group * queries, columns]` to `[batches, queries, h,
    /// columns]`.
    fn by_query(&self, x: Tensor<4>, h: usize) -> Tensor<4> {
        let [batches, g, rows, columns] = x.dims();
        let x: Tensor<5> = x.reshape([batches, g, rows / self.queries, self.queries, columns]);
        x.permute([0, 3, 1, 2, 4]).reshape([batches, self.queries, h, columns])
    }
}

/// Position of a part.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct PartPosition {
    batch: u32,
    query: u32,
    queries: u32,
    key: u32,
    keys: u32,
}

/// Compile-time constants of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowForm {
    capped: bool,
    dropped: bool,
    /// Units of a cube that has a row.
    units: usize,
}

/// Position of a row of scores: a query of a head.
#[derive(CubeType, Clone, Copy)]
struct Row {
    batch: usize,
    head: usize,
    query: usize,
    /// The head's first query in `[b, h, t]`.
    line: usize,
}

#[cube]
fn row_at(row: usize, position: &PartPosition, sizes: &Sizes) -> Row {
    let (queries, heads) = (position.queries as usize, sizes.heads as usize);
    let (own, rest) = (row % queries, row / queries);
    let (head, batch) = (rest % heads, position.batch as usize + rest / heads);
    Row { batch, head, query: position.query as usize + own, line: (batch * heads + head) * sizes.queries as usize }
}

/// From products of queries and keys the probabilities after dropout; `statistics`, `[2, b, h, t]`,
/// get the log-sum-exp and the max logit of each query. One cube computes a row, and reads it
/// twice.
#[cube(launch)]
fn softmax_rows<S: Float, X: Float, P: Int>(
    scores: &[S],
    sinks: ComptimeOption<&[f32]>,
    documents: ComptimeOption<&[P]>,
    probabilities: &mut [X],
    statistics: &mut [f32],
    position: PartPosition,
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: RowForm,
    #[define(S, X, P)] _storage: [ElemType; 3],
) {
    let units = comptime!(form.units);
    let (row, unit, keys) = (CUBE_POS, UNIT_POS as usize, position.keys as usize);
    if row >= scores.len() / keys {
        terminate!();
    }
    let at = row_at(row, &position, &sizes);
    let start = row * keys;
    // Of this unit's columns.
    let mut own_max = f32::new(MASKED);
    let mut own_sum = 0.0f32;
    for column in range_stepped(unit, keys, units) {
        if is_visible::<P>(documents, at.batch, at.query, position.key as usize + column, &sizes) {
            let value = score(f32::cast_from(scores[start + column]), &sizes, form.capped);
            // NaN is not larger, and is passed on.
            if value > own_max {
                own_sum *= (own_max - value).exp();
                own_max = value;
            }
            own_sum += (value - own_max).exp();
        }
    }
    let max_logit = cube_max::<f32>(own_max, units);
    let mut row_max = max_logit;
    let mut of_sink = 0.0f32;
    #[comptime]
    match sinks {
        ComptimeOption::Some(sinks) => {
            row_max = max(row_max, sinks[at.head]);
            of_sink = (sinks[at.head] - row_max).exp();
        }
        ComptimeOption::None => {}
    }
    let row_sum = cube_sum(own_sum * (own_max - row_max).exp(), units) + of_sink;
    for column in range_stepped(unit, keys, units) {
        let key = position.key as usize + column;
        let mut probability = 0.0f32;
        if is_visible::<P>(documents, at.batch, at.query, key, &sizes) {
            probability =
                (score(f32::cast_from(scores[start + column]), &sizes, form.capped) - row_max).exp() / row_sum;
            if comptime!(form.dropped) {
                probability *= factor(&mask, (at.line + at.query) as u32, key as u32, sizes.keys);
            }
        }
        probabilities[start + column] = X::cast_from(probability);
    }
    if unit == 0 {
        statistics[at.line + at.query] = row_max + row_sum.ln();
        statistics[statistics.len() / 2 + at.line + at.query] = max_logit;
    }
}

/// From products of queries and keys the probabilities after dropout, and from `gradients` of these
/// those of the products. `statistics`, `[2, b, h, t]`, are log-sum-exps, and get the deltas. A
/// delta is the mean of the gradients of probabilities as they are stored, so that a term that all
/// keys of a query share cancels exactly. One cube computes a row.
#[cube(launch)]
fn score_gradients<S: Float, X: Float, P: Int>(
    scores: &[S],
    gradients: &[S],
    documents: ComptimeOption<&[P]>,
    probabilities: &mut [X],
    of_scores: &mut [X],
    statistics: &mut [f32],
    position: PartPosition,
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: RowForm,
    #[define(S, X, P)] _storage: [ElemType; 3],
) {
    let units = comptime!(form.units);
    let (row, unit, keys) = (CUBE_POS, UNIT_POS as usize, position.keys as usize);
    if row >= scores.len() / keys {
        terminate!();
    }
    let at = row_at(row, &position, &sizes);
    let (line, start) = (at.line + at.query, row * keys);
    let log_sum_exp = statistics[line];
    let mut delta = 0.0f32;
    for column in range_stepped(unit, keys, units) {
        let key = position.key as usize + column;
        if is_visible::<P>(documents, at.batch, at.query, key, &sizes) {
            let value = score(f32::cast_from(scores[start + column]), &sizes, form.capped);
            let mut gradient = f32::cast_from(gradients[start + column]);
            if comptime!(form.dropped) {
                gradient *= factor(&mask, line as u32, key as u32, sizes.keys);
            }
            delta += (value - log_sum_exp).exp() * gradient;
        }
    }
    let delta = cube_sum(delta, units);
    for column in range_stepped(unit, keys, units) {
        let key = position.key as usize + column;
        let mut probability = 0.0f32;
        let mut gradient = 0.0f32;
        if is_visible::<P>(documents, at.batch, at.query, key, &sizes) {
            let found = score_gradient(
                f32::cast_from(scores[start + column]),
                f32::cast_from(gradients[start + column]),
                log_sum_exp,
                delta,
                sizes.scale,
                line,
                key,
                &sizes,
                &mask,
                form.capped,
                form.dropped,
            );
            probability = found.probability;
            gradient = found.gradient;
        }
        probabilities[start + column] = X::cast_from(probability);
        of_scores[start + column] = X::cast_from(gradient);
    }
    if unit == 0 {
        statistics[statistics.len() / 2 + line] = delta;
    }
}

/// `[b, length, g * heads of a group, columns]` by head: `[b, g, heads of a group, length,
/// columns]`, a view.
fn by_head(x: Tensor<4>, g: usize) -> Tensor<5> {
    let [b, length, h, columns] = x.dims();
    x.reshape([b, length, g, h / g, columns]).permute([0, 2, 3, 1, 4])
}

impl Saved {
    /// Parts with at most `bytes` bytes of float32 scores, if that holds enough queries and a
    /// kernel can take them.
    fn parts(&self, bytes: usize) -> Vec<Part> {
        let Problem { b, h, t, s, window, .. } = self.problem;
        let largest = usize::try_from(self.q.0.client.properties().memory.max_page_size).unwrap_or(usize::MAX);
        parts([b, h, t, s], window, bytes.min(largest) / SCORE_BYTES)
    }

    /// Queries by head, and keys and values `[b, g, s, columns]` as products take them.
    fn heads<T: Table>(&self, products: &Products<T>) -> (Tensor<5>, [Tensor<4>; 2]) {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| x.clone().tensor::<4>());
        (by_head(q, self.problem.g), [k, v].map(|x| products.operand(x.permute([0, 2, 1, 3]))))
    }

    fn row_form(&self, units: usize) -> RowForm {
        RowForm { capped: self.problem.softcap.is_some(), dropped: self.problem.dropout.is_some(), units }
    }

    /// Storage types of scores, heads and documents.
    fn storage_with(&self, scores: &Buffer) -> [ElemType; 3] {
        let [heads, documents] = self.storage();
        [scores.storage(), heads, documents]
    }

    /// The output; the statistics are filled in.
    fn forward_by_products<T: Table>(
        &self,
        products: &Products<T>,
        parts: &[Part],
        sinks: Option<&Buffer>,
    ) -> Option<Tensor<4>> {
        let (q, [k, v]) = self.heads(products);
        let mut sequences: Vec<Vec<Tensor<4>>> = Vec::new();
        for part in parts {
            let scores = products.wide(&part.of_queries(&q), &part.of_keys(&k).transpose());
            let shape = scores.dims();
            let scores = Buffer::from_tensor(&scores)?;
            let probabilities = scores.uninitialised(shape, self.q.0.dtype);
            let (count, dim, units) = scores.cube_per_row(scores.len() / part.keys, part.keys);
            softmax_rows::launch(
                &scores.0.client,
                count,
                dim,
                scores.arg(),
                sinks.map(Buffer::arg).into(),
                self.documents.as_ref().map(Buffer::arg).into(),
                probabilities.arg(),
                self.statistics.arg(),
                part.launch(),
                self.problem.sizes(),
                mask(self.problem.dropout),
                self.row_form(units),
                self.storage_with(&scores),
            );
            // Later operations may reuse the memory of the scores.
            drop(scores);
            let out = products.narrow(&probabilities.tensor(), &part.of_keys(&v));
            append(&mut sequences, part, part.by_query(out, self.problem.h));
        }
        Some(joined(sequences))
    }

    /// The gradients of queries, keys and values. Fills in the deltas.
    fn gradients_by_products<T: Table>(
        &self,
        products: &Products<T>,
        parts: &[Part],
        d_out: &Buffer,
    ) -> [Tensor<4>; 3] {
        let Problem { s, h, g, d, width, .. } = self.problem;
        let (q, [k, v]) = self.heads(products);
        let d_out = by_head(d_out.clone().tensor(), g);
        let mut dq = Vec::<Vec<Tensor<4>>>::new();
        let [mut dk, mut dv] = [d, width].map(|columns| Sums::new([g, s, columns], self.q.0.dtype));
        for part in parts {
            let [own_q, own_d_out] = [&q, &d_out].map(|x| products.operand(part.of_queries(x)));
            let [own_k, own_v] = [&k, &v].map(|x| part.of_keys(x));
            let pairs = [[&own_q, &own_k.clone().transpose()], [&own_d_out, &own_v.transpose()]];
            let [probabilities, of_scores] = self.score_gradients(part, products.wide_alike(pairs));
            append(&mut dq, part, part.by_query(products.narrow(&of_scores, &own_k), h));
            dk.add(products, part, &of_scores, &own_q);
            dv.add(products, part, &probabilities, &own_d_out);
        }
        [joined(dq), dk.finish(), dv.finish()]
    }

    /// The probabilities of a part after dropout, and the gradients of its products of queries and
    /// keys, from these products and gradients of probabilities.
    fn score_gradients(&self, part: &Part, from: [Tensor<4>; 2]) -> [Tensor<4>; 2] {
        let [scores, gradients] = from.map(|x| Buffer::from_tensor(&x).expect("the forward had one of this size"));
        let shape = scores.0.meta.shape();
        let [probabilities, of_scores] = [(); 2].map(|()| scores.uninitialised(shape.clone(), self.q.0.dtype));
        let (count, dim, units) = scores.cube_per_row(scores.len() / part.keys, part.keys);
        score_gradients::launch(
            &scores.0.client,
            count,
            dim,
            scores.arg(),
            gradients.arg(),
            self.documents.as_ref().map(Buffer::arg).into(),
            probabilities.arg(),
            of_scores.arg(),
            self.statistics.arg(),
            part.launch(),
            self.problem.sizes(),
            mask(self.problem.dropout),
            self.row_form(units),
            self.storage_with(&scores),
        );
        [probabilities.tensor(), of_scores.tensor()]
    }
}

/// Adds a part's rows of queries to those of its sequence.
fn append(sequences: &mut Vec<Vec<Tensor<4>>>, part: &Part, own: Tensor<4>) {
    match sequences.last_mut().filter(|_| part.query > 0) {
        Some(sequence) => sequence.push(own),
        None => sequences.push(vec![own]),
    }
}

/// Sequences from their runs of queries.
fn joined(sequences: Vec<Vec<Tensor<4>>>) -> Tensor<4> {
    Tensor::cat(sequences.into_iter().map(|parts| Tensor::cat(parts, 1)).collect(), 0)
}

/// See [`crate::attention()`] and [`super::cube::attention`], whose conditions it has. On CUDA
/// devices the products are those of cuBLASLt, if it is there.
pub fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    #[cfg(feature = "cuda")]
    if let Some(table) = CublasLt::from_tensor(q_bthd) {
        return by_products(Products(Some(table)), [q_bthd, k_bsgd, v_bsgd], options, BYTES);
    }
    attention_in_parts(q_bthd, k_bsgd, v_bsgd, options, BYTES)
}

/// [`attention`] by Burn's products, with at most `bytes` bytes of scores at once (counted as
/// float32), if that holds the smallest number of queries that are processed together.
pub fn attention_in_parts(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
    bytes: usize,
) -> Option<Tensor<4>> {
    by_products(Products(None::<Infallible>), [q_bthd, k_bsgd, v_bsgd], options, bytes)
}

/// [`attention_in_parts`] by the products of a table, and Burn's for those that it does not have.
pub fn attention_by_table<T: Table>(
    table: &T,
    heads: [&Tensor<4>; 3],
    options: &AttentionOptions,
    bytes: usize,
) -> Option<Tensor<4>> {
    by_products(Products(Some(table.clone())), heads, options, bytes)
}

fn by_products<T: Table>(
    products: Products<T>,
    heads: [&Tensor<4>; 3],
    options: &AttentionOptions,
    bytes: usize,
) -> Option<Tensor<4>> {
    let Operands { mut saved, sinks } = Operands::from_tensors(heads, options)?;
    let parts = saved.parts(bytes);
    saved.out = Buffer::from_tensor(&saved.forward_by_products(&products, &parts, sinks.as_ref())?)?;
    Some(with_backward(saved, sinks, heads, options, move |saved, d_out| {
        saved.gradients_by_products(&products, &parts, d_out)
    }))
}
