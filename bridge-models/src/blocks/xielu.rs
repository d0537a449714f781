//! xIELU with its parameters: an activation whose slopes are trained.

use bridge_core::model::{GradientScope, Initial, ParameterRole, Scope, TensorPartition};
use bridge_kernels::{Recomputable, XieluParameters, xielu};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// Initial slopes on both sides, the linear slope, and the largest argument of the exponential, as
/// in transformers.
const SLOPES: [f64; 2] = [0.8, 0.8];
const BETA: f64 = 0.5;
const EPS: f64 = -1e-6;

/// xIELU of a feed-forward block ([`xielu`]).
#[derive(Module, Debug)]
pub(crate) struct Xielu {
    alpha_p: Param<Tensor<1>>,
    alpha_n: Param<Tensor<1>>,
    /// Not trained.
    beta: Param<Tensor<1>>,
    /// Not trained.
    eps: Param<Tensor<1>>,
}

impl Xielu {
    /// The activation of the block at `scope`, of whose channels each rank has its own.
    pub fn new(scope: &Scope) -> Self {
        let scope = scope.child("activation_func");
        let frozen = scope.frozen();
        let cut = TensorPartition::Replicated(GradientScope::OwnPart);
        let scalar = |scope: &Scope, name, value: f64| {
            scope.parameter(name, [1], cut, Initial::Uniform([value, value]), ParameterRole::Bias)
        };
        let inverse_softplus = |slope: f64| slope.exp_m1().ln();
        Self {
            alpha_p: scalar(&scope, "alpha_p", inverse_softplus(SLOPES[0])),
            alpha_n: scalar(&scope, "alpha_n", inverse_softplus(SLOPES[1] - BETA)),
            beta: scalar(&frozen, "beta", BETA),
            eps: scalar(&frozen, "eps", EPS),
        }
    }

    /// `[b, t, f]` -> the same.
    pub fn forward(&self, x_btf: Tensor<3>) -> Recomputable<3> {
        let parameters = XieluParameters {
            alpha_p: self.alpha_p.val(),
            alpha_n: self.alpha_n.val(),
            beta: self.beta.val(),
            eps: self.eps.val(),
        };
        xielu(x_btf, &parameters)
    }
}
