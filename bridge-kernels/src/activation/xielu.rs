//! xIELU: an activation with trained slopes on both sides of zero.

use burn::tensor::{Bool, Tensor, activation::sigmoid};
use rayon::prelude::*;

use crate::flex::{Values, gradient, tensor};
use crate::precision::{narrow, widen};
use crate::recomputable::{Recomputable, Recompute};
use crate::vjp;

/// Parameters of [`xielu`], `[1]` each, in any dtype.
#[derive(Clone, Debug)]
pub struct XieluParameters {
    /// The quadratic slope of positive inputs is the softplus of this number.
    pub alpha_p: Tensor<1>,
    /// The slope of negative inputs is `beta` plus the softplus of this number.
    pub alpha_n: Tensor<1>,
    /// Linear slope, which is not trained.
    pub beta: Tensor<1>,
    /// Largest argument of the exponential, slightly below zero, which is not trained.
    pub eps: Tensor<1>,
}

/// xIELU (Huang and Schlag, arXiv:2411.13010), element by element: with `p = softplus(alpha_p)` and
/// `n = beta + softplus(alpha_n)`, `p x^2 + beta x` above zero, and `n (exp(min(x, eps)) - 1 - x) +
/// beta x` elsewhere. In float32 with any dtype of the input, and rounded once.
///
/// Backward keeps the input. `beta` and `eps` have no gradient.
///
/// # Shapes
/// any -> the same.
pub fn xielu<const D: usize>(x: Tensor<D>, parameters: &XieluParameters) -> Recomputable<D> {
    on_flex(&x, parameters).unwrap_or_else(|| in_plain_operations(x, parameters).into())
}

/// [`xielu`] in plain Burn operations, with their gradients.
pub fn reference<const D: usize>(x: Tensor<D>, parameters: &XieluParameters) -> Tensor<D> {
    let dtype = x.dtype();
    let (slopes, x) = (Slopes::new(parameters), widen(x));
    let rising = x.clone() * x.clone() * slopes.positive.unsqueeze();
    let falling = below_zero(x.clone(), slopes.eps) * slopes.negative.unsqueeze();
    narrow(falling.mask_where(is_positive(&x), rising) + x * slopes.beta.unsqueeze(), dtype)
}

fn is_positive<const D: usize>(x: &Tensor<D>) -> Tensor<D, Bool> {
    x.clone().greater_elem(0.0)
}

/// Slopes of both sides, `[1]` in float32.
struct Slopes {
    positive: Tensor<1>,
    negative: Tensor<1>,
    beta: Tensor<1>,
    eps: Tensor<1>,
}

impl Slopes {
    fn new(parameters: &XieluParameters) -> Self {
        let XieluParameters { alpha_p, alpha_n, beta, eps } = parameters.clone();
        let beta = widen(beta);
        let (positive, negative) = (softplus(widen(alpha_p)), softplus(widen(alpha_n)) + beta.clone());
        Self { positive, negative, beta, eps: widen(eps) }
    }
}

/// `exp(min(x, eps)) - 1 - x`.
fn below_zero<const D: usize>(x: Tensor<D>, eps: Tensor<1>) -> Tensor<D> {
    let least = x.clone().min_pair(eps.unsqueeze::<D>().expand(x.dims()));
    // exp(m) - 1 would round away small m.
    (least.clone() / 2.0).tanh() * (least.exp() + 1.0) - x
}

fn softplus(x: Tensor<1>) -> Tensor<1> {
    x.clone().clamp_min(0.0) + (x.abs().neg().exp() + 1.0).log()
}

/// The operation with a hand-written backward, on any backend.
fn in_plain_operations<const D: usize>(x: Tensor<D>, parameters: &XieluParameters) -> Tensor<D> {
    let XieluParameters { alpha_p, alpha_n, beta, eps } = parameters;
    let inner = |tensor: &Tensor<1>| tensor.clone().without_autodiff();
    let own = XieluParameters { alpha_p: inner(alpha_p), alpha_n: inner(alpha_n), beta: inner(beta), eps: inner(eps) };
    let kept = x.clone().without_autodiff();
    let y = reference(kept.clone(), &own);
    let inputs = vec![x.into_dispatch(), alpha_p.clone().into_dispatch(), alpha_n.clone().into_dispatch()];
    vjp::attach(y, inputs, move |dy: Tensor<D>| {
        let (dtype, slopes) = (kept.dtype(), Slopes::new(&own));
        let (x, dy) = (widen(kept), widen(dy));
        let is_positive = is_positive(&x);
        let of_slope =
            |values: Tensor<D>, alpha: &Tensor<1>| narrow(total(values) * sigmoid(widen(alpha.clone())), alpha.dtype());
        let squares = (dy.clone() * x.clone() * x.clone()).mask_fill(is_positive.clone().bool_not(), 0.0);
        let curve = below_zero(x.clone(), slopes.eps.clone());
        let below = (dy.clone() * curve.clone()).mask_fill(is_positive.clone(), 0.0);
        let slopes_of_alphas = [of_slope(squares, &own.alpha_p), of_slope(below, &own.alpha_n)];
        // exp(x) - 1 below eps, and -1 from there to zero.
        let is_flat = x.clone().greater_equal(slopes.eps.unsqueeze::<D>().expand(x.dims()));
        let falling = (curve + x.clone()).mask_fill(is_flat, -1.0) * slopes.negative.unsqueeze();
        let rising = x * slopes.positive.unsqueeze() * 2.0;
        let dx = dy * (falling.mask_where(is_positive, rising) + slopes.beta.unsqueeze());
        let [d_alpha_p, d_alpha_n] = slopes_of_alphas.map(Tensor::into_dispatch);
        vec![narrow(dx, dtype).into_dispatch(), d_alpha_p, d_alpha_n]
    })
}

