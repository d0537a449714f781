//! Linear layer with low-rank branches (Hu et al., arXiv:2106.09685), and with factors of its
//! outputs (Liu et al., arXiv:2402.09353).
//!
//! Shape legend: `n` rows of input, `i` inputs, `o` outputs of the layer, `r` the rank of a branch,
//! `p` the outputs of a branch.

mod cpu;
mod flex;

use std::ops::Range;

use burn::tensor::Tensor;

use crate::linear::linear;
use crate::quantized::{LinearWeight, linear_weighted};
use crate::recomputable::Recomputable;

/// Branch that is added to some outputs of a linear layer: `scale * (x a^T) b^T`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[r, i]`.
    pub a_ri: Tensor<2>,
    /// `[p, r]`.
    pub b_pr: Tensor<2>,
    /// Factor on the branch's output.
    pub scale: f64,
    /// The outputs of the layer that the rows of `b` belong to, in their order. No output belongs
    /// to two branches.
    pub outputs: Vec<Range<usize>>,
}

/// Output of a linear layer with branches: `factors * (x w^T + branches) + bias`.
#[derive(Clone, Debug)]
pub struct LowRankSum {
    /// The branches: one at least.
    pub branches: Vec<LowRank>,
    /// `[o]`: one for each output, if the sum is scaled.
    pub factors_o: Option<Tensor<1>>,
}

/// `residual + factors * (x w^T + branches) + bias`, as one operation. Of an input that can be made
/// again nothing is kept.
///
/// # Shapes
/// `x` `[.., i]`, `weight` `[o, i]`, `bias_o` `[o]`, `residual` `[.., o]` -> `[.., o]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn linear_low_rank<const D: usize>(
    x: impl Into<Recomputable<D>>,
    weight: impl Into<LinearWeight>,
    bias_o: Option<Tensor<1>>,
    sum: LowRankSum,
    residual: Option<Tensor<D>>,
) -> Tensor<D> {
    let (Recomputable { tensor: x, recompute }, weight) = (x.into(), weight.into());
    let [outputs, inputs] = weight.dims();
    check(&sum.branches, [outputs, inputs]);
    assert_eq!(x.dims()[D - 1], inputs, "linear: an input of {:?} does not fit {inputs} inputs", x.dims());
    flex::linear_low_rank(&x, recompute.as_ref(), &weight, bias_o.as_ref(), &sum, residual.as_ref())
        .unwrap_or_else(|| reference(x, weight, bias_o, sum, residual))
}

/// Sum of the branches alone over the `outputs` of a layer, `[n, i]` -> `[n, o]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn low_rank_sum(x_ni: Tensor<2>, branches: &[LowRank], outputs: usize) -> Tensor<2> {
    let [n, inputs] = x_ni.dims();
    check(branches, [outputs, inputs]);
    let options = (&x_ni.device(), x_ni.dtype());
    let of_branch = |branch: &LowRank| {
        let u_nr = linear(x_ni.clone(), branch.a_ri.clone(), None) * branch.scale;
        linear(u_nr, branch.b_pr.clone(), None)
    };
    let made: Vec<Tensor<2>> = branches.iter().map(of_branch).collect();
    let (mut columns, mut next) = (Vec::new(), 0);
    for Run { output, branch, row, len } in runs(branches) {
        if output > next {
            columns.push(Tensor::zeros([n, output - next], options));
        }
        columns.push(made[branch].clone().narrow(1, row, len));
        next = output + len;
    }
    if outputs > next {
        columns.push(Tensor::zeros([n, outputs - next], options));
    }
    if columns.len() == 1 { columns.swap_remove(0) } else { Tensor::cat(columns, 1) }
}

/// The squares of the lengths of the rows of `weight + scale * b a`, `[o]`, as constants, for rows
/// with a branch. All others are zero.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn low_rank_row_squares(weight: impl Into<LinearWeight>, branches: &[LowRank]) -> Tensor<1> {
    let weight = weight.into();
    check(branches, weight.dims());
    flex::row_squares(&weight, branches).unwrap_or_else(|| {
        let like = &branches[0].a_ri;
        let weight_oi = weight.whole(&like.device(), like.dtype().into());
        reference_row_squares(weight_oi.without_autodiff(), branches)
    })
}

