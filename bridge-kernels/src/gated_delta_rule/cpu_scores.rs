//! Products of keys and queries of a chunk with its keys, with decay, and the triangular systems
//! that they make.

use super::cpu::{Chunk, Delta, Inputs, Keys};
use super::cpu_decays::{BLOCK, Decays, blocks, joined};
use crate::cpu::buffer::Shared;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{dot, exp_or_zero, vectorised};

/// Scores of one head in one chunk of `l` tokens.
#[derive(Default)]
pub struct Scores {
    pub decays: Decays,
    /// Products of each key with earlier keys, then of each query with its own and earlier keys,
    /// with decay: `[2 l, l]`. Zero elsewhere.
    pub raw: Vec<f32>,
    /// Products of keys times the step size of the later one, `[l, l]`.
    pub below: Vec<f32>,
    /// Decay between tokens, `[l, l]`, with one decay a head.
    pub between: Vec<f32>,
    /// Keys and queries with the decay since the chunk's begin, `[2 l, k]`, and keys with the decay
    /// until its end, `[l, k]`; with a decay for each channel.
    scaled: Vec<f32>,
    scaled_ends: Vec<f32>,
    pub blocks: BlockRows,
}

/// Rows of keys and queries for the pairs of blocks, with a decay for each channel.
#[derive(Default)]
pub struct BlockRows {
    /// Decay of each token until the begin of the block of the rows, `[l, k]`; the inverse of the
    /// decay since then for tokens of the block.
    pub until: Vec<f32>,
    /// Keys with it, `[l, k]`.
    pub columns: Vec<f32>,
    /// Keys of a block with the decay since its begin, then its queries: `[2 BLOCK, k]`.
    pub rows: Vec<f32>,
    /// `[k]`.
    pub decay: Vec<f32>,
}

impl Scores {
    pub fn form(&mut self, delta: &Delta, inputs: &Inputs<'_>, chunk: &Chunk, head: usize, keys: &Keys) {
        let l = chunk.tokens.len();
        self.decays.form(delta, inputs, chunk, head);
        self.raw.resize(2 * l * l, 0.0);
        self.below.resize(l * l, 0.0);
        if delta.sizes.e == 1 {
            self.form_of_head(keys, l);
        } else {
            self.form_of_channels(keys, l, delta.sizes.k);
        }
        vectorised!({
            let rows = self.below.chunks_exact_mut(l).zip(self.raw.chunks_exact(l)).enumerate();
            for (i, (below, raw)) in rows {
                let beta = inputs.beta[delta.at(chunk, i, delta.sizes.h, head, 1)];
                below[..i].iter_mut().zip(raw).for_each(|(below, raw)| *below = beta * raw);
            }
        });
    }

    fn form_of_head(&mut self, keys: &Keys, l: usize) {
        let Self { decays, raw, between, .. } = self;
        between.resize(l * l, 0.0);
        let (raw_keys, raw_queries) = raw.split_at_mut(l * l);
        let (of_keys, of_queries) = keys.products.split_at(l * l);
        vectorised!(for i in 0..l {
            let (before, row) = between.split_at_mut(i * l);
            let (at, first, row) = (decays.sums[i], decays.first[i], &mut row[..l]);
            row.fill(0.0);
            if i % BLOCK == 0 || first == i {
                for (decay, sum) in row[first..i].iter_mut().zip(&decays.sums[first..]) {
                    *decay = exp_or_zero((at - sum) as f32);
                }
            } else {
                let own = exp_or_zero((at - decays.sums[i - 1]) as f32);
                let before = &before[(i - 1) * l..];
                row[first..i]
                    .iter_mut()
                    .zip(&before[first..])
                    .for_each(|(decay, before)| *decay = joined(own, *before));
            }
            let whole = i * l..(i + 1) * l;
            multiply(&mut raw_keys[whole.clone()], &of_keys[whole.clone()], row);
            row[i] = 1.0;
            multiply(&mut raw_queries[whole.clone()], &of_queries[whole], row);
        });
    }

