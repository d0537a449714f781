//! Statistics of many numbers, which can be put together from those of parts.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use bridge_config::tensor_features::Statistic;

/// Numbers that a thread processes together. Parts are combined in order, so that results do not
/// depend on the speed of threads.
const PART: usize = 1 << 15;

/// Number of exponents of float32: 0 for subnormal numbers and zero, 255 for NaN and infinity.
const EXPONENTS: usize = 256;

/// Formats in which underflows are counted: the largest magnitude that rounds to zero, and the
/// largest number where tensors are scaled to it.
const FORMATS: [(f64, Option<f64>); 3] = [
    // Half of the smallest subnormal number, which rounds to even.
    (f64::from_bits((1023 - 134) << 52), None),
    (f64::from_bits((1023 - 10) << 52), Some(448.0)),
    (f64::from_bits((1023 - 17) << 52), Some(57_344.0)),
];

/// Statistics of the numbers of a tensor. Numbers that are not finite are counted, and left out of
/// all other statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// All numbers.
    elements: u64,
    non_finite: u64,
    zeros: u64,
    min: f64,
    max: f64,
    mean: f64,
    /// The sum of squared differences from the mean.
    squares: f64,
    magnitudes: f64,
    /// Smallest magnitude that is not zero; 0 if all are zero.
    smallest: f64,
    /// Numbers that round to zero, by format.
    underflows: [u64; 3],
    /// Counts by exponent of the power of two.
    histogram: BTreeMap<i32, u64>,
}

impl Statistics {
    /// Statistics of `values`. The scales of fp8 are those of these values together.
    pub fn measure(values: &[f32]) -> Self {
        let parts: Vec<Self> = values.par_chunks(PART).map(Self::of_part).collect();
        let mut all = parts.into_iter().fold(Self::default(), Self::joined);
        let amax = all.amax();
        let limits = FORMATS.map(|(limit, largest)| largest.map_or(limit, |largest| limit * (amax / largest)));
        let sum = |a: [u64; 3], b: [u64; 3]| std::array::from_fn(|format| a[format] + b[format]);
        all.underflows = values.par_chunks(PART).map(|part| underflows(part, limits)).reduce(Default::default, sum);
        all
    }

    fn of_part(values: &[f32]) -> Self {
        let mut counts = [0_u64; EXPONENTS];
        let (mut min, mut max, mut smallest) = (f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY);
        let (mut sum, mut magnitudes, mut zeros) = (0.0_f64, 0.0_f64, 0);
        for value in values {
            let magnitude = value.abs();
            counts[(magnitude.to_bits() >> 23) as usize] += 1;
            if magnitude == 0.0 {
                zeros += 1;
            } else if magnitude < smallest {
                smallest = magnitude;
            }
            if magnitude < f32::INFINITY {
                min = min.min(*value);
                max = max.max(*value);
                sum += f64::from(*value);
                magnitudes += f64::from(magnitude);
            }
        }
        let non_finite = counts[EXPONENTS - 1];
        let finite = values.len() as u64 - non_finite;
        if finite == 0 {
            return Self { elements: values.len() as u64, non_finite, ..Self::default() };
        }
        let mean = sum / finite as f64;
        let is_finite = |value: &&f32| value.is_finite();
        let squares = values.iter().filter(is_finite).map(|value| (f64::from(*value) - mean).powi(2)).sum();
        // Zeros have the exponent of subnormal numbers, and are not a power of two.
        counts[0] -= zeros;
        let histogram = (-127..).zip(counts[..EXPONENTS - 1].iter().copied()).filter(|(_, count)| *count > 0).collect();
        Self {
            elements: values.len() as u64,
            non_finite,
            zeros,
            min: f64::from(min),
            max: f64::from(max),
            mean,
            squares,
            magnitudes,
            smallest: if smallest.is_finite() { f64::from(smallest) } else { 0.0 },
            underflows: [0; 3],
            histogram,
        }
    }

