//! Attention on GPUs by matrix products, which run on matrix units: scores of a part of the queries, of some sequences, exist at once, with the keys that any of
//! these queries sees. Between the products are one kernel forward and one backward, which reads scores formed again and the log-sum-exp of each query.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use super::cube::{Operands, Problem, Saved, with_backward};
use super::cube_scores::{HIDDEN, Sizes, score, sees};
use super::options::AttentionOptions;
use super::parts::{BYTES, Part, parts};
use crate::cube::Buffer;
use crate::cube::reduce::{cube_max, cube_sum};
use crate::dropout::cube::{Mask, factor, mask};
use crate::precision::{narrow, widen};

impl Part {
    fn launch(&self) -> PlaceLaunch {
        let Self { batch, query, queries, key, keys, .. } = *self;
        let [batch, query, queries, key, keys] = [batch, query, queries, key, keys].map(|x| x as u32);
        PlaceLaunch::new(batch, query, queries, key, keys)
    }

    /// Of `x [b, g, heads of a group, t, columns]` the queries of this part, `[batches, g, heads of a group * queries, columns]`.
    fn of_queries(&self, x: &Tensor<5>) -> Tensor<4> {
        let [_, g, heads, _, columns] = x.dims();
        let own = x.clone().narrow(0, self.batch, self.batches).narrow(3, self.query, self.queries);
        own.reshape([self.batches, g, heads * self.queries, columns])
    }

    /// Of `x [b, g, s, columns]` the keys of this part.
    fn of_keys(&self, x: &Tensor<4>) -> Tensor<4> {
        x.clone().narrow(0, self.batch, self.batches).narrow(2, self.key, self.keys)
    }

    /// From `[batches, g, heads of a group * queries, columns]` to `[batches, queries, h, columns]`.
    fn by_query(&self, x: Tensor<4>, h: usize) -> Tensor<4> {
        let [batches, g, rows, columns] = x.dims();
        let x: Tensor<5> = x.reshape([batches, g, rows / self.queries, self.queries, columns]);
        x.permute([0, 3, 1, 2, 4]).reshape([batches, self.queries, h, columns])
    }
}

/// Where a part is.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Place {
    batch: u32,
    query: u32,
    queries: u32,
    key: u32,
    keys: u32,
}

/// What is fixed when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowForm {
    capped: bool,
    dropped: bool,
    /// Units of a cube that has a row.
    units: usize,
}

/// Where a row of scores is: a query of a head.
#[derive(CubeType, Clone, Copy)]
struct Row {
    batch: usize,
    head: usize,
    query: usize,
    /// The head's first query in `[b, h, t]`.
    line: usize,
}

#[cube]
fn row_at(row: usize, place: &Place, sizes: &Sizes) -> Row {
    let (queries, heads) = (place.queries as usize, sizes.heads as usize);
    let (own, rest) = (row % queries, row / queries);
    let (head, batch) = (rest % heads, place.batch as usize + rest / heads);
    Row { batch, head, query: place.query as usize + own, line: (batch * heads + head) * sizes.queries as usize }
}

/// Products of queries and keys become probabilities after dropout, and `statistics`, `[2, b, h, t]`, get the log-sum-exp and the largest score of each
/// query. A cube a row.
#[cube(launch)]
fn soften<X: Float, P: Int>(
    scores: &mut [X],
    sinks: ComptimeOption<&[f32]>,
    documents: ComptimeOption<&[P]>,
    statistics: &mut [f32],
    place: Place,
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: RowForm,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let units = comptime!(form.units);
    let (row, unit, keys) = (CUBE_POS, UNIT_POS as usize, place.keys as usize);
    if row >= scores.len() / keys {
        terminate!();
    }
    let at = row_at(row, &place, &sizes);
    let start = row * keys;
    let mut top = f32::new(HIDDEN);
    for column in range_stepped(unit, keys, units) {
        if sees::<P>(documents, at.batch, at.query, place.key as usize + column, &sizes) {
            top = max(top, score(f32::cast_from(scores[start + column]), &sizes, form.capped));
        }
    }
    let largest = cube_max(top, units);
    let mut top = largest;
    let mut of_sink = 0.0f32;
    #[comptime]
    match sinks {
        ComptimeOption::Some(sinks) => {
            top = max(top, sinks[at.head]);
            of_sink = (sinks[at.head] - top).exp();
        }
        ComptimeOption::None => {}
    }
    let mut sum = 0.0f32;
    for column in range_stepped(unit, keys, units) {
        if sees::<P>(documents, at.batch, at.query, place.key as usize + column, &sizes) {
            sum += (score(f32::cast_from(scores[start + column]), &sizes, form.capped) - top).exp();
        }
    }
    let sum = cube_sum(sum, units) + of_sink;
    for column in range_stepped(unit, keys, units) {
        let key = place.key as usize + column;
        let mut probability = 0.0f32;
        if sees::<P>(documents, at.batch, at.query, key, &sizes) {
            probability = (score(f32::cast_from(scores[start + column]), &sizes, form.capped) - top).exp() / sum;
            if comptime!(form.dropped) {
                probability *= factor(&mask, (at.line + at.query) as u32, key as u32, sizes.keys);
            }
        }
        scores[start + column] = X::cast_from(probability);
    }
    if unit == 0 {
        statistics[at.line + at.query] = top + sum.ln();
        statistics[statistics.len() / 2 + at.line + at.query] = largest;
    }
}

