//! Linear layer as one operation of Burn's products, if no faster kernel applies. It keeps its
//! input as [`Kept`], while Burn's own product would hold it in the graph, out of reach of an
//! [`Offloader`](crate::offload::Offloader). The weight's gradient has the weight's memory layout,
//! and the bias' gradient is a sum over rows that fills a GPU.

use burn::tensor::Tensor;

use super::reference;
use crate::flex::inputs;
use crate::offload::Kept;
use crate::precision::sum_of_rows;
use crate::vjp;

/// See [`crate::linear()`].
pub(super) fn linear<const D: usize>(x: &Tensor<D>, weight_oi: &Tensor<2>, bias_o: Option<&Tensor<1>>) -> Tensor<D> {
    let tracked = [x.is_tracked(), weight_oi.is_tracked(), bias_o.is_some_and(Tensor::is_tracked)];
    let plain_bias = bias_o.cloned().map(Tensor::without_autodiff);
    let weight = weight_oi.clone().without_autodiff();
    let y = reference(x.clone().without_autodiff(), weight.clone(), plain_bias);
    let (dims, [outputs, width], has_bias) = (x.dims(), weight.dims(), bias_o.is_some());
    let rows: usize = dims[..D - 1].iter().product();
    let weight = tracked[0].then_some(weight);
    let kept = tracked[1].then(|| Kept::from_tensor(x));
    vjp::attach_some(y, inputs(x, weight_oi, bias_o), move |dy: Tensor<D>| {
        let dy_no: Tensor<2> = dy.reshape([rows, outputs]);
        let dx = weight.map(|weight| dy_no.clone().matmul(weight).reshape(dims).into_dispatch());
        let dw = kept.map(|x| {
            let x_ni: Tensor<2> = x.into_tensor::<D>().reshape([rows, width]);
            dy_no.clone().transpose().matmul(x_ni).into_dispatch()
        });
        let mut gradients = vec![dx, dw];
        if has_bias {
            let dtype = dy_no.dtype();
            gradients.push(tracked[2].then(|| sum_of_rows(dy_no, dtype).into_dispatch()));
        }
        gradients
    })
}