    /// Numbers that are finite.
    fn finite(&self) -> u64 {
        self.elements - self.non_finite
    }

    fn amax(&self) -> f64 {
        self.max.max(-self.min).max(0.0)
    }

    /// Statistics of both together (means and squares by Chan, Golub and LeVeque, 1979).
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        let (of_self, of_other) = (self.finite(), other.finite());
        let elements = self.elements + other.elements;
        let non_finite = self.non_finite + other.non_finite;
        if of_self == 0 || of_other == 0 {
            let some = if of_self == 0 { other } else { self };
            return Self { elements, non_finite, ..some };
        }
        let (a, b) = (of_self as f64, of_other as f64);
        let difference = other.mean - self.mean;
        let smallest = [self.smallest, other.smallest].into_iter().filter(|smallest| *smallest > 0.0);
        for (exponent, count) in other.histogram {
            *self.histogram.entry(exponent).or_default() += count;
        }
        Self {
            elements,
            non_finite,
            zeros: self.zeros + other.zeros,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            mean: self.mean + difference * (b / (a + b)),
            squares: self.squares + other.squares + difference * difference * (a * b / (a + b)),
            magnitudes: self.magnitudes + other.magnitudes,
            smallest: smallest.reduce(f64::min).unwrap_or(0.0),
            underflows: std::array::from_fn(|index| self.underflows[index] + other.underflows[index]),
            histogram: self.histogram,
        }
    }

    /// Statistics of the numbers times `factor`, which is above 0. Underflows and the histogram
    /// stay those of the numbers before.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        for value in [&mut self.min, &mut self.max, &mut self.mean, &mut self.magnitudes, &mut self.smallest] {
            *value *= factor;
        }
        self.squares *= factor * factor;
        self
    }

    /// A figure; the one of a histogram is NaN. Percentages are of all finite numbers.
    pub fn get(&self, statistic: Statistic) -> f64 {
        let finite = self.finite() as f64;
        let percent = |count: u64| 100.0 * count as f64 / finite;
        match statistic {
            Statistic::NonFinite => self.non_finite as f64,
            _ if self.finite() == 0 => f64::NAN,
            Statistic::Min => self.min,
            Statistic::Max => self.max,
            Statistic::Mean => self.mean,
            Statistic::Std => (self.squares / finite).sqrt(),
            Statistic::L1Norm => self.magnitudes,
            Statistic::L2Norm => (self.squares + self.mean * self.mean * finite).sqrt(),
            Statistic::CurAmax => self.amax(),
            Statistic::DynamicRange if self.smallest == 0.0 => 0.0,
            Statistic::DynamicRange => self.amax().log2() - self.smallest.log2(),
            Statistic::Zeros => percent(self.zeros),
            Statistic::Bf16Underflows => percent(self.underflows[0]),
            Statistic::E4m3Underflows => percent(self.underflows[1]),
            Statistic::E5m2Underflows => percent(self.underflows[2]),
            Statistic::Histogram => f64::NAN,
        }
    }

    /// The histogram: how many magnitudes are in `[2^e, 2^(e+1))`, as `e:count` with spaces
    /// between. Subnormal numbers of float32 are counted at -127.
    pub fn histogram(&self) -> String {
        let counts = self.histogram.iter();
        let counts: Vec<String> = counts.map(|(exponent, count)| format!("{exponent}:{count}")).collect();
        counts.join(" ")
    }
}

