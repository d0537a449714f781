//! A dense block beside experts: both read the residual stream, each through a norm of its own, and
//! the norms of their outputs are added.

use bridge_core::model::{Component, Scope, SegmentCost, WeightGradientStore, Workload};
use bridge_kernels::offload::{Module as OffloadModule, in_module};
use burn::module::Module;
use burn::tensor::Tensor;

use super::{Moe, MoeInput};
use crate::architecture::config::{DecoderConfig, MoeConfig};
use crate::blocks::mlp::Mlp;
use crate::blocks::norm::{Norm, statistics};

/// A dense block and experts, whose router reads the stream without a norm.
#[derive(Module, Debug)]
pub(crate) struct DenseAndExperts {
    dense_layernorm: Norm,
    dense: Mlp,
    post_dense_layernorm: Norm,
    experts_layernorm: Norm,
    experts: Moe,
    post_experts_layernorm: Norm,
}

impl DenseAndExperts {
    /// The blocks at `scope`; the dense one has width `f` over all ranks.
    pub fn new(config: &DecoderConfig, moe: &MoeConfig, f: usize, scope: &Scope) -> Self {
        let norm = |name| Norm::new(config.norm, config.hidden_size, &scope.component(Component::Norm), name);
        Self {
            dense_layernorm: norm("dense_layernorm"),
            dense: Mlp::new(config, f, &scope.child("dense")),
            post_dense_layernorm: norm("post_dense_layernorm"),
            experts_layernorm: norm("experts_layernorm"),
            experts: Moe::new(config, moe, scope),
            post_experts_layernorm: norm("post_experts_layernorm"),
        }
    }

    /// Cost of the blocks with their norms.
    pub fn cost(config: &DecoderConfig, moe: &MoeConfig, f: usize, work: &Workload) -> SegmentCost {
        let rows = work.tokens_between_blocks();
        let stream = rows * config.hidden_size as u64 * work.activation_bytes;
        // Both blocks' outputs, which norms keep.
        let outputs = SegmentCost { kept: 2 * stream, ..SegmentCost::default() };
        let norms = (0..4).fold(outputs, |cost, _| cost.and(statistics(config.norm, rows)));
        Mlp::cost(config, f, work).and(Moe::cost(config, moe, work)).and(norms)
    }

    /// `[b, t, c]` of the residual stream -> the same.
    pub fn forward(&self, x_btc: Tensor<3>, input: &MoeInput, store: Option<&WeightGradientStore>) -> Tensor<3> {
        let norm = |norm: &Norm| in_module(Some(OffloadModule::MlpNorm), || norm.forward(x_btc.clone()));
        let dense_btc = self.dense.forward(norm(&self.dense_layernorm).into(), input.regions, store);
        let dense_btc = self.post_dense_layernorm.forward(dense_btc.compute(input.regions));
        let routed_btc = self.experts.forward(norm(&self.experts_layernorm), Some(x_btc.clone()), input);
        dense_btc + self.post_experts_layernorm.forward(routed_btc)
    }
}
