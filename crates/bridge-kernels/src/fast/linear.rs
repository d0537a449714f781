//! Linear layer and embedding on Flex.

use burn::tensor::{Int, Tensor};

use super::{Values, gradient, indices, tensor};
use crate::cpu::gemm::Matrix;
use crate::cpu::{embedding as lookup, linear as kernel};
use crate::vjp;

/// See [`crate::linear()`].
pub(crate) fn linear<const D: usize>(
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let dims = x.dims();
    let [outputs, inputs] = weight_oi.dims();
    let rows: usize = dims[..D - 1].iter().product();
    let x_values = Values::contiguous_of(x)?;
    let weight = Values::of(weight_oi)?.without_flips();
    let bias = match bias_o {
        Some(bias_o) => Some(Values::contiguous_of(bias_o)?),
        None => None,
    };
    let y =
        kernel::forward(Matrix::new(x_values.slice(), rows, inputs), weight.matrix(), bias.as_ref().map(Values::slice));
    let mut shape = dims;
    shape[D - 1] = outputs;
    let (x_tracked, weight_tracked) = (x.is_tracked(), weight_oi.is_tracked());
    let bias_tracked = bias_o.map(Tensor::is_tracked);
    let inputs_of_op = [Some(x.clone().into_dispatch()), Some(weight_oi.clone().into_dispatch())];
    let inputs_of_op = inputs_of_op.into_iter().chain([bias_o.map(|b| b.clone().into_dispatch())]).flatten().collect();
    // What a frozen input would need is not kept.
    let (x_values, weight) = (weight_tracked.then_some(x_values), x_tracked.then_some(weight));
    Some(vjp::attach_some(tensor(y, shape), inputs_of_op, move |dy: Tensor<D>| {
        let dy = Values::of_gradient(dy);
        let dy_matrix = Matrix::new(dy.slice(), rows, outputs);
        let dx = weight.and_then(|weight| gradient(kernel::grad_input(dy_matrix, weight.matrix()), dims));
        let dw = x_values.and_then(|x| {
            let dw = kernel::grad_weight(dy_matrix, Matrix::new(x.slice(), rows, inputs));
            gradient(dw, [outputs, inputs])
        });
        let mut gradients = vec![dx, dw];
        if let Some(tracked) = bias_tracked {
            gradients.push(if tracked { gradient(kernel::column_sums(dy.slice(), outputs), [outputs]) } else { None });
        }
        gradients
    }))
}

/// See [`crate::embedding`].
pub(crate) fn embedding(weight_vc: &Tensor<2>, ids_bt: &Tensor<2, Int>) -> Option<Tensor<3>> {
    let ([v, c], [b, t]) = (weight_vc.dims(), ids_bt.dims());
    let table = Values::contiguous_of(weight_vc)?;
    let ids = indices(ids_bt)?;
    let y = tensor(lookup::forward(table.slice(), c, &ids), [b, t, c]);
    Some(super::attach_one(y, weight_vc.clone(), move |dy| gradient(lookup::backward(dy.slice(), c, &ids, v), [v, c])))
}