/// [`low_rank_row_squares`] in plain Burn operations.
pub fn reference_row_squares(weight_oi: Tensor<2>, branches: &[LowRank]) -> Tensor<1> {
    let [outputs, _] = weight_oi.dims();
    let mut squares_o = Tensor::zeros([outputs], (&weight_oi.device(), weight_oi.dtype()));
    for Run { output, branch, row, len } in runs(branches) {
        let LowRank { a_ri, b_pr, scale, .. } = &branches[branch];
        let b_pr = b_pr.clone().without_autodiff().narrow(0, row, len);
        let rows_pi =
            weight_oi.clone().narrow(0, output, len) + (b_pr * *scale).matmul(a_ri.clone().without_autodiff());
        let squares_p = rows_pi.powi_scalar(2).sum_dim(1).reshape([len]);
        let place = output..output + len;
        squares_o = squares_o.slice_assign([place], squares_p);
    }
    squares_o
}

/// [`linear_low_rank`] by other operations.
pub fn reference<const D: usize>(
    x: Tensor<D>,
    weight: impl Into<LinearWeight>,
    bias_o: Option<Tensor<1>>,
    sum: LowRankSum,
    residual: Option<Tensor<D>>,
) -> Tensor<D> {
    let weight = weight.into();
    let ([outputs, inputs], mut shape) = (weight.dims(), x.dims());
    let rows: usize = shape[..D - 1].iter().product();
    shape[D - 1] = outputs;
    let x_ni = x.reshape([rows, inputs]);
    let mut y_no = linear_weighted(x_ni.clone(), &weight, None, None) + low_rank_sum(x_ni, &sum.branches, outputs);
    if let Some(factors_o) = sum.factors_o {
        y_no = y_no * factors_o.unsqueeze();
    }
    if let Some(bias_o) = bias_o {
        y_no = y_no + bias_o.unsqueeze();
    }
    let y = y_no.reshape(shape);
    match residual {
        Some(residual) => residual + y,
        None => y,
    }
}

/// Adjacent outputs of a layer that adjacent rows of a branch belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first output.
    pub output: usize,
    /// The branch.
    pub branch: usize,
    /// The first row of its `b`.
    pub row: usize,
    pub len: usize,
}

/// The runs of all branches, by their outputs.
pub(crate) fn runs(branches: &[LowRank]) -> Vec<Run> {
    let of_branch = |(branch, low_rank): (usize, &LowRank)| -> Vec<Run> {
        let mut row = 0;
        let run = |outputs: &Range<usize>| {
            let run = Run { output: outputs.start, branch, row, len: outputs.len() };
            row += outputs.len();
            run
        };
        low_rank.outputs.iter().map(run).collect()
    };
    let mut runs: Vec<Run> = branches.iter().enumerate().flat_map(of_branch).collect();
    runs.sort_by_key(|run| run.output);
    runs
}

/// Fails early on sizes that do not fit.
fn check(branches: &[LowRank], [outputs, inputs]: [usize; 2]) {
    assert!(!branches.is_empty(), "a sum of branches has one");
    for LowRank { a_ri, b_pr, outputs: of_branch, .. } in branches {
        let ([rank, columns], [rows, of_b]) = (a_ri.dims(), b_pr.dims());
        let count: usize = of_branch.iter().map(Range::len).sum();
        assert!(
            columns == inputs && of_b == rank && rows == count,
            "a branch of {:?} and {:?} for {count} outputs does not fit {inputs} inputs",
            a_ri.dims(),
            b_pr.dims()
        );
    }
    let mut next = 0;
    for Run { output, len, .. } in runs(branches) {
        assert!(output >= next && output + len <= outputs, "outputs {output}.. of a branch are taken, or not there");
        next = output + len;
    }
}
