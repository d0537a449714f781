//! Output projection with cross-entropy, in chunks of tokens: the products are those of linear
//! layers, the rest is one kernel, a cube a token.

use burn::backend::Cube;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Int as IntKind, Tensor};

use super::chunks::{chunk_rows_on_gpu, pitch};
use super::options::CrossEntropyOptions;
use crate::cube::Buffer;
use crate::cube::reduce::{cube_max, cube_sum};
use crate::linear::{add_weight_gradient, linear};
use crate::vjp;

/// Compile-time constants of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    capped: bool,
    /// True if logits are overwritten by their gradients.
    gradients: bool,
    /// Units of a cube.
    units: usize,
}

/// `cap * tanh(logit / cap)`, or the logit.
#[cube]
fn cap(logit: f32, softcap: f32, #[comptime] capped: bool) -> f32 {
    let mut value = logit;
    if comptime!(capped) {
        // tanh u = 1 - 2 / (exp(2 u) + 1) holds at both ends; the tanh of some drivers does not.
        value = softcap * (1.0f32 - 2.0f32 / ((2.0f32 * logit / softcap).exp() + 1.0f32));
    }
    value
}

/// The largest logit of a row, and the sum of the exponentials of all, taken with it.
#[derive(CubeType, Clone, Copy)]
struct Partition {
    top: f32,
    sum: f32,
}

/// The sum of exponentials goes with the largest logit so far, so that logits are read once
/// (Milakov and Gimelshein, 2018, arXiv:1805.02867).
#[cube]
fn partition<X: Float, N: Size>(
    logits: &mut [Vector<X, N>],
    start: usize,
    vectors: usize,
    columns: usize,
    softcap: f32,
    #[comptime] form: Form,
) -> Partition {
    let (units, capped) = (comptime!(form.units), comptime!(form.capped));
    let lanes = N::value();
    let mut top = f32::cast_from(SMALLEST);
    let mut sum = 0.0f32;
    for i in range_stepped(UNIT_POS as usize, vectors, units) {
        let values = Vector::<f32, N>::cast_from(logits[start + i]);
        let mut largest = top;
        #[unroll]
        for lane in 0..lanes {
            if i * lanes + lane < columns {
                largest = max(largest, cap(values.extract(lane), softcap, capped));
            }
        }
        sum *= (top - largest).exp();
        #[unroll]
        for lane in 0..lanes {
            if i * lanes + lane < columns {
                sum += (cap(values.extract(lane), softcap, capped) - largest).exp();
            }
        }
        top = largest;
    }
    let largest = cube_max::<f32>(top, units);
    let sum = cube_sum(sum * (top - largest).exp(), units);
    Partition { top: largest, sum }
}