/// Products of queries and keys become probabilities after dropout, and gradients of these those of the products. `statistics`, `[2, b, h, t]`, are log-sum-exps,
/// and get the means of gradients of probabilities: of those that are here, rounded, so that what all keys of a query have in common goes. A cube a row.
#[cube(launch)]
fn differentiate<X: Float, P: Int>(
    scores: &mut [X],
    gradients: &mut [X],
    documents: ComptimeOption<&[P]>,
    statistics: &mut [f32],
    place: Place,
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: RowForm,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let units = comptime!(form.units);
    let (row, unit, keys) = (CUBE_POS, UNIT_POS as usize, place.keys as usize);
    if row >= scores.len() / keys {
        terminate!();
    }
    let at = row_at(row, &place, &sizes);
    let (line, start) = (at.line + at.query, row * keys);
    let log_sum_exp = statistics[line];
    let mut mean = 0.0f32;
    for column in range_stepped(unit, keys, units) {
        let key = place.key as usize + column;
        if sees::<P>(documents, at.batch, at.query, key, &sizes) {
            let value = score(f32::cast_from(scores[start + column]), &sizes, form.capped);
            let mut gradient = f32::cast_from(gradients[start + column]);
            if comptime!(form.dropped) {
                gradient *= factor(&mask, line as u32, key as u32, sizes.keys);
            }
            mean += (value - log_sum_exp).exp() * gradient;
        }
    }
    let mean = cube_sum(mean, units);
    for column in range_stepped(unit, keys, units) {
        let key = place.key as usize + column;
        let mut probability = 0.0f32;
        let mut gradient = 0.0f32;
        if sees::<P>(documents, at.batch, at.query, key, &sizes) {
            let value = score(f32::cast_from(scores[start + column]), &sizes, form.capped);
            let whole = (value - log_sum_exp).exp();
            probability = whole;
            gradient = f32::cast_from(gradients[start + column]);
            if comptime!(form.dropped) {
                let factor = factor(&mask, line as u32, key as u32, sizes.keys);
                gradient *= factor;
                probability *= factor;
            }
            gradient = whole * (gradient - mean) * sizes.scale;
            if comptime!(form.capped) {
                let ratio = value / sizes.softcap;
                gradient *= 1.0f32 - ratio * ratio;
            }
        }
        scores[start + column] = X::cast_from(probability);
        gradients[start + column] = X::cast_from(gradient);
    }
    if unit == 0 {
        statistics[statistics.len() / 2 + line] = mean;
    }
}

/// `[b, length, g * heads of a group, columns]` by head: `[b, g, heads of a group, length, columns]`, a view.
fn by_head(x: Tensor<4>, g: usize) -> Tensor<5> {
    let [b, length, h, columns] = x.dims();
    x.reshape([b, length, g, h / g, columns]).permute([0, 2, 3, 1, 4])
}

impl Saved {
    /// Parts with at most so many bytes of scores, if that is enough, and if a kernel can be given them.
    fn parts(&self, bytes: usize) -> Vec<Part> {
        let Problem { b, h, t, s, window, .. } = self.problem;
        let largest = usize::try_from(self.q.0.client.properties().memory.max_page_size).unwrap_or(usize::MAX);
        parts([b, h, t, s], window, bytes.min(largest) / self.q.0.dtype.size())
    }

