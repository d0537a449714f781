//! Linear layer on Flex.

use burn::backend::{DispatchTensor, Flex};
use burn::tensor::Tensor;

use crate::activation::{Activation, GatedUnit};
use crate::cpu::gemm::Matrix;
use crate::flex::{KeptValues, Kernels, Typed, Values, gradient, inputs, rounded_gradient, tensor};
use crate::vjp::{self, Lift};

pub(crate) fn linear<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let product = Product::<E, _>::new(x, weight_oi, bias_o)?;
    let y = tensor(product.forward(None), product.shape());
    let (inputs, backward) = product.into_backward();
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<D>| backward.gradients(&Typed::from_gradient(dy))))
}

pub(crate) fn linear_residual<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    residual: &Tensor<D>,
) -> Option<Tensor<D>> {
    let product = Product::<E, _>::new(x, weight_oi, bias_o)?;
    let y = tensor(product.forward(Some(Typed::contiguous_of(residual)?.slice())), product.shape());
    let (mut inputs, backward) = product.into_backward();
    inputs.push(residual.clone().into_dispatch());
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<D>| {
        let dy = Typed::from_gradient(dy);
        let mut gradients = backward.gradients(&dy);
        gradients.push(Some(Flex::lift(dy.0)));
        gradients
    }))
}

pub(crate) fn linear_activation<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    kind: Activation,
) -> Option<Tensor<D>> {
    let product = Product::<E, _>::new(x, weight_oi, bias_o)?;
    let shape = product.shape();
    let before = product.forward(None);
    let y = tensor(E::activation(&before, kind), shape);
    let (inputs, backward) = product.into_backward();
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<D>| {
        let mut gradient = Typed::from_gradient(dy).into_vec();
        E::activation_backward(&mut gradient, &before, kind);
        drop(before);
        backward.gradients(&Typed::from_vec(gradient, shape))
    }))
}

pub(crate) fn linear_glu<E: Kernels>(
    x: &Tensor<3>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    unit: GatedUnit,
) -> Option<Tensor<3>> {
    let product = Product::<E, _>::new(x, weight_oi, bias_o)?;
    let shape = product.shape();
    let ([b, t, _], width) = (shape, shape[2] / 2);
    let before = product.forward(None);
    let y = tensor(E::glu(&before, width, unit), [b, t, width]);
    let (inputs, backward) = product.into_backward();
    Some(vjp::attach_some(y, inputs, move |dy: Tensor<3>| {
        let gradient = E::glu_backward(Typed::from_gradient(dy).slice(), &before, width, unit);
        drop(before);
        backward.gradients(&Typed::from_vec(gradient, shape))
    }))
}

pub(crate) fn linear_of_activation<E: Kernels, const D: usize>(
    x: &Tensor<D>,
    kind: Activation,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let unit = RecomputedActivation {
        dims: x.dims(),
        forward: move |before: &[E]| E::activation(before, kind),
        backward: move |mut gradient: Vec<E>, before: &[E]| {
            E::activation_backward(&mut gradient, before, kind);
            gradient
        },
    };
    unit.product(x, weight_oi, bias_o)
}

pub(crate) fn linear_of_glu<E: Kernels>(
    x_bt2i: &Tensor<3>,
    unit: GatedUnit,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
) -> Option<Tensor<3>> {
    let ([b, t, _], [_, width]) = (x_bt2i.dims(), weight_oi.dims());
    let unit = RecomputedActivation {
        dims: [b, t, width],
        forward: move |before: &[E]| E::glu(before, width, unit),
        backward: move |gradient: Vec<E>, before: &[E]| E::glu_backward(&gradient, before, width, unit),
    };
    unit.product(x_bt2i, weight_oi, bias_o)
}

/// An activation whose result is recomputed for the backward of the product that reads it.
struct RecomputedActivation<F, B, const D: usize> {
    /// Shape of the result.
    dims: [usize; D],
    forward: F,
    /// Gradient of the input, from the gradient of the result and the input.
    backward: B,
}

