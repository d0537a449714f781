//! Weights of linear layers on Flex, whole or quantised.

use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use super::cpu as kernel;
use super::{LinearWeight, QuantizedMatrix};
use crate::cpu::element::Element;
use crate::cpu::gemm::Matrix;
use crate::cross_entropy::cpu::Projection;
use crate::flex::{Typed, Values, gradient, tensor, tracked};
use crate::linear::cpu as linear;
use crate::linear::flex::bias_gradient;
use crate::vjp::{self, Lift};

/// A weight in the memory of this process.
pub(crate) enum Held<E = f32> {
    Whole(Typed<E>),
    Quantized(Arc<QuantizedMatrix>),
}

impl<E: Element> Held<E> {
    /// `None` for a tensor that is somewhere else or has other elements, or a quantised weight in
    /// products of other elements than float32.
    pub fn new(weight: &LinearWeight) -> Option<Self> {
        match weight {
            LinearWeight::Whole(weight_oi) => Some(Self::Whole(Typed::from_tensor(weight_oi)?.without_flips())),
            LinearWeight::Quantized(matrix) => (E::DTYPE == DType::F32).then(|| Self::Quantized(Arc::clone(matrix))),
        }
    }

    /// The weight as an output projection.
    pub fn projection(&self) -> Projection<'_, E> {
        match self {
            Self::Whole(weight) => Projection::Whole(weight.matrix()),
            Self::Quantized(matrix) => Projection::Quantized(matrix),
        }
    }
}

impl Held {
    /// `residual + x w^T + bias`, `[n, o]`.
    pub fn forward(&self, x: Matrix<'_>, bias: Option<&[f32]>, residual: Option<&[f32]>) -> Vec<f32> {
        match self {
            Self::Whole(weight) => linear::forward(x, weight.matrix(), bias, residual),
            Self::Quantized(matrix) => kernel::forward(x, matrix, bias, residual),
        }
    }

    /// The gradient of the input, `[n, i]`.
    pub fn grad_input(&self, dy: Matrix<'_>) -> Vec<f32> {
        match self {
            Self::Whole(weight) => linear::grad_input(dy, weight.matrix()),
            Self::Quantized(matrix) => kernel::grad_input(dy, matrix),
        }
    }
}

/// See [`crate::linear_weighted`], for a quantised weight.
pub(crate) fn linear_quantized<const D: usize>(
    x: &Tensor<D>,
    weight: &Arc<QuantizedMatrix>,
    bias_o: Option<&Tensor<1>>,
    residual: Option<&Tensor<D>>,
) -> Option<Tensor<D>> {
    let (x_values, bias) = (Values::contiguous_of(x)?, Values::of_optional(bias_o)?);
    let added = Values::of_optional(residual)?;
    let [outputs, num_inputs] = weight.shape();
    let (dims, mut shape) = (x.dims(), x.dims());
    shape[D - 1] = outputs;
    let rows = shape[..D - 1].iter().product();
    let x_matrix = Matrix::new(x_values.slice(), rows, num_inputs);
    let y = kernel::forward(x_matrix, weight, bias.as_ref().map(Values::slice), added.as_ref().map(Values::slice));
    let mut inputs = tracked![x];
    inputs.extend(bias_o.map(|bias| bias.clone().into_dispatch()));
    inputs.extend(residual.map(|residual| residual.clone().into_dispatch()));
    let (weight, bias_tracked) = (x.is_tracked().then(|| Arc::clone(weight)), bias_o.map(Tensor::is_tracked));
    let has_residual = residual.is_some();
    Some(vjp::attach_some(tensor(y, shape), inputs, move |dy: Tensor<D>| {
        let dy = Values::from_gradient(dy);
        let of_input = |weight: Arc<QuantizedMatrix>| {
            gradient(kernel::grad_input(Matrix::new(dy.slice(), rows, outputs), &weight), dims)
        };
        let mut gradients = vec![weight.and_then(of_input)];
        gradients.extend(bias_tracked.map(|tracked| bias_gradient(tracked, &dy, outputs)));
        if has_residual {
            gradients.push(Some(Flex::lift(dy.0)));
        }
        gradients
    }))
}
