//! Dropout whose mask is computed where it is used, never stored.

use rayon::prelude::*;

use super::key::DropoutKey;
use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::simd::vectorised;

/// Elements of one task; a multiple of [`BLOCK`].
const CHUNK: usize = 1 << 14;
/// Elements whose random words are drawn together, so that drawing vectorises.
const BLOCK: usize = 64;

/// A dropout mask: which elements go, and the factor on those that stay.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    key: DropoutKey,
    threshold: u32,
    scale: f32,
}

impl Mask {
    /// The mask of `key` at `rate`.
    pub fn new(rate: f64, key: DropoutKey) -> Self {
        Self { key, threshold: (rate * 4_294_967_296.0) as u32, scale: (1.0 / (1.0 - rate)) as f32 }
    }

    /// Factors of the elements `start .. start + factors.len()`: 0 or the scale.
    #[inline(always)]
    pub fn factors(&self, start: u64, factors: &mut [f32]) {
        // Words come in fours, so a run that starts in the middle of a four draws that four too.
        let mut position = start / 4 * 4;
        let end = start + factors.len() as u64;
        let mut written = 0;
        while position < end {
            let mut words = [0_u32; BLOCK];
            self.key.0.fill(position / 4, &mut words);
            let from = start.saturating_sub(position) as usize;
            let to = (end - position).min(BLOCK as u64) as usize;
            for (factor, word) in factors[written..].iter_mut().zip(&words[from..to]) {
                *factor = if *word < self.threshold { 0.0 } else { self.scale };
            }
            written += to - from;
            position += BLOCK as u64;
        }
    }
}

/// `x` times the mask.
pub fn apply<E: Element>(x: &[E], mask: Mask) -> Vec<E> {
    filled(x.len(), |y| {
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).enumerate().for_each(|(task, (y, x))| {
            vectorised!({
                let blocks = y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)).enumerate();
                for (block, (y, x)) in blocks {
                    let mut factors = [0.0; BLOCK];
                    mask.factors((task * CHUNK + block * BLOCK) as u64, &mut factors[..y.len()]);
                    let inputs = x.iter().zip(&factors);
                    y.iter_mut().zip(inputs).for_each(|(y, (x, factor))| *y = E::narrow(factor * x.wide()));
                }
            });
        });
    })
}
