//! Elements of tensors that kernels read and write: float32, and bfloat16 with arithmetic in
//! float32.

use burn::tensor::DType;
use bytemuck::Pod;
use half::bf16;
use rayon::prelude::*;

use super::buffer::filled;
use super::simd::vectorised;

/// Element of a tensor in memory.
pub trait Element: Pod + burn::tensor::Element + Send + Sync {
    /// The dtype of such tensors.
    const DTYPE: DType;

    /// The value in float32.
    fn wide(self) -> f32;

    /// The nearest element, ties to even.
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

/// Without branches, unlike the conversions of the crate `half`, so that loops vectorise.
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
        // Rounding could carry a NaN into the sign.
        let quiet = (bits >> 16) | 0x40;
        Self::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

/// Elements of one task of a pass.
const CHUNK: usize = 1 << 15;

/// A copy of `x` in float32.
pub fn widened(x: &[bf16]) -> Vec<f32> {
    filled(x.len(), |y| {
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| vectorised!(widen_into(y, x)));
    })
}

/// A rounded copy of `x`.
pub fn narrowed(x: &[f32]) -> Vec<bf16> {
    filled(x.len(), |y| {
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| vectorised!(narrow_into(y, x)));
    })
}

/// `x` in float32.
#[inline(always)]
pub fn widen_into<E: Element>(y: &mut [f32], x: &[E]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x.wide());
}

/// `x`, rounded.
#[inline(always)]
pub fn narrow_into<E: Element>(y: &mut [E], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = E::narrow(*x));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_is_that_of_another_implementation() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            assert!(x.wide().to_bits() == x.to_f32().to_bits() || x.is_nan() && x.wide().is_nan(), "{bits:#x}");
        }
        for seed in 0..100_000_u32 {
            let bits = seed.wrapping_mul(0x9e37_79b9);
            for x in [bits, bits & 0xffff_8000 | 0x8000, bits | 0x7f80_0000].map(f32::from_bits) {
                let (found, expected) = (bf16::narrow(x), bf16::from_f32(x));
                assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{x}");
            }
        }
    }
}
