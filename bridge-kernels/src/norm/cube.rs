//! RMSNorm and LayerNorm: a cube a row.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;
use crate::vjp;

/// Rows whose parameter gradients one unit adds up.
const ROWS: usize = 32;

/// What is fixed when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Whether the mean is taken away first: LayerNorm.
    centred: bool,
    /// Units of a cube.
    units: usize,
}

/// `y = (x - mean) * reciprocal * weight + bias`; `statistics` gets mean and reciprocal deviation of each row, `[n, 2]`.
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

/// Gradient of the input. With `g = dy * weight` and `z` the normed input: `dx = reciprocal * (g - mean(g) - z * mean(g * z))`,
/// without the middle term for RMSNorm.
#[cube(launch)]
fn backward<X: Float, W: Float, N: Size>(
    x: &[Vector<X, N>],
    weight: &[Vector<W, N>],
    dy: &[Vector<X, N>],
    statistics: &[f32],
    dx: &mut [Vector<X, N>],
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
    for column in range_stepped(unit, columns, units) {
        let g = Vector::<f32, N>::cast_from(dy[start + column]) * Vector::cast_from(weight[column]);
        let z = (Vector::<f32, N>::cast_from(x[start + column]) - shift) * factor;
        dx[start + column] = Vector::cast_from(factor * (g - offset - z * slope));
    }
}

/// Gradients of weight and bias, over [`ROWS`] rows a unit: `partial` is `[ceil(n / ROWS), 2, c]`, and `columns` is `c` in vectors.
#[cube(launch)]
fn parameter_gradients<X: Float, N: Size>(
    x: &[Vector<X, N>],
    dy: &[Vector<X, N>],
    statistics: &[f32],
    partial: &mut [Vector<f32, N>],
    columns: u32,
    #[define(X)] _storage: ElemType,
) {
    let columns = columns as usize;
    let (block, column) = (ABSOLUTE_POS / columns, ABSOLUTE_POS % columns);
    if 2 * ABSOLUTE_POS >= partial.len() {
        terminate!();
    }
    let rows = statistics.len() / 2;
    let first = block * ROWS;
    let last = min(first + ROWS, rows);
    let mut weight = Vector::<f32, N>::new(0.0f32);
    let mut bias = Vector::<f32, N>::new(0.0f32);
    for row in first..last {
        let slope = Vector::<f32, N>::cast_from(dy[row * columns + column]);
        let mean = Vector::<f32, N>::new(statistics[2 * row]);
        let centred = Vector::<f32, N>::cast_from(x[row * columns + column]) - mean;
        weight += slope * centred * Vector::new(statistics[2 * row + 1]);
        bias += slope;
    }
    partial[2 * block * columns + column] = weight;
    partial[(2 * block + 1) * columns + column] = bias;
}

/// A norm's inputs, and the statistics of its rows.
struct Normed {
    x: Buffer,
    weight: Buffer,
    statistics: Buffer,
    centred: bool,
}

impl Normed {
    /// The gradient of the input.
    fn input_gradient(&self, dy: &Buffer) -> Buffer {
        let Self { x, weight, statistics, centred } = self;
        let dx = x.uninitialised_like();
        let lanes = x.lanes(weight.len());
        let (count, dim, units) = x.cube_per_row(statistics.len() / 2, weight.len() / lanes);
        backward::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            weight.arg(),
            dy.arg(),
            statistics.arg(),
            dx.arg(),
            Form { centred: *centred, units },
            [x.storage(), weight.storage()],
        );
        dx
    }

    /// The gradients of weight and bias, `[c]` each, in the weight's dtype.
    fn parameter_gradients(&self, dy: &Buffer) -> [Tensor<1>; 2] {
        let Self { x, weight, statistics, .. } = self;
        let (c, blocks) = (weight.len(), (statistics.len() / 2).div_ceil(ROWS));
        let partial = x.uninitialised([blocks, 2, c], DType::F32);
        let lanes = x.lanes(c);
        let (count, dim) = x.grid(blocks * c / lanes);
        parameter_gradients::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            dy.arg(),
            statistics.arg(),
            partial.arg(),
            (c / lanes) as u32,
            x.storage(),
        );
        let dtype = FloatDType::from(weight.0.dtype);
        let sums = partial.tensor::<3>().sum_dim(0).reshape([2, c]);
        [0, 1].map(|part| sums.clone().narrow(0, part, 1).reshape([c]).cast(dtype))
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

fn norm<const D: usize>(
    x_tensor: &Tensor<D>,
    weight_c: &Tensor<1>,
    bias_c: Option<&Tensor<1>>,
    (epsilon, centred): (f64, bool),
) -> Option<Tensor<D>> {
    let (x, weight) = (Buffer::of(x_tensor)?, Buffer::of(weight_c)?);
    let bias = match bias_c {
        // One type stands for the storage of both.
        Some(bias_c) if bias_c.dtype() == weight_c.dtype() => Some(Buffer::of(bias_c)?),
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
    let inputs: Vec<_> = [Some(x_tensor.clone().into_dispatch()), Some(weight_c.clone().into_dispatch())]
        .into_iter()
        .chain([bias_c.map(|bias_c| bias_c.clone().into_dispatch())])
        .flatten()
        .collect();
    let arity = inputs.len();
    let x = x.kept();
    Some(vjp::attach_some(y.tensor(), inputs, move |dy: Tensor<D>| {
        let normed = Normed { x: x.buffer(), weight, statistics, centred };
        let dy = Buffer::of_gradient(dy);
        let [d_weight, d_bias] = normed.parameter_gradients(&dy).map(|gradient| Some(gradient.into_dispatch()));
        let mut gradients = vec![normed.input_gradient(&dy).gradient(), d_weight, d_bias];
        gradients.truncate(arity);
        gradients
    }))
}
