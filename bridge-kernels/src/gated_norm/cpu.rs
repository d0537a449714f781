//! The gated norm over rows, forward and backward.

use rayon::prelude::*;

use crate::cpu::buffer::{all_filled, filled};
use crate::cpu::simd::{dot, sigmoid, sum_map2, vectorised};
use crate::linear::cpu::column_sums;

/// Rows of one task; also the unit in which weight gradients are summed.
const ROWS: usize = 16;

/// Values, gates and weight of a norm over groups of `size` channels.
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// `[n, c]`.
    pub x: &'a [f32],
    /// `[n, c]`.
    pub z: &'a [f32],
    /// `[c]`.
    pub weight: &'a [f32],
    /// Channels of a group.
    pub size: usize,
    pub epsilon: f64,
}

/// Gradients of `x`, `z` and the weight.
pub struct Gradients {
    pub x: Vec<f32>,
    pub z: Vec<f32>,
    pub weight: Vec<f32>,
}

impl Gated<'_> {
    /// `[n, c]`.
    pub fn forward(self) -> Vec<f32> {
        let (c, size) = (self.weight.len(), self.size);
        filled(self.x.len(), |y| {
            let tasks = y.par_chunks_mut(ROWS * c).zip(self.x.par_chunks(ROWS * c)).zip(self.z.par_chunks(ROWS * c));
            tasks.for_each(|((y, x), z)| {
                vectorised!({
                    let groups = y.chunks_exact_mut(size).zip(x.chunks_exact(size)).zip(z.chunks_exact(size));
                    for (((y, x), z), weight) in groups.zip(self.weight.chunks_exact(size).cycle()) {
                        y.iter_mut().zip(x).zip(z).for_each(|((y, x), z)| *y = x * z * sigmoid(*z));
                        let r = self.reciprocal(y);
                        y.iter_mut().zip(weight).for_each(|(y, w)| *y = *y * r * w);
                    }
                });
            });
        })
    }

    /// One over the root mean square of a group.
    #[inline(always)]
    fn reciprocal(&self, gated: &[f32]) -> f32 {
        let mean_square = f64::from(dot(gated, gated)) / self.size as f64;
        (1.0 / (mean_square + self.epsilon).sqrt()) as f32
    }

    /// Gradients from that of the output.
    pub fn backward(self, dy: &[f32]) -> Gradients {
        let c = self.weight.len();
        let mut partial = vec![0.0; (self.x.len() / c).div_ceil(ROWS) * c];
        let [x, z] = all_filled([self.x.len(); 2], |[dx, dz]| {
            let inputs = dy.par_chunks(ROWS * c).zip(self.x.par_chunks(ROWS * c)).zip(self.z.par_chunks(ROWS * c));
            let outputs = dx.par_chunks_mut(ROWS * c).zip(dz.par_chunks_mut(ROWS * c)).zip(partial.par_chunks_mut(c));
            inputs.zip(outputs).for_each_init(
                || vec![0.0; self.size],
                |gated, (((dy, x), z), ((dx, dz), partial))| {
                    vectorised!({
                        for start in (0..x.len()).step_by(self.size) {
                            let of = start..start + self.size;
                            let channels = start % c..start % c + self.size;
                            let outputs = (&mut dx[of.clone()], &mut dz[of.clone()], &mut partial[channels.clone()]);
                            let weight = &self.weight[channels];
                            self.backward_group(
                                outputs.0,
                                outputs.1,
                                outputs.2,
                                &dy[of.clone()],
                                &x[of.clone()],
                                &z[of],
                                weight,
                                gated,
                            );
                        }
                    });
                },
            );
        });
        Gradients { x, z, weight: column_sums(&partial, c) }
    }

    /// Gradients of one group; `gated` is memory for its gated values.
    #[inline(always)]
    fn backward_group(
        &self,
        dx: &mut [f32],
        dz: &mut [f32],
        d_weight: &mut [f32],
        dy: &[f32],
        x: &[f32],
        z: &[f32],
        weight: &[f32],
        gated: &mut [f32],
    ) {
        for (((dx, gated), (x, z)), (dy, w)) in
            dx.iter_mut().zip(gated.iter_mut()).zip(x.iter().zip(z)).zip(dy.iter().zip(weight))
        {
            *gated = x * z * sigmoid(*z);
            *dx = dy * w;
        }
        let r = self.reciprocal(gated);
        let slope = r * r * sum_map2(dx, gated, |d, v| d * v) / self.size as f32;
        d_weight.iter_mut().zip(dy).zip(gated.iter()).for_each(|((dw, dy), v)| *dw += dy * v * r);
        for ((dx, dz), ((x, z), gated)) in dx.iter_mut().zip(dz).zip(x.iter().zip(z).zip(gated.iter())) {
            let s = sigmoid(*z);
            let d_gated = r * (*dx - gated * slope);
            *dx = d_gated * z * s;
            *dz = d_gated * x * s * (1.0 + z * (1.0 - s));
        }
    }
}
