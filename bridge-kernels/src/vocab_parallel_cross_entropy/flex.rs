//! Output projection with cross-entropy over a spread vocabulary, on Flex.

use burn::tensor::Tensor;

use super::cpu::solve;
use super::shard::{Targets, VocabularyShard};
use crate::cross_entropy::CrossEntropyOptions;
use crate::cross_entropy::cpu::{Problem, Wanted};
use crate::cross_entropy::flex::{attached, checked_targets};
use crate::flex::{Values, integers};

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
    let x = Values::of(x_nc)?.without_flips();
    let weight = Values::of(weight_vc)?.without_flips();
    let mask = Values::contiguous_of(&targets.mask_n)?;
    let ids = checked_targets(&integers(&targets.ids_n)?, mask.slice(), shard.size);
    let wanted = Wanted { x: x_nc.is_tracked(), weight: weight_vc.is_tracked() };
    let problem =
        Problem { x: x.matrix(), weight: weight.matrix(), targets: &ids, mask: mask.slice(), options: *options };
    Some(attached(solve(problem, wanted, shard), x_nc, weight_vc))
}
