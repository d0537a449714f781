//! RMSNorm and LayerNorm: a cube a row.

use burn::backend::DispatchTensor;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use crate::cube::Buffer;
use crate::cube::columns::column_sums;
use crate::cube::kept::KeptBuffer;
use crate::cube::reduce::cube_sum;
use crate::flex::inputs;
use crate::vjp;

/// Compile-time constants of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// True if the mean is subtracted first (LayerNorm).
    centred: bool,
    /// Units of a cube.
    units: usize,
}

/// `y = (x - mean) * reciprocal * weight + bias`; `statistics` gets mean and reciprocal deviation
/// of each row, `[n, 2]`.
#[cube(launch)]
fn forward<X: Float, W: Float, N: Size>(
    x: &[Vector<X, N>],
    weight: &[Vector<W, N>],
    bias: ComptimeOption<&[Vector<W, N>]>,
    y: &mut [Vector<X, N>],
    statistics: &mut [f32],
    epsilon: f32,
    #[comptime] form: Form,
    #[define(X, W)] _storage: [ElemType; 2],
) {
    let units = comptime!(form.units);
    let (row, unit) = (CUBE_POS, UNIT_POS as usize);
    let columns = weight.len();
    if 2 * row >= statistics.len() {
        terminate!();
    }
    let start = row * columns;
    let count = f32::cast_from((columns * N::value()) as u32);
    let mut mean = 0.0f32;
    if comptime!(form.centred) {
        let mut sum = 0.0f32;
        for column in range_stepped(unit, columns, units) {
            sum += sum_of(Vector::<f32, N>::cast_from(x[start + column]));
        }
        mean = cube_sum(sum, units) / count;
    }
    let shift = Vector::<f32, N>::new(mean);
    let mut squares = 0.0f32;
    for column in range_stepped(unit, columns, units) {
        let centred = Vector::<f32, N>::cast_from(x[start + column]) - shift;
        squares += sum_of(centred * centred);
    }
    let variance = cube_sum(squares, units) / count;
    let reciprocal = 1.0f32 / (variance + epsilon).sqrt();
    if unit == 0 {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = reciprocal;
    }
    let factor = Vector::<f32, N>::new(reciprocal);
    for column in range_stepped(unit, columns, units) {
        let normed = (Vector::<f32, N>::cast_from(x[start + column]) - shift) * factor;
        let mut value = normed * Vector::cast_from(weight[column]);
        #[comptime]
        match bias {
            ComptimeOption::Some(bias) => value += Vector::cast_from(bias[column]),
            ComptimeOption::None => {}
        }
        y[start + column] = Vector::cast_from(value);
    }
}

#[cube]
fn sum_of<N: Size>(x: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    let lanes = x.vector_size();
    #[unroll]
    for lane in 0..lanes {
        sum += x.extract(lane);
    }
    sum
}

