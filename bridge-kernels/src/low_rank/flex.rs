//! Low-rank branches on Flex.

use std::borrow::Cow;
use std::ops::Range;

use burn::backend::{DispatchTensor, Flex};
use burn::tensor::Tensor;

use super::cpu::{self as kernel, Branches};
use super::{LowRank, LowRankSum, Run, runs};
use crate::cpu::gemm::Matrix;
use crate::flex::{Values, gradient, tensor, tracked};
use crate::linear::cpu as linear;
use crate::linear::flex::bias_gradient;
use crate::quantized::LinearWeight;
use crate::quantized::flex::Held as HeldWeight;
use crate::recomputable::{Recompute, Source};
use crate::vjp::{self, Lift};

pub(crate) fn linear_low_rank<const D: usize>(
    x: &Tensor<D>,
    recompute: Option<&Recompute>,
    linear_weight: &LinearWeight,
    bias_o: Option<&Tensor<1>>,
    sum: &LowRankSum,
    residual: Option<&Tensor<D>>,
) -> Option<Tensor<D>> {
    let held = Held::new(&sum.branches)?;
    let (x_values, weight) = (Values::contiguous_of(x)?, HeldWeight::new(linear_weight)?);
    let (bias, factors) = (Values::of_optional(bias_o)?, Values::of_optional(sum.factors_o.as_ref())?);
    let added = Values::of_optional(residual)?;
    let [outputs, num_inputs] = linear_weight.dims();
    let mut shape = x.dims();
    let rows = shape[..D - 1].iter().product();
    shape[D - 1] = outputs;
    let x_matrix = Matrix::new(x_values.slice(), rows, num_inputs);
    let u = held.with(|branches| branches.inner(x_matrix));
    let (bias_slice, added) = (bias.as_ref().map(Values::slice), added.as_ref().map(Values::slice));
    let (product_bias, product_added) = if factors.is_some() { (None, None) } else { (bias_slice, added) };
    let mut z = weight.forward(x_matrix, product_bias, product_added);
    held.with(|branches| branches.add(&u, &mut z, outputs));
    let (y, scaled) = match &factors {
        None => (tensor(z, shape), None),
        Some(factors) => {
            let y = tensor(kernel::scaled(&z, factors.slice(), bias_slice, added), shape);
            // If the sum can be recovered from the result, keep the result, which the next
            // operation may keep as well.
            let says_all = residual.is_none() && factors.slice().iter().all(|factor| *factor != 0.0);
            let kept = match says_all {
                true => Scaled::Result(Values::from_tensor(&y)?, bias.clone()),
                false => Scaled::Sum(Values::from_vec(z, [rows, outputs])),
            };
            (y, sum.factors_o.as_ref().is_some_and(Tensor::is_tracked).then_some(kept))
        }
    };
    let mut all = tracked![x];
    if let LinearWeight::Whole(weight_oi) = linear_weight {
        all.push(weight_oi.clone().into_dispatch());
    }
    all.extend(bias_o.map(|bias| bias.clone().into_dispatch()));
    all.extend(sum.branches.iter().flat_map(|b| [&b.a_ri, &b.b_pr]).map(|matrix| matrix.clone().into_dispatch()));
    all.extend(sum.factors_o.iter().map(|factors| factors.clone().into_dispatch()));
    all.extend(residual.map(|residual| residual.clone().into_dispatch()));
    let is_trained = sum.branches.iter().any(|branch| branch.a_ri.is_tracked() || branch.b_pr.is_tracked());
    let backward = SumBackward {
        dims: x.dims(),
        sizes: [rows, num_inputs, outputs],
        x: (linear_weight.is_tracked() || is_trained).then(|| Source::new(x_values, recompute.cloned())),
        weight: x.is_tracked().then_some(weight),
        is_weight_tracked: linear_weight.is_tracked(),
        is_weight_input: matches!(linear_weight, LinearWeight::Whole(_)),
        bias_tracked: bias_o.map(Tensor::is_tracked),
        is_trained,
        held,
        u,
        factors,
        scaled,
        has_residual: residual.is_some(),
    };
    Some(vjp::attach_some(y, all, move |dy: Tensor<D>| backward.gradients(Values::from_gradient(dy))))
}

/// See [`crate::low_rank_row_squares`].
pub(crate) fn row_squares(weight: &LinearWeight, branches: &[LowRank]) -> Option<Tensor<1>> {
    let held = Held::new(branches)?;
    let [outputs, inputs] = weight.dims();
    let squares = match weight {
        LinearWeight::Whole(weight_oi) => {
            let weight = Values::contiguous_of(weight_oi)?;
            let rows = |first: usize, count: usize| weight.slice()[first * inputs..(first + count) * inputs].to_vec();
            held.with(|branches| branches.row_squares(outputs, rows))
        }
        LinearWeight::Quantized(matrix) => {
            let rows = |first: usize, count: usize| matrix.rows(first..first + count);
            held.with(|branches| branches.row_squares(outputs, rows))
        }
    };
    Some(tensor(squares, [outputs]))
}

/// The branches of a layer, in the memory of this process.
struct Held {
    a: Vec<Values>,
    inputs: usize,
    b: Vec<(Values, [usize; 2])>,
    columns: Vec<Range<usize>>,
    scales: Vec<f32>,
    runs: Vec<Run>,
}