/// The loss of each row of `logits [n, v]`, of which `columns` count. If gradients are needed, they
/// overwrite the logits, with zeros in the other columns.
///
/// With `p = softmax(logits)` and `z` its log-partition: `loss = mask * (z - logit[target] + z_loss
/// * z^2)`, whose gradient is `mask * (p * (1 + 2 * z_loss * z) - onehot(target))`, times the slope
/// of the soft cap.
#[cube(launch)]
fn token_losses<X: Float, T: Int, N: Size>(
    logits: &mut [Vector<X, N>],
    targets: &[T],
    mask: &[f32],
    losses: &mut [f32],
    columns: u32,
    softcap: f32,
    z_loss: f32,
    #[comptime] form: Form,
    #[define(X, T)] _storage: [ElemType; 2],
) {
    let (units, capped) = (comptime!(form.units), comptime!(form.capped));
    let (row, unit) = (CUBE_POS, UNIT_POS as usize);
    if row >= losses.len() {
        terminate!();
    }
    let columns = columns as usize;
    let vectors = logits.len() / losses.len();
    let start = row * vectors;
    let counted = mask[row];
    if counted == 0.0f32 {
        // A masked token may have any target, and logits that are not finite.
        if unit == 0 {
            losses[row] = 0.0f32;
        }
        if comptime!(form.gradients) {
            for i in range_stepped(unit, vectors, units) {
                logits[start + i] = Vector::new(X::cast_from(0.0f32));
            }
        }
        terminate!();
    }
    let Partition { top, sum } = partition::<X, N>(logits, start, vectors, columns, softcap, form);
    let log_z = top + sum.ln();
    let target = i32::cast_from(targets[row]);
    if unit == 0 {
        // A target outside the vocabulary cannot be reported from here: its loss overflows, which
        // the loop does report.
        let mut loss = (log_z * log_z + 1e30f32) * 1e30f32;
        if target >= 0 && (target as usize) < columns {
            let logit = cap(element::<X, N>(logits, start, target as usize), softcap, capped);
            loss = log_z - logit + z_loss * log_z * log_z;
        }
        losses[row] = counted * loss;
    }
    // The logit of the target has been read.
    sync_cube();
    if comptime!(form.gradients) {
        let factor = counted * (1.0f32 + 2.0f32 * z_loss * log_z) / sum;
        for i in range_stepped(unit, vectors, units) {
            let values = Vector::<f32, N>::cast_from(logits[start + i]);
            let mut gradients = Vector::<f32, N>::new(0.0f32);
            let lanes = values.vector_size();
            #[unroll]
            for lane in 0..lanes {
                let column = i * lanes + lane;
                if column < columns {
                    let logit = cap(values.extract(lane), softcap, capped);
                    let mut gradient = (logit - top).exp() * factor;
                    if column as i32 == target {
                        gradient -= counted;
                    }
                    if comptime!(capped) {
                        gradient *= 1.0f32 - (logit / softcap) * (logit / softcap);
                    }
                    gradients.insert(lane, gradient);
                }
            }
            logits[start + i] = Vector::cast_from(gradients);
        }
    }
}

/// An element of a row of vectors.
#[cube]
fn element<X: Float, N: Size>(x: &mut [Vector<X, N>], start: usize, column: usize) -> f32 {
    let lanes = N::value();
    let values = Vector::<f32, N>::cast_from(x[start + column / lanes]);
    let mut found = 0.0f32;
    #[unroll]
    for lane in 0..lanes {
        if column % lanes == lane {
            found = values.extract(lane);
        }
    }
    found
}

/// A logit below all others, which is not infinite: differences of it are numbers.
const SMALLEST: f32 = -1e38;

/// `x * upstream`, in `x` or, rounded once, in `out`, which may be shorter.
#[cube(launch)]
fn scale<X: Float, Y: Float, N: Size>(
    x: &mut [Vector<X, N>],
    upstream: &[f32],
    out: ComptimeOption<&mut [Vector<Y, N>]>,
    length: u32,
    #[define(X, Y)] _storage: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i >= length as usize {
        terminate!();
    }
    let scaled = Vector::<f32, N>::cast_from(x[i]) * Vector::new(upstream[0]);
    #[comptime]
    match out {
        ComptimeOption::Some(out) => out[i] = Vector::cast_from(scaled),
        ComptimeOption::None => x[i] = Vector::cast_from(scaled),
    }
}

/// The first rows of `x` that `shape` has, times `upstream [1]`, in `dtype`.
fn scaled(x: Tensor<2>, upstream: &Buffer, shape: [usize; 2], dtype: DType) -> Tensor<2> {
    let is_all = x.dims() == shape && x.dtype() == dtype;
    let x = if is_all { Buffer::owned(x) } else { Buffer::from_tensor(&x) }
        .expect("a gradient has its input's device and size");
    let out = (!is_all).then(|| x.uninitialised(shape, dtype));
    let lanes = x.lanes(shape[0] * shape[1]);
    let length = shape[0] * shape[1] / lanes;
    let (count, dim) = x.grid(length);
    scale::launch(
        &x.0.client,
        count,
        dim,
        lanes,
        x.arg(),
        upstream.arg(),
        out.as_ref().map(Buffer::arg).into(),
        length as u32,
        [x.storage(), out.as_ref().unwrap_or(&x).storage()],
    );
    out.unwrap_or(x).tensor()
}