impl<F, B, const D: usize> RecomputedActivation<F, B, D> {
    fn product<E: Kernels>(self, x: &Tensor<D>, weight_oi: &Tensor<2>, bias_o: Option<&Tensor<1>>) -> Option<Tensor<D>>
    where
        F: Fn(&[E]) -> Vec<E> + Send + 'static,
        B: Fn(Vec<E>, &[E]) -> Vec<E> + Send + 'static,
    {
        let Self { dims, forward, backward } = self;
        let before = Typed::<E>::contiguous_of(x)?;
        let result = tensor(forward(before.slice()), dims);
        let product = Product::<E, _>::new(&result, weight_oi, bias_o)?;
        let y = tensor(product.forward(None), product.shape());
        let [outputs, width] = weight_oi.dims();
        let held = ProductBackward {
            dims,
            sizes: [product.rows(), width, outputs],
            x: None,
            weight: x.is_tracked().then_some(product.weight.1),
            bias_tracked: bias_o.map(Tensor::is_tracked),
        };
        let (is_weight_tracked, x_dims) = (weight_oi.is_tracked(), x.dims());
        Some(vjp::attach_some(y, inputs(x, weight_oi, bias_o), move |dy: Tensor<D>| {
            let result = is_weight_tracked.then(|| Typed::from_vec(forward(before.slice()), dims));
            let mut gradients =
                ProductBackward { x: result.map(Typed::kept), ..held }.gradients(&Typed::from_gradient(dy));
            let of_result =
                gradients[0].take().map(|dz| Typed::from_gradient(Tensor::<D>::from_dispatch(dz)).into_vec());
            gradients[0] = of_result.and_then(|dz| gradient(backward(dz, before.slice()), x_dims));
            gradients
        }))
    }
}

/// A product and its operands.
struct Product<'a, E, const D: usize> {
    x: (&'a Tensor<D>, Typed<E>),
    weight: (&'a Tensor<2>, Typed<E>),
    bias: (Option<&'a Tensor<1>>, Option<Values>),
}

impl<'a, E: Kernels, const D: usize> Product<'a, E, D> {
    fn new(x: &'a Tensor<D>, weight_oi: &'a Tensor<2>, bias_o: Option<&'a Tensor<1>>) -> Option<Self> {
        if bias_o.is_some_and(|bias| bias.dtype() != E::DTYPE) {
            return None;
        }
        Some(Self {
            x: (x, Typed::contiguous_of(x)?),
            weight: (weight_oi, Typed::from_tensor(weight_oi)?.without_flips()),
            bias: (bias_o, Values::optional_widened_of(bias_o)?),
        })
    }

    /// Shape of the product.
    fn shape(&self) -> [usize; D] {
        let mut shape = self.x.0.dims();
        shape[D - 1] = self.weight.0.dims()[0];
        shape
    }

    fn rows(&self) -> usize {
        self.x.0.dims()[..D - 1].iter().product()
    }

    fn forward(&self, residual: Option<&[E]>) -> Vec<E> {
        let [_, inputs] = self.weight.0.dims();
        let x = Matrix::new(self.x.1.slice(), self.rows(), inputs);
        E::linear(x, self.weight.1.matrix(), self.bias.1.as_ref().map(Values::slice), residual)
    }

    /// The inputs of the operation, and its backward. Tensors that only gradients of frozen inputs
    /// need are not kept.
    fn into_backward(self) -> (Vec<DispatchTensor>, ProductBackward<E, D>) {
        let rows = self.rows();
        let Self { x: (x, x_values), weight: (weight_oi, weight), bias: (bias, _) } = self;
        let [num_outputs, num_inputs] = weight_oi.dims();
        let backward = ProductBackward {
            dims: x.dims(),
            sizes: [rows, num_inputs, num_outputs],
            x: weight_oi.is_tracked().then(|| x_values.kept()),
            weight: x.is_tracked().then_some(weight),
            bias_tracked: bias.map(Tensor::is_tracked),
        };
        (inputs(x, weight_oi, bias), backward)
    }
}

/// The backward of a product.
struct ProductBackward<E, const D: usize> {
    dims: [usize; D],
    /// Rows, inputs, outputs.
    sizes: [usize; 3],
    x: Option<KeptValues<E>>,
    weight: Option<Typed<E>>,
    bias_tracked: Option<bool>,
}

impl<E: Kernels, const D: usize> ProductBackward<E, D> {
    /// Gradients of input, weight and, if there is one, bias, from that of the product.
    fn gradients(self, dy: &Typed<E>) -> Vec<Option<DispatchTensor>> {
        let [rows, inputs, outputs] = self.sizes;
        let dy_matrix = Matrix::new(dy.slice(), rows, outputs);
        let dx = self.weight.and_then(|weight| gradient(E::grad_input(dy_matrix, weight.matrix()), self.dims));
        let dw = self.x.and_then(|x| {
            let x = x.values();
            let dw = E::grad_weight(dy_matrix, Matrix::new(x.slice(), rows, inputs));
            gradient(dw, [outputs, inputs])
        });
        let mut gradients = vec![dx, dw];
        gradients.extend(self.bias_tracked.map(|tracked| bias_gradient(tracked, dy, outputs)));
        gradients
    }
}

/// The gradient of a bias `[o]`, if it is tracked, from that of the layer's output.
pub(crate) fn bias_gradient<E: Kernels>(is_tracked: bool, dy: &Typed<E>, outputs: usize) -> Option<DispatchTensor> {
    let sums = is_tracked.then(|| E::column_sums(dy.slice(), outputs));
    sums.and_then(|sums| rounded_gradient(sums, [outputs], E::DTYPE))
}
