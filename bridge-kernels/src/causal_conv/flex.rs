//! The convolution on Flex.

use burn::tensor::{Int, Tensor};

use super::cpu::Convolution;
use crate::flex::{Values, document_starts, gradient, inputs, tensor};
use crate::vjp;

/// See [`crate::causal_conv()`] and, without SiLU, [`crate::linear_causal_conv()`].
pub(crate) fn causal_conv(
    x_btc: &Tensor<3>,
    weight_ck: &Tensor<2>,
    bias_c: Option<&Tensor<1>>,
    document_ids: Option<&Tensor<2, Int>>,
    has_silu: bool,
) -> Option<Tensor<3>> {
    let (dims, [c, k]) = (x_btc.dims(), weight_ck.dims());
    let (x, weight) = (Values::contiguous_of(x_btc)?, Values::contiguous_of(weight_ck)?);
    let bias = Values::of_optional(bias_c)?;
    if x.slice().is_empty() {
        return None;
    }
    let [b, t, _] = dims;
    let starts = document_starts(document_ids, [b, t])?;
    let convolution = Convolution::new([t, c], weight.slice(), bias.as_ref().map(Values::slice), starts, has_silu);
    let y = tensor(convolution.forward(x.slice()), dims);
    let inputs = inputs(x_btc, weight_ck, bias_c);
    let arity = inputs.len();
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<3>| {
        let gradients = convolution.backward(Values::from_gradient(dy).slice(), x.slice());
        let mut all =
            vec![gradient(gradients.x, dims), gradient(gradients.weight, [c, k]), gradient(gradients.bias, [c])];
        all.truncate(arity);
        all
    }))
}