    /// Queries by head, and keys and values `[b, g, s, columns]`.
    fn heads(&self) -> (Tensor<5>, Tensor<4>, Tensor<4>) {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| x.clone().tensor::<4>());
        (by_head(q, self.problem.g), k.permute([0, 2, 1, 3]), v.permute([0, 2, 1, 3]))
    }

    fn row_form(&self, units: usize) -> RowForm {
        RowForm { capped: self.problem.softcap.is_some(), dropped: self.problem.dropout.is_some(), units }
    }

    /// The output; the statistics are filled in.
    fn forward_by_products(&self, parts: &[Part], sinks: Option<&Buffer>) -> Option<Tensor<4>> {
        let (q, k, v) = self.heads();
        let mut sequences: Vec<Vec<Tensor<4>>> = Vec::new();
        for part in parts {
            let scores = part.of_queries(&q).matmul(part.of_keys(&k).transpose());
            let shape = scores.dims();
            let scores = Buffer::owned(scores)?;
            let (count, dim, units) = scores.cube_per_row(scores.len() / part.keys, part.keys);
            soften::launch(
                &scores.0.client,
                count,
                dim,
                scores.arg(),
                sinks.map(Buffer::arg).into(),
                self.documents.as_ref().map(Buffer::arg).into(),
                self.statistics.arg(),
                part.launch(),
                self.problem.sizes(),
                mask(self.problem.dropout),
                self.row_form(units),
                self.storage(),
            );
            let out = scores.tensor::<4>().reshape(shape).matmul(part.of_keys(&v));
            let out = part.by_query(out, self.problem.h);
            append(&mut sequences, part, out);
        }
        Some(joined(sequences))
    }

    /// The gradients of queries, keys and values; the means of gradients are filled in.
    fn gradients_by_products(&self, parts: &[Part], d_out: &Buffer) -> [Tensor<4>; 3] {
        let Problem { s, h, g, d, width, .. } = self.problem;
        let (q, k, v) = self.heads();
        let d_out = by_head(d_out.clone().tensor(), g);
        let mut dq = Vec::<Vec<Tensor<4>>>::new();
        let [mut dk, mut dv] = [d, width].map(|columns| Sums::new([g, s, columns], self.q.0.dtype));
        for part in parts {
            let (own_q, own_d_out) = (part.of_queries(&q), part.of_queries(&d_out));
            let (probabilities, gradients) = self.differentiated(part, [&own_q, &own_d_out], [&k, &v]);
            let of_queries = part.by_query(gradients.clone().matmul(part.of_keys(&k)), h);
            dk.add(part, gradients.transpose().matmul(own_q));
            dv.add(part, probabilities.transpose().matmul(own_d_out));
            append(&mut dq, part, of_queries);
        }
        [joined(dq), dk.finish(), dv.finish()]
    }

    /// The probabilities of a part after dropout, and the gradients of its products of queries and keys.
    fn differentiated(
        &self,
        part: &Part,
        [q, d_out]: [&Tensor<4>; 2],
        [k, v]: [&Tensor<4>; 2],
    ) -> (Tensor<4>, Tensor<4>) {
        let [scores, gradients] =
            [(q, k), (d_out, v)].map(|(own, other)| own.clone().matmul(part.of_keys(other).transpose()));
        let shape = scores.dims();
        let [scores, gradients] =
            [scores, gradients].map(|x| Buffer::owned(x).expect("the forward had one of this size"));
        let (count, dim, units) = scores.cube_per_row(scores.len() / part.keys, part.keys);
        differentiate::launch(
            &scores.0.client,
            count,
            dim,
            scores.arg(),
            gradients.arg(),
            self.documents.as_ref().map(Buffer::arg).into(),
            self.statistics.arg(),
            part.launch(),
            self.problem.sizes(),
            mask(self.problem.dropout),
            self.row_form(units),
            self.storage(),
        );
        (scores.tensor::<4>().reshape(shape), gradients.tensor::<4>().reshape(shape))
    }
}

/// Gradients of keys or values, added up in float32 over the parts of some sequences, and rounded when these are through.
struct Sums {
    /// Key/value heads, keys, columns.
    shape: [usize; 3],
    dtype: DType,
    /// Of the sequences under way, `[batches, g, s, columns]`.
    open: Option<Tensor<4>>,
    /// `[batches, s, g, columns]`.
    done: Vec<Tensor<4>>,
}

impl Sums {
    fn new(shape: [usize; 3], dtype: DType) -> Self {
        Self { shape, dtype, open: None, done: Vec::new() }
    }

    /// Adds what a part makes of its keys, `[batches, g, keys, columns]`.
    fn add(&mut self, part: &Part, own: Tensor<4>) {
        let [g, s, columns] = self.shape;
        if part.query == 0 {
            self.close();
        }
        let zeros = || Tensor::zeros([part.batches, g, s, columns], (&own.device(), DType::F32));
        let sum = self.open.take().unwrap_or_else(zeros);
        let keys = part.key..part.key + part.keys;
        let whole = sum.clone().narrow(2, part.key, part.keys) + widen(own);
        self.open = Some(sum.slice_assign([0..part.batches, 0..g, keys, 0..columns], whole));
    }

    fn close(&mut self) {
        let sum = self.open.take();
        self.done.extend(sum.map(|sum| narrow(sum, self.dtype).permute([0, 2, 1, 3])));
    }

    fn finish(mut self) -> Tensor<4> {
        self.close();
        Tensor::cat(self.done, 0)
    }
}

/// Adds what a part has of its queries to the runs of its sequences.
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

/// See [`crate::attention()`] and [`super::cube::attention`], whose conditions it has.
pub fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    attention_in_parts(q_bthd, k_bsgd, v_bsgd, options, BYTES)
}

/// [`attention`] with at most so many bytes of scores at once, if that is enough for the fewest queries that are taken together.
pub fn attention_in_parts(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
    bytes: usize,
) -> Option<Tensor<4>> {
    let Operands { mut saved, sinks } = Operands::of([q_bthd, k_bsgd, v_bsgd], options)?;
    let parts = saved.parts(bytes);
    saved.out = Buffer::of(&saved.forward_by_products(&parts, sinks.as_ref())?)?;
    Some(with_backward(saved, sinks, [q_bthd, k_bsgd, v_bsgd], options, move |saved, d_out| {
        saved.gradients_by_products(&parts, d_out)
    }))
}
