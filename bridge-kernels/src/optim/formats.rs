//! Formats in which states of an optimizer are kept between steps, bfloat16, and the remainder of a
//! float32 beside it. Other floats of 8 and 16 bits are in `cpu/small`; slices and tensors do not
//! belong here.

use super::cpu::blocks::BLOCK;
pub use super::cpu::blocks::BlockCode;
use crate::cpu::small::{E4M3, Half, Small};

/// Storage format of the elements of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// float32.
    Float32,
    /// bfloat16, rounded to nearest even.
    BFloat16,
    /// float16 times one scale of the tensor.
    Float16,
    /// 8-bit floats E4M3 (Micikevicius et al., arXiv:2209.05433, section 3: 4 bits of exponent, 3
    /// of mantissa, no infinities) times one scale of the tensor.
    Float8,
    /// Codes times one scale a block of 256 elements.
    Blocks(BlockCode),
}

impl Format {
    /// Bytes of an element, with its part of the scale of a block.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Float32 => 4.0,
            Self::BFloat16 | Self::Float16 => 2.0,
            Self::Float8 => 1.0,
            Self::Blocks(code) => (code.bytes(BLOCK) + size_of::<f32>()) as f64 / BLOCK as f64,
        }
    }

    /// True if elements are in host memory with any device.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::Float8 | Self::Blocks(_))
    }

    /// True if elements are multiples of one scale of their tensor.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::Float16 | Self::Float8)
    }

    /// The scale of a tensor whose largest magnitude is `magnitude`: with it, that becomes the
    /// largest number of the format. 1 for a tensor of zeros and for formats without scale; never
    /// so small that float32 could not divide by it.
    pub fn scale_for(self, magnitude: f32) -> f32 {
        let largest = match self {
            Self::Float32 | Self::BFloat16 | Self::Blocks(_) => return 1.0,
            Self::Float16 => Half::LARGEST,
            Self::Float8 => E4M3::LARGEST,
        };
        if magnitude == 0.0 { 1.0 } else { (magnitude.min(f32::MAX) / largest).max(f32::MIN_POSITIVE) }
    }
}

/// The float32 of a bfloat16.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, of two the even one.
#[inline(always)]
pub(crate) fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    (if x.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}

/// Low half of a float32 that lies midway between two bfloat16 numbers.
pub(crate) const MIDWAY: u16 = 0x8000;

/// The float32 that was rounded to the bfloat16 `high` and has the low half `low`, unless it was
/// [midway](MIDWAY) and rounded up.
#[inline(always)]
pub(crate) fn join(high: u16, low: u16) -> f32 {
    let high = high.wrapping_sub(u16::from(low > MIDWAY));
    f32::from_bits((u32::from(high) << 16) | u32::from(low))
}

/// The float32 that was midway and rounded up to the bfloat16 `high`.
pub(crate) fn join_rounded_up(high: u16) -> f32 {
    f32::from_bits((u32::from(high.wrapping_sub(1)) << 16) | u32::from(MIDWAY))
}

/// True if a float32 is midway and rounds up: the bfloat16 below it is odd.
#[inline(always)]
pub(crate) fn is_rounded_up(x: f32) -> bool {
    x.to_bits() & 0x1_ffff == 0x1_8000
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cpu::small::encode;

    #[test]
    fn bfloat16_is_that_of_another_implementation() {
        for bits in 0..=u16::MAX {
            let wide = widen_bf16(bits);
            if bf16::from_bits(bits).is_nan() {
                assert!(wide.is_nan() && bf16::from_bits(narrow_bf16(wide)).is_nan(), "{bits:#x}");
            } else {
                assert_eq!(wide.to_bits(), bf16::from_bits(bits).to_f32().to_bits());
                assert_eq!(narrow_bf16(wide), bits);
            }
        }
        // Numbers of all sizes, and midway between two.
        for seed in 0..200_000_u32 {
            let bits = seed.wrapping_mul(0x9e37_79b9);
            for x in [bits, bits & 0xffff_0000 | 0x8000].map(f32::from_bits) {
                assert!(x.is_nan() || narrow_bf16(x) == bf16::from_f32(x).to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn a_float32_is_its_rounded_half_and_the_rest() {
        for seed in 0..100_000_u32 {
            let bits = seed.wrapping_mul(0x9e37_79b9);
            for low in [bits & 0xffff, 0x7fff, 0x8000, 0x8001, 0, 0xffff] {
                let x = f32::from_bits(bits & 0xffff_0000 | low);
                if x.is_nan() {
                    continue;
                }
                let high = narrow_bf16(x);
                let found = if is_rounded_up(x) { join_rounded_up(high) } else { join(high, low as u16) };
                assert_eq!(found.to_bits(), x.to_bits(), "{:#x}", x.to_bits());
            }
        }
    }

    #[test]
    fn scales_make_the_largest_magnitude_the_largest_number() {
        for magnitude in [1e-30_f32, 3.7, 65504.0, 1e38] {
            assert_eq!(encode::<E4M3>(magnitude / Format::Float8.scale_for(magnitude)), 0x7e, "{magnitude}");
            assert_eq!(encode::<Half>(magnitude / Format::Float16.scale_for(magnitude)), 0x7bff, "{magnitude}");
        }
        for format in [Format::Float32, Format::BFloat16, Format::Float16, Format::Float8] {
            assert_eq!(format.scale_for(0.0), 1.0);
            assert!(format.scale_for(1e-44) >= f32::MIN_POSITIVE && format.scale_for(f32::INFINITY).is_finite());
            assert_eq!(format.is_scaled(), format.scale_for(3.0) != 1.0);
        }
    }
}
