//! Decays of one head in one chunk.
//!
//! Every decay is a power of e to a negative sum, or a product of such powers. Inverses are formed
//! over a block of few tokens alone, and only if they are moderate, so none can overflow. A token
//! that begins a document inside the sequence has decay 0 towards all tokens before it.

use std::ops::Range;

use super::cpu::{Chunk, Delta, Inputs};
use crate::cpu::simd::{exp_or_zero, vectorised};

/// Tokens between which decays for each channel are products token by token; also the block of
/// triangular systems.
pub const BLOCK: usize = 16;

/// Decays of one head in one chunk of `l` tokens.
#[derive(Default)]
pub struct Decays {
    /// The first token of the chunk that is of the same document, `[l]`.
    pub first: Vec<usize>,
    /// True for tokens that begin a document, but for the first of a sequence. `[l]`.
    pub begins: Vec<bool>,
    /// Sums of the logarithms, this token's included, `[l]`. With one decay a head.
    pub sums: Vec<f64>,
    /// Decay of each token, `[l, k]`. These and the next two with a decay for each channel.
    pub own: Vec<f32>,
    /// Decay since the begin of the token's block and until its end, `[l, k]` each.
    pub since_block: Vec<f32>,
    pub to_block_end: Vec<f32>,
    /// True for blocks over which no channel decays so far that the inverse could overflow.
    pub is_mild: Vec<bool>,
    /// Decay since the chunk's begin, and until its end: `[l, e]` each.
    pub since: Vec<f32>,
    pub to_end: Vec<f32>,
    /// Decay over the chunk for each channel of a key, `[k]`.
    pub whole: Vec<f32>,
    /// The same for each row of a product: ones with a decay for each channel. `[l]` each.
    pub row_since: Vec<f32>,
    pub row_to_end: Vec<f32>,
    /// Decay from the end of a block to the chunk's end, `[k]`.
    after: Vec<f32>,
}

/// Decay over a block down to which its inverse is used in products.
const MILD: f32 = 1e-16;

/// Blocks of a chunk of `l` tokens.
pub fn blocks(l: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..l.div_ceil(BLOCK)).map(move |block| block * BLOCK..((block + 1) * BLOCK).min(l))
}

/// The product of two decays, without denormal numbers.
#[inline(always)]
pub fn joined(a: f32, b: f32) -> f32 {
    let product = a * b;
    if product < 1e-35 { 0.0 } else { product }
}

impl Decays {
    pub fn form(&mut self, delta: &Delta, inputs: &Inputs<'_>, chunk: &Chunk, head: usize) {
        self.first.clear();
        self.begins.clear();
        for token in chunk.tokens.clone() {
            let start = inputs.starts[chunk.batch * delta.sizes.t + token];
            self.first.push(start.saturating_sub(chunk.tokens.start));
            self.begins.push(start == token && token > 0);
        }
        if delta.sizes.e == 1 {
            self.form_of_head(delta, inputs, chunk, head);
        } else {
            self.form_of_channels(delta, inputs, chunk, head);
        }
    }

    fn form_of_head(&mut self, delta: &Delta, inputs: &Inputs<'_>, chunk: &Chunk, head: usize) {
        let Self { first, begins, sums, since, to_end, whole, row_since, row_to_end, .. } = self;
        let (l, mut sum) = (first.len(), 0.0);
        sums.clear();
        for i in 0..l {
            sum += f64::from(inputs.decay[delta.at(chunk, i, delta.sizes.h, head, 1)]);
            sums.push(sum);
        }
        since.resize(l, 0.0);
        to_end.resize(l, 0.0);
        vectorised!(for ((at, since), to_end) in sums.iter().zip(since.iter_mut()).zip(to_end.iter_mut()) {
            *since = exp_or_zero(*at as f32);
            *to_end = exp_or_zero((sum - at) as f32);
        });
        let mut goes_on = true;
        for i in 0..l {
            goes_on &= !begins[i];
            since[i] = if goes_on { since[i] } else { 0.0 };
            to_end[i] = if first[i] == first[l - 1] { to_end[i] } else { 0.0 };
        }
        whole.clear();
        whole.resize(delta.sizes.k, since[l - 1]);
        row_since.clone_from(since);
        row_to_end.clone_from(to_end);
    }

    fn form_of_channels(&mut self, delta: &Delta, inputs: &Inputs<'_>, chunk: &Chunk, head: usize) {
        let Self { first, begins, own, since_block, to_block_end, is_mild, since, to_end, whole, after, .. } = self;
        let (l, h, k) = (first.len(), delta.sizes.h, delta.sizes.k);
        for decays in [&mut *own, since_block, to_block_end, since, to_end] {
            decays.resize(l * k, 0.0);
        }
        vectorised!({
            for (i, own) in own.chunks_exact_mut(k).enumerate() {
                let logarithms = &inputs.decay[delta.at(chunk, i, h, head, k)..][..k];
                own.iter_mut().zip(logarithms).for_each(|(own, log)| *own = exp_or_zero(*log));
                if begins[i] {
                    own.fill(0.0);
                }
            }
            whole.clear();
            whole.resize(k, 1.0);
            is_mild.clear();
            for block in blocks(l) {
                let mut last: &[f32] = &[];
                let rows = own.chunks_exact(k).zip(since_block.chunks_exact_mut(k)).zip(since.chunks_exact_mut(k));
                for ((own, since_block), since) in rows.skip(block.start).take(block.len()) {
                    since_block.copy_from_slice(own);
                    since_block.iter_mut().zip(last).for_each(|(decay, last)| *decay = joined(*decay, *last));
                    let decays = since.iter_mut().zip(since_block.iter()).zip(whole.iter());
                    decays.for_each(|((since, own), before)| *since = joined(*own, *before));
                    last = since_block;
                }
                is_mild.push(last.iter().fold(1.0, |least, decay| if *decay < least { *decay } else { least }) > MILD);
                whole.iter_mut().zip(last).for_each(|(whole, last)| *whole = joined(*whole, *last));
            }
            after.clear();
            after.resize(k, 1.0);
            for block in blocks(l).rev() {
                to_block_end[(block.end - 1) * k..block.end * k].fill(1.0);
                for i in block.clone().rev().skip(1) {
                    let (row, next) = to_block_end[i * k..].split_at_mut(k);
                    let decays = row.iter_mut().zip(&next[..k]).zip(&own[(i + 1) * k..]);
                    decays.for_each(|((row, next), own)| *row = joined(*next, *own));
                }
                for i in block.clone() {
                    let decays = to_end[i * k..(i + 1) * k].iter_mut().zip(&to_block_end[i * k..]).zip(&*after);
                    decays.for_each(|((to_end, own), after)| *to_end = joined(*own, *after));
                }
                let total = &since_block[(block.end - 1) * k..block.end * k];
                after.iter_mut().zip(total).for_each(|(after, total)| *after = joined(*after, *total));
            }
        });
        for ones in [&mut self.row_since, &mut self.row_to_end] {
            ones.clear();
            ones.resize(l, 1.0);
        }
    }
}