/// Inputs of the loss, outside any graph.
struct Problem {
    x_nc: Tensor<2>,
    weight_vc: Tensor<2>,
    targets_n: Tensor<1, IntKind>,
    mask_n: Tensor<1>,
    options: CrossEntropyOptions,
    /// True for each of `x_nc` and `weight_vc` whose gradient is needed.
    wanted: [bool; 2],
}

/// The loss, and its gradients for an upstream gradient of one.
struct LossAndGradients {
    loss: Tensor<1>,
    x: Option<Tensor<2>>,
    /// In float32, with the rows of zeros that the projection was given.
    weight: Option<Tensor<2>>,
}

/// See [`crate::linear_cross_entropy`].
///
/// Gradients are found with the loss, for an upstream gradient of one, so that no logits are kept.
/// In float16 these could overflow where the scaled ones do not, so it is not for float16. A chunk
/// has at most `rows` tokens, as many as suit the device if that is not given.
pub fn linear_cross_entropy(
    x_nc: &Tensor<2>,
    weight_vc: &Tensor<2>,
    targets_n: &Tensor<1, IntKind>,
    mask_n: &Tensor<1>,
    options: &CrossEntropyOptions,
    rows: Option<usize>,
) -> Option<Tensor<1>> {
    let dtype = x_nc.dtype();
    if mask_n.is_tracked() || weight_vc.dtype() != dtype || dtype == DType::F16 {
        return None;
    }
    let (x, weight) = (Buffer::from_tensor(x_nc)?, Buffer::from_tensor(weight_vc)?);
    let (targets, mask) = (Buffer::from_integers(targets_n)?, Buffer::from_f32(mask_n)?);
    let problem = Problem {
        x_nc: x.tensor(),
        weight_vc: weight.tensor(),
        targets_n: Tensor::from_primitive::<Cube>(targets.0),
        mask_n: mask.tensor(),
        options: *options,
        wanted: [x_nc.is_tracked(), weight_vc.is_tracked()],
    };
    let largest = chunk_rows(x_nc, pitch(weight_vc.dims()[0]))?;
    let LossAndGradients { loss, x, weight } = solve(&problem, rows.map_or(largest, |rows| rows.min(largest)))?;
    let inputs = vec![x_nc.clone().into_dispatch(), weight_vc.clone().into_dispatch()];
    let shapes = [x_nc.dims(), weight_vc.dims()];
    Some(vjp::attach_some(loss, inputs, move |dy: Tensor<1>| {
        let upstream = Buffer::from_gradient(dy);
        let scaled = |gradient: Tensor<2>, shape| scaled(gradient, &upstream, shape, dtype).into_dispatch();
        vec![x.map(|x| scaled(x, shapes[0])), weight.map(|weight| scaled(weight, shapes[1]))]
    }))
}

/// Columns that an output projection with a bias has more: its bias, and zeros that keep rows at
/// multiples of 16 bytes.
const BIAS_COLUMNS: usize = 8;

/// [`linear_cross_entropy`] of a weight `[v, c]` and a bias `[v]`, which is one more column of the
/// weight, for an element of the hidden states that is one.
pub fn output_cross_entropy(
    x_nc: &Tensor<2>,
    (weight_vc, bias_v): (&Tensor<2>, Option<&Tensor<1>>),
    targets_n: &Tensor<1, IntKind>,
    mask_n: &Tensor<1>,
    options: &CrossEntropyOptions,
) -> Option<Tensor<1>> {
    let Some(bias_v) = bias_v else { return linear_cross_entropy(x_nc, weight_vc, targets_n, mask_n, options, None) };
    Buffer::from_tensor(x_nc)?;
    let dtype = x_nc.dtype();
    if weight_vc.dtype() != dtype || bias_v.dtype() != dtype {
        return None;
    }
    let ([n, _], [v, _]) = (x_nc.dims(), weight_vc.dims());
    let place = (&x_nc.device(), dtype);
    let behind = |rows| Tensor::<2>::zeros([rows, BIAS_COLUMNS - 1], place);
    let x_nc = Tensor::cat(vec![x_nc.clone(), Tensor::ones([n, 1], place), behind(n)], 1);
    let weight_vc = Tensor::cat(vec![weight_vc.clone(), bias_v.clone().reshape([v, 1]), behind(v)], 1);
    linear_cross_entropy(&x_nc, &weight_vc, targets_n, mask_n, options, None)
}

