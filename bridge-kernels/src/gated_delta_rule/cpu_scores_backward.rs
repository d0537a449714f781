//! Gradients of keys, queries, decays and step sizes, from those of scores and scaled rows.

use super::cpu::{Chunk, Delta, Inputs, Keys};
use super::cpu_decays::{Decays, blocks};
use super::cpu_scores::{Scores, multiply};
use super::shape::Sizes;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, sum_map, vectorised};

/// Gradients in one chunk of `l` tokens.
#[derive(Default)]
pub struct ScoreGradients {
    /// Gradients of keys, then queries, after their norm, summed over heads, `[2 l, k]`.
    pub d_rows: Vec<f32>,
    /// Gradients of the step sizes, `[l]`, of one head: [`Self::finish_head`] adds those by the
    /// scores.
    pub d_beta: Vec<f32>,
    /// Gradients of the logarithms of decays, `[l, e]`, of one head.
    pub d_decay: Vec<f32>,
    /// Gradients of the scores, `[2 l, l]`; and, summed over heads, of the products of keys without
    /// decay.
    d_raw: Vec<f32>,
    d_products: Vec<f32>,
    /// Gradients of the scaled rows of one head: before the chunk `[2 l, k]`, until its end `[l,
    /// k]`.
    d_left: Vec<f32>,
    d_ends: Vec<f32>,
    /// Gradient of the logarithm of the decay over the whole chunk, `[e]`.
    d_whole: Vec<f32>,
    /// Gradients of the sums of logarithms of decay, `[l]`.
    d_sums: Vec<f64>,
    /// Gradients of keys as columns, `[l, k]`, or sums of the columns of scores, `[l]`; and of the
    /// rows of a block, `[BLOCK, k]`.
    d_columns: Vec<f32>,
    d_block: Vec<f32>,
    /// Gradients of the scores of queries with their own keys, `[l]`.
    d_own: Vec<f32>,
}

impl ScoreGradients {
    /// Begins a chunk of keys of `k` channels.
    pub fn begin(&mut self, chunk: &Chunk, k: usize) {
        let l = chunk.tokens.len();
        for (sums, len) in [(&mut self.d_rows, 2 * l * k), (&mut self.d_products, 2 * l * l)] {
            sums.clear();
            sums.resize(len, 0.0);
        }
        self.d_raw.resize(2 * l * l, 0.0);
        self.d_left.resize(2 * l * k, 0.0);
        self.d_ends.resize(l * k, 0.0);
    }

    /// Gradients of the scores from those of the results, `[2 l, p]`, and the values, `[l, p]`.
    pub fn of_scores(&mut self, back: Matrix<'_>, written: Matrix<'_>) {
        let out = MatrixMut::new(&mut self.d_raw, back.rows(), written.rows());
        gemm(out, Output::Set, 1.0, back, written.t(), Threads::One);
    }

    /// Gradient of the decay of the state over the chunk.
    pub fn of_state_decay(&mut self, delta: &Delta, scores: &Scores, state: &[f32], d_state: &[f32]) {
        let (e, p, whole) = (delta.sizes.e, delta.sizes.p, &scores.decays.whole);
        self.d_whole.clear();
        self.d_whole.resize(e, 0.0);
        vectorised!({
            let rows = state.chunks_exact(p).zip(d_state.chunks_exact(p)).zip(whole).enumerate();
            for (channel, ((state, d_state), whole)) in rows {
                self.d_whole[channel % e] += whole * dot(state, d_state);
            }
        });
    }

    /// Gradients of the keys that wrote to the state.
    pub fn of_ends(&mut self, written: Matrix<'_>, d_state: Matrix<'_>) {
        let out = MatrixMut::new(&mut self.d_ends, written.rows(), d_state.rows());
        gemm(out, Output::Set, 1.0, written, d_state.t(), Threads::One);
    }

    /// Gradients of the rows that read the state.
    pub fn of_left(&mut self, back: Matrix<'_>, state: Matrix<'_>) {
        let out = MatrixMut::new(&mut self.d_left, back.rows(), state.rows());
        gemm(out, Output::Set, 1.0, back, state.t(), Threads::One);
    }

    /// Ends a head: the terms of keys and queries are added up, and the gradients of step sizes and
    /// decays are computed.
    pub fn finish_head(
        &mut self,
        delta: &Delta,
        inputs: &Inputs<'_>,
        keys: &Keys,
        scores: &mut Scores,
        chunk: &Chunk,
        head: usize,
    ) {
        let l = chunk.tokens.len();
        vectorised!(for (i, d_raw) in self.d_raw.chunks_exact_mut(l).take(l).enumerate() {
            let beta = inputs.beta[delta.at(chunk, i, delta.sizes.h, head, 1)];
            let d_raw = &mut d_raw[..i];
            self.d_beta[i] += dot(d_raw, &scores.raw[i * l..][..i]);
            d_raw.iter_mut().for_each(|d| *d *= beta);
        });
        if delta.sizes.e == 1 {
            self.finish_of_head(delta, keys, scores, l);
        } else {
            self.finish_of_channels(delta, keys, scores, l);
        }
    }

