//! A linear layer in place of a model's output projection: a value or reward head, which programs
//! ask for.

use std::sync::Arc;

use bridge_kernels::linear;
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Tensor};

use super::{
    Adapter, Declaration, GradientScope, Initial, LinearForLastLayer, ModelBuildError, ParameterRole, Scope,
    TensorPartition,
};

/// Name of the layer's place in a model: `last_layer.weight`, and `last_layer.bias` if it has one.
const NAME: &str = "last_layer";

/// The layer, as a head has it.
#[derive(Module, Debug)]
pub struct LastLayer {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    dropout: f64,
}

impl LastLayer {
    /// Declares the layer at the root of a head's scope, if the chunk's adapter has one: the head
    /// then declares no projection, and has no loss of its own. It begins with uniform draws up to
    /// `1 / sqrt(hidden_size)`, as PyTorch's linear layers do.
    pub fn declare(head: &Scope, hidden_size: usize) -> Option<Self> {
        let (settings, scope) = head.last_layer()?;
        let scope = scope.child(NAME);
        let bound = (hidden_size as f64).sqrt().recip();
        let (cut, initial) =
            (TensorPartition::Replicated(GradientScope::ResidualStream), Initial::Uniform([-bound, bound]));
        let weight =
            scope.parameter("weight", [settings.output_size, hidden_size], cut, initial, ParameterRole::Weight);
        let bias = || scope.parameter("bias", [settings.output_size], cut, initial, ParameterRole::Bias);
        Some(Self { weight, bias: settings.bias.then(bias), dropout: settings.dropout })
    }

    /// Outputs in float32 for the tokens that this rank has of the residual stream: `[b, t, c]` ->
    /// `[b, t, output_size]`.
    pub fn outputs(&self, x_btc: Tensor<3>) -> Tensor<3> {
        linear(x_btc, self.weight.val(), self.bias.as_ref().map(Param::val)).cast(FloatDType::F32)
    }

    /// Rate of the dropout on the input of [`outputs`](Self::outputs).
    pub fn dropout(&self) -> f64 {
        self.dropout
    }
}

/// Gives models the layer, and leaves all else to another adapter, if there is one.
#[derive(Debug)]
pub(super) struct Replacing {
    layer: LinearForLastLayer,
    other: Option<Arc<dyn Adapter>>,
}

impl Replacing {
    /// # Errors
    /// If the layer cannot be built.
    pub fn new(layer: LinearForLastLayer, other: Option<Arc<dyn Adapter>>) -> Result<Self, ModelBuildError> {
        let LinearForLastLayer { output_size, dropout, .. } = layer;
        let message = match (output_size, (0.0..1.0).contains(&dropout)) {
            (0, _) => "expected at least 1 output, found 0".to_owned(),
            (_, false) => format!("expected a dropout rate in [0, 1), found {dropout}"),
            (_, true) => return Ok(Self { layer, other }),
        };
        Err(ModelBuildError::Invalid { key: NAME.into(), message })
    }
}

impl Adapter for Replacing {
    fn trains(&self, declaration: &Declaration) -> bool {
        self.other.as_ref().is_none_or(|other| other.trains(declaration))
    }

    fn last_layer(&self) -> Option<LinearForLastLayer> {
        Some(self.layer)
    }

    fn inner(&self) -> Option<&dyn Adapter> {
        self.other.as_deref()
    }
}
