//! Dropout on GPUs: each unit draws the random word of its element, so that no mask is stored or
//! copied from the host.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::key::DropoutKey;
use crate::cube::{Buffer, attach_one};

/// Multipliers of the rounds of Philox4x32-10; see [`crate::random`].
const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
/// Increments of the round keys.
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// A dropout mask: which elements go, and the factor on those that stay.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Mask {
    key_low: u32,
    key_high: u32,
    threshold: u32,
    scale: f32,
}

/// Mask of `key` at `rate`; without these, a placeholder that kernels never read.
pub(crate) fn mask(dropout: Option<(f64, DropoutKey)>) -> MaskLaunch {
    let Some((rate, key)) = dropout else { return MaskLaunch::new(0, 0, 0, 1.0) };
    let [low, high] = key.0.words();
    MaskLaunch::new(low, high, (rate * 4_294_967_296.0) as u32, (1.0 / (1.0 - rate)) as f32)
}

/// The factor on the element in `row` and `column` of a matrix of `columns`: 0 or the scale.
#[cube]
pub(crate) fn factor(mask: &Mask, row: u32, column: u32, columns: u32) -> f32 {
    // The element's number has 64 bits.
    let start = row * columns;
    let low = start + column;
    let mut high = row.mul_hi(columns);
    if low < start {
        high += 1u32;
    }
    let mut factor = mask.scale;
    if word(mask, (low >> 2u32) | (high << 30u32), high >> 2u32, low & 3u32) < mask.threshold {
        factor = 0.0f32;
    }
    factor
}

/// Word `lane` of the four words of a Philox block.
#[cube]
fn word(mask: &Mask, index_low: u32, index_high: u32, lane: u32) -> u32 {
    let mut c0 = index_low;
    let mut c1 = index_high;
    let mut c2 = 0u32;
    let mut c3 = 0u32;
    let mut k0 = mask.key_low;
    let mut k1 = mask.key_high;
    for _ in 0..10u32 {
        let next0 = c2.mul_hi(M1) ^ c1 ^ k0;
        let next1 = c2 * M1;
        let next2 = c0.mul_hi(M0) ^ c3 ^ k1;
        let next3 = c0 * M0;
        c0 = next0;
        c1 = next1;
        c2 = next2;
        c3 = next3;
        k0 += W0;
        k1 += W1;
    }
    let mut word = c0;
    if lane == 1u32 {
        word = c1;
    }
    if lane == 2u32 {
        word = c2;
    }
    if lane == 3u32 {
        word = c3;
    }
    word
}

#[cube(launch)]
fn apply<X: Float>(x: &[X], y: &mut [X], mask: Mask, #[define(X)] _storage: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= y.len() {
        terminate!();
    }
    y[i] = X::cast_from(f32::cast_from(x[i]) * factor(&mask, 0u32.runtime(), i as u32, 0u32.runtime()));
}

fn run(x: &Buffer, dropout: (f64, DropoutKey)) -> Buffer {
    let y = x.uninitialised_like();
    let (count, dim) = y.unit_per_element();
    apply::launch(&x.0.client, count, dim, x.arg(), y.arg(), mask(Some(dropout)), x.storage());
    y
}

/// See [`crate::dropout()`].
pub fn dropout<const D: usize>(x: &Tensor<D>, rate: f64, key: DropoutKey) -> Option<Tensor<D>> {
    let y = run(&Buffer::from_tensor(x)?, (rate, key));
    Some(attach_one(y, x, move |dy| run(&dy, (rate, key))))
}
