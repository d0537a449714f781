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

    /// The smallest normal value.
    pub(super) const fn least_normal(self) -> f32 {
        match self {
            Self::E4M3 => small::E4M3::LEAST_NORMAL,
            Self::E5M2 => small::E5M2::LEAST_NORMAL,
        }
    }

    /// The distance of subnormal values from each other.
    pub(super) const fn quantum(self) -> f32 {
        match self {
            Self::E4M3 => small::E4M3::QUANTUM,
            Self::E5M2 => small::E5M2::QUANTUM,
        }
    }

    /// The code of `x`, rounded to nearest even. Too large values saturate, and NaN stays NaN.
    #[inline(always)]
    pub fn code(self, x: f32) -> u8 {
        match self {
            Self::E4M3 => small::encode::<small::E4M3>(x) as u8,
            Self::E5M2 => small::encode::<small::E5M2>(x) as u8,
        }
    }

    /// Value of a code. Codes that are not finite are NaN.
    #[inline]
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::E4M3 => small::decode::<small::E4M3>(u32::from(code)),
            Self::E5M2 => small::decode::<small::E5M2>(u32::from(code)),
        }
    }

    /// Value of each code.
    pub(super) fn values(self) -> [f32; 256] {
        std::array::from_fn(|code| self.value(code as u8))
    }

    /// Scale that maps a tensor's largest magnitude to the largest value of the format. It is 1 if
    /// the magnitude is zero or not finite.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_its_codes() {
        for (format, one, largest) in [(Fp8Format::E4M3, 0x38, 0x7e), (Fp8Format::E5M2, 0x3c, 0x7b)] {
            assert_eq!([format.code(1.0), format.code(f32::INFINITY)], [one, largest]);
            assert_eq!(
                [one, largest, 0x80 | largest].map(|code| format.value(code)),
                [1.0, format.largest(), -format.largest()]
            );
            assert_eq!(format.values()[1], format.quantum());
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
        assert_eq!(format.power_of_two_scale(1e-42), 2.0_f32.powi(127));
    }
}
