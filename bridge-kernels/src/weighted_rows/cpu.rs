//! Weighted sums of rows on slices: a task takes some sums.

use rayon::prelude::*;

use crate::cpu::buffer::{Shared, all_filled, filled};
use crate::cpu::simd::{dot, vectorised};

/// Sums of one task.
const SUMS: usize = 16;

/// Rows and weights.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// `[m, c]`.
    pub rows: &'a [f32],
    /// `[n, k]`.
    pub weights: &'a [f32],
    /// The row of each weight.
    pub places: &'a [Option<usize>],
    /// Columns, and terms of a sum.
    pub sizes: [usize; 2],
}

impl Terms<'_> {
    fn row(&self, place: usize) -> &[f32] {
        let [c, _] = self.sizes;
        &self.rows[place * c..][..c]
    }

    /// `[n, c]`.
    pub fn forward(self) -> Vec<f32> {
        let [c, k] = self.sizes;
        filled(self.places.len() / k * c, |y| {
            y.par_chunks_mut(SUMS * c).enumerate().for_each(|(task, y)| {
                vectorised!({
                    for (i, y) in y.chunks_exact_mut(c).enumerate() {
                        y.fill(0.0);
                        let sum = (task * SUMS + i) * k;
                        for (weight, place) in self.weights[sum..sum + k].iter().zip(&self.places[sum..sum + k]) {
                            let Some(place) = place else { continue };
                            y.iter_mut().zip(self.row(*place)).for_each(|(y, x)| *y += weight * x);
                        }
                    }
                });
            });
        })
    }

    /// Gradients of rows and weights from that of the sums; `idle` are the rows without a place.
    pub fn backward(self, dy: &[f32], idle: &[usize]) -> [Vec<f32>; 2] {
        let [c, k] = self.sizes;
        all_filled([self.rows.len(), self.weights.len()], |[d_rows, d_weights]| {
            let d_rows = Shared::new(d_rows);
            let tasks = d_weights.par_chunks_mut(SUMS * k).zip(dy.par_chunks(SUMS * c)).enumerate();
            tasks.for_each(|(task, (d_weights, dy))| {
                vectorised!({
                    let sums = d_weights.chunks_exact_mut(k).zip(dy.chunks_exact(c)).enumerate();
                    for (i, (d_weights, dy)) in sums {
                        let sum = (task * SUMS + i) * k;
                        for (term, d_weight) in (sum..sum + k).zip(d_weights) {
                            *d_weight = 0.0;
                            let Some(place) = self.places[term] else { continue };
                            *d_weight = dot(dy, self.row(place));
                            // SAFETY: no row has two places.
                            let d_row = unsafe { d_rows.part(place * c, c) };
                            let weight = self.weights[term];
                            d_row.iter_mut().zip(dy).for_each(|(d, dy)| *d = weight * dy);
                        }
                    }
                });
            });
            for row in idle {
                // SAFETY: the tasks are done.
                unsafe { d_rows.part(row * c, c) }.fill(0.0);
            }
        })
    }
}
