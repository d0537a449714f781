//! A model chunk: an ordered list of segments with named parameters.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::{Gradients, Int, Tensor};

use super::{
    Batch, Boundary, BoundaryTensor, Declaration, DelayedScalingLayer, ForwardContext, GenerationState, Segment,
};

/// Output of a segment.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub enum SegmentOutput {
    /// Tensors for the next segment. Input tensors that the segment did not take are passed on
    /// unchanged, at no cost.
    Boundary(Boundary),
    /// Sum over tokens of the masked loss, `[1]` float32. The last segment of the last stage
    /// returns it.
    LossSum(Tensor<1>),
}

impl SegmentOutput {
    /// The loss sum, if the segment is the last.
    pub fn loss_sum(self) -> Option<Tensor<1>> {
        match self {
            Self::LossSum(sum) => Some(sum),
            Self::Boundary(_) => None,
        }
    }
}

/// New state of a parameter in [`ModelChunk::update_parameters`] and
/// [`ModelChunk::replace_parameters`].
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub enum Replacement {
    /// This value, flat, in the parameter's dtype.
    Value(Tensor<1>),
    /// The parameter is unchanged: it is not trained, or [`ModelChunk::replace_parameters`] would
    /// replace it.
    Kept,
    /// The memory is released; the shape stays. The parameter must get a value before it is used.
    Released,
}

impl From<Tensor<1>> for Replacement {
    fn from(value: Tensor<1>) -> Self {
        Self::Value(value)
    }
}

/// A model, or a pipeline stage of one: an ordered list of segments.
///
/// Parameter values cross this interface flat (`[num_elements]`, row-major), without autodiff.
pub trait ModelChunk: Any + fmt::Debug + Send {
    /// The segments in forward order.
    fn segments(&self) -> Vec<Segment>;

    /// The tensors between segments `index - 1` and `index`, for a batch like this one. Boundary 0
    /// is received from the previous stage; the last boundary, after all segments, is sent to the
    /// next stage. At the beginning and the end of the model the boundary is empty.
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor>;

    /// Runs segment `index`. `input` has the tensors of [boundary](Self::boundary) `index`, the
    /// output those of the next one.
    ///
    /// # Panics
    /// If `index` is out of range, or a tensor is missing.
    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput;

    /// Next-token logits for `tokens_bt`, which follow those that `state` has seen. `None` if the
    /// model cannot generate.
    ///
    /// # Shapes
    /// `[b, t]` -> `[b, t, v]`.
    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>>;

    /// Reads the sequence that an encoder-decoder's decoder attends to, all of whose tokens count:
    /// layers keep their results in `state`, which must be new. `None` if the model has no encoder.
    ///
    /// # Shapes
    /// `[b, s]`.
    fn read_source(&self, source_bs: Tensor<2, Int>, state: &mut GenerationState) -> Option<()>;

    /// Generation state of the layers before the first token.
    fn new_state(&self) -> GenerationState;

    /// The declarations of all parameters, in a fixed order.
    fn parameters(&self) -> &[Declaration];

    /// The linear layers in 8 bits with delayed scaling. None by default.
    fn delayed_scaling_layers(&self) -> &[DelayedScalingLayer] {
        &[]
    }

    /// Calls `f` with every parameter's name and value.
    fn visit_parameters(&self, f: &mut dyn FnMut(&str, Tensor<1>));

    /// [`Self::visit_parameters`] of those whose names are `wanted`: the values of quantised ones
    /// are made for each visit.
    fn visit_wanted(&self, wanted: &dyn Fn(&str) -> bool, f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.visit_parameters(&mut |name, value| {
            if wanted(name) {
                f(name, value);
            }
        });
    }

    /// Replaces every parameter by the result of `f` on its name and value, one after the other.
    ///
    /// The value is handed over, so that a backend can update it in place. The result keeps the
    /// parameter's dtype. Of a quantised parameter dtype and device are handed over, with values
    /// that read as NaN: it stays by [`Replacement::Kept`], and another value is quantised.
    ///
    /// # Panics
    /// If a parameter that is trained is to be [kept](Replacement::Kept): its value was handed
    /// over.
    fn update_parameters(&mut self, f: &mut dyn FnMut(&str, Tensor<1>) -> Replacement);

    /// Replaces some parameters, by name. The others are not touched: graphs they are part of stay
    /// valid.
    ///
    /// # Panics
    /// If the chunk has no parameter of a name.
    fn replace_parameters(&mut self, replacements: BTreeMap<&str, Replacement>);

    /// Moves the gradients of this chunk's parameters out of `gradients`. Parameters without one
    /// are not visited.
    fn take_gradients(&self, gradients: &mut Gradients, f: &mut dyn FnMut(&str, Tensor<1>));

    /// A copy for inference: the same values (memory is shared), no autodiff.
    fn inference(&self) -> Box<dyn ModelChunk>;
}
