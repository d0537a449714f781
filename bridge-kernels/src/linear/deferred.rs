//! The linear layer with the gradient of its weight deferred: backward computes the gradient of the
//! input, for which other pipeline stages wait, and leaves the rest as a closure.

use burn::backend::Flex;
use burn::tensor::Tensor;

use super::linear;
use crate::vjp;

/// Computes the gradient of a weight, `[o, i]` without a graph.
pub type WeightGradient = Box<dyn FnOnce() -> Tensor<2> + Send>;

/// As [`linear()`], but its backward gives the gradients of `x` and `bias_o` only. `defer` gets the
/// computation of the weight's gradient, which keeps `x` and the output's gradient until it is run.
///
/// If deferral is impossible (a backend other than Flex, a frozen weight), this is [`linear()`],
/// and `defer` is never called: backward then computes the weight's gradient, too.
///
/// # Shapes
/// `x` `[.., i]`, `weight_oi` `[o, i]`, `bias_o` `[o]` -> `[.., o]`.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear_deferred<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    defer: impl FnOnce(WeightGradient) + Send + 'static,
) -> Tensor<D> {
    let x_plain = x.clone().without_autodiff();
    let is_flex = x_plain.clone().try_into_primitive::<Flex>().is_ok();
    if !is_flex || !weight_oi.is_tracked() {
        return linear(x, weight_oi, bias_o);
    }
    let weight_plain = weight_oi.clone().without_autodiff();
    let y = linear(x_plain.clone(), weight_plain.clone(), bias_o.clone().map(Tensor::without_autodiff));
    let dims = x.dims();
    let [outputs, inputs] = weight_oi.dims();
    let rows: usize = dims[..D - 1].iter().product();
    let x_tracked = x.is_tracked();
    let bias_tracked = bias_o.as_ref().map(Tensor::is_tracked);
    let mut operands = vec![x.into_dispatch(), weight_oi.into_dispatch()];
    operands.extend(bias_o.map(Tensor::into_dispatch));
    vjp::attach_some(y, operands, move |dy: Tensor<D>| {
        let dy_no: Tensor<2> = dy.reshape([rows, outputs]);
        let dx = x_tracked.then(|| linear(dy_no.clone(), weight_plain.transpose(), None).reshape(dims).into_dispatch());
        let mut gradients = vec![dx, None];
        if let Some(tracked) = bias_tracked {
            let sum = || dy_no.clone().sum_dim(0).reshape([outputs]).into_dispatch();
            gradients.push(tracked.then(|| Tensor::<1>::from_dispatch(sum()).into_dispatch()));
        }
        defer(Box::new(move || dy_no.transpose().matmul(x_plain.reshape([rows, inputs]))));
        gradients
    })
}
