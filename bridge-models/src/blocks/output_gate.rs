//! Gates on attention's output, `y * sigmoid(gate)`: one for each element, or one for each head.

use bridge_core::model::{Scope, SegmentCost, TensorPartition, Workload};
use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::init::InitialValues;
use super::linear::{Linear, LinearConfig, flops};
use crate::architecture::config::DecoderConfig;

/// The linear layer that makes the gates of heads of `size` elements, if they have one of their
/// own.
pub(super) fn layer(config: &DecoderConfig, size: usize, scope: &Scope) -> Option<Linear> {
    let layer = |outputs| LinearConfig {
        inputs: config.hidden_size,
        outputs,
        bias: false,
        cut: TensorPartition::Rows,
        initial: InitialValues::new(config).weight,
    };
    config.separate_gates(size).map(|outputs| Linear::new(&layer(outputs), scope, "linear_gate"))
}

/// Attention's output times the sigmoid of its gates.
///
/// # Shapes
/// `y_bthd` `[b, t, h, d]`, `gates_btf` `[b, t, h * d]` or `[b, t, h]` -> `[b, t, h, d]`.
pub(super) fn gated(y_bthd: Tensor<4>, gates_btf: Tensor<3>) -> Tensor<4> {
    let [b, t, h, _] = y_bthd.dims();
    let [_, _, f] = gates_btf.dims();
    y_bthd * sigmoid(gates_btf).reshape([b, t, h, f / h])
}

/// Cost of the gates of `heads` heads of `size` elements on this rank besides their product with
/// the output, which the output projection keeps in place of attention's output.
pub(super) fn cost(config: &DecoderConfig, [heads, size]: [usize; 2], work: &Workload) -> SegmentCost {
    if config.output_gate.is_none() {
        return SegmentCost::default();
    }
    let elements = |count: usize| work.tokens() * count as u64 * work.activation_bytes;
    let separate = config.separate_gates(size);
    let gates = separate.map_or(heads * size, |all| all * heads / config.num_attention_heads);
    let layer = separate.map_or(0.0, |outputs| flops(work.all_tokens(), config.hidden_size, outputs));
    SegmentCost { flops: layer, kept: elements(gates) + elements(heads * size), ..SegmentCost::default() }
}
