//! Scales of optimizer states that are stored as multiples of a scale. The scale belongs to the
//! whole parameter, also if several ranks have parts of it.

use std::collections::BTreeMap;

use bridge_dist::comm::{CommError, ReduceOp};
use burn::tensor::{DType, Tensor};

use super::Distribution;
use super::rules::StateFormats;

/// Scales of the master and the states of each parameter of this rank.
pub(super) type Scales = BTreeMap<String, Vec<f32>>;

/// Largest magnitudes of masters and states after a step, by parameter, as far as this rank has
/// them.
#[derive(Debug, Default)]
pub(super) struct Magnitudes(BTreeMap<String, Vec<f32>>);

impl Magnitudes {
    /// Adds those of a parameter.
    pub fn insert(&mut self, name: &str, magnitudes: Vec<f32>) {
        self.0.insert(name.to_owned(), magnitudes);
    }

    /// The scales that follow, with the magnitudes of all ranks. All ranks call this together.
    /// Fails if ranks cannot exchange them.
    pub fn scales(self, formats: &StateFormats, distribution: &Distribution) -> Result<Scales, CommError> {
        let are_scaled = formats.are_scaled();
        let mut largest = self.0;
        let world = distribution.groups().world();
        if world.size() > 1 {
            let names = distribution.trained_names()?;
            let scaled: Vec<usize> = (0..are_scaled.len()).filter(|i| are_scaled[*i]).collect();
            let of_rank = names.iter().flat_map(|name| scaled.iter().map(move |i| (name, *i)));
            let mine = of_rank.map(|(name, i)| largest.get(name).map_or(0.0, |magnitudes| magnitudes[i]));
            let mut all: Vec<f32> = mine.collect();
            if !all.is_empty() {
                world.all_reduce((&mut all).into(), ReduceOp::Max)?;
            }
            for (name, of_all) in names.iter().zip(all.chunks(scaled.len().max(1))) {
                if let Some(magnitudes) = largest.get_mut(name) {
                    scaled.iter().zip(of_all).for_each(|(i, magnitude)| magnitudes[*i] = *magnitude);
                }
            }
        }
        Ok(largest.into_iter().map(|(name, magnitudes)| (name, formats.scales(&magnitudes))).collect())
    }
}

/// Gradient in a dtype that updates of states in less than 32 bits accept: float32 or bfloat16.
pub(super) fn low_precision_gradient(gradient: Tensor<1>) -> Tensor<1> {
    match gradient.dtype() {
        DType::F32 | DType::BF16 => gradient,
        _ => gradient.cast(burn::tensor::FloatDType::F32),
    }
}
