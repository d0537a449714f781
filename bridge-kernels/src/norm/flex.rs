//! Norms on Flex.

use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use super::cpu::{self as kernel, NormGradients, Normed, Saved};
use crate::flex::{Values, gradient, inputs, tensor};
use crate::vjp;

/// See [`crate::rms_norm`].
pub(crate) fn rms_norm<const D: usize>(x: &Tensor<D>, weight_c: &Tensor<1>, epsilon: f64) -> Option<Tensor<D>> {
    let operands = Operands::new(x, weight_c, None)?;
    Some(operands.rms_norm(epsilon, &Residual::default()))
}

/// See [`crate::residual_rms_norm`].
pub(crate) fn residual_rms_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    epsilon: f64,
) -> Option<(Tensor<D>, Tensor<D>)> {
    let operands = Operands::new(x, weight_c, None)?;
    let residual = Residual::default();
    let normed = operands.rms_norm(epsilon, &residual);
    Some(residual.fork(x, normed))
}

/// See [`crate::layer_norm`].
pub(crate) fn layer_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    let operands = Operands::new(x, weight_c, bias_c)?;
    Some(operands.layer_norm(epsilon, &Residual::default()))
}

/// See [`crate::residual_layer_norm`].
pub(crate) fn residual_layer_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<(Tensor<D>, Tensor<D>)> {
    let operands = Operands::new(x, weight_c, bias_c)?;
    let residual = Residual::default();
    let normed = operands.layer_norm(epsilon, &residual);
    Some(residual.fork(x, normed))
}

/// The gradient of the residual on its way to the norm's backward.
#[derive(Clone, Default)]
struct Residual(Arc<Mutex<Option<Vec<f32>>>>);

impl Residual {
    fn replace(&self, gradient: Option<Vec<f32>>) -> Option<Vec<f32>> {
        std::mem::replace(&mut *self.0.lock().expect("nothing panics with the lock"), gradient)
    }

    /// `normed` and `x`, whose gradient goes through the norm's.
    fn fork<const D: usize>(self, x: &Tensor<D>, normed: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        if !x.is_tracked() {
            return (normed, x.clone());
        }
        // A child of the norm, so that its backward comes first.
        let parents = vec![normed.clone().into_dispatch()];
        let residual = vjp::attach_some(x.clone().without_autodiff(), parents, move |gradient: Tensor<D>| {
            self.replace(Some(Values::of_gradient(gradient).into_vec()));
            vec![None]
        });
        (normed, residual)
    }
}

/// What a norm is made of.
struct Operands<const D: usize> {
    dims: [usize; D],
    x: Values,
    weight: Values,
    bias: Option<Values>,
    inputs: Vec<DispatchTensor>,
}

impl<const D: usize> Operands<D> {
    fn new(x: &Tensor<D>, weight_c: &Tensor<1>, bias_c: Option<&Tensor<1>>) -> Option<Self> {
        Some(Self {
            dims: x.dims(),
            x: Values::contiguous_of(x)?,
            weight: Values::contiguous_of(weight_c)?,
            bias: Values::of_bias(bias_c)?,
            inputs: inputs(x, weight_c, bias_c),
        })
    }

    fn rms_norm(self, epsilon: f64, residual: &Residual) -> Tensor<D> {
        let normed = kernel::rms_norm(self.x.slice(), self.weight.slice(), epsilon);
        self.attach(normed, residual, kernel::rms_norm_backward)
    }

    fn layer_norm(self, epsilon: f64, residual: &Residual) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Values::slice);
        let normed = kernel::layer_norm(self.x.slice(), self.weight.slice(), bias, epsilon);
        self.attach(normed, residual, kernel::layer_norm_backward)
    }

    fn attach(
        self,
        Normed { y, statistics }: Normed,
        residual: &Residual,
        backward: fn(&[f32], Saved<'_>, Option<Vec<f32>>) -> NormGradients,
    ) -> Tensor<D> {
        let Self { dims, x, weight, inputs, .. } = self;
        let (arity, residual) = (inputs.len(), residual.clone());
        vjp::attach_some(tensor(y, dims), inputs, move |dy: Tensor<D>| {
            let dy = Values::of_gradient(dy);
            let saved = Saved { x: x.slice(), weight: weight.slice(), statistics: &statistics };
            let gradients = backward(dy.slice(), saved, residual.replace(None));
            let c = dims[D - 1];
            let mut out =
                vec![gradient(gradients.x, dims), gradient(gradients.weight, [c]), gradient(gradients.bias, [c])];
            out.truncate(arity);
            out
        })
    }
}
