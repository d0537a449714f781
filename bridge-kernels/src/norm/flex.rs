//! Norms on Flex.

use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};

use super::cpu::{NormGradients, Normed, Saved, Statistics};
use crate::flex::{Kernels, Typed, Values, gradient, inputs, rounded_gradient, tensor};
use crate::recomputable::{Recomputable, Recompute};
use crate::vjp;

pub(crate) fn rms_norm<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    Some(Operands::<E, D>::new(x, weight_c, None)?.rms_norm(epsilon).attach())
}

pub(crate) fn residual_rms_norm<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    epsilon: f64,
) -> Option<(Recomputable<D>, Tensor<D>)> {
    Some(Operands::<E, D>::new(x, weight_c, None)?.rms_norm(epsilon).attach_with(x))
}

pub(crate) fn layer_norm<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    Some(Operands::<E, D>::new(x, weight_c, bias_c)?.layer_norm(epsilon).attach())
}

pub(crate) fn residual_layer_norm<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<(Recomputable<D>, Tensor<D>)> {
    Some(Operands::<E, D>::new(x, weight_c, bias_c)?.layer_norm(epsilon).attach_with(x))
}

/// Operands of a norm.
struct Operands<E, const D: usize> {
    dims: [usize; D],
    x: Typed<E>,
    /// In float32, with the dtype of its gradient.
    weight: (Values, DType),
    bias: Option<Values>,
    inputs: Vec<DispatchTensor>,
}

impl<E: Kernels, const D: usize> Operands<E, D> {
    fn new(x: &Tensor<D>, weight_c: &Tensor<1>, bias_c: Option<&Tensor<1>>) -> Option<Self> {
        bias_c.is_none_or(|bias| bias.dtype() == weight_c.dtype()).then_some(())?;
        Some(Self {
            dims: x.dims(),
            x: Typed::contiguous_of(x)?,
            weight: (Values::widened_of(weight_c)?, weight_c.dtype()),
            bias: Values::optional_widened_of(bias_c)?,
            inputs: inputs(x, weight_c, bias_c),
        })
    }

    fn rms_norm(self, epsilon: f64) -> Operation<E, D> {
        let normed = E::rms_norm(self.x.slice(), self.weight.0.slice(), epsilon);
        Operation::new(self, normed, E::rms_norm_backward, |x, weight, _, statistics| {
            E::rms_norm_again(x, weight, statistics)
        })
    }

    fn layer_norm(self, epsilon: f64) -> Operation<E, D> {
        let bias = self.bias.as_ref().map(Values::slice);
        let normed = E::layer_norm(self.x.slice(), self.weight.0.slice(), bias, epsilon);
        Operation::new(self, normed, E::layer_norm_backward, E::layer_norm_again)
    }
}

/// A gradient for each input that has one.
type InputGradients = Vec<Option<DispatchTensor>>;

type Backward<E> = fn(&[E], Saved<'_, E>, Option<Vec<E>>) -> NormGradients<E>;

/// Recomputes the output from the input, weight, bias and statistics.
type RecomputeOutput<E> = fn(&[E], &[f32], Option<&[f32]>, &Statistics) -> Vec<E>;

/// A norm that has been computed.
struct Operation<E, const D: usize> {
    operands: Operands<E, D>,
    y: Vec<E>,
    statistics: Arc<Statistics>,
    backward: Backward<E>,
    recompute: RecomputeOutput<E>,
}

impl<E: Kernels, const D: usize> Operation<E, D> {
    fn new(
        operands: Operands<E, D>,
        Normed { y, statistics }: Normed<E>,
        backward: Backward<E>,
        recompute: RecomputeOutput<E>,
    ) -> Self {
        Self { operands, y, statistics: Arc::new(statistics), backward, recompute }
    }

    /// Closure that recomputes the output.
    fn recompute(&self) -> Recompute {
        let Operands { dims, x, weight, bias, .. } = &self.operands;
        let (dims, x, weight, bias) = (*dims, x.clone(), weight.0.clone(), bias.clone());
        let (statistics, recompute) = (Arc::clone(&self.statistics), self.recompute);
        Recompute::new(move || {
            let bias = bias.as_ref().map(Values::slice);
            Typed::from_vec(recompute(x.slice(), weight.slice(), bias, &statistics), dims)
        })
    }

    /// The output, the inputs, and the inputs' gradients from that of the output and, if it has
    /// one, of the stream.
    fn parts(self) -> (Tensor<D>, Vec<DispatchTensor>, impl FnOnce(Typed<E>, Option<Typed<E>>) -> InputGradients) {
        let Self { operands: Operands { dims, x, weight, inputs, .. }, y, statistics, backward, .. } = self;
        let (arity, (weight, dtype)) = (inputs.len(), weight);
        let x = x.kept();
        let gradients = move |dy: Typed<E>, stream: Option<Typed<E>>| {
            let x = x.values();
            let saved = Saved { x: x.slice(), weight: weight.slice(), statistics: &statistics };
            let gradients = backward(dy.slice(), saved, stream.map(Typed::into_vec));
            let c = dims[D - 1];
            let mut out = vec![gradient(gradients.x, dims)];
            out.extend([gradients.weight, gradients.bias].map(|sums| rounded_gradient(sums, [c], dtype)));
            out.truncate(arity);
            out
        };
        (tensor(y, dims), inputs, gradients)
    }

    /// The output, with its backward.
    fn attach(self) -> Tensor<D> {
        let (y, inputs, gradients) = self.parts();
        vjp::attach_some(y, inputs, move |dy: Tensor<D>| gradients(Typed::from_gradient(dy), None))
    }

    /// Output and the stream `x`, whose gradient is added to the norm's in the same pass.
    fn attach_with(self, x: &Tensor<D>) -> (Recomputable<D>, Tensor<D>) {
        let recompute = Some(self.recompute());
        if !x.is_tracked() {
            return (Recomputable { tensor: self.attach(), recompute }, x.clone());
        }
        let dims = x.dims();
        let (y, inputs, gradients) = self.parts();
        let outputs = vec![y.into_dispatch(), x.clone().without_autodiff().into_dispatch()];
        let outputs = vjp::attach_all(outputs, inputs, move |of_outputs| {
            let values = |gradient| Typed::from_gradient(Tensor::<D>::from_dispatch(gradient));
            let [dy, stream] = <[_; 2]>::try_from(of_outputs).expect("one for each output").map(|g| g.map(values));
            let dy = dy.unwrap_or_else(|| Typed::from_vec(vec![E::zeroed(); dims.iter().product()], dims));
            gradients(dy, stream)
        });
        let [y, stream] = <[_; 2]>::try_from(outputs).expect("as many as were given").map(Tensor::from_dispatch);
        (Recomputable { tensor: y, recompute }, stream)
    }
}