/// Gradients of a block of rows. With `g = dy * weight` and `z` the normed input: `dx = reciprocal
/// * (g - mean(g) - z * mean(g * z)) + upstream`, without the middle term for RMSNorm. `upstream`
/// is the gradient of the residual stream, if that goes on. `partial`, `[blocks, 2, c]`, gets the
/// block's part of the gradients of weight, `dy * z`, and bias, `dy`.
#[cube(launch)]
fn backward<X: Float, W: Float, N: Size>(
    x: &[Vector<X, N>],
    weight: &[Vector<W, N>],
    dy: &[Vector<X, N>],
    statistics: &[f32],
    upstream: ComptimeOption<&[Vector<X, N>]>,
    dx: &mut [Vector<X, N>],
    partial: ComptimeOption<&mut [Vector<f32, N>]>,
    block_rows: u32,
    #[comptime] form: Form,
    #[comptime] held: usize,
    #[define(X, W)] _storage: [ElemType; 2],
) {
    let (units, unit) = (comptime!(form.units), UNIT_POS as usize);
    let columns = weight.len();
    let count = f32::cast_from((columns * N::value()) as u32);
    let first = CUBE_POS * block_rows as usize;
    let last = min(first + block_rows as usize, statistics.len() / 2);
    if first >= last {
        terminate!();
    }
    let mut of_weight = Array::<Vector<f32, N>>::new(held);
    let mut of_bias = Array::<Vector<f32, N>>::new(held);
    #[unroll]
    for i in 0..held {
        of_weight[i] = Vector::new(0.0f32);
        of_bias[i] = Vector::new(0.0f32);
    }
    for row in first..last {
        let start = row * columns;
        let shift = Vector::<f32, N>::new(statistics[2 * row]);
        let factor = Vector::<f32, N>::new(statistics[2 * row + 1]);
        let mut sum = 0.0f32;
        let mut product = 0.0f32;
        for column in range_stepped(unit, columns, units) {
            let g = Vector::<f32, N>::cast_from(dy[start + column]) * Vector::cast_from(weight[column]);
            let z = (Vector::<f32, N>::cast_from(x[start + column]) - shift) * factor;
            sum += sum_of(g);
            product += sum_of(g * z);
        }
        let slope = Vector::<f32, N>::new(cube_sum(product, units) / count);
        let mut offset = 0.0f32;
        if comptime!(form.centred) {
            offset = cube_sum(sum, units) / count;
        }
        let offset = Vector::<f32, N>::new(offset);
        #[unroll]
        for i in 0..held {
            let column = unit + i * units;
            if column < columns {
                let dy = Vector::<f32, N>::cast_from(dy[start + column]);
                let g = dy * Vector::cast_from(weight[column]);
                let z = (Vector::<f32, N>::cast_from(x[start + column]) - shift) * factor;
                let mut gradient = factor * (g - offset - z * slope);
                #[comptime]
                match upstream {
                    ComptimeOption::Some(upstream) => gradient += Vector::cast_from(upstream[start + column]),
                    ComptimeOption::None => {}
                }
                dx[start + column] = Vector::cast_from(gradient);
                of_weight[i] += dy * z;
                of_bias[i] += dy;
            }
        }
    }
    #[comptime]
    match partial {
        ComptimeOption::Some(partial) =>
        {
            #[unroll]
            for i in 0..held {
                let column = unit + i * units;
                if column < columns {
                    partial[2 * CUBE_POS * columns + column] = of_weight[i];
                    partial[(2 * CUBE_POS + 1) * columns + column] = of_bias[i];
                }
            }
        }
        ComptimeOption::None => {}
    }
}

/// Units that keep a large GPU busy.
const BUSY_UNITS: usize = 1 << 17;

/// Most rows of one cube.
const MOST_ROWS: usize = 64;

/// Tensors that the backward of a norm needs: its inputs, and the statistics of its rows.
struct Normed {
    x: KeptBuffer,
    weight: Buffer,
    statistics: Buffer,
    centred: bool,
    /// True if gradients of weight or bias are needed, and the number of inputs.
    are_tracked: bool,
    arity: usize,
}

impl Normed {
    /// Gradients of the inputs, those of weight and bias in the weight's dtype; `upstream` is added
    /// to that of `x`.
    fn gradients(self, dy: &Buffer, upstream: Option<&Buffer>) -> Vec<Option<DispatchTensor>> {
        let Self { x, weight, statistics, centred, are_tracked, arity } = self;
        let x = x.buffer();
        let (rows, c) = (statistics.len() / 2, weight.len());
        let dx = x.uninitialised_like();
        let lanes = x.lanes(c);
        let (_, _, units) = x.cube_per_row(rows, c / lanes);
        let block_rows = (rows * units).div_ceil(BUSY_UNITS).min(MOST_ROWS);
        let blocks = rows.div_ceil(block_rows);
        let (count, dim) = x.cubes(blocks, units);
        let partial = are_tracked.then(|| x.uninitialised([blocks, 2 * c], DType::F32));
        backward::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            weight.arg(),
            dy.arg(),
            statistics.arg(),
            upstream.map(Buffer::arg).into(),
            dx.arg(),
            partial.as_ref().map(Buffer::arg).into(),
            block_rows as u32,
            Form { centred, units },
            (c / lanes).div_ceil(units),
            [x.storage(), weight.storage()],
        );
        let sums = partial.map(|partial| column_sums(&partial, 2 * c, weight.0.dtype).tensor::<2>().reshape([2, c]));
        let of_parameter = |part| {
            let sum: Tensor<1> = sums.clone()?.narrow(0, part, 1).reshape([c]);
            Some(sum.into_dispatch())
        };
        let mut gradients = vec![dx.gradient(), of_parameter(0), of_parameter(1)];
        gradients.truncate(arity);
        gradients
    }
}

