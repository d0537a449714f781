//! Optimizer updates in one pass over memory, and reductions whose result does not depend on the
//! number of threads.

pub mod blocks;
pub mod low_precision;

use half::bf16;
use rayon::prelude::*;

use super::steps::{AdamWConstants, UpdateStep};
use crate::cpu::element::{Element, narrow_into};
use crate::cpu::simd::vectorised;

/// Elements of one task. It divides the work, so it is part of the definition of the sums below.
const CHUNK: usize = 1 << 15;

impl AdamWConstants {
    /// One update of elements that lie side by side.
    #[inline(always)]
    fn run<E: Element>(self, parameter: &mut [f32], exp_avg: &mut [f32], exp_avg_sq: &mut [f32], gradient: &[E]) {
        let moments = exp_avg.iter_mut().zip(exp_avg_sq);
        for ((p, (m, v)), g) in parameter.iter_mut().zip(moments).zip(gradient) {
            let g = g.wide() * self.gradient_scale + *p * self.l2;
            *m = *m * self.beta1 + g * self.one_minus_beta1;
            *v = *v * self.beta2 + g * g * self.one_minus_beta2;
            let denominator = v.sqrt() / self.root_correction2 + self.epsilon;
            *p = *p * self.keep - *m / denominator * self.step_size;
        }
    }
}

/// One AdamW update in place; see [`crate::optim::adamw`].
pub fn adamw<E: Element>(
    parameter: &mut [f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    gradient: &[E],
    step: AdamWConstants,
) {
    parameter
        .par_chunks_mut(CHUNK)
        .zip(exp_avg.par_chunks_mut(CHUNK))
        .zip(exp_avg_sq.par_chunks_mut(CHUNK))
        .zip(gradient.par_chunks(CHUNK))
        .for_each(|(((p, m), v), g)| vectorised!(step.run(p, m, v, g)));
}

/// [`adamw`], which also rounds the parameter to bfloat16 in the same pass.
pub fn adamw_rounded<E: Element>(
    [parameter, exp_avg, exp_avg_sq]: [&mut [f32]; 3],
    gradient: &[E],
    rounded: &mut [bf16],
    step: AdamWConstants,
) {
    let moments = exp_avg.par_chunks_mut(CHUNK).zip(exp_avg_sq.par_chunks_mut(CHUNK));
    let inputs = moments.zip(gradient.par_chunks(CHUNK)).zip(rounded.par_chunks_mut(CHUNK));
    parameter.par_chunks_mut(CHUNK).zip(inputs).for_each(|(p, (((m, v), g), rounded))| {
        vectorised!({
            step.run(p, m, v, g);
            narrow_into(rounded, p);
        });
    });
}

/// One SGD update in place; see [`crate::optim::sgd`].
pub fn sgd(parameter: &mut [f32], momentum: &mut [f32], gradient: &[f32], momentum_factor: f64, step: &UpdateStep<'_>) {
    let [lr, factor, decay, scale] =
        [step.learning_rate, momentum_factor, step.weight_decay, step.gradient_scale].map(|constant| constant as f32);
    parameter.par_chunks_mut(CHUNK).zip(momentum.par_chunks_mut(CHUNK)).zip(gradient.par_chunks(CHUNK)).for_each(
        |((p, m), g)| {
            vectorised!({
                for ((p, m), g) in p.iter_mut().zip(m).zip(g) {
                    *m = *m * factor + (g * scale + *p * decay);
                    *p -= *m * lr;
                }
            });
        },
    );
}

/// `accumulated += gradient`.
pub fn add_assign<E: Element>(accumulated: &mut [f32], gradient: &[E]) {
    accumulated.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).for_each(|(a, g)| {
        vectorised!(a.iter_mut().zip(g).for_each(|(a, g)| *a += g.wide()));
    });
}

/// `values *= factor`.
pub fn scale(values: &mut [f32], factor: f32) {
    values.par_chunks_mut(CHUNK).for_each(|v| vectorised!(v.iter_mut().for_each(|v| *v *= factor)));
}

/// Sum of squares in float64: lanes, then chunks, always in the same order.
pub fn sum_of_squares<E: Element>(values: &[E]) -> f64 {
    const LANES: usize = 32;
    let partial: Vec<f64> = values
        .par_chunks(CHUNK)
        .map(|chunk| {
            vectorised!({
                let mut lanes = [0.0_f64; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    for i in 0..LANES {
                        let v = f64::from(block[i].wide());
                        lanes[i] += v * v;
                    }
                }
                for (lane, v) in lanes.iter_mut().zip(rest) {
                    *lane += f64::from(v.wide()) * f64::from(v.wide());
                }
                lanes.iter().sum()
            })
        })
        .collect();
    partial.iter().sum()
}

/// Number of elements that are exactly zero.
pub fn count_zeros<E: Element>(values: &[E]) -> u64 {
    values
        .par_chunks(CHUNK)
        .map(|c| vectorised!(c.iter().map(|v| u32::from(v.wide() == 0.0)).sum::<u32>()))
        .map(u64::from)
        .sum()
}