/// Number of nonzero values that do not exceed each limit.
fn underflows(values: &[f32], limits: [f64; 3]) -> [u64; 3] {
    let mut counts = [0; 3];
    for value in values {
        let magnitude = f64::from(value.abs());
        for (count, limit) in counts.iter_mut().zip(limits) {
            *count += u64::from(magnitude > 0.0 && magnitude <= limit);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * a.abs().max(b.abs()).max(1e-300)
    }

    #[test]
    fn figures_are_those_of_a_plain_reckoning() {
        // A longer tensor than a part, far from zero, so that squares cancel where they are summed
        // plainly.
        let values: Vec<f32> = (0..PART * 2 + 77).map(|i| 1000.0 + (i % 1013) as f32 * 0.25).collect();
        let statistics = Statistics::measure(&values);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        let norm = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        assert!(close(statistics.get(Statistic::Mean), mean));
        assert!((statistics.get(Statistic::Std) / variance.sqrt() - 1.0).abs() < 1e-12);
        assert!((statistics.get(Statistic::L2Norm) / norm - 1.0).abs() < 1e-12);
        assert!(close(statistics.get(Statistic::L1Norm), mean * n));
        assert_eq!(statistics.get(Statistic::Min), 1000.0);
        assert_eq!(statistics.get(Statistic::CurAmax), 1253.0);
    }

    #[test]
    fn zeros_underflows_and_what_is_not_finite_are_counted() {
        let tiny = f32::from_bits(1);
        // bfloat16 has 2^-133 and rounds half of it to zero, more than half up.
        // By its bits: `powi` makes zero of 2^-134 where nothing is optimized.
        let half = f32::from_bits(1 << 15);
        let values = [0.0, -0.0, tiny, half, -(half * 1.5), 448.0, f32::NAN, f32::INFINITY];
        let statistics = Statistics::measure(&values);
        assert_eq!(statistics.get(Statistic::NonFinite), 2.0);
        assert!(close(statistics.get(Statistic::Zeros), 100.0 * 2.0 / 6.0));
        assert!(close(statistics.get(Statistic::Bf16Underflows), 100.0 * 2.0 / 6.0));
        for value in &values[2..5] {
            let rounds_to_zero = half::bf16::from_f32(*value).to_f32() == 0.0;
            assert_eq!(rounds_to_zero, f64::from(value.abs()) <= FORMATS[0].0, "{value}");
        }
        assert_eq!(statistics.histogram(), "-127:3 8:1");
        let powers = Statistics::measure(&[448.0, 2.0_f32.powi(-10), 2.0_f32.powi(-10) * 1.01, -2.0]);
        assert_eq!(powers.get(Statistic::E4m3Underflows), 25.0);
        let none = Statistics::measure(&[f32::NAN]);
        assert!(none.get(Statistic::Mean).is_nan() && none.get(Statistic::NonFinite) == 1.0);
    }

    proptest! {
        #[test]
        fn parts_give_what_the_whole_gives(
            values in prop::collection::vec(prop_oneof![-1e3f32..1e3, Just(0.0), Just(f32::NAN), -1e-30f32..1e-30], 0..400),
            cut in 0_usize..400,
        ) {
            let cut = cut.min(values.len());
            let whole = Statistics::of_part(&values);
            let parts = Statistics::of_part(&values[..cut]).joined(Statistics::of_part(&values[cut..]));
            prop_assert_eq!(parts.histogram(), whole.histogram());
            for (name, statistic) in Statistic::NAMES {
                let (a, b) = (parts.get(statistic), whole.get(statistic));
                // Sums differ by the order of their summands.
                prop_assert!(a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-9 * (1.0 + a.abs()), "{}: {} {}", name, a, b);
            }
            // Serialization preserves the statistics.
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Statistics>(&text).unwrap(), whole);
        }

        #[test]
        fn scaled_numbers_have_scaled_figures(values in prop::collection::vec(-1e3f32..1e3, 1..99)) {
            let scaled: Vec<f32> = values.iter().map(|value| value * 0.25).collect();
            let (a, b) = (Statistics::measure(&values).scaled(0.25), Statistics::measure(&scaled));
            for statistic in [Statistic::Min, Statistic::Mean, Statistic::Std, Statistic::L2Norm, Statistic::DynamicRange] {
                prop_assert!((a.get(statistic) - b.get(statistic)).abs() <= 1e-9 * (1.0 + a.get(statistic).abs()));
            }
        }
    }
}