/// See [`crate::rms_norm`].
pub fn rms_norm<const D: usize>(x: &Tensor<D>, weight_c: &Tensor<1>, epsilon: f64) -> Option<Tensor<D>> {
    norm(x, weight_c, None, (epsilon, false))
}

/// See [`crate::layer_norm`].
pub fn layer_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    norm(x, weight_c, bias_c, (epsilon, true))
}

/// See [`crate::residual_rms_norm`].
pub fn residual_rms_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    epsilon: f64,
) -> Option<(Tensor<D>, Tensor<D>)> {
    residual_norm(x, weight_c, None, (epsilon, false))
}

/// See [`crate::residual_layer_norm`].
pub fn residual_layer_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
) -> Option<(Tensor<D>, Tensor<D>)> {
    residual_norm(x, weight_c, bias_c, (epsilon, true))
}

fn norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    (epsilon, centred): (f64, bool),
) -> Option<Tensor<D>> {
    let (y, normed) = forward_of(x, weight_c, bias_c, epsilon, centred)?;
    Some(vjp::attach_some(y.tensor(), inputs(x, weight_c, bias_c), move |dy: Tensor<D>| {
        normed.gradients(&Buffer::from_gradient(dy), None)
    }))
}

/// The norm of a stream, and the stream.
fn residual_norm<const D: usize>(
    x: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    (epsilon, centred): (f64, bool),
) -> Option<(Tensor<D>, Tensor<D>)> {
    let (y, normed) = forward_of(x, weight_c, bias_c, epsilon, centred)?;
    let outputs = vec![y.tensor::<D>().into_dispatch(), x.clone().without_autodiff().into_dispatch()];
    let mut outputs = vjp::attach_all(outputs, inputs(x, weight_c, bias_c), move |gradients| {
        let mut gradients = gradients.into_iter();
        let mut next = || gradients.next().flatten();
        match (next(), next()) {
            (Some(dy), upstream) => {
                let buffer = |gradient| Buffer::from_gradient(Tensor::<D>::from_dispatch(gradient));
                normed.gradients(&buffer(dy), upstream.map(buffer).as_ref())
            }
            (None, upstream) => {
                let mut gradients = vec![upstream];
                gradients.resize(normed.arity, None);
                gradients
            }
        }
    })
    .into_iter();
    let mut next = || Some(Tensor::from_dispatch(outputs.next()?));
    next().zip(next())
}

/// The norm outside any graph, and the statistics for backward.
fn forward_of<const D: usize>(
    x_tensor: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    epsilon: f64,
    centred: bool,
) -> Option<(Buffer, Normed)> {
    let (x, weight) = (Buffer::from_tensor(x_tensor)?, Buffer::from_tensor(weight_c)?);
    let bias = match bias_c {
        // The kernel has one storage type for both.
        Some(bias_c) if bias_c.dtype() == weight_c.dtype() => Some(Buffer::from_tensor(bias_c)?),
        Some(_) => return None,
        None => None,
    };
    let (y, rows) = (x.uninitialised_like(), x.len() / weight.len());
    let statistics = x.uninitialised([rows, 2], DType::F32);
    let lanes = x.lanes(weight.len());
    let (count, dim, units) = x.cube_per_row(rows, weight.len() / lanes);
    forward::launch(
        &x.0.client,
        count,
        dim,
        lanes,
        x.arg(),
        weight.arg(),
        bias.as_ref().map(Buffer::arg).into(),
        y.arg(),
        statistics.arg(),
        epsilon as f32,
        Form { centred, units },
        [x.storage(), weight.storage()],
    );
    let are_tracked = weight_c.is_tracked() || bias_c.is_some_and(Tensor::is_tracked);
    let arity = 2 + usize::from(bias_c.is_some());
    Some((y, Normed { x: x.kept(), weight, statistics, centred, are_tracked, arity }))
}
