//! The convolution on slices, forward and backward. The sum before the SiLU is formed again in
//! backward, not kept.

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::simd::{sigmoid, vectorised};
use crate::linear::cpu::column_sums;

/// Rows of one task; also the unit in which gradients of parameters are summed.
const ROWS: usize = 32;

/// A convolution: sizes and parameters.
pub struct Convolution {
    /// Tokens of a sequence.
    pub t: usize,
    /// Channels.
    pub c: usize,
    /// Tap by tap, `[k, c]`; the last tap meets the token itself.
    taps: Vec<f32>,
    /// `[c]`.
    bias: Vec<f32>,
    /// The first token of each token's document, `[b, t]`.
    starts: Vec<usize>,
    /// True if a SiLU follows.
    has_silu: bool,
}

/// Gradients of a convolution.
pub struct Gradients {
    /// `[b, t, c]`.
    pub x: Vec<f32>,
    /// `[c, k]`.
    pub weight: Vec<f32>,
    /// `[c]`.
    pub bias: Vec<f32>,
}

impl Convolution {
    /// Convolution of sequences of `t` tokens with `weight [c, k]`; `starts` are the starts of the
    /// tokens' documents.
    pub fn new([t, c]: [usize; 2], weight: &[f32], bias: Option<&[f32]>, starts: Vec<usize>, has_silu: bool) -> Self {
        let bias = bias.map_or_else(|| vec![0.0; c], <[f32]>::to_vec);
        Self { t, c, taps: transposed(weight, c), bias, starts, has_silu }
    }

    fn k(&self) -> usize {
        self.taps.len() / self.c
    }

    /// `x [b, t, c]` -> the same.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let (sequence, c) = (self.t * self.c, self.c);
        filled(x.len(), |y| {
            let sequences = y.par_chunks_mut(sequence).zip(x.par_chunks(sequence)).zip(self.starts.par_chunks(self.t));
            sequences.for_each(|((y, x), starts)| {
                y.par_chunks_mut(ROWS * c).enumerate().for_each(|(task, y)| {
                    vectorised!({
                        for (i, y) in y.chunks_exact_mut(c).enumerate() {
                            self.sum(y, x, starts, task * ROWS + i);
                            if self.has_silu {
                                y.iter_mut().for_each(|y| *y *= sigmoid(*y));
                            }
                        }
                    });
                });
            });
        })
    }

    /// Input of the SiLU at token `at` of the sequence `x`.
    #[inline(always)]
    fn sum(&self, y: &mut [f32], x: &[f32], starts: &[usize], at: usize) {
        let c = self.c;
        y.copy_from_slice(&self.bias);
        for (taps, lag) in self.taps.chunks_exact(c).rev().zip(0..=at - starts[at]) {
            let x = &x[(at - lag) * c..][..c];
            y.iter_mut().zip(x).zip(taps).for_each(|((y, x), tap)| *y += tap * x);
        }
    }

    /// Gradients from that of the output.
    pub fn backward(&self, dy: &[f32], x: &[f32]) -> Gradients {
        let (t, c, k) = (self.t, self.c, self.k());
        let (sequence, tasks, width) = (t * c, t.div_ceil(ROWS), (k + 1) * c);
        let mut partial = vec![0.0; x.len() / sequence * tasks * width];
        let dx = filled(x.len(), |dx| {
            let sequences = dx.par_chunks_mut(sequence).zip(x.par_chunks(sequence)).zip(dy.par_chunks(sequence));
            let sequences = sequences.zip(self.starts.par_chunks(t));
            sequences.zip(partial.par_chunks_mut(tasks * width)).for_each(|((((dx, x), dy), starts), partial)| {
                let blocks = dx.par_chunks_mut(ROWS * c).zip(partial.par_chunks_mut(width)).enumerate();
                blocks.for_each_init(Vec::new, |slopes, (task, (dx, partial))| {
                    vectorised!(self.backward_rows(dx, partial, x, starts, dy, task * ROWS, slopes));
                });
            });
        });
        let mut weight = column_sums(&partial, width);
        let bias = weight.split_off(k * c);
        Gradients { x: dx, weight: transposed(&weight, k), bias }
    }

    /// The rows of `dx` from token `first` on. `slopes` is memory for the gradients of the SiLU's
    /// input.
    #[inline(always)]
    fn backward_rows(
        &self,
        dx: &mut [f32],
        partial: &mut [f32],
        x: &[f32],
        starts: &[usize],
        dy: &[f32],
        first: usize,
        slopes: &mut Vec<f32>,
    ) {
        let (t, c, k) = (self.t, self.c, self.k());
        let own = dx.len() / c;
        // Later tokens read these, too.
        let rows = (own + k - 1).min(t - first);
        slopes.resize(rows * c, 0.0);
        if self.has_silu {
            for (i, slope) in slopes.chunks_exact_mut(c).enumerate() {
                self.sum(slope, x, starts, first + i);
                for (slope, dy) in slope.iter_mut().zip(&dy[(first + i) * c..]) {
                    let s = sigmoid(*slope);
                    *slope = dy * s * (1.0 + *slope * (1.0 - s));
                }
            }
        } else {
            slopes.copy_from_slice(&dy[first * c..][..rows * c]);
        }
        let (d_taps, d_bias) = partial.split_at_mut(k * c);
        for (i, (dx, slope)) in dx.chunks_exact_mut(c).zip(slopes.chunks_exact(c)).enumerate() {
            dx.fill(0.0);
            let at = first + i;
            let later = slopes[i * c..].chunks_exact(c).zip(&starts[at..]).take_while(|(_, start)| **start <= at);
            for (taps, (slope, _)) in self.taps.chunks_exact(c).rev().zip(later) {
                dx.iter_mut().zip(slope).zip(taps).for_each(|((dx, slope), tap)| *dx += tap * slope);
            }
            for (d_taps, lag) in d_taps.chunks_exact_mut(c).rev().zip(0..=at - starts[at]) {
                let x = &x[(at - lag) * c..][..c];
                d_taps.iter_mut().zip(slope).zip(x).for_each(|((d_tap, slope), x)| *d_tap += slope * x);
            }
            d_bias.iter_mut().zip(slope).for_each(|(d_bias, slope)| *d_bias += slope);
        }
    }
}

/// The transpose of a matrix of `rows` rows.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}
