//! Weights as codes, which ranks send to each other instead of values.

use burn::tensor::{DType, Tensor};

use super::cpu::{cast, largest_magnitude};
use super::format::Fp8Format;
#[cfg(feature = "cube")]
use super::several;

/// Stand-in for builds without GPU support.
#[cfg(not(feature = "cube"))]
mod several {
    use super::{CodePlaces, DType, Tensor, WeightCast};

    pub fn largest_magnitude(_weight: &Tensor<1>) -> Option<Tensor<1>> {
        None
    }

    pub fn encode(_places: &CodePlaces, _values: &Tensor<1>, _casts: &[WeightCast]) -> Option<Tensor<1>> {
        None
    }

    pub fn decode(_: &CodePlaces, _codes: &Tensor<1>, _casts: &[WeightCast], _dtype: DType) -> Option<Tensor<1>> {
        None
    }
}

/// Cast of a weight with one scale. A layer that gets the decoded values casts them to the same
/// codes with the same scale, so its products equal those of the weight itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightCast {
    scale: f32,
    /// Largest decoded value, if the scale is derived from it.
    largest: Option<f32>,
}

pub(super) const FORMAT: Fp8Format = Fp8Format::E4M3;

impl WeightCast {
    /// With a scale from earlier steps.
    pub fn with_scale(scale: f32) -> Self {
        Self { scale, largest: None }
    }

    /// With the scale of a weight of this largest magnitude ([`Self::largest_magnitude`]).
    pub fn from_amax(largest: f32) -> Self {
        let scale = FORMAT.scale(largest);
        // A scale that is bounded leaves the largest codes unused.
        let is_full = largest > 0.0 && largest.is_finite() && FORMAT.code(largest * scale) == FORMAT.code(f32::MAX);
        Self { scale, largest: is_full.then_some(largest) }
    }

    /// The largest magnitude of a part of a weight; infinite if an element is not finite.
    pub fn largest_magnitude(weight: &[f32]) -> f32 {
        let largest = largest_magnitude(weight);
        if largest.is_finite() { largest } else { f32::INFINITY }
    }

    /// [`largest_magnitude`](Self::largest_magnitude) as a tensor `[1]`, which nothing waits for;
    /// `None` where the weight is on no GPU, empty, or not of 16 or 32 bits.
    pub fn largest_on_device(weight: &Tensor<1>) -> Option<Tensor<1>> {
        several::largest_magnitude(weight)
    }

    /// The codes of a part of a weight.
    pub fn encode(self, weight: &[f32]) -> Vec<u8> {
        weight.iter().map(|x| cast(FORMAT, *x, self.scale)).collect()
    }

    /// Decodes codes.
    pub fn decode(self, codes: &[u8]) -> Vec<f32> {
        let values = self.values();
        codes.iter().map(|code| values[usize::from(*code)]).collect()
    }

    /// Value of each code.
    pub(super) fn values(self) -> [f32; 256] {
        let inverse = 1.0 / self.scale;
        // The largest magnitude is restored to the bit, so that a layer computes the same scale
        // from it.
        let value = |value: f32| match self.largest {
            Some(largest) if value.abs() == FORMAT.largest() => largest.copysign(value),
            _ => value * inverse,
        };
        FORMAT.values().map(value)
    }

    /// Factor that multiplies weights before the cast.
    #[cfg(feature = "cube")]
    pub(super) fn scale(self) -> f32 {
        self.scale
    }
}

/// Layout of the codes of several weights side by side in equally long parts, on a GPU. A code is a
/// byte; four codes are one element that is called float32 and that no arithmetic reads.
#[derive(Clone, Debug)]
pub struct CodePlaces {
    /// For each part, where the codes of each weight end. Each begins where the one before ends.
    pub ends: Vec<Vec<usize>>,
    /// Elements of a part, including padding after the last weight. Its codes fill whole words.
    pub length: usize,
}

impl CodePlaces {
    /// Elements of float32 that the codes of a part fill.
    pub fn words(&self) -> usize {
        self.length.div_ceil(4)
    }

    /// The codes of the only part, `values` `[length]` -> `[words]`, with the bits of
    /// [`WeightCast::encode`], up to the sign of NaN. `None` if the values are not on a GPU, or do
    /// not have 16 or 32 bits.
    ///
    /// # Panics
    /// If there is not one part, or not a cast for each weight.
    pub fn encode(&self, values: &Tensor<1>, casts: &[WeightCast]) -> Option<Tensor<1>> {
        assert_eq!((self.ends.len(), self.ends[0].len()), (1, casts.len()), "a part, and a cast a weight");
        several::encode(self, values, casts)
    }

