//! What a mixture of experts reads besides the residual stream.

use bridge_core::model::{Auxiliary, WeightGradientStore};
use bridge_kernels::DropoutKey;

use crate::blocks::regions::Regions;

/// What the block reads besides the residual stream.
pub(crate) struct MoeInput<'a> {
    /// The ranks that compute it together.
    pub regions: &'a Regions,
    /// Global layer number.
    pub layer: usize,
    /// Where losses besides the model's go.
    pub auxiliary: Auxiliary<'a>,
    /// What the router draws random numbers from in training; `None` outside.
    pub key: Option<DropoutKey>,
    /// Where a dense block in a layer's place puts the gradients of its weights off to; experts compute theirs at once.
    pub weight_gradients: Option<&'a WeightGradientStore>,
}
