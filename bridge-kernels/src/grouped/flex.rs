//! Experts' layers on Flex.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

use super::cpu as kernel;
use super::{GroupedLinear, GroupedMlp};
use crate::activation::FeedForwardUnit;
use crate::activation::cpu as activation;
use crate::cpu::gemm::Matrix;
use crate::flex::{Values, gradient, tensor, tracked};
use crate::vjp;

pub(crate) fn grouped_linear(x: &Tensor<2>, counts: &[usize], layer: &GroupedLinear) -> Option<Tensor<2>> {
    let (x_values, held) = (Values::contiguous_of(x)?, Held::new(layer)?);
    let [m, inputs] = x.dims();
    let counts = counts.to_vec();
    let y = tensor(held.forward(x_values.slice(), &counts), [m, held.outputs]);
    let x_values = held.wants_weights().then_some(x_values);
    let held = if x.is_tracked() { held } else { held.without_weights() };
    let mut all = tracked![x];
    all.extend(layer.inputs());
    Some(vjp::attach_some(y, all, move |dy: Tensor<2>| {
        let dy = Values::from_gradient(dy);
        let dx = held.grad_input(dy.slice(), &counts).and_then(|dx| gradient(dx, [m, inputs]));
        let mut gradients = vec![dx];
        gradients.extend(held.gradients(dy.slice(), &counts, || x_values.as_ref().map_or(&[], Values::slice)));
        gradients
    }))
}

pub(crate) fn grouped_mlp(x: &Tensor<2>, counts: &[usize], mlp: &GroupedMlp) -> Option<Tensor<2>> {
    let (x_values, first, second) = (Values::contiguous_of(x)?, Held::new(&mlp.first)?, Held::new(&mlp.second)?);
    let ([m, c], unit, counts) = (x.dims(), mlp.unit, counts.to_vec());
    let before = first.forward(x_values.slice(), &counts);
    let y = tensor(second.forward(&unit_output(&before, first.outputs, unit), &counts), [m, second.outputs]);
    let x_values = first.wants_weights().then_some(x_values);
    let is_x_tracked = x.is_tracked();
    let mut all = tracked![x];
    all.extend(mlp.first.inputs());
    all.extend(mlp.second.inputs());
    Some(vjp::attach_some(y, all, move |dy: Tensor<2>| {
        let dy = Values::from_gradient(dy);
        let of_second = {
            let hidden = second.wants_weights().then(|| unit_output(&before, first.outputs, unit));
            second.gradients(dy.slice(), &counts, || hidden.as_deref().unwrap_or(&[]))
        };
        let d_hidden = second.grad_input(dy.slice(), &counts).expect("the weights are there");
        drop((dy, second));
        let d_before = match unit {
            FeedForwardUnit::Gated(unit) => activation::glu_backward(&d_hidden, &before, first.outputs / 2, unit),
            FeedForwardUnit::Plain(kind) => {
                let mut d_before = d_hidden;
                activation::backward(&mut d_before, &before, kind);
                d_before
            }
        };
        drop(before);
        let dx = is_x_tracked.then(|| first.grad_input(&d_before, &counts)).flatten();
        let mut gradients = vec![dx.and_then(|dx| gradient(dx, [m, c]))];
        gradients.extend(first.gradients(&d_before, &counts, || x_values.as_ref().map_or(&[], Values::slice)));
        gradients.extend(of_second);
        gradients
    }))
}

/// Output of the unit for rows of `width`.
fn unit_output(before: &[f32], width: usize, unit: FeedForwardUnit) -> Vec<f32> {
    match unit {
        FeedForwardUnit::Plain(kind) => activation::forward(before, kind),
        FeedForwardUnit::Gated(unit) => activation::glu(before, width / 2, unit),
    }
}

/// A layer in the memory of this process.
struct Held {
    /// `None` where no product needs them any more.
    weights: Option<Vec<Values>>,
    biases: Vec<Values>,
    /// True for each weight that has a gradient.
    wanted: Vec<bool>,
    bias_wanted: Vec<bool>,
    outputs: usize,
    inputs: usize,
}

impl Held {
    /// `None` if a tensor is somewhere else.
    fn new(layer: &GroupedLinear) -> Option<Self> {
        let [outputs, inputs] = layer.weights_oi[0].dims();
        let weights: Option<Vec<_>> =
            layer.weights_oi.iter().map(|weight| Values::from_tensor(weight).map(Values::without_flips)).collect();
        let biases: Option<Vec<_>> = layer.biases_o.iter().map(Values::contiguous_of).collect();
        Some(Self {
            weights: Some(weights?),
            biases: biases?,
            wanted: layer.weights_oi.iter().map(Tensor::is_tracked).collect(),
            bias_wanted: layer.biases_o.iter().map(Tensor::is_tracked).collect(),
            outputs,
            inputs,
        })
    }

    fn without_weights(self) -> Self {
        Self { weights: None, ..self }
    }

    /// True if any weight has a gradient.
    fn wants_weights(&self) -> bool {
        self.wanted.contains(&true)
    }

    fn matrices(&self) -> Option<Vec<Matrix<'_>>> {
        Some(self.weights.as_ref()?.iter().map(Values::matrix).collect())
    }

    fn forward(&self, x: &[f32], counts: &[usize]) -> Vec<f32> {
        let biases: Vec<&[f32]> = self.biases.iter().map(Values::slice).collect();
        kernel::forward(x, counts, &self.matrices().expect("the weights are there"), &biases)
    }

    /// The gradient of the input; `None` if the weights were not kept for it.
    fn grad_input(&self, dy: &[f32], counts: &[usize]) -> Option<Vec<f32>> {
        Some(kernel::grad_input(dy, counts, &self.matrices()?))
    }

    /// Gradients of weights and biases; `x` is recomputed only if they need it.
    fn gradients<'a>(
        &self,
        dy: &[f32],
        counts: &[usize],
        x: impl FnOnce() -> &'a [f32],
    ) -> Vec<Option<DispatchTensor>> {
        let (outputs, inputs) = (self.outputs, self.inputs);
        let mut all = match self.wants_weights() {
            true => kernel::grad_weights(dy, x(), counts, [outputs, inputs], &self.wanted)
                .into_iter()
                .map(|dw| dw.and_then(|dw| gradient(dw, [outputs, inputs])))
                .collect(),
            false => vec![None; self.wanted.len()],
        };
        if self.bias_wanted.contains(&true) {
            let sums = kernel::grad_biases(dy, counts, outputs).into_iter().zip(&self.bias_wanted);
            all.extend(sums.map(|(sum, wanted)| if *wanted { gradient(sum, [outputs]) } else { None }));
        } else {
            all.extend(vec![None; self.bias_wanted.len()]);
        }
        all
    }
}
