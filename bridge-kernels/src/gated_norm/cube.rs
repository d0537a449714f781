//! The gated norm on GPUs: a cube a group of channels of a row.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;
use crate::precision::sum_of_rows;
use crate::vjp;

/// Rows whose weight gradients one unit adds up.
const ROWS: usize = 64;

/// `x * silu(z)`.
#[cube]
fn gated<X: Float>(x: &[X], z: &[X], element: usize) -> f32 {
    let gate = f32::cast_from(z[element]);
    f32::cast_from(x[element]) * gate / (1.0f32 + (-gate).exp())
}

/// `y = gated * reciprocal * weight`; `reciprocals` gets one over the root mean square of each
/// group of `size` channels, `[n, groups]`.
#[cube(launch)]
fn forward<X: Float, W: Float>(
    x: &[X],
    z: &[X],
    weight: &[W],
    y: &mut [X],
    reciprocals: &mut [f32],
    epsilon: f32,
    #[comptime] units: usize,
    #[define(X, W)] _storage: [ElemType; 2],
) {
    let (group, unit) = (CUBE_POS, UNIT_POS as usize);
    if group >= reciprocals.len() {
        terminate!();
    }
    let size = x.len() / reciprocals.len();
    let start = group * size;
    let mut squares = 0.0f32;
    for i in range_stepped(unit, size, units) {
        let value = gated::<X>(x, z, start + i);
        squares += value * value;
    }
    let mean_square = cube_sum(squares, units) / f32::cast_from(size as u32);
    let reciprocal = 1.0f32 / (mean_square + epsilon).sqrt();
    if unit == 0 {
        reciprocals[group] = reciprocal;
    }
    for i in range_stepped(unit, size, units) {
        let element = start + i;
        let w = f32::cast_from(weight[element % weight.len()]);
        y[element] = X::cast_from(gated::<X>(x, z, element) * reciprocal * w);
    }
}

/// Gradients of `x` and `z`. With `g = dy * weight` and `v` the gated value: `dv = reciprocal * (g
/// - v * reciprocal^2 * mean(g * v))`.
#[cube(launch)]
fn backward<X: Float, W: Float>(
    x: &[X],
    z: &[X],
    weight: &[W],
    reciprocals: &[f32],
    dy: &[X],
    dx: &mut [X],
    dz: &mut [X],
    #[comptime] units: usize,
    #[define(X, W)] _storage: [ElemType; 2],
) {
    let (group, unit) = (CUBE_POS, UNIT_POS as usize);
    if group >= reciprocals.len() {
        terminate!();
    }
    let size = x.len() / reciprocals.len();
    let start = group * size;
    let mut product = 0.0f32;
    for i in range_stepped(unit, size, units) {
        let element = start + i;
        let g = f32::cast_from(dy[element]) * f32::cast_from(weight[element % weight.len()]);
        product += g * gated::<X>(x, z, element);
    }
    let reciprocal = reciprocals[group];
    let slope = reciprocal * reciprocal * cube_sum(product, units) / f32::cast_from(size as u32);
    for i in range_stepped(unit, size, units) {
        let element = start + i;
        let g = f32::cast_from(dy[element]) * f32::cast_from(weight[element % weight.len()]);
        let (value, gate) = (f32::cast_from(x[element]), f32::cast_from(z[element]));
        let s = 1.0f32 / (1.0f32 + (-gate).exp());
        let d_gated = reciprocal * (g - value * gate * s * slope);
        dx[element] = X::cast_from(d_gated * gate * s);
        dz[element] = X::cast_from(d_gated * value * s * (1.0f32 + gate * (1.0f32 - s)));
    }
}

