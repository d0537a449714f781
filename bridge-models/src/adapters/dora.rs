//! The lengths of rows in DoRA (Liu et al., arXiv:2402.09353): equation 5 divides a row of the merged weight by its length, which counts as a
//! constant in backward (section 4.3), and multiplies it by one that is learned.

use bridge_dist::comm::Group;
use bridge_dist::region::reduce_from_group;
use burn::tensor::Tensor;

/// The lengths of the rows of a matrix `[o, i]`, as constants. With ranks, they have the columns of a row together.
pub(super) fn row_lengths(weight_oi: Tensor<2>, ranks: Option<&Group>) -> Tensor<1> {
    let [rows, _] = weight_oi.dims();
    let squares_o = weight_oi.without_autodiff().powi_scalar(2).sum_dim(1).reshape([rows]);
    match ranks {
        Some(ranks) => reduce_from_group(squares_o, ranks).sqrt(),
        None => squares_o.sqrt(),
    }
}

/// What the rows of `weight_oi + change_oi` are multiplied by, `[o]`, so that their lengths become `magnitudes_o`.
pub(super) fn factors(
    weight_oi: Tensor<2>,
    change_oi: Tensor<2>,
    magnitudes_o: Tensor<1>,
    ranks: Option<&Group>,
) -> Tensor<1> {
    let lengths_o = row_lengths(weight_oi.without_autodiff() + change_oi.without_autodiff(), ranks);
    let lengths_o = if magnitudes_o.device().is_autodiff() { lengths_o.autodiff() } else { lengths_o };
    magnitudes_o / lengths_o
}
