//! Linear layers in 8 bits on Flex tensors.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::cpu::{self as kernel, Codes, Decoded};
use super::pass::Fp8Pass;
use super::rule::{Fp8Rule, Operand, OperandMaxima};
use crate::cpu::gemm::Matrix;
use crate::flex::{Values, gradient, inputs, tensor};
use crate::linear::cpu as linear;
use crate::linear::flex::bias_gradient;
use crate::precision::widen;
use crate::vjp;

/// The input as the gradient of the weight reads it.
enum KeptInput<const D: usize> {
    Codes(Codes),
    /// Plain values, if the product is not in 8 bits.
    Values(Box<Tensor<D>>),
}

/// Values of a tensor on Flex that may have 16 bits.
fn widened<const D: usize>(x: &Tensor<D>) -> Values {
    Values::contiguous_of(&widen(x.clone())).expect("it was on Flex")
}

/// A pass whose scales are on the host.
#[derive(Clone)]
struct HostPass {
    rule: Fp8Rule,
    scales: Option<[f32; 3]>,
    maxima: Option<Arc<OperandMaxima>>,
}

impl HostPass {
    /// `None` if the scales are somewhere else.
    fn from_pass(pass: &Fp8Pass) -> Option<Self> {
        let read =
            |scales: &Tensor<1>| Some(Values::contiguous_of(scales)?.slice().try_into().expect("three operands"));
        let scales = match &pass.scales {
            Some(scales) => Some(read(scales)?),
            None => None,
        };
        Some(Self { rule: pass.rule, scales, maxima: pass.maxima.clone() })
    }

    /// Casts an operand and notes its largest magnitude.
    fn cast(&self, x: &[f32], shape: [usize; 2], operand: Operand) -> Codes {
        let codes = Codes::new(x, shape, self.rule.format(operand), self.rule.share(operand, self.scales.as_ref()));
        if let Some((maxima, largest)) = self.maxima.as_ref().zip(codes.largest) {
            maxima.note(operand, largest);
        }
        codes
    }

    fn decoded(&self, x: &[f32], shape: [usize; 2], operand: Operand) -> Decoded {
        self.cast(x, shape, operand).decode()
    }

    /// Gradients of input and weight, of which none may be wanted, from the gradient of the output
    /// `[n, o]`.
    fn gradients<const D: usize>(
        &self,
        dy: &[f32],
        outputs: usize,
        weight: Option<(Tensor<2>, [usize; 2])>,
        x: Option<(KeptInput<D>, [usize; 2])>,
    ) -> (Option<Vec<f32>>, Option<Vec<f32>>) {
        let shape = [dy.len() / outputs.max(1), outputs];
        let is_shared = self.rule.is_one_cast();
        let along = (is_shared || weight.is_some()).then(|| self.decoded(dy, shape, Operand::Gradient));
        let dx = weight.map(|(weight, weight_shape)| {
            let weight = self.decoded(widened(&weight).slice(), weight_shape, Operand::WeightAcross);
            kernel::grad_input(along.as_ref().expect("it is cast for this product"), &weight)
        });
        let dw = x.map(|(x, x_shape)| match x {
            KeptInput::Values(x) => {
                let (x, dy) = (widened(x.as_ref()), Matrix::new(dy, shape[0], outputs));
                linear::grad_weight(dy, Matrix::new(x.slice(), x_shape[0], x_shape[1]))
            }
            KeptInput::Codes(x) => match along.filter(|_| is_shared) {
                Some(dy) => kernel::grad_weight(&dy, &x.decode()),
                None => kernel::grad_weight(&self.decoded(dy, shape, Operand::GradientAcross), &x.decode()),
            },
        });
        (dx, dw)
    }
}

/// See [`super::fp8_linear`], of float32; `kept` are input and weight as they are held without it.
pub(super) fn fp8_linear<const D: usize>(
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    pass: &Fp8Pass,
    kept: (Tensor<D>, Tensor<2>),
) -> Option<Tensor<D>> {
    let (x_values, weight) = (Values::contiguous_of(x)?, Values::contiguous_of(weight_oi)?);
    let pass = HostPass::from_pass(pass)?;
    let (kept_x, kept_weight) = kept;
    let bias = Values::of_optional(bias_o)?;
    let ([outputs, width], dims, mut shape) = (weight_oi.dims(), x.dims(), x.dims());
    shape[D - 1] = outputs;
    let (x_shape, weight_shape) = ([dims[..D - 1].iter().product(), width], [outputs, width]);
    let codes = pass.cast(x_values.slice(), x_shape, Operand::Input);
    let y = kernel::forward(
        &codes.decode(),
        &pass.decoded(weight.slice(), weight_shape, Operand::Weight),
        bias.as_ref().map(Values::slice),
    );
    let kept = weight_oi.is_tracked().then(|| match (pass.rule.weight_gradient, pass.rule.is_one_cast()) {
        (false, _) => KeptInput::Values(Box::new(kept_x)),
        (true, true) => KeptInput::Codes(codes),
        (true, false) => KeptInput::Codes(pass.cast(x_values.slice(), x_shape, Operand::InputAcross)),
    });
    let weight = x.is_tracked().then_some(kept_weight);
    let bias_tracked = bias_o.map(Tensor::is_tracked);
    Some(vjp::attach_some(tensor(y, shape), inputs(x, weight_oi, bias_o), move |dy: Tensor<D>| {
        let dy = Values::from_gradient(dy);
        let (weight, kept) = (weight.map(|weight| (weight, weight_shape)), kept.map(|kept| (kept, x_shape)));
        let (dx, dw) = pass.gradients(dy.slice(), outputs, weight, kept);
        let mut gradients = vec![dx.and_then(|dx| gradient(dx, dims)), dw.and_then(|dw| gradient(dw, weight_shape))];
        gradients.extend(bias_tracked.map(|tracked| bias_gradient(tracked, &dy, outputs)));
        gradients
    }))
}
