//! Output projection with cross-entropy over a spread vocabulary, on Flex.

use burn::tensor::Tensor;

use super::cross_entropy::checked_targets;
use super::{Values, gradient, integers, tensor};
use crate::cpu::cross_entropy::{Problem, Solution, Wanted};
use crate::cpu::optim::scale;
use crate::cpu::vocab_parallel_cross_entropy::solve;
use crate::cross_entropy::CrossEntropyOptions;
use crate::vjp;
use crate::vocab_parallel_cross_entropy::{Targets, VocabularyShard};

/// See [`crate::vocab_parallel_cross_entropy()`].
pub(crate) fn vocab_parallel_cross_entropy(
    x_nc: &Tensor<2>,
    weight_vc: &Tensor<2>,
    targets: &Targets,
    shard: &VocabularyShard<'_>,
    options: &CrossEntropyOptions,
) -> Option<Tensor<1>> {
    if targets.mask_n.is_tracked() {
        return None;
    }
    let ([n, c], [v, _]) = (x_nc.dims(), weight_vc.dims());
    let x = Values::of(x_nc)?.without_flips();
    let weight = Values::of(weight_vc)?.without_flips();
    let mask = Values::contiguous_of(&targets.mask_n)?;
    let ids = checked_targets(&integers(&targets.ids_n)?, mask.slice(), shard.size);
    let wanted = Wanted { x: x_nc.is_tracked(), weight: weight_vc.is_tracked() };
    let problem =
        Problem { x: x.matrix(), weight: weight.matrix(), targets: &ids, mask: mask.slice(), options: *options };
    let Solution { loss, x: dx, weight: dw } = solve(problem, wanted, shard);
    let inputs = vec![x_nc.clone().into_dispatch(), weight_vc.clone().into_dispatch()];
    Some(vjp::attach_some(tensor(vec![loss as f32], [1]), inputs, move |dy: Tensor<1>| {
        let upstream = Values::of_gradient(dy).slice()[0];
        let scaled = |mut values: Vec<f32>, shape| {
            if upstream != 1.0 {
                scale(&mut values, upstream);
            }
            gradient(values, shape)
        };
        vec![dx.and_then(|dx| scaled(dx, [n, c])), dw.and_then(|dw| scaled(dw, [v, c]))]
    }))
}
