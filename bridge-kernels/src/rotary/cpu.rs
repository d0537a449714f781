//! Rotary position embedding of the rows of `[b, t, h, d]`.

use rayon::prelude::*;

use super::table::RotaryPairing;
use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::simd::vectorised;

/// Elements of one task, about.
const CHUNK: usize = 1 << 14;

/// Direction of the rotation: the backward rotates in the other direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Rotation by the position.
    Forward,
    /// Rotation by minus the position.
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
    /// Pairing of dimensions.
    pub pairing: RotaryPairing,
    /// Size of a head.
    pub head_size: usize,
    /// Number of heads.
    pub heads: usize,
    /// Heads of a group, which divides `heads`.
    pub group: usize,
    /// Number of leading heads of a group that are rotated.
    pub rotated: usize,
}

/// A rotated copy of `x`, whose tokens (`[heads, head_size]` each) have the given positions.
pub fn rotate<E: Element>(x: &[E], positions: &[usize], rotation: Rotation<'_>, direction: Direction) -> Vec<E> {
    filled(x.len(), |y| {
        let (tokens, width) = chunk(rotation);
        let tasks = y.par_chunks_mut(tokens * width).zip(x.par_chunks(tokens * width));
        tasks.zip(positions.par_chunks(tokens)).for_each(|((y, x), positions)| {
            vectorised!({
                for ((y, x), position) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(positions) {
                    y.copy_from_slice(x);
                    token(y, *position, rotation, direction);
                }
            });
        });
    })
}

/// [`rotate`] without the copy.
pub fn rotate_in_place<E: Element>(x: &mut [E], positions: &[usize], rotation: Rotation<'_>, direction: Direction) {
    let (tokens, width) = chunk(rotation);
    x.par_chunks_mut(tokens * width).zip(positions.par_chunks(tokens)).for_each(|(x, positions)| {
        vectorised!({
            for (x, position) in x.chunks_exact_mut(width).zip(positions) {
                token(x, *position, rotation, direction);
            }
        });
    });
}

/// Tokens of one task, and elements of a token (at least one of each).
fn chunk(rotation: Rotation<'_>) -> (usize, usize) {
    let width = (rotation.heads * rotation.head_size).max(1);
    ((CHUNK / width).max(1), width)
}

#[inline(always)]
fn token<E: Element>(x: &mut [E], position: usize, rotation: Rotation<'_>, direction: Direction) {
    let Rotation { pairs, head_size, group, rotated, .. } = rotation;
    let cos = &rotation.cos[position * pairs..][..pairs];
    let sin = &rotation.sin[position * pairs..][..pairs];
    let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
    for group in x.chunks_exact_mut(group * head_size) {
        for head in group.chunks_exact_mut(head_size).take(rotated) {
            let head = &mut head[..2 * pairs];
            match rotation.pairing {
                RotaryPairing::Halves => {
                    let (x1, x2) = head.split_at_mut(pairs);
                    for ((x1, x2), (c, s)) in x1.iter_mut().zip(x2).zip(cos.iter().zip(sin)) {
                        (*x1, *x2) = rotate_pair(*x1, *x2, *c, s * sign);
                    }
                }
                RotaryPairing::Interleaved => {
                    for ([x1, x2], (c, s)) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
                        (*x1, *x2) = rotate_pair(*x1, *x2, *c, s * sign);
                    }
                }
            }
        }
    }
}

/// A point rotated by the angle with this cosine and sine.
#[inline(always)]
fn rotate_pair<E: Element>(x1: E, x2: E, cos: f32, sin: f32) -> (E, E) {
    let (x1, x2) = (x1.wide(), x2.wide());
    (E::narrow(x1 * cos - x2 * sin), E::narrow(x2 * cos + x1 * sin))
}
