//! The two 8-bit floats of matrix products (Micikevicius et al., arXiv:2209.05433).

use crate::cpu::small::{self, Small};

/// An 8-bit float: a sign, an exponent, a mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Format {
    /// Four bits of exponent, three of mantissa, up to 448; no infinity.
    E4M3,
    /// Five bits of exponent, two of mantissa, up to 57,344.
    E5M2,
}

impl Fp8Format {
    /// The largest finite value.
    pub const fn largest(self) -> f32 {
        match self {
            Self::E4M3 => small::E4M3::LARGEST,
            Self::E5M2 => small::E5M2::LARGEST,
        }
    }

    /// Exponent of the smallest normal value.
    pub(super) const fn least_exponent(self) -> i32 {
        match self {
            Self::E4M3 => -6,
            Self::E5M2 => -14,
        }
    }

    /// The distance of subnormal values from each other.
    pub(super) const fn quantum(self) -> f32 {
        let mantissa_bits = match self {
            Self::E4M3 => small::E4M3::MANTISSA,
            Self::E5M2 => small::E5M2::MANTISSA,
        };
        power_of_two(self.least_exponent() - mantissa_bits as i32)
    }

    /// The code of the value nearest to `x`, of two the even one. What is too large becomes the largest value, and NaN stays NaN.
    #[inline(always)]
    pub fn code(self, x: f32) -> u8 {
        match self {
            Self::E4M3 => small::encode::<small::E4M3>(x) as u8,
            Self::E5M2 => small::encode::<small::E5M2>(x) as u8,
        }
    }

    /// What a code stands for. What is not finite is NaN.
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::E4M3 => small::decode::<small::E4M3>(u32::from(code)),
            Self::E5M2 => small::decode::<small::E5M2>(u32::from(code)),
        }
    }

    /// What each code stands for.
    pub(super) fn values(self) -> [f32; 256] {
        std::array::from_fn(|code| self.value(code as u8))
    }

    /// What a tensor is multiplied by, so that its largest magnitude becomes the largest value. Without a finite one above zero this is 1.
    pub fn scale(self, largest: f32) -> f32 {
        let scale = self.largest() / largest;
        match (largest == 0.0 || !largest.is_finite(), scale.is_infinite()) {
            (true, _) => 1.0,
            (false, true) => f32::MAX,
            (false, false) => scale,
        }
    }

    /// The power of two that is as large as [`Self::scale`] or next below.
    pub fn power_of_two_scale(self, largest: f32) -> f32 {
        f32::from_bits(self.scale(largest).to_bits() & 0xff80_0000)
    }
}

/// `2^exponent`, of a normal float32.
pub(super) const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

    /// The finite values that are not negative, in order.
    fn finite(format: Fp8Format) -> Vec<f64> {
        (0..0x80).map(|code| f64::from(format.value(code))).take_while(|value| value.is_finite()).collect()
    }

    #[test]
    fn values_are_those_of_the_definition() {
        for (format, code, value) in [
            (Fp8Format::E4M3, 0x00, 0.0),
            (Fp8Format::E4M3, 0x01, 0.001_953_125),
            (Fp8Format::E4M3, 0x08, 0.015_625),
            (Fp8Format::E4M3, 0x38, 1.0),
            (Fp8Format::E4M3, 0xb9, -1.125),
            (Fp8Format::E4M3, 0x7e, 448.0),
            (Fp8Format::E5M2, 0x01, 1.525_878_906_25e-5),
            (Fp8Format::E5M2, 0x04, 6.103_515_625e-5),
            (Fp8Format::E5M2, 0x3c, 1.0),
            (Fp8Format::E5M2, 0x7b, 57_344.0),
        ] {
            assert_eq!(format.value(code), value, "{format:?} {code:#x}");
        }
        assert!(Fp8Format::E4M3.value(0x7f).is_nan() && Fp8Format::E5M2.value(0x7c).is_nan());
        assert_eq!(finite(Fp8Format::E4M3).len(), 127);
        assert_eq!(finite(Fp8Format::E5M2).len(), 124);
    }

    #[test]
    fn every_value_has_its_own_code() {
        for format in BOTH {
            for code in 0..=255 {
                let value = format.value(code);
                if value.is_finite() {
                    assert_eq!(format.code(value), code, "{format:?}: {value}");
                }
            }
            assert!(format.value(format.code(f32::NAN)).is_nan());
            assert_eq!(format.value(format.code(f32::INFINITY)), format.largest());
            assert_eq!(format.value(format.code(-1e30)), -format.largest());
        }
    }

    #[test]
    fn the_nearest_value_is_taken_and_of_two_the_even_one() {
        for format in BOTH {
            let values = finite(format);
            for (place, pair) in values.windows(2).enumerate() {
                let middle = (pair[0] + pair[1]) / 2.0;
                let even = if place % 2 == 0 { pair[0] } else { pair[1] };
                let (below, above) = ((middle as f32).next_down(), (middle as f32).next_up());
                for sign in [1.0_f32, -1.0] {
                    let of = |x: f32| f64::from(format.value(format.code(sign * x)) * sign);
                    assert_eq!(of(middle as f32), even, "{format:?}: {middle}");
                    assert_eq!(of(below), pair[0], "{format:?}: below {middle}");
                    assert_eq!(of(above), pair[1], "{format:?}: above {middle}");
                }
            }
            assert!(format.code(-0.0) == 0x80 && format.code(1e-30) == 0);
        }
    }

    #[test]
    fn scales_use_the_whole_range() {
        let format = Fp8Format::E4M3;
        assert_eq!(format.scale(2.0), 224.0);
        assert_eq!(format.power_of_two_scale(2.0), 128.0);
        assert_eq!(format.power_of_two_scale(448.0), 1.0);
        for none in [0.0, f32::INFINITY, f32::NAN] {
            assert_eq!(format.scale(none), 1.0);
        }
        assert_eq!(format.scale(1e-42), f32::MAX);
        assert_eq!(format.power_of_two_scale(1e-42), power_of_two(127));
    }
}