/// Tokens of one chunk of `x_nc` on its device, for a vocabulary of `v`; `None` on other devices
/// than CubeCL's.
fn chunk_rows(x_nc: &Tensor<2>, v: usize) -> Option<usize> {
    let x = Buffer::from_tensor(x_nc)?;
    let largest = usize::try_from(x.0.client.properties().memory.max_page_size).unwrap_or(usize::MAX);
    Some(chunk_rows_on_gpu(x_nc.dims()[0], v, x.0.dtype.size(), largest))
}

/// `weight_vc` with rows of zeros behind, so that its products are as wide as [`pitch`] says.
fn with_rows(weight_vc: &Tensor<2>, rows: usize) -> Tensor<2> {
    let [v, c] = weight_vc.dims();
    if rows == v {
        return weight_vc.clone();
    }
    let zeros = Tensor::zeros([rows - v, c], (&weight_vc.device(), weight_vc.dtype()));
    Tensor::cat(vec![weight_vc.clone(), zeros], 0)
}

/// Takes the tokens in chunks; `None` if one has too many logits to index.
fn solve(problem: &Problem, rows: usize) -> Option<LossAndGradients> {
    let Problem { x_nc, weight_vc, targets_n, mask_n, wanted, .. } = problem;
    let ([n, _], [v, _]) = (x_nc.dims(), weight_vc.dims());
    let weight_vc = with_rows(weight_vc, pitch(v));
    let (mut losses, mut grad_x, mut grad_weight) = (Vec::new(), Vec::new(), None::<Tensor<2>>);
    for start in (0..n).step_by(rows) {
        let count = rows.min(n - start);
        let chunk_nc = x_nc.clone().narrow(0, start, count);
        let logits = Buffer::from_tensor(&linear(chunk_nc.clone(), weight_vc.clone(), None))?;
        let targets = Buffer::from_integers(&targets_n.clone().narrow(0, start, count))?;
        let mask = Buffer::from_tensor(&mask_n.clone().narrow(0, start, count))?;
        losses.push(launch(&logits, v, &targets, &mask, problem).tensor::<1>());
        let grad_logits: Tensor<2> = logits.tensor();
        if wanted[0] {
            grad_x.push(linear(grad_logits.clone(), weight_vc.clone().transpose(), None));
        }
        if wanted[1] {
            grad_weight = Some(add_weight_gradient(grad_weight, &grad_logits, &chunk_nc));
        }
    }
    Some(LossAndGradients {
        // Along the dimension: the sum of a whole tensor uses atomic additions, in any order.
        loss: Tensor::cat(losses, 0).sum_dim(0),
        x: wanted[0].then(|| Tensor::cat(grad_x, 0)),
        weight: grad_weight,
    })
}

/// The losses `[n]` of `logits [n, pitch(v)]`, which become their gradients if any is wanted.
fn launch(logits: &Buffer, v: usize, targets: &Buffer, mask: &Buffer, problem: &Problem) -> Buffer {
    let (n, width) = (targets.len(), logits.len() / targets.len());
    let CrossEntropyOptions { softcap, z_loss } = problem.options;
    let losses = logits.uninitialised([n], DType::F32);
    let lanes = logits.lanes_of(logits.0.dtype.size(), width);
    let (count, dim, units) = logits.cube_per_row(n, width / lanes);
    token_losses::launch(
        &logits.0.client,
        count,
        dim,
        lanes,
        logits.arg(),
        targets.arg(),
        mask.arg(),
        losses.arg(),
        v as u32,
        softcap.unwrap_or(1.0) as f32,
        z_loss.unwrap_or(0.0) as f32,
        Form { capped: softcap.is_some(), gradients: problem.wanted.contains(&true), units },
        [logits.storage(), targets.storage()],
    );
    losses
}