    /// Decodes the codes of all parts, `[parts * words]` -> `[parts * length]`: the values of
    /// [`WeightCast::decode`], rounded to `dtype`. `None` if the codes are not on a GPU.
    ///
    /// # Panics
    /// If there is not a cast for each weight.
    pub fn decode(&self, codes: &Tensor<1>, casts: &[WeightCast], dtype: DType) -> Option<Tensor<1>> {
        assert!(self.ends.iter().all(|ends| ends.len() == casts.len()), "a cast a weight");
        several::decode(self, codes, casts, dtype)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

    use super::*;
    use crate::fp8::{Fp8Pass, Fp8Rule, Fp8Scaling, fp8_linear};

    /// Odd sizes; values over many powers of two.
    fn weight(seed: u64, size: f32) -> Vec<f32> {
        let draws = crate::Philox::new(seed).normal(37 * 61, 1.0);
        draws.into_iter().enumerate().map(|(place, x)| x * size * 2.0_f32.powi(-((place % 19) as i32))).collect()
    }

    fn tensor(values: &[f32], dtype: FloatDType) -> Tensor<2> {
        Tensor::<2>::from_data(TensorData::new(values.to_vec(), [61, 37]), &Device::flex()).cast(dtype)
    }

    fn floats(x: Tensor<2>) -> Vec<f32> {
        x.cast(FloatDType::F32).into_data().iter::<f32>().collect()
    }

    #[test]
    fn layers_make_the_same_of_what_codes_stand_for() {
        let x = tensor(&weight(1, 1.0), FloatDType::F32).cast(FloatDType::F32);
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            for (seed, size) in [(2, 0.02), (3, 1.3), (4, 7.7e-4)] {
                let exact = tensor(&weight(seed, size), dtype);
                let values = floats(exact.clone());
                let current = WeightCast::from_amax(WeightCast::largest_magnitude(&values));
                // The second one clips some weights.
                for (scaling, cast) in
                    [(Fp8Scaling::Current, current), (Fp8Scaling::Delayed, WeightCast::with_scale(131.7 / size))]
                {
                    let sent = tensor(&cast.decode(&cast.encode(&values)), dtype);
                    assert_ne!(sent.clone().into_data(), exact.clone().into_data());
                    let rule = Fp8Rule { gradient: Fp8Format::E5M2, scaling, weight_gradient: true };
                    let scales = Tensor::from_data([1.0, cast.scale, 1.0], &Device::flex());
                    let scales = (scaling == Fp8Scaling::Delayed).then_some(scales);
                    let pass = Fp8Pass { rule, scales, maxima: None };
                    let product = |weight: Tensor<2>| fp8_linear(x.clone(), weight, None, &pass).into_data();
                    assert_eq!(product(sent), product(exact.clone()), "{scaling:?}, {dtype:?}, {size}");
                }
            }
        }
        assert_eq!(x.dtype(), DType::F32);
    }

    #[test]
    fn parts_are_cast_as_the_whole_is() {
        let values = weight(5, 0.3);
        let cast = WeightCast::from_amax(WeightCast::largest_magnitude(&values));
        let (a, b) = values.split_at(1001);
        assert_eq!([cast.encode(a), cast.encode(b)].concat(), cast.encode(&values));
        let decoded = cast.decode(&cast.encode(&values));
        assert_eq!(WeightCast::largest_magnitude(&decoded), WeightCast::largest_magnitude(&values));
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let values = [0.5, value, -0.25];
            let cast = WeightCast::from_amax(WeightCast::largest_magnitude(&values));
            let decoded = cast.decode(&cast.encode(&values));
            assert!(decoded[1].is_nan() && (decoded[0], decoded[2]) == (0.5, -0.25), "{decoded:?}");
        }
        let cast = WeightCast::from_amax(0.0);
        assert_eq!(cast.decode(&cast.encode(&[0.0; 3])), [0.0; 3]);
        // A scale that is bounded.
        let tiny = [1e-38, -3e-39];
        let cast = WeightCast::from_amax(1e-38);
        assert_eq!(cast.encode(&cast.decode(&cast.encode(&tiny))), cast.encode(&tiny));
    }
}
