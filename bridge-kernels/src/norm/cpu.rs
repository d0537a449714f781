//! RMSNorm and LayerNorm over rows, forward and backward.

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::simd::{dot, sum_map, sum_map2, vectorised};

/// Rows of one task; also the unit in which weight gradients are summed.
const ROWS: usize = 32;

/// A norm's output, and the statistics of each row for backward.
pub struct Normed<E> {
    /// `[n, c]`.
    pub y: Vec<E>,
    /// Mean of each row (empty for RMSNorm) and reciprocal of its deviation.
    pub statistics: Statistics,
}

/// Statistics of each row.
pub struct Statistics {
    /// `[n]`, empty for RMSNorm.
    mean: Vec<f32>,
    /// `[n]`, `1 / sqrt(variance + epsilon)`.
    reciprocal: Vec<f32>,
}

/// Gradients of a norm.
pub struct NormGradients<E> {
    /// `[n, c]`.
    pub x: Vec<E>,
    /// `[c]`.
    pub weight: Vec<f32>,
    /// `[c]`; the column sums of the output gradient.
    pub bias: Vec<f32>,
}

/// RMSNorm of the rows of `x [n, c]`.
pub fn rms_norm<E: Element>(x: &[E], weight: &[f32], epsilon: f64) -> Normed<E> {
    let c = weight.len();
    let n = x.len() / c.max(1);
    let mut reciprocal = vec![0.0; n];
    let y = filled(x.len(), |y| {
        y.par_chunks_mut(ROWS * c.max(1))
            .zip(x.par_chunks(ROWS * c.max(1)))
            .zip(reciprocal.par_chunks_mut(ROWS))
            .for_each(|((y, x), reciprocal)| {
                vectorised!({
                    for ((y, x), reciprocal) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(reciprocal) {
                        let mean_square = f64::from(dot(x, x)) / c as f64;
                        let r = (1.0 / (mean_square + epsilon).sqrt()) as f32;
                        *reciprocal = r;
                        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                            *y = E::narrow(x.wide() * r * w);
                        }
                    }
                });
            });
    });
    Normed { y, statistics: Statistics { mean: Vec::new(), reciprocal } }
}

/// Layer norm of the rows of `x [n, c]`.
pub fn layer_norm<E: Element>(x: &[E], weight: &[f32], bias: Option<&[f32]>, epsilon: f64) -> Normed<E> {
    let c = weight.len();
    let n = x.len() / c.max(1);
    let (mut mean, mut reciprocal) = (vec![0.0; n], vec![0.0; n]);
    let zeros = if bias.is_none() { vec![0.0; c] } else { Vec::new() };
    let bias = bias.unwrap_or(&zeros);
    let y = filled(x.len(), |y| {
        let statistics = mean.par_chunks_mut(ROWS).zip(reciprocal.par_chunks_mut(ROWS));
        let rows = y.par_chunks_mut(ROWS * c.max(1)).zip(x.par_chunks(ROWS * c.max(1)));
        rows.zip(statistics).for_each(|((y, x), (mean, reciprocal))| {
            vectorised!({
                let statistics = mean.iter_mut().zip(reciprocal);
                for ((y, x), (mean, reciprocal)) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(statistics) {
                    let m = (f64::from(sum_map(x, |v| v)) / c as f64) as f32;
                    let variance = f64::from(sum_map(x, |v| (v - m) * (v - m))) / c as f64;
                    let r = (1.0 / (variance + epsilon).sqrt()) as f32;
                    (*mean, *reciprocal) = (m, r);
                    for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                        *y = E::narrow((x.wide() - m) * r * w + b);
                    }
                }
            });
        });
    });
    Normed { y, statistics: Statistics { mean, reciprocal } }
}

/// The output of [`rms_norm`] once more, with the same bits.
pub fn rms_norm_again<E: Element>(x: &[E], weight: &[f32], statistics: &Statistics) -> Vec<E> {
    normed_again(x, weight, |row, x, y| {
        let r = statistics.reciprocal[row];
        y.iter_mut().zip(x).zip(weight).for_each(|((y, x), w)| *y = E::narrow(x.wide() * r * w));
    })
}

/// The output of [`layer_norm`] once more, with the same bits.
pub fn layer_norm_again<E: Element>(x: &[E], weight: &[f32], bias: Option<&[f32]>, statistics: &Statistics) -> Vec<E> {
    let zeros = vec![0.0; weight.len()];
    let bias = bias.unwrap_or(&zeros);
    normed_again(x, weight, |row, x, y| {
        let (m, r) = (statistics.mean[row], statistics.reciprocal[row]);
        let inputs = x.iter().zip(weight).zip(bias);
        y.iter_mut().zip(inputs).for_each(|(y, ((x, w), b))| *y = E::narrow((x.wide() - m) * r * w + b));
    })
}

#[inline(always)]
fn normed_again<E: Element>(x: &[E], weight: &[f32], fill: impl Fn(usize, &[E], &mut [E]) + Sync) -> Vec<E> {
    let c = weight.len().max(1);
    filled(x.len(), |y| {
        y.par_chunks_mut(ROWS * c).zip(x.par_chunks(ROWS * c)).enumerate().for_each(|(task, (y, x))| {
            vectorised!({
                for (i, (y, x)) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)).enumerate() {
                    fill(task * ROWS + i, x, y);
                }
            });
        });
    })
}

/// Tensors that the backward of a norm reads.
#[derive(Clone, Copy)]
pub struct Saved<'a, E> {
    /// The input, `[n, c]`.
    pub x: &'a [E],
    /// `[c]`.
    pub weight: &'a [f32],
    /// Statistics of the forward pass.
    pub statistics: &'a Statistics,
}

