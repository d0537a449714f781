//! The lengths of rows in DoRA (Liu et al., arXiv:2402.09353): equation 5 divides a row of the
//! merged weight by its length, which counts as a constant in backward (section 4.3), and
//! multiplies it by one that is learned.

use bridge_dist::comm::Group;
use bridge_regions::reduce_from_group;
use burn::tensor::Tensor;

/// The lengths of rows whose squares are `squares_o`, as constants. With ranks, these have the
/// columns of a row together.
pub(super) fn row_lengths(squares_o: Tensor<1>, ranks: Option<&Group>) -> Tensor<1> {
    match ranks {
        Some(ranks) => reduce_from_group(squares_o, ranks).sqrt(),
        None => squares_o.sqrt(),
    }
}

/// Factors `[o]` of rows with these lengths that change the lengths to `magnitudes_o`.
pub(super) fn factors(lengths_o: Tensor<1>, magnitudes_o: Tensor<1>) -> Tensor<1> {
    let lengths_o = if magnitudes_o.device().is_autodiff() { lengths_o.autodiff() } else { lengths_o };
    magnitudes_o / lengths_o
}
