//! Floats of 8 and 16 bits: their codes and values.

/// A float of at most 16 bits: sign, `EXPONENT` bits of exponent, `MANTISSA` bits of mantissa.
pub(crate) trait Small {
    const EXPONENT: u32;
    const MANTISSA: u32;
    /// The largest finite number.
    const LARGEST: f32;
    /// The code of the largest finite number.
    const LARGEST_CODE: u32;
    /// The code of a NaN.
    const NAN: u32;

    /// Bias of the exponent.
    const BIAS: u32 = (1 << (Self::EXPONENT - 1)) - 1;
    /// The smallest normal number.
    const LEAST_NORMAL: f32 = power_of_two(128 - Self::BIAS);
    /// The smallest number above zero, which is the distance of subnormal numbers from each other.
    const QUANTUM: f32 = power_of_two(128 - Self::BIAS - Self::MANTISSA);
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

/// Four bits of exponent, three of mantissa, no infinities (Micikevicius et al., arXiv:2209.05433,
/// section 3).
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

/// Decodes a code; codes that are not finite give NaN. Avoids denormal intermediate values, which
/// are slow, and branches, so that it vectorises.
#[inline(always)]
pub(crate) fn decode<S: Small>(code: u32) -> f32 {
    let sign = (code >> (S::EXPONENT + S::MANTISSA)) << 31;
    let magnitude = code & ((1 << (S::EXPONENT + S::MANTISSA)) - 1);
    let normal = (magnitude << (23 - S::MANTISSA)) + ((127 - S::BIAS) << 23);
    let subnormal = (magnitude as i32 as f32 * S::QUANTUM).to_bits();
    let bits = if magnitude < (1 << S::MANTISSA) { subnormal } else { normal };
    let bits = if magnitude > S::LARGEST_CODE { f32::NAN.to_bits() } else { bits };
    f32::from_bits(bits | sign)
}

/// Encodes to nearest even. Values beyond the largest number saturate.
#[inline(always)]
pub(crate) fn encode<S: Small>(x: f32) -> u32 {
    let sign = x.to_bits() >> 31;
    let a = x.abs();
    let a = if a > S::LARGEST { S::LARGEST } else { a };
    let bits = a.to_bits();
    let half = (1_u32 << (22 - S::MANTISSA)) - 1;
    let rounded = bits.wrapping_add(half).wrapping_add((bits >> (23 - S::MANTISSA)) & 1) >> (23 - S::MANTISSA);
    let normal = rounded.wrapping_sub((127 - S::BIAS) << S::MANTISSA);
    // The unit in the last place of this power of two is the smallest number of the format, so the
    // addition rounds to its multiples.
    let power = power_of_two(128 - S::BIAS - S::MANTISSA + 23);
    let subnormal = (a + power).to_bits().wrapping_sub(power.to_bits());
    let code = if a < S::LEAST_NORMAL { subnormal } else { normal };
    let code = if x.is_nan() { S::NAN } else { code };
    code | (sign << (S::EXPONENT + S::MANTISSA))
}

/// The float32 whose exponent has these bits.
#[inline(always)]
const fn power_of_two(exponent: u32) -> f32 {
    f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// The finite numbers that are not negative, in the order of their codes, by the definition of
    /// such formats.
    fn numbers<S: Small>() -> Vec<f64> {
        let (bias, fractions): (i32, u32) = ((1 << (S::EXPONENT - 1)) - 1, 1 << S::MANTISSA);
        let number = |code: u32| {
            let exponent = (code >> S::MANTISSA) as i32;
            let fraction = f64::from(code % fractions) / f64::from(fractions);
            match exponent {
                0 => fraction * 2_f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2_f64.powi(exponent - bias),
            }
        };
        (0..=S::LARGEST_CODE).map(number).collect()
    }

    /// The code of zero with a sign.
    fn sign<S: Small>() -> u32 {
        1 << (S::EXPONENT + S::MANTISSA)
    }

    fn every_code_is_its_number<S: Small>() {
        let (numbers, sign) = (numbers::<S>(), sign::<S>());
        assert_eq!(numbers.last(), Some(&f64::from(S::LARGEST)));
        assert_eq!(numbers[1], f64::from(S::QUANTUM));
        assert_eq!(numbers[1 << S::MANTISSA], f64::from(S::LEAST_NORMAL));
        for (code, number) in (0_u32..).zip(numbers) {
            for (code, number) in [(code, number), (code | sign, -number)] {
                assert_eq!(f64::from(decode::<S>(code)).to_bits(), number.to_bits(), "{code:#x}");
                assert_eq!(encode::<S>(number as f32), code, "{number}");
            }
        }
        for code in S::LARGEST_CODE + 1..sign {
            assert!(decode::<S>(code).is_nan() && decode::<S>(code | sign).is_nan(), "{code:#x}");
        }
        assert!(decode::<S>(encode::<S>(f32::NAN)).is_nan() && decode::<S>(encode::<S>(-f32::NAN)).is_nan());
    }

    #[test]
    fn every_code_is_the_number_of_its_format() {
        every_code_is_its_number::<Half>();
        every_code_is_its_number::<E4M3>();
        every_code_is_its_number::<E5M2>();
        for (code, number) in [(0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0xb9, -1.125), (0x7e, 448.0)] {
            assert_eq!(decode::<E4M3>(code), number, "{code:#x}");
        }
        for (code, number) in [(0x01, 1.525_878_9e-5), (0x04, 6.103_515_6e-5), (0x3c, 1.0), (0x7b, 57_344.0)] {
            assert_eq!(decode::<E5M2>(code), number, "{code:#x}");
        }
    }

    fn rounds_to_nearest_even<S: Small>() {
        let (numbers, sign) = (numbers::<S>(), sign::<S>());
        for (low, pair) in (0_u32..).zip(numbers.windows(2)) {
            let middle = ((pair[0] + pair[1]) / 2.0) as f32;
            let even = low + low % 2;
            for (x, code) in [(middle, even), (middle.next_down(), low), (middle.next_up(), low + 1)] {
                assert_eq!(encode::<S>(x), code, "{x}");
                assert_eq!(encode::<S>(-x), code | sign, "{x}");
            }
        }
        for x in [S::LARGEST.next_up(), 1e30, f32::INFINITY] {
            assert_eq!(encode::<S>(x), S::LARGEST_CODE, "{x}");
            assert_eq!(encode::<S>(-x), S::LARGEST_CODE | sign, "{x}");
        }
        assert_eq!([1e-30, 1e-42, -0.0].map(encode::<S>), [0, 0, sign]);
    }

    #[test]
    fn numbers_between_round_to_nearest_even() {
        rounds_to_nearest_even::<Half>();
        rounds_to_nearest_even::<E4M3>();
        rounds_to_nearest_even::<E5M2>();
    }

    #[test]
    fn halves_are_those_of_another_implementation() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(decode::<Half>(u32::from(bits)).to_bits(), half.to_f32().to_bits(), "{bits:#x}");
            }
        }
        // Numbers of all sizes, and midway between two.
        for seed in 0..200_000_u32 {
            let bits = seed.wrapping_mul(0x9e37_79b9);
            for x in [bits, bits & 0xffff_e000 | 0x1000].map(f32::from_bits) {
                if x.abs() <= Half::LARGEST {
                    assert_eq!(encode::<Half>(x), u32::from(f16::from_f32(x).to_bits()), "{x}");
                }
            }
        }
    }
}