/// Gradients of [`rms_norm`] from the gradient `dy` of its output. `residual` is another gradient
/// of the input, which is added.
pub fn rms_norm_backward<E: Element>(dy: &[E], saved: Saved<'_, E>, residual: Option<Vec<E>>) -> NormGradients<E> {
    match residual {
        Some(sum) => rms_norm_rows::<E, true>(dy, saved, sum),
        None => rms_norm_rows::<E, false>(dy, saved, Vec::new()),
    }
}

/// Gradients of [`layer_norm`], see [`rms_norm_backward`].
pub fn layer_norm_backward<E: Element>(dy: &[E], saved: Saved<'_, E>, residual: Option<Vec<E>>) -> NormGradients<E> {
    match residual {
        Some(sum) => layer_norm_rows::<E, true>(dy, saved, sum),
        None => layer_norm_rows::<E, false>(dy, saved, Vec::new()),
    }
}

/// Adds to the value or replaces it.
#[inline(always)]
fn put<E: Element, const ADD: bool>(to: &mut E, value: f32) {
    *to = E::narrow(if ADD { to.wide() + value } else { value });
}

fn rms_norm_rows<E: Element, const ADD: bool>(dy: &[E], saved: Saved<'_, E>, sum: Vec<E>) -> NormGradients<E> {
    let Saved { weight, statistics, .. } = saved;
    backward::<E, ADD>(dy, saved, sum, |dy, x, dx, dw, _db, row| {
        let r = statistics.reciprocal[row];
        let weighted = sum_map3(dy, x, weight);
        let slope = r * r * weighted / weight.len() as f32;
        for ((((dx, dw), dy), x), w) in dx.iter_mut().zip(dw).zip(dy).zip(x).zip(weight) {
            let (dy, x) = (dy.wide(), x.wide());
            put::<E, ADD>(dx, r * (dy * w - x * slope));
            *dw += dy * x * r;
        }
    })
}

fn layer_norm_rows<E: Element, const ADD: bool>(dy: &[E], saved: Saved<'_, E>, sum: Vec<E>) -> NormGradients<E> {
    let Saved { weight, statistics, .. } = saved;
    backward::<E, ADD>(dy, saved, sum, |dy, x, dx, dw, db, row| {
        let (m, r) = (statistics.mean[row], statistics.reciprocal[row]);
        let c = weight.len() as f32;
        let offset = dot(dy, weight) / c;
        let weighted = sum_map3_centred(dy, x, weight, m);
        let slope = r * r * weighted / c;
        for (((((dx, dw), db), dy), x), w) in dx.iter_mut().zip(dw).zip(db).zip(dy).zip(x).zip(weight) {
            let (dy, centred) = (dy.wide(), x.wide() - m);
            put::<E, ADD>(dx, r * (dy * w - offset - centred * slope));
            *dw += dy * centred * r;
            *db += dy;
        }
    })
}

/// Sum of `dy * w * x`.
#[inline(always)]
fn sum_map3<E: Element>(dy: &[E], x: &[E], w: &[f32]) -> f32 {
    sum_map3_centred(dy, x, w, 0.0)
}

/// Sum of `dy * w * (x - mean)`, in blocks so that it vectorises.
#[inline(always)]
fn sum_map3_centred<E: Element>(dy: &[E], x: &[E], w: &[f32], mean: f32) -> f32 {
    const BLOCK: usize = 256;
    let mut total = 0.0;
    for ((dy, x), w) in dy.chunks(BLOCK).zip(x.chunks(BLOCK)).zip(w.chunks(BLOCK)) {
        let mut product = [0.0; BLOCK];
        product.iter_mut().zip(dy).zip(w).for_each(|((p, dy), w)| *p = dy.wide() * w);
        total += sum_map2(&product[..x.len()], x, |p, x| p * (x - mean));
    }
    total
}

/// The frame of both backwards: tasks of [`ROWS`] rows, whose weight gradients are then added in
/// order. With `ADD` gradients of the input are added to `sum`.
#[inline(always)]
fn backward<E: Element, const ADD: bool>(
    dy: &[E],
    Saved { x, weight, statistics }: Saved<'_, E>,
    mut sum: Vec<E>,
    row: impl Fn(&[E], &[E], &mut [E], &mut [f32], &mut [f32], usize) + Sync,
) -> NormGradients<E> {
    let c = weight.len();
    let tasks = statistics.reciprocal.len().div_ceil(ROWS);
    let mut partial = vec![0.0; tasks * 2 * c];
    let mut fill = |dx: &mut [E]| {
        if c == 0 {
            return;
        }
        dx.par_chunks_mut(ROWS * c)
            .zip(dy.par_chunks(ROWS * c))
            .zip(x.par_chunks(ROWS * c))
            .zip(partial.par_chunks_mut(2 * c))
            .enumerate()
            .for_each(|(task, (((dx, dy), x), partial))| {
                let (dw, db) = partial.split_at_mut(c);
                vectorised!({
                    let rows = dx.chunks_exact_mut(c).zip(dy.chunks_exact(c)).zip(x.chunks_exact(c));
                    for (i, ((dx, dy), x)) in rows.enumerate() {
                        row(dy, x, dx, dw, db, task * ROWS + i);
                    }
                });
            });
    };
    let dx = if ADD {
        assert_eq!(sum.len(), x.len(), "one gradient for each element of the input");
        fill(&mut sum);
        sum
    } else {
        filled(x.len(), fill)
    };
    let mut sums = crate::linear::cpu::column_sums(&partial, 2 * c);
    let bias = sums.split_off(c);
    NormGradients { x: dx, weight: sums, bias }
}