/// The gradient of the weight, over [`ROWS`] rows a unit: `partial` is `[ceil(n / ROWS), c]`.
#[cube(launch)]
fn weight_gradient<X: Float>(
    x: &[X],
    z: &[X],
    reciprocals: &[f32],
    dy: &[X],
    partial: &mut [f32],
    columns: u32,
    #[define(X)] _storage: ElemType,
) {
    if ABSOLUTE_POS >= partial.len() {
        terminate!();
    }
    let columns = columns as usize;
    let (block, column) = (ABSOLUTE_POS / columns, ABSOLUTE_POS % columns);
    let size = x.len() / reciprocals.len();
    let first = block * ROWS;
    let last = min(first + ROWS, x.len() / columns);
    let mut sum = 0.0f32;
    for row in first..last {
        let element = row * columns + column;
        sum += f32::cast_from(dy[element]) * gated::<X>(x, z, element) * reciprocals[element / size];
    }
    partial[ABSOLUTE_POS] = sum;
}

/// A norm's inputs, and one over the root mean square of each group.
struct Gated {
    x: Buffer,
    z: Buffer,
    weight: Buffer,
    reciprocals: Buffer,
}

impl Gated {
    /// Gradients of `x` and `z`.
    fn input_gradients(&self, dy: &Buffer) -> [Buffer; 2] {
        let Self { x, z, weight, reciprocals } = self;
        let (dx, dz) = (x.uninitialised_like(), x.uninitialised_like());
        let (count, dim, units) = x.cube_per_row(reciprocals.len(), x.len() / reciprocals.len());
        backward::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            z.arg(),
            weight.arg(),
            reciprocals.arg(),
            dy.arg(),
            dx.arg(),
            dz.arg(),
            units,
            [x.storage(), weight.storage()],
        );
        [dx, dz]
    }

    /// In the weight's dtype.
    fn weight_gradient(&self, dy: &Buffer) -> Tensor<1> {
        let Self { x, z, weight, reciprocals } = self;
        let c = weight.len();
        let partial = x.uninitialised([(x.len() / c).div_ceil(ROWS), c], DType::F32);
        let (count, dim) = partial.unit_per_element();
        weight_gradient::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            z.arg(),
            reciprocals.arg(),
            dy.arg(),
            partial.arg(),
            c as u32,
            x.storage(),
        );
        sum_of_rows(partial.tensor(), weight.0.dtype)
    }
}

/// See [`crate::gated_rms_norm()`]. Values and gates are of one dtype, or it does not apply.
pub fn gated_rms_norm(
    x_btc: &Tensor<3>,
    z_btc: &Tensor<3>,
    weight_c: &Tensor<1>,
    groups: usize,
    epsilon: f64,
) -> Option<Tensor<3>> {
    (x_btc.dtype() == z_btc.dtype()).then_some(())?;
    let (x, z, weight) = (Buffer::from_tensor(x_btc)?, Buffer::from_tensor(z_btc)?, Buffer::from_tensor(weight_c)?);
    let [b, t, c] = x_btc.dims();
    let reciprocals = x.uninitialised([b * t, groups], DType::F32);
    let y = x.uninitialised_like();
    let (count, dim, units) = x.cube_per_row(b * t * groups, c / groups);
    forward::launch(
        &x.0.client,
        count,
        dim,
        x.arg(),
        z.arg(),
        weight.arg(),
        y.arg(),
        reciprocals.arg(),
        epsilon as f32,
        units,
        [x.storage(), weight.storage()],
    );
    let inputs = vec![x_btc.clone().into_dispatch(), z_btc.clone().into_dispatch(), weight_c.clone().into_dispatch()];
    let [x, z] = [x, z].map(Buffer::kept);
    Some(vjp::attach_some(y.tensor(), inputs, move |dy: Tensor<3>| {
        let gated = Gated { x: x.buffer(), z: z.buffer(), weight, reciprocals };
        let dy = Buffer::from_gradient(dy);
        let [dx, dz] = gated.input_gradients(&dy);
        vec![dx.gradient(), dz.gradient(), Some(gated.weight_gradient(&dy).into_dispatch())]
    }))
}
