//! The gated norm on Flex.

use burn::tensor::Tensor;

use super::cpu::Gated;
use crate::flex::{Values, gradient, tensor, tracked};
use crate::vjp;

pub(crate) fn gated_rms_norm(
    x_btc: &Tensor<3>,
    z_btc: &Tensor<3>,
    weight_c: &Tensor<1>,
    groups: usize,
    epsilon: f64,
) -> Option<Tensor<3>> {
    let dims = x_btc.dims();
    let c = dims[2];
    let (x, z) = (Values::contiguous_of(x_btc)?, Values::contiguous_of(z_btc)?);
    let weight = Values::contiguous_of(weight_c)?;
    if x.slice().is_empty() {
        return None;
    }
    let size = c / groups;
    let gated = Gated { x: x.slice(), z: z.slice(), weight: weight.slice(), size, epsilon };
    let y = tensor(gated.forward(), dims);
    let inputs = tracked![x_btc, z_btc, weight_c];
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<3>| {
        let dy = Values::from_gradient(dy);
        let gated = Gated { x: x.slice(), z: z.slice(), weight: weight.slice(), size, epsilon };
        let gradients = gated.backward(dy.slice());
        vec![gradient(gradients.x, dims), gradient(gradients.z, dims), gradient(gradients.weight, [c])]
    }))
}
