//! Statistics of the residual stream between segments, for `[tensor_inspect]`.

use burn::tensor::Tensor;

use crate::inspect::{Inspector, TensorKind};
use crate::model::{Boundary, HIDDEN_STATES, Segment, SegmentRole};

/// Type of tensors that pass between segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) enum Sort {
    /// Values that one segment passes to the next.
    Values,
    /// Gradients of the loss with respect to the values, times the loss scale.
    Gradients,
}

impl Sort {
    /// Kinds of the tensor for the segment before, and for the one after.
    fn kinds(self) -> (TensorKind, TensorKind) {
        match self {
            Self::Values => (TensorKind::Output, TensorKind::Activation),
            Self::Gradients => (TensorKind::OutputGradient, TensorKind::InputGradient),
        }
    }
}

/// Inspects the residual stream before segment `index` of a chunk, if `boundary` has one.
pub(in crate::train) fn look(
    inspector: &Inspector,
    (segments, index): (&[Segment], usize),
    sort: Sort,
    boundary: &Boundary,
) {
    if let Some(tensor) = boundary.get(HIDDEN_STATES) {
        look_at(inspector, segments, index, sort, tensor);
    }
}

/// As [`look`], for the tensor itself.
pub(in crate::train) fn look_at(inspector: &Inspector, all: &[Segment], index: usize, sort: Sort, tensor: &Tensor<3>) {
    let (before, after) = sort.kinds();
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
