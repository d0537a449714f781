//! Inverse frequencies of rotary position embedding, and their scaling for longer contexts.

use bridge_kernels::rotary::{RotaryPairing, RotaryTable};
use burn::tensor::Device;

use crate::models::decoder::config::{DecoderConfig, PositionEmbedding, RopeConfig, RopeScaling};

/// The table of a model's positions; `None` for models without rotary embedding.
pub(crate) fn rotary_table(config: &DecoderConfig, device: &Device) -> Option<RotaryTable> {
    let PositionEmbedding::Rope(rope) = &config.position_embedding else {
        return None;
    };
    let pairing = if rope.interleaved { RotaryPairing::Interleaved } else { RotaryPairing::Halves };
    let frequencies = inverse_frequencies(rope, config.kv_channels);
    let device = device.clone().without_autodiff();
    Some(RotaryTable::new(&frequencies, config.max_position_embeddings, pairing, &device))
}

/// `1 / base^(2i / r)` for each of the `r / 2` pairs, scaled (Su et al., arXiv:2104.09864, section 3.2.2), in radians a
/// position.
///
/// Every step is rounded to float32, because the released models' frequencies are.
pub(crate) fn inverse_frequencies(rope: &RopeConfig, head_size: usize) -> Vec<f32> {
    let rotated = rope.rotary_size(head_size);
    (0..rotated)
        .step_by(2)
        .map(|i| {
            let exponent = i as f32 / rotated as f32;
            let frequency = 1.0 / (rope.base.powf(f64::from(exponent)) as f32);
            match rope.scaling {
                None => frequency,
                Some(RopeScaling::Linear { factor }) => frequency / factor as f32,
                Some(RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: length,
                }) => {
                    let band = Band { low: low_freq_factor, high: high_freq_factor, length: length as f64 };
                    band.scale(frequency, factor as f32)
                }
            }
        })
        .collect()
}

/// The band of frequencies that Llama 3.1 interpolates.
struct Band {
    low: f64,
    high: f64,
    length: f64,
}

impl Band {
    fn scale(&self, frequency: f32, factor: f32) -> f32 {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength > (self.length / self.low) as f32 {
            return frequency / factor;
        }
        if wavelength < (self.length / self.high) as f32 {
            return frequency;
        }
        let share = (self.length as f32 / wavelength - self.low as f32) / (self.high - self.low) as f32;
        (1.0 - share) * frequency / factor + share * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> RopeConfig {
        RopeConfig { base: 10_000.0, percent: 1.0, interleaved: false, scaling: None }
    }

    #[test]
    fn frequencies_fall_from_one_by_a_constant_ratio() {
        let f = inverse_frequencies(&plain(), 14);
        assert_eq!(f.len(), 7);
        assert_eq!(f[0], 1.0);
        for pair in f.windows(2) {
            assert!((f64::from(pair[1] / pair[0]) - 10_000_f64.powf(-1.0 / 7.0)).abs() < 1e-6);
        }
    }

    #[test]
    fn percent_rotates_a_part() {
        assert_eq!(inverse_frequencies(&RopeConfig { percent: 0.25, ..plain() }, 40).len(), 5);
    }

    #[test]
    fn linear_scaling_divides() {
        let scaled = RopeConfig { scaling: Some(RopeScaling::Linear { factor: 4.0 }), ..plain() };
        for (a, b) in inverse_frequencies(&scaled, 22).iter().zip(inverse_frequencies(&plain(), 22)) {
            assert_eq!(*a, b / 4.0);
        }
    }

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_is_monotonic_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let base = RopeConfig { base: 500_000.0, ..plain() };
        let (plain, scaled) = (inverse_frequencies(&base, 128), {
            inverse_frequencies(&RopeConfig { scaling: Some(scaling), ..base }, 128)
        });
        let mut between = 0;
        for (f, s) in plain.iter().zip(&scaled) {
            let wavelength = std::f32::consts::TAU / f;
            if wavelength < 2048.0 {
                assert_eq!(s, f);
            } else if wavelength > 8192.0 {
                assert_eq!(*s, f / 8.0);
            } else {
                between += 1;
                assert!(*s < *f && *s > f / 8.0);
            }
        }
        assert!(between > 3, "the band between is not empty: {between}");
        assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
    }
}
