//! Operands of linear layers of several experts.

use bridge_kernels::grouped::GroupedLinear;
use burn::tensor::Tensor;

use crate::common::values;

/// Rows of each expert; inputs and outputs.
pub struct Sizes<'a> {
    pub counts: &'a [usize],
    pub inputs: usize,
    pub outputs: usize,
    pub has_bias: bool,
}

impl Sizes<'_> {
    pub fn rows(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Weights, then biases, of each expert.
    pub fn parameters(&self, seed: u64) -> Vec<Vec<f32>> {
        let experts = self.counts.len();
        let weight = |e: usize| values(seed + e as u64, self.outputs * self.inputs);
        let bias = |e: usize| values(seed + 50 + e as u64, self.outputs);
        let biases = if self.has_bias { (0..experts).map(bias).collect() } else { Vec::new() };
        [(0..experts).map(weight).collect(), biases].concat()
    }

    /// The layer of which `t` are the parameters.
    pub fn layer(&self, t: &[Tensor<1>]) -> GroupedLinear {
        let (weights, biases) = t.split_at(self.counts.len());
        let shaped = |weight: &Tensor<1>| weight.clone().reshape([self.outputs, self.inputs]);
        GroupedLinear { weights_oi: weights.iter().map(shaped).collect(), biases_o: biases.to_vec() }
    }
}