impl Held {
    fn new(branches: &[LowRank]) -> Option<Self> {
        let inputs = branches[0].a_ri.dims()[1];
        let mut held = Self {
            a: Vec::new(),
            inputs,
            b: Vec::new(),
            columns: Vec::new(),
            scales: Vec::new(),
            runs: runs(branches),
        };
        for LowRank { a_ri, b_pr, scale, .. } in branches {
            let first = held.columns.last().map_or(0, |columns| columns.end);
            held.a.push(Values::contiguous_of(a_ri)?);
            held.b.push((Values::contiguous_of(b_pr)?, b_pr.dims()));
            held.columns.push(first..first + a_ri.dims()[0]);
            held.scales.push(*scale as f32);
        }
        Some(held)
    }

    fn with<R>(&self, work: impl FnOnce(Branches<'_>) -> R) -> R {
        let a = match self.a.as_slice() {
            [a] => Cow::Borrowed(a.slice()),
            all => Cow::Owned(all.iter().map(Values::slice).collect::<Vec<_>>().concat()),
        };
        work(Branches {
            a: &a,
            inputs: self.inputs,
            b: self.b.iter().map(|(values, [rows, cols])| Matrix::new(values.slice(), *rows, *cols)).collect(),
            columns: &self.columns,
            scales: &self.scales,
            runs: &self.runs,
        })
    }
}

/// Output that the factors multiply, or the means to recompute it.
enum Scaled {
    /// The sum itself.
    Sum(Values),
    /// The sum times the factors plus the bias.
    Result(Values, Option<Values>),
}

impl Scaled {
    /// The gradient of the factors.
    fn gradient(self, dy: &[f32], factors: &[f32]) -> Vec<f32> {
        let outputs = factors.len();
        match self {
            Self::Sum(z) => kernel::column_products(dy, z.slice(), outputs),
            Self::Result(y, bias) => {
                let mut products = kernel::column_products(dy, y.slice(), outputs);
                if let Some(bias) = bias {
                    let sums = linear::column_sums(dy, outputs);
                    products.iter_mut().zip(sums).zip(bias.slice()).for_each(|((p, sum), b)| *p -= sum * b);
                }
                products.iter_mut().zip(factors).for_each(|(p, factor)| *p /= factor);
                products
            }
        }
    }
}

/// The backward of a layer with branches.
struct SumBackward<const D: usize> {
    dims: [usize; D],
    /// Rows, inputs, outputs.
    sizes: [usize; 3],
    x: Option<Source>,
    weight: Option<HeldWeight>,
    is_weight_tracked: bool,
    /// True if the weight is an input of the graph; a quantized one is not.
    is_weight_input: bool,
    bias_tracked: Option<bool>,
    is_trained: bool,
    held: Held,
    /// `scale * x a^T`.
    u: Vec<f32>,
    factors: Option<Values>,
    /// Tensors that the gradient of the factors needs, if they are trained.
    scaled: Option<Scaled>,
    has_residual: bool,
}

impl<const D: usize> SumBackward<D> {
    /// Gradients of input, weight (unless it is quantised), bias, of each branch `a` and `b`, of
    /// factors and residual.
    fn gradients(self, dy: Values) -> Vec<Option<DispatchTensor>> {
        let [rows, inputs, outputs] = self.sizes;
        let of_factors = self
            .scaled
            .zip(self.factors.as_ref())
            .and_then(|(scaled, factors)| gradient(scaled.gradient(dy.slice(), factors.slice()), [outputs]));
        let of_bias = self.bias_tracked.map(|tracked| bias_gradient(tracked, &dy, outputs));
        let scaled = self
            .factors
            .as_ref()
            .map(|factors| Values::from_vec(kernel::scaled(dy.slice(), factors.slice(), None, None), [rows, outputs]));
        let dz = scaled.as_ref().unwrap_or(&dy);
        let dz_matrix = Matrix::new(dz.slice(), rows, outputs);
        let du = match self.is_trained || self.weight.is_some() {
            true => self.held.with(|branches| branches.grad_inner(dz.slice(), outputs)),
            false => Vec::new(),
        };
        let dx = self.weight.and_then(|weight| {
            let mut dx = weight.grad_input(dz_matrix);
            self.held.with(|branches| branches.add_grad_input(&du, &mut dx));
            gradient(dx, self.dims)
        });
        let x = self.x.map(Source::values);
        let x_matrix = x.as_ref().map(|x| Matrix::new(x.slice(), rows, inputs));
        let dw = x_matrix
            .filter(|_| self.is_weight_tracked)
            .and_then(|x| gradient(linear::grad_weight(dz_matrix, x), [outputs, inputs]));
        let mut gradients = vec![dx];
        gradients.extend(self.is_weight_input.then_some(dw));
        gradients.extend(of_bias);
        match x_matrix.filter(|_| self.is_trained) {
            None => gradients.extend(self.held.b.iter().flat_map(|_| [None, None])),
            Some(x) => {
                let (da, db) =
                    self.held.with(|branches| (branches.grad_a(&du, x), branches.grad_b(dz.slice(), outputs, &self.u)));
                for ((columns, db), (_, shape)) in self.held.columns.iter().zip(db).zip(&self.held.b) {
                    let da = da[columns.start * inputs..columns.end * inputs].to_vec();
                    gradients.push(gradient(da, [columns.len(), inputs]));
                    gradients.push(gradient(db, *shape));
                }
            }
        }
        if self.factors.is_some() {
            gradients.push(of_factors);
        }
        if self.has_residual {
            gradients.push(Some(Flex::lift(dy.0)));
        }
        gradients
    }
}