/// The sum of all elements, `[1]`. Two sums along dimensions have a fixed order on GPUs, where the
/// sum of a whole tensor has not.
fn total<const D: usize>(values: Tensor<D>) -> Tensor<1> {
    let count = values.shape().num_elements();
    let columns = values.dims()[D - 1];
    values.reshape([count / columns, columns]).sum_dim(0).sum_dim(1).reshape([1])
}

/// Slopes of both sides on the host.
#[derive(Clone, Copy)]
struct HostSlopes {
    positive: f32,
    negative: f32,
    beta: f32,
    eps: f32,
    /// Derivatives of the first two.
    derivatives: [f64; 2],
}

impl HostSlopes {
    /// `None` for parameters that are not on Flex in float32.
    fn new(parameters: &XieluParameters) -> Option<Self> {
        let read = |tensor: &Tensor<1>| Some(f64::from(*Values::contiguous_of(tensor)?.slice().first()?));
        let [alpha_p, alpha_n] = [read(&parameters.alpha_p)?, read(&parameters.alpha_n)?];
        let (beta, eps) = (read(&parameters.beta)?, read(&parameters.eps)?);
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        Some(Self {
            positive: softplus(alpha_p) as f32,
            negative: (beta + softplus(alpha_n)) as f32,
            beta: beta as f32,
            eps: eps as f32,
            derivatives: [sigmoid(alpha_p), sigmoid(alpha_n)],
        })
    }

    fn value(self, x: f32) -> f32 {
        if x > 0.0 {
            return self.positive * x * x + self.beta * x;
        }
        self.negative * (x.min(self.eps).exp_m1() - x) + self.beta * x
    }

    /// The gradient of `x`, and what is added to those of both slopes.
    fn gradients(self, dy: f32, x: f32) -> (f32, [f32; 2]) {
        if x > 0.0 {
            return (dy * (2.0 * self.positive * x + self.beta), [dy * x * x, 0.0]);
        }
        let less_one = x.min(self.eps).exp_m1();
        let curved = if x < self.eps { less_one } else { -1.0 };
        (dy * (self.negative * curved + self.beta), [0.0, dy * (less_one - x)])
    }
}

/// Elements of one task.
const CHUNK: usize = 1 << 14;

fn on_flex<const D: usize>(x: &Tensor<D>, parameters: &XieluParameters) -> Option<Recomputable<D>> {
    let dims = x.dims();
    let values = Values::contiguous_of(x)?;
    let slopes = HostSlopes::new(parameters)?;
    let forward = move |x: &[f32]| -> Vec<f32> { x.par_iter().with_min_len(CHUNK).map(|x| slopes.value(*x)).collect() };
    let y = tensor(forward(values.slice()), dims);
    let kept = values.clone();
    let recompute = Recompute::new(move || Values::from_vec(forward(kept.slice()), dims));
    let values = values.kept();
    let [alpha_p, alpha_n] = [&parameters.alpha_p, &parameters.alpha_n].map(|tensor| tensor.clone().into_dispatch());
    let inputs = vec![x.clone().into_dispatch(), alpha_p, alpha_n];
    let tensor = vjp::attach_some(y, inputs, move |dy: Tensor<D>| {
        let mut dx = Values::from_gradient(dy).into_vec();
        let x = values.values();
        // Sums of chunks are added in their order, so that threads do not change the bits.
        let sums: Vec<[f64; 2]> = dx
            .par_chunks_mut(CHUNK)
            .zip(x.slice().par_chunks(CHUNK))
            .map(|(dx, x)| {
                let mut sums = [0.0_f64; 2];
                for (dx, x) in dx.iter_mut().zip(x) {
                    let (gradient, terms) = slopes.gradients(*dx, *x);
                    *dx = gradient;
                    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += f64::from(term));
                }
                sums
            })
            .collect();
        let of_slope = |index: usize| {
            let sum: f64 = sums.iter().map(|sums| sums[index]).sum();
            gradient(vec![(sum * slopes.derivatives[index]) as f32], [1])
        };
        vec![gradient(dx, dims), of_slope(0), of_slope(1)]
    });
    Some(Recomputable { tensor, recompute: Some(recompute) })
}
