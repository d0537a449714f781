//! Output projection with cross-entropy over a spread vocabulary, on Flex.

use burn::tensor::Tensor;

use super::shard::{Targets, VocabularyShard};
use crate::cross_entropy::cpu::Problem;
use crate::cross_entropy::flex::{attached, checked_targets};
use crate::cross_entropy::{CrossEntropyOptions, OutputLayer};
use crate::flex::{Kernels, Typed, Values, integers};
use crate::quantized::flex::Held;

pub(crate) fn vocab_parallel_cross_entropy<E: Kernels>(
    x_nc: &Tensor<2>,
    output: &OutputLayer,
    targets: &Targets,
    shard: &VocabularyShard<'_>,
    options: &CrossEntropyOptions,
) -> Option<Tensor<1>> {
    if targets.mask_n.is_tracked() {
        return None;
    }
    let x = Typed::<E>::from_tensor(x_nc)?.without_flips();
    let weight = Held::new(&output.weight_vc)?;
    let bias = output.wide_bias::<E>()?;
    let mask = Values::contiguous_of(&targets.mask_n)?;
    let ids = checked_targets(&integers(&targets.ids_n)?, mask.slice(), shard.size);
    let wanted = output.wanted_gradients(x_nc);
    let problem = Problem {
        x: x.matrix(),
        weight: weight.projection(),
        bias: bias.as_ref().map(Values::slice),
        targets: &ids,
        mask: mask.slice(),
        options: *options,
        accuracy: None,
    };
    Some(attached(E::vocab_parallel_cross_entropy(problem, wanted, shard), x_nc, output))
}