    fn finish_of_head(&mut self, delta: &Delta, keys: &Keys, scores: &Scores, l: usize) {
        let k = delta.sizes.k;
        let Self { d_rows, d_raw, d_products, d_left, d_ends, d_whole, d_sums, d_columns, d_decay, .. } = self;
        let Decays { first, begins, .. } = &scores.decays;
        d_sums.clear();
        d_sums.resize(l, 0.0);
        d_columns.clear();
        d_columns.resize(l, 0.0);
        vectorised!({
            for (row, d_raw) in d_raw.chunks_exact_mut(l).enumerate() {
                let (half, i) = (row / l, row % l);
                // A key has no score with itself, and that of a query with its own key no decay.
                let (seen, scored) = (first[i]..i, first[i]..i + half);
                let decays = &scores.between[i * l..][scored.clone()];
                let terms = d_products[row * l..][scored.clone()].iter_mut().zip(&d_raw[scored]);
                terms.zip(decays).for_each(|((sum, d), decay)| *sum += d * decay);
                let d_raw = &mut d_raw[seen.clone()];
                let terms = d_raw.iter_mut().zip(&scores.raw[row * l..][seen.clone()]);
                for ((d, raw), d_column) in terms.zip(&mut d_columns[seen]) {
                    *d *= raw;
                    *d_column += *d;
                }
                d_sums[i] += f64::from(sum_map(d_raw, |d| d));
            }
            let mut until_end = f64::from(d_whole[0]);
            let (sum_keys, sum_queries) = d_rows.split_at_mut(l * k);
            for i in 0..l {
                let [key, query] = [i, l + i].map(|row| row * k..(row + 1) * k);
                let (d_query, d_end) = (&d_left[query.clone()], &d_ends[key.clone()]);
                let (d_key, row) = (&d_left[key.clone()], &keys.rows[key.clone()]);
                let wrote = f64::from(dot(d_end, row));
                let read = f64::from(dot(d_key, row) + dot(d_query, &keys.rows[query]));
                d_sums[i] += read - wrote - f64::from(d_columns[i]);
                until_end += wrote;
                let sums = sum_keys[key.clone()].iter_mut().zip(d_key).zip(d_end);
                sums.for_each(|((sum, d_key), d_end)| *sum += d_key + d_end);
                sum_queries[key].iter_mut().zip(d_query).for_each(|(sum, d)| *sum += d);
            }
            d_sums[l - 1] += until_end;
        });
        d_decay.resize(l, 0.0);
        let mut after = 0.0;
        for i in (0..l).rev() {
            after = if begins[i] { 0.0 } else { after + d_sums[i] };
            d_decay[i] = after as f32;
        }
    }

