//! A model chunk: an ordered list of segments with named parameters.

use std::fmt;

use burn::tensor::{Gradients, Int, Tensor};

use super::{Batch, Boundary, BoundaryTensor, ForwardContext, GenerationState, Placement};

/// What a segment is, for recompute and for placing segments on pipeline stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRole {
    /// Token (and position) embedding.
    Embedding,
    /// Norm, attention and residual of a layer.
    Attention,
    /// Norm, dense feed-forward and residual of a layer.
    Mlp,
    /// Norm, experts and residual of a layer.
    Moe,
    /// A whole layer, where a model does not split it.
    Layer,
    /// Final norm, output projection and loss.
    Head,
}

/// One segment of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub role: SegmentRole,
    /// Global layer number, for layers and their parts.
    pub layer: Option<usize>,
}

/// What a segment returns.
#[derive(Clone, Debug)]
pub enum SegmentOutput {
    /// Tensors for the next segment. Those of the input that the segment has left in it are passed on unchanged, at no cost.
    Boundary(Boundary),
    /// Sum over tokens of the masked loss, `[1]` float32: what the last segment of the last stage returns.
    LossSum(Tensor<1>),
}

impl SegmentOutput {
    /// The loss sum, if it is one.
    pub fn loss_sum(self) -> Option<Tensor<1>> {
        match self {
            Self::LossSum(sum) => Some(sum),
            Self::Boundary(_) => None,
        }
    }
}

/// What the optimizer and the sharding need to know of a parameter besides its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParameterRole {
    /// Neither embedding nor output.
    #[default]
    Hidden,
    /// Word or position embedding, or output layer (`optimizer.decoupled_lr` applies).
    EmbeddingOrOutput,
}

/// Name, shape and place of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Dotted name, unique in the model.
    pub name: String,
    /// Shape of what this rank holds.
    pub shape: Vec<usize>,
    /// How that lies in the whole parameter.
    pub placement: Placement,
    /// Its role.
    pub role: ParameterRole,
    /// False for frozen parameters: no gradient, no optimizer state.
    pub trainable: bool,
}

impl ParameterInfo {
    /// Number of elements on this rank.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Shape of the whole parameter.
    pub fn global_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(shard) = &self.placement.shard {
            shape[shard.dim] = shard.size;
        }
        shape
    }

    /// The elements of this rank that other tensor-parallel ranks hold too ([`SharedRows`](super::SharedRows)): the last ones, or none.
    pub fn shared_elements(&self) -> std::ops::Range<usize> {
        let count = self.num_elements();
        let shared = self.placement.shared.map_or(0, |rows| rows.count * (count / self.shape[0].max(1)));
        count - shared..count
    }

    /// The elements of this rank's slice that it counts and saves, of the ranks that hold the same ones the first.
    pub fn counted_elements(&self) -> std::ops::Range<usize> {
        match self.placement.shared {
            Some(rows) if rows.rank > 0 => 0..self.shared_elements().start,
            _ => 0..self.num_elements(),
        }
    }

    /// Whether tensor-parallel ranks hold copies, so that only one of them counts in norms.
    pub fn is_replicated(&self) -> bool {
        self.placement.shard.is_none()
    }
}

/// What a parameter becomes in [`ModelChunk::update_parameters`] and [`ModelChunk::replace_parameters`].
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub enum Replacement {
    /// This value, flat, in the parameter's dtype.
    Value(Tensor<1>),
    /// Nothing: the shape stays, the memory is given back. The parameter must get a value before it is used.
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
pub trait ModelChunk: fmt::Debug + Send {
    /// The segments in forward order.
    fn segments(&self) -> Vec<Segment>;

    /// The tensors between segments `index - 1` and `index`, for a batch like this one. Boundary 0 is what the stage before sends, the last
    /// one, behind all segments, what the stage after gets; where the model begins or ends with the chunk they have no tensor.
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor>;

    /// Runs segment `index`. `input` has the tensors of [boundary](Self::boundary) `index`, the output those of the next one.
    ///
    /// # Panics
    /// If `index` is out of range, or a tensor is missing.
    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput;

    /// Next-token logits for `tokens_bt`, which follow those that `state` has seen. `None` if the model cannot generate.
    ///
    /// # Shapes
    /// `[b, t]` -> `[b, t, v]`.
    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>>;

    /// What the layers remember before the first token.
    fn new_state(&self) -> GenerationState;

    /// Names, shapes and roles of all parameters, in a fixed order.
    fn parameters(&self) -> Vec<ParameterInfo>;

    /// Names of the parameters that segment `index` uses. A tied parameter is used by several segments.
    ///
    /// By default all of them: nothing is assumed, but then gradients are complete only when backward has ended.
    fn segment_parameters(&self, _index: usize) -> Vec<String> {
        self.parameters().into_iter().map(|parameter| parameter.name).collect()
    }

    /// Calls `f` with every parameter's name and value.
    fn visit_parameters(&self, f: &mut dyn FnMut(&str, Tensor<1>));

    /// Replaces every parameter by what `f` makes of its name and value, one after the other.
    ///
    /// The value is handed over, so that a back end can update it in place. The result keeps the parameter's dtype.
    fn update_parameters(&mut self, f: &mut dyn FnMut(&str, Tensor<1>) -> Replacement);

    /// Replaces the parameters for which `f` has something. The others are not touched: graphs they are part of stay valid.
    fn replace_parameters(&mut self, f: &mut dyn FnMut(&str) -> Option<Replacement>);

    /// Moves the gradients of this chunk's parameters out of `gradients`. Parameters without one are not visited.
    fn take_gradients(&self, gradients: &mut Gradients, f: &mut dyn FnMut(&str, Tensor<1>));

    /// A copy for inference: the same values (memory is shared), no autodiff.
    fn inference(&self) -> Box<dyn ModelChunk>;
}
