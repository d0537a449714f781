//! Gradients summed over the micro-batches of a step.

use std::collections::BTreeMap;

use bridge_kernels::optim::{accumulate, count_zeros, sum_of_squares};
use burn::tensor::{FloatDType, Tensor};

/// dtype in which gradients are summed over micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulationDType {
    /// float32, whatever the parameters are.
    Float32,
    /// The dtype the backward pass produced.
    AsComputed,
}

/// The gradient of each parameter, by name, flat.
#[derive(Debug)]
pub struct GradientBuffer {
    accumulation: AccumulationDType,
    gradients: BTreeMap<String, Tensor<1>>,
}

impl GradientBuffer {
    /// An empty buffer.
    pub fn new(accumulation: AccumulationDType) -> Self {
        Self { accumulation, gradients: BTreeMap::new() }
    }

    /// Forgets all gradients.
    pub fn clear(&mut self) {
        self.gradients.clear();
    }

    /// Adds a micro-batch's gradient of the parameter `name`.
    pub fn add(&mut self, name: &str, gradient: Tensor<1>) {
        let gradient = match self.accumulation {
            AccumulationDType::Float32 => to_float32(gradient),
            AccumulationDType::AsComputed => gradient,
        };
        let sum = match self.gradients.remove(name) {
            Some(sum) => accumulate(sum, gradient),
            None => gradient,
        };
        self.gradients.insert(name.to_owned(), sum);
    }

    /// Takes the gradient of one parameter, as float32.
    pub fn take(&mut self, name: &str) -> Option<Tensor<1>> {
        self.gradients.remove(name).map(to_float32)
    }

    /// Euclidean norm of each parameter's gradient, in name order.
    ///
    /// A sum of squares is exact enough in float64 that the total does not depend on the order.
    pub fn norms(&self) -> Vec<(String, f64)> {
        self.gradients.iter().map(|(name, g)| (name.clone(), sum_of_squares(g).sqrt())).collect()
    }

    /// Euclidean norm of all gradients together.
    pub fn norm(&self) -> f64 {
        self.gradients.values().map(sum_of_squares).sum::<f64>().sqrt()
    }

    /// Number of gradient entries that are exactly zero.
    pub fn num_zeros(&self) -> u64 {
        self.gradients.values().map(count_zeros).sum()
    }
}

fn to_float32(x: Tensor<1>) -> Tensor<1> {
    if x.dtype() == burn::tensor::DType::F32 { x } else { x.cast(FloatDType::F32) }
}