    /// Products of rows of a block with earlier rows are matrix products, with the decay cut at the
    /// begin of the block; pairs inside a block with strong decays are taken one by one.
    fn form_of_channels(&mut self, keys: &Keys, l: usize, k: usize) {
        let Self { decays, raw, scaled, scaled_ends, blocks: of_blocks, .. } = self;
        scaled.resize(2 * l * k, 0.0);
        scaled_ends.resize(l * k, 0.0);
        vectorised!({
            for (scaled, rows) in scaled.chunks_exact_mut(l * k).zip(keys.rows.chunks_exact(l * k)) {
                multiply(scaled, rows, &decays.since);
            }
            multiply(scaled_ends, &keys.rows[..l * k], &decays.to_end);
        });
        raw.fill(0.0);
        let shared = Shared::new(raw);
        of_blocks.for_each(decays, keys, l, k, |block, rows, columns, _| {
            let (n, start, count) = (block.len(), block.start, columns.len() / k);
            for (half, rows) in rows.chunks_exact(n * k).enumerate() {
                // SAFETY: one matrix is alive at a time.
                let out = unsafe { MatrixMut::shared(shared, (half * l + start) * l, n, count, l) };
                gemm(out, Output::Set, 1.0, Matrix::new(rows, n, k), Matrix::new(columns, count, k).t(), Threads::One);
            }
        });
        let row_of = |i: usize| i * k..(i + 1) * k;
        let (key_rows, query_rows) = keys.rows.split_at(l * k);
        let decayed = &mut of_blocks.decay;
        vectorised!(for (number, block) in blocks(l).enumerate() {
            if decays.is_mild[number] {
                for i in block.clone() {
                    raw[(l + i) * l..][i + 1..block.end].fill(0.0);
                }
                continue;
            }
            for j in block.clone() {
                decayed.clear();
                decayed.extend_from_slice(&key_rows[row_of(j)]);
                raw[(l + j) * l + j] = dot(decayed, &query_rows[row_of(j)]);
                for i in (j + 1..block.end).take_while(|i| !decays.begins[*i]) {
                    let own = &decays.own[row_of(i)];
                    decayed.iter_mut().zip(own).for_each(|(decayed, own)| *decayed *= own);
                    raw[i * l + j] = dot(decayed, &key_rows[row_of(i)]);
                    raw[(l + i) * l + j] = dot(decayed, &query_rows[row_of(i)]);
                }
            }
        });
    }

    /// Keys and queries for products with the state before the chunk, `[2 l, k]`.
    pub fn left<'a>(&'a self, keys: &'a Keys) -> &'a [f32] {
        if self.is_of_channels() { &self.scaled } else { &keys.rows }
    }

    /// Keys for products with the state after the chunk, `[l, k]`.
    pub fn ends<'a>(&'a self, keys: &'a Keys) -> &'a [f32] {
        if self.is_of_channels() { &self.scaled_ends } else { &keys.rows[..keys.rows.len() / 2] }
    }

    fn is_of_channels(&self) -> bool {
        !self.scaled.is_empty()
    }
}

