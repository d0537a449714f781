//! Floats of 8 and 16 bits: their codes and what these stand for.

/// A float of at most 16 bits: sign, `EXPONENT` bits of exponent, `MANTISSA` bits of mantissa.
pub(crate) trait Small {
    const EXPONENT: u32;
    const MANTISSA: u32;
    /// The largest finite number.
    const LARGEST: f32;
    /// The code of the largest finite number.
    const LARGEST_CODE: u32;
    /// A code that is no number.
    const NAN: u32;
}

/// IEEE's binary16.
pub(crate) struct Half;

impl Small for Half {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 10;
    const LARGEST: f32 = 65504.0;
    const LARGEST_CODE: u32 = 0x7bff;
    const NAN: u32 = 0x7e00;
}

/// Four bits of exponent, three of mantissa, no infinities (Micikevicius et al., arXiv:2209.05433, section 3).
pub(crate) struct E4M3;

impl Small for E4M3 {
    const EXPONENT: u32 = 4;
    const MANTISSA: u32 = 3;
    const LARGEST: f32 = 448.0;
    const LARGEST_CODE: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

/// Five bits of exponent, two of mantissa (section 3 there).
pub(crate) struct E5M2;

impl Small for E5M2 {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 2;
    const LARGEST: f32 = 57_344.0;
    const LARGEST_CODE: u32 = 0x7b;
    const NAN: u32 = 0x7f;
}

/// The number of a code; what is not finite is NaN. Without denormal numbers on the way, which are slow, and without branches, so that it vectorises.
#[inline(always)]
pub(crate) fn decode<S: Small>(code: u32) -> f32 {
    let bias = (1 << (S::EXPONENT - 1)) - 1;
    let sign = (code >> (S::EXPONENT + S::MANTISSA)) << 31;
    let magnitude = code & ((1 << (S::EXPONENT + S::MANTISSA)) - 1);
    let normal = (magnitude << (23 - S::MANTISSA)) + ((127 - bias) << 23);
    let subnormal = (magnitude as i32 as f32 * power_of_two(128 - bias - S::MANTISSA)).to_bits();
    let bits = if magnitude < (1 << S::MANTISSA) { subnormal } else { normal };
    let bits = if magnitude > S::LARGEST_CODE { f32::NAN.to_bits() } else { bits };
    f32::from_bits(bits | sign)
}

/// The code of the nearest number, of two the even one. What is beyond the largest number becomes that.
#[inline(always)]
pub(crate) fn encode<S: Small>(x: f32) -> u32 {
    let bias = (1 << (S::EXPONENT - 1)) - 1;
    let sign = x.to_bits() >> 31;
    let a = x.abs();
    let a = if a > S::LARGEST { S::LARGEST } else { a };
    let bits = a.to_bits();
    let half = (1_u32 << (22 - S::MANTISSA)) - 1;
    let rounded = bits.wrapping_add(half).wrapping_add((bits >> (23 - S::MANTISSA)) & 1) >> (23 - S::MANTISSA);
    let normal = rounded.wrapping_sub((127 - bias) << S::MANTISSA);
    // The unit in the last place of this power of two is the smallest number of the format, so the addition rounds to its multiples.
    let power = power_of_two(128 - bias - S::MANTISSA + 23);
    let subnormal = (a + power).to_bits().wrapping_sub(power.to_bits());
    let code = if a < power_of_two(128 - bias) { subnormal } else { normal };
    let code = if x.is_nan() { S::NAN } else { code };
    code | (sign << (S::EXPONENT + S::MANTISSA))
}

/// The float32 whose exponent has these bits.
#[inline(always)]
const fn power_of_two(exponent: u32) -> f32 {
    f32::from_bits(exponent << 23)
}
