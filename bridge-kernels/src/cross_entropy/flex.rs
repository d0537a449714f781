//! Output projection with cross-entropy on Flex.

use burn::tensor::{Int, Tensor};

use super::OutputLayer;
use super::accuracy::TokenAccuracy;
use super::cpu::{LossAndGradients, Problem};
use super::options::CrossEntropyOptions;
use crate::flex::{Kernels, Typed, Values, integers, rounded_gradient, tensor, tracked};
use crate::optim::cpu::scale;
use crate::quantized::LinearWeight;
use crate::quantized::flex::Held;
use crate::vjp;

pub(crate) fn linear_cross_entropy<E: Kernels>(
    x_nc: &Tensor<2>,
    output: &OutputLayer,
    targets_n: &Tensor<1, Int>,
    mask_n: &Tensor<1>,
    options: &CrossEntropyOptions,
    accuracy: Option<&TokenAccuracy>,
) -> Option<Tensor<1>> {
    if mask_n.is_tracked() {
        return None;
    }
    let v = output.weight_vc.dims()[0];
    let x = Typed::<E>::from_tensor(x_nc)?.without_flips();
    let weight = Held::new(&output.weight_vc)?;
    let bias = output.wide_bias::<E>()?;
    let mask = Values::contiguous_of(mask_n)?;
    let targets = checked_targets(&integers(targets_n)?, mask.slice(), v);
    let wanted = output.wanted_gradients(x_nc);
    let problem = Problem {
        x: x.matrix(),
        weight: weight.projection(),
        bias: bias.as_ref().map(Values::slice),
        targets: &targets,
        mask: mask.slice(),
        options: *options,
        accuracy,
    };
    Some(attached(E::cross_entropy(problem, wanted), x_nc, output))
}

/// The loss as a tensor, with the gradients that were found beside it: backward only scales them.
pub(crate) fn attached(solution: LossAndGradients, x_nc: &Tensor<2>, output: &OutputLayer) -> Tensor<1> {
    let ([n, c], [v, _]) = (x_nc.dims(), output.weight_vc.dims());
    let LossAndGradients { loss, x: dx, weight: dw, bias: db } = solution;
    let dtype = x_nc.dtype();
    let mut inputs = tracked![x_nc];
    let is_whole = match &output.weight_vc {
        LinearWeight::Whole(weight_vc) => {
            inputs.push(weight_vc.clone().into_dispatch());
            true
        }
        LinearWeight::Quantized(_) => false,
    };
    inputs.extend(output.bias_v.iter().map(|bias_v| bias_v.clone().into_dispatch()));
    let has_bias = output.bias_v.is_some();
    vjp::attach_some(tensor(vec![loss as f32], [1]), inputs, move |dy: Tensor<1>| {
        let upstream = Values::from_gradient(dy).slice()[0];
        let scaled = |mut values: Vec<f32>| {
            if upstream != 1.0 {
                scale(&mut values, upstream);
            }
            values
        };
        let mut gradients = vec![dx.and_then(|dx| rounded_gradient(scaled(dx), [n, c], dtype))];
        if is_whole {
            gradients.push(dw.and_then(|dw| rounded_gradient(scaled(dw), [v, c], dtype)));
        }
        if has_bias {
            gradients.push(db.and_then(|db| rounded_gradient(scaled(db), [v], dtype)));
        }
        gradients
    })
}

/// Targets as indices. A token that the mask leaves out may hold any number.
pub(crate) fn checked_targets(targets: &[i64], mask: &[f32], vocabulary: usize) -> Vec<usize> {
    let check = |(position, (target, mask)): (usize, (&i64, &f32))| match usize::try_from(*target) {
        Ok(index) if index < vocabulary => index,
        _ if *mask == 0.0 => 0,
        _ => {
            panic!("target {target} of token {position} is not in 0..{vocabulary}, the vocabulary")
        }
    };
    targets.iter().zip(mask).enumerate().map(check).collect()
}
