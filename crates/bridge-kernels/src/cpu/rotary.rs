//! Rotary position embedding of the rows of `[b, t, h, d]`.

use rayon::prelude::*;

use super::buffer::filled;
use super::simd::vectorised;
use crate::rotary::RotaryPairing;

/// Elements of one task, about.
const CHUNK: usize = 1 << 14;

/// Direction of the rotation: the backward turns the other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// By the position.
    Forward,
    /// By minus the position.
    Backward,
}

/// Shapes and tables of one rotation.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// `[length, r / 2]`.
    pub cos: &'a [f32],
    /// `[length, r / 2]`.
    pub sin: &'a [f32],
    /// `r / 2`.
    pub pairs: usize,
    /// How dimensions are paired.
    pub pairing: RotaryPairing,
    /// Number of heads.
    pub heads: usize,
    /// Size of a head.
    pub head_size: usize,
}

/// Rotates `x`, whose tokens (`[h, d]` each) have the given positions.
pub fn rotate(x: &[f32], positions: &[usize], rotation: Rotation<'_>, direction: Direction) -> Vec<f32> {
    let width = rotation.heads * rotation.head_size;
    filled(x.len(), |y| {
        if width == 0 {
            return;
        }
        let tokens = (CHUNK / width).max(1);
        let tasks = y.par_chunks_mut(tokens * width).zip(x.par_chunks(tokens * width));
        tasks.zip(positions.par_chunks(tokens)).for_each(|((y, x), positions)| {
            vectorised!({
                for ((y, x), position) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(positions) {
                    token(y, x, *position, rotation, direction);
                }
            });
        });
    })
}

#[inline(always)]
fn token(y: &mut [f32], x: &[f32], position: usize, rotation: Rotation<'_>, direction: Direction) {
    let Rotation { pairs, head_size, .. } = rotation;
    let cos = &rotation.cos[position * pairs..][..pairs];
    let sin = &rotation.sin[position * pairs..][..pairs];
    let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
    for (y, x) in y.chunks_exact_mut(head_size).zip(x.chunks_exact(head_size)) {
        let ((y, y_rest), (x, x_rest)) = (y.split_at_mut(2 * pairs), x.split_at(2 * pairs));
        match rotation.pairing {
            RotaryPairing::Halves => {
                let ((y1, y2), (x1, x2)) = (y.split_at_mut(pairs), x.split_at(pairs));
                let angles = cos.iter().zip(sin);
                for (((y1, y2), (x1, x2)), (c, s)) in y1.iter_mut().zip(y2).zip(x1.iter().zip(x2)).zip(angles) {
                    let s = s * sign;
                    *y1 = x1 * c - x2 * s;
                    *y2 = x2 * c + x1 * s;
                }
            }
            RotaryPairing::Interleaved => {
                let (y, x) = (y.as_chunks_mut::<2>().0, x.as_chunks::<2>().0);
                for ((y, x), (c, s)) in y.iter_mut().zip(x).zip(cos.iter().zip(sin)) {
                    let s = s * sign;
                    *y = [x[0] * c - x[1] * s, x[1] * c + x[0] * s];
                }
            }
        }
        y_rest.copy_from_slice(x_rest);
    }
}
