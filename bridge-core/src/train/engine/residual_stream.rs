//! Statistics of the residual stream between segments, for `[tensor_inspect]`.

use burn::tensor::Tensor;

use crate::inspect::{Inspector, TensorKind};
use crate::model::{Boundary, HIDDEN_STATES, Segment, SegmentRole};

/// Inspects the hidden states that `boundary`, before segment `index` of a chunk, may have.
pub(in crate::train) fn inspect_values(inspector: &Inspector, all: &[Segment], index: usize, boundary: &Boundary) {
    if let Some(tensor) = boundary.get(HIDDEN_STATES) {
        inspect(inspector, all, index, [TensorKind::Output, TensorKind::Activation], tensor);
    }
}

/// Inspects the gradient of the loss, times the loss scale, with respect to the hidden states
/// before segment `index` of a chunk.
pub(in crate::train) fn inspect_gradient(inspector: &Inspector, all: &[Segment], index: usize, gradient: &Tensor<3>) {
    inspect(inspector, all, index, [TensorKind::OutputGradient, TensorKind::InputGradient], gradient);
}

/// Adds a tensor's statistics twice: for the segment before it and for the one after it.
fn inspect(inspector: &Inspector, all: &[Segment], index: usize, [before, after]: [TensorKind; 2], tensor: &Tensor<3>) {
    let values = || numbers(tensor.clone());
    if let Some(segment) = index.checked_sub(1).and_then(|index| all.get(index)) {
        inspector.add(&segment_name(segment), before, values);
    }
    if let Some(segment) = all.get(index) {
        inspector.add(&segment_name(segment), after, values);
    }
}

/// The numbers of a tensor.
pub(in crate::train) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("what is converted to float32 has that type")
}

/// `layers.3.attention`, `embedding`.
pub(in crate::train) fn segment_name(segment: &Segment) -> String {
    let role = role_name(segment.role);
    segment.layer.map_or_else(|| role.to_owned(), |layer| format!("layers.{layer}.{role}"))
}

/// The name of a role, in spans and statistics.
pub(in crate::train) fn role_name(role: SegmentRole) -> &'static str {
    match role {
        SegmentRole::Embedding => "embedding",
        SegmentRole::Attention => "attention",
        SegmentRole::Mlp => "mlp",
        SegmentRole::Moe => "moe",
        SegmentRole::Layer => "layer",
        SegmentRole::StackEnd => "stack-end",
        SegmentRole::Head => "head",
    }
}
