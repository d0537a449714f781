//! Norms on Flex.

use burn::tensor::Tensor;

use super::{Values, gradient, tensor};
use crate::cpu::norm as kernel;
use crate::vjp;

/// See [`crate::rms_norm`].
pub(crate) fn rms_norm<const D: usize>(x: &Tensor<D>, weight_c: &Tensor<1>, epsilon: f64) -> Option<Tensor<D>> {
    let dims = x.dims();
    let (values, weight) = (Values::contiguous_of(x)?, Values::contiguous_of(weight_c)?);
    let kernel::Normed { y, statistics } = kernel::rms_norm(values.slice(), weight.slice(), epsilon);
    let inputs = vec![x.clone().into_dispatch(), weight_c.clone().into_dispatch()];
    Some(vjp::attach_some(tensor(y, dims), inputs, move |dy: Tensor<D>| {
        let dy = Values::of_gradient(dy);
        let gradients = kernel::rms_norm_backward(dy.slice(), values.slice(), weight.slice(), &statistics);
        vec![gradient(gradients.x, dims), gradient(gradients.weight, [dims[D - 1]])]
    }))
}

/// See [`crate::layer_norm`].
pub(crate) fn layer_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    let dims = x.dims();
    let (values, weight) = (Values::contiguous_of(x)?, Values::contiguous_of(weight_c)?);
    let bias = match bias_c {
        Some(bias_c) => Some(Values::contiguous_of(bias_c)?),
        None => None,
    };
    let bias = bias.as_ref().map(Values::slice);
    let kernel::Normed { y, statistics } = kernel::layer_norm(values.slice(), weight.slice(), bias, epsilon);
    let inputs = [Some(x.clone().into_dispatch()), Some(weight_c.clone().into_dispatch())];
    let inputs: Vec<_> = inputs.into_iter().chain([bias_c.map(|b| b.clone().into_dispatch())]).flatten().collect();
    let arity = inputs.len();
    Some(vjp::attach_some(tensor(y, dims), inputs, move |dy: Tensor<D>| {
        let dy = Values::of_gradient(dy);
        let gradients = kernel::layer_norm_backward(dy.slice(), values.slice(), weight.slice(), &statistics);
        let c = dims[D - 1];
        let mut out = vec![gradient(gradients.x, dims), gradient(gradients.weight, [c]), gradient(gradients.bias, [c])];
        out.truncate(arity);
        out
    }))
}