impl BlockRows {
    /// Calls a function for each block with its rows `[2 n, k]` (keys, then queries), the keys of
    /// all earlier blocks and of a mild block itself, both with decay to the block's begin, and the
    /// decays of these keys. A block without such keys is left out.
    pub fn for_each(
        &mut self,
        decays: &Decays,
        keys: &Keys,
        l: usize,
        k: usize,
        mut run: impl FnMut(std::ops::Range<usize>, &[f32], &[f32], &[f32]),
    ) {
        let Self { until, columns, rows, .. } = self;
        until.resize(l * k, 0.0);
        columns.resize(l * k, 0.0);
        let mut before = 0..0;
        for (number, block) in blocks(l).enumerate() {
            let (n, start, end) = (block.len(), block.start * k, block.end * k);
            let count = if decays.is_mild[number] { end } else { start };
            rows.resize(2 * n * k, 0.0);
            vectorised!({
                if start > 0 {
                    // The block before the last one ends where the last one begins.
                    let total = &decays.since_block[start - k..start];
                    for row in until[..before.start * k].chunks_exact_mut(k) {
                        row.iter_mut().zip(total).for_each(|(decay, total)| *decay = joined(*decay, *total));
                    }
                    let last = before.start * k..before.end * k;
                    until[last.clone()].copy_from_slice(&decays.to_block_end[last]);
                }
                let since = &decays.since_block[start..end];
                until[start..count].iter_mut().zip(since).for_each(|(until, since)| *until = since.recip());
                multiply(&mut columns[..count], &keys.rows[..count], &until[..count]);
                for (half, rows) in rows.chunks_exact_mut(n * k).enumerate() {
                    multiply(rows, &keys.rows[half * l * k + start..][..n * k], since);
                }
            });
            if count > 0 {
                run(block.clone(), rows, &columns[..count], &until[..count]);
            }
            before = block;
        }
    }
}

/// `out = a b`, by element.
#[inline(always)]
pub fn multiply(out: &mut [f32], a: &[f32], b: &[f32]) {
    out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = a * b);
}

/// Solves `(1 + below) x = x` in place, with `below` of `[l, l]`, read below the diagonal, and rows
/// of any width.
pub fn solve(below: &[f32], x: &mut [f32], l: usize) {
    let p = x.len() / l;
    for block in blocks(l) {
        let (start, n) = (block.start, block.len());
        let (done, rest) = x.split_at_mut(start * p);
        if start > 0 {
            let factors = Matrix::strided(&below[start * l..], n, start, l, 1);
            let out = MatrixMut::new(rest, n, p);
            gemm(out, Output::Add, -1.0, factors, Matrix::new(done, start, p), Threads::One);
        }
        vectorised!(for i in 1..n {
            let (done, rest) = rest.split_at_mut(i * p);
            subtract(&mut rest[..p], done, &below[(start + i) * l + start..][..i]);
        });
    }
}

/// [`solve`] with the transpose of `below`.
pub fn solve_transposed(below: &[f32], x: &mut [f32], l: usize) {
    let p = x.len() / l;
    for block in blocks(l).rev() {
        let (start, end, n) = (block.start, block.end, block.len());
        let (own, done) = x[start * p..].split_at_mut(n * p);
        if end < l {
            let factors = Matrix::strided(&below[end * l + start..], l - end, n, l, 1).t();
            let out = MatrixMut::new(own, n, p);
            gemm(out, Output::Add, -1.0, factors, Matrix::new(done, l - end, p), Threads::One);
        }
        vectorised!(for i in (0..n - 1).rev() {
            let mut factors = [0.0; BLOCK];
            let column = below[(start + i + 1) * l + start + i..].iter().step_by(l);
            factors.iter_mut().zip(column).take(n - 1 - i).for_each(|(factor, below)| *factor = *below);
            let (row, done) = own[i * p..].split_at_mut(p);
            subtract(row, done, &factors[..n - 1 - i]);
        });
    }
}

/// Subtracts each of `rows` times its factor from a row.
#[inline(always)]
fn subtract(row: &mut [f32], rows: &[f32], factors: &[f32]) {
    const WIDTH: usize = 32;
    let p = row.len();
    let (parts, rest) = row.as_chunks_mut::<WIDTH>();
    let done = parts.len() * WIDTH;
    for (part, parts) in parts.iter_mut().enumerate() {
        let mut sum = *parts;
        for (row, factor) in rows.chunks_exact(p).zip(factors) {
            let row = &row[part * WIDTH..][..WIDTH];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum = (-factor).mul_add(*x, *sum));
        }
        *parts = sum;
    }
    for (row, factor) in rows.chunks_exact(p).zip(factors) {
        rest.iter_mut().zip(&row[done..]).for_each(|(rest, x)| *rest = (-factor).mul_add(*x, *rest));
    }
}