    fn finish_of_channels(&mut self, delta: &Delta, keys: &Keys, scores: &mut Scores, l: usize) {
        let k = delta.sizes.k;
        let Self { d_rows, d_raw, d_left, d_ends, d_whole, d_columns, d_block, d_own, d_decay, .. } = self;
        let Scores { decays, blocks: of_blocks, .. } = scores;
        // From here on `d_left` has gradients of keys and queries as rows, and `d_columns` of keys
        // as columns.
        d_columns.clear();
        d_columns.resize(l * k, 0.0);
        vectorised!({
            for half in d_left.chunks_exact_mut(l * k) {
                half.iter_mut().zip(&decays.since).for_each(|(d, decay)| *d *= decay);
            }
            multiply(d_columns, d_ends, &decays.to_end);
            for (ends, keys) in d_columns.chunks_exact(k).zip(keys.rows.chunks_exact(k)) {
                d_whole.iter_mut().zip(ends).zip(keys).for_each(|((sum, d), key)| *sum += d * key);
            }
        });
        // The pair of a token with itself has no decay: it is added last.
        d_own.clear();
        d_own.extend((0..l).map(|i| d_raw[(l + i) * l + i]));
        for (block, _) in blocks(l).zip(&decays.is_mild).filter(|(_, is_mild)| **is_mild) {
            for i in block.clone() {
                d_raw[i * l..][i..block.end].fill(0.0);
                d_raw[(l + i) * l..][i..block.end].fill(0.0);
            }
        }
        of_blocks.for_each(decays, keys, l, k, |block, rows, columns, until| {
            let (n, start, count) = (block.len(), block.start, columns.len() / k);
            d_block.resize(n.max(count) * k, 0.0);
            for half in 0..2 {
                let d_raw = Matrix::strided(&d_raw[(half * l + start) * l..], n, count, l, 1);
                let out = MatrixMut::new(d_block, n, k);
                gemm(out, Output::Set, 1.0, d_raw, Matrix::new(columns, count, k), Threads::One);
                let d_rows = &mut d_left[(half * l + start) * k..][..n * k];
                let since = &decays.since_block[start * k..];
                vectorised!(add_products(d_rows, d_block, since));
            }
            for (half, output) in [(0, Output::Set), (1, Output::Add)] {
                let d_raw = Matrix::strided(&d_raw[(half * l + start) * l..], n, count, l, 1);
                let rows = Matrix::new(&rows[half * n * k..], n, k);
                gemm(MatrixMut::new(d_block, count, k), output, 1.0, d_raw.t(), rows, Threads::One);
            }
            vectorised!(add_products(&mut d_columns[..count * k], d_block, until));
        });
        let (d_keys, d_queries) = d_left.split_at_mut(l * k);
        let (key_rows, query_rows) = keys.rows.split_at(l * k);
        let row_of = |i: usize| i * k..(i + 1) * k;
        let decay = &mut of_blocks.decay;
        let strong = blocks(l).zip(&decays.is_mild).filter(|(_, is_mild)| !**is_mild);
        vectorised!(for (block, _) in strong {
            for j in block.clone() {
                decay.clear();
                decay.resize(k, 1.0);
                let (key, d_column) = (&key_rows[row_of(j)], &mut d_columns[row_of(j)]);
                for i in (j + 1..block.end).take_while(|i| !decays.begins[*i]) {
                    let row = row_of(i);
                    let (d_key, d_query) = (d_raw[i * l + j], d_raw[(l + i) * l + j]);
                    let rows = key_rows[row.clone()].iter().zip(&query_rows[row.clone()]);
                    let targets = d_keys[row.clone()].iter_mut().zip(&mut d_queries[row.clone()]);
                    let columns = decay.iter_mut().zip(&decays.own[row]).zip(key.iter().zip(d_column.iter_mut()));
                    for (((decay, own), (key, d_column)), ((d_k, d_q), (k, q))) in columns.zip(targets.zip(rows)) {
                        *decay *= own;
                        let decayed = *decay * key;
                        *d_k += d_key * decayed;
                        *d_q += d_query * decayed;
                        *d_column += *decay * (d_key * k + d_query * q);
                    }
                }
            }
        });
        d_decay.resize(l * k, 0.0);
        vectorised!({
            let after = &mut *d_whole;
            for i in (0..l).rev() {
                let row = row_of(i);
                let rows = key_rows[row.clone()].iter().zip(&query_rows[row.clone()]);
                let gradients = d_keys[row.clone()].iter().zip(&d_queries[row.clone()]).zip(&d_columns[row.clone()]);
                let terms = after.iter_mut().zip(&mut d_decay[row]).zip(gradients.zip(rows));
                for ((after, d_decay), (((d_k, d_q), d_column), (k, q))) in terms {
                    *after += k * (d_k - d_column) + q * d_q;
                    *d_decay = *after;
                }
                if decays.begins[i] {
                    after.fill(0.0);
                    d_decay[row_of(i)].fill(0.0);
                }
            }
            for (i, d) in d_own.iter().enumerate() {
                add_scaled(&mut d_queries[row_of(i)], &key_rows[row_of(i)], *d);
                add_scaled(&mut d_columns[row_of(i)], &query_rows[row_of(i)], *d);
            }
            let (sum_keys, sum_queries) = d_rows.split_at_mut(l * k);
            sum_keys.iter_mut().zip(d_keys.iter()).for_each(|(sum, d)| *sum += d);
            sum_queries.iter_mut().zip(d_queries.iter()).for_each(|(sum, d)| *sum += d);
            d_rows.iter_mut().zip(d_columns.iter()).for_each(|(sum, d)| *sum += d);
        });
    }

    /// Ends a chunk: gradients of keys and queries by their products, with one decay a head.
    pub fn finish(&mut self, delta: &Delta, keys: &Keys, chunk: &Chunk) {
        let Sizes { k, e, .. } = delta.sizes;
        let l = chunk.tokens.len();
        if e > 1 {
            return;
        }
        let products = Matrix::new(&self.d_products, 2 * l, l);
        let columns = Matrix::new(&keys.rows[..l * k], l, k);
        gemm(MatrixMut::new(&mut self.d_rows, 2 * l, k), Output::Add, 1.0, products, columns, Threads::One);
        let rows = Matrix::new(&keys.rows, 2 * l, k);
        gemm(MatrixMut::new(&mut self.d_rows, l, k), Output::Add, 1.0, products.t(), rows, Threads::One);
    }
}

/// `out += a b`, by element.
#[inline(always)]
fn add_products(out: &mut [f32], a: &[f32], b: &[f32]) {
    out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out += a * b);
}

/// `out += a factor`.
#[inline(always)]
fn add_scaled(out: &mut [f32], a: &[f32], factor: f32) {
    out.iter_mut().zip(a).for_each(|(out, a)| *out += a * factor);
}
