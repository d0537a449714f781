//! Activations, plain and gated: a unit a vector of elements.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::kind::{Activation, GatedUnit};
use crate::cube::{Buffer, attach_one};

/// `sqrt(2 / pi)`.
const ROOT_2_OVER_PI: f32 = 0.797_884_6;
/// `1 / sqrt(2)`.
const ROOT_HALF: f32 = 0.707_106_77;
/// `1 / sqrt(2 pi)`.
const DENSITY_AT_0: f32 = 0.398_942_3;
/// Coefficient of the cubic term in the tanh approximation of GELU.
const CUBIC: f32 = 0.044_715;

/// A function's value and derivative at one point.
#[derive(CubeType, Clone, Copy)]
struct Point {
    value: f32,
    slope: f32,
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

/// `kind` and its derivative at `x`; the kernel omits unused values.
#[cube]
fn at(x: f32, #[comptime] kind: Activation) -> Point {
    match comptime!(kind) {
        Activation::Gelu => {
            let cdf = 0.5f32 * (1.0f32 + Erf::erf(x * ROOT_HALF));
            let density = DENSITY_AT_0 * (-0.5f32 * x * x).exp();
            Point { value: x * cdf, slope: cdf + x * density }
        }
        Activation::GeluTanh => {
            // (1 + tanh u) / 2 is sigmoid(2 u), which keeps its relative accuracy on the left.
            let half = sigmoid(2.0f32 * ROOT_2_OVER_PI * x * (1.0f32 + CUBIC * x * x));
            let slope = ROOT_2_OVER_PI * (1.0f32 + 3.0f32 * CUBIC * x * x);
            Point { value: x * half, slope: half + 2.0f32 * x * half * (1.0f32 - half) * slope }
        }
        Activation::Silu => {
            let s = sigmoid(x);
            Point { value: x * s, slope: s * (1.0f32 + x * (1.0f32 - s)) }
        }
        Activation::Relu => {
            let positive = f32::cast_from(x > 0.0f32);
            Point { value: x * positive, slope: positive }
        }
        Activation::SquaredRelu => {
            let y = x * f32::cast_from(x > 0.0f32);
            Point { value: y * y, slope: 2.0f32 * y }
        }
        Activation::QuickGelu => {
            let s = sigmoid(1.702f32 * x);
            Point { value: x * s, slope: s * (1.0f32 + 1.702f32 * x * (1.0f32 - s)) }
        }
    }
}

#[cube(launch)]
fn plain_forward<X: Float, N: Size>(
    x: &[Vector<X, N>],
    y: &mut [Vector<X, N>],
    #[comptime] kind: Activation,
    #[define(X)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= y.len() {
        terminate!();
    }
    let mut values = Vector::<f32, N>::cast_from(x[i]);
    let lanes = values.vector_size();
    #[unroll]
    for lane in 0..lanes {
        let value = at(values.extract(lane), kind).value;
        values.insert(lane, value);
    }
    y[i] = Vector::cast_from(values);
}

#[cube(launch)]
fn plain_backward<X: Float, N: Size>(
    x: &[Vector<X, N>],
    dy: &[Vector<X, N>],
    dx: &mut [Vector<X, N>],
    #[comptime] kind: Activation,
    #[define(X)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= dx.len() {
        terminate!();
    }
    let values = Vector::<f32, N>::cast_from(x[i]);
    let mut slopes = Vector::<f32, N>::cast_from(dy[i]);
    let lanes = values.vector_size();
    #[unroll]
    for lane in 0..lanes {
        let slope = slopes.extract(lane) * at(values.extract(lane), kind).slope;
        slopes.insert(lane, slope);
    }
    dx[i] = Vector::cast_from(slopes);
}

/// A bounded element, and one where it is not beyond its bound.
#[derive(CubeType, Clone, Copy)]
struct Bounded {
    value: f32,
    passes: f32,
}

/// `x` up to `limit`; NaN stays NaN.
#[cube]
fn bounded_above(x: f32, limit: f32) -> Bounded {
    let mut value = x;
    if x > limit {
        value = limit;
    }
    Bounded { value, passes: f32::cast_from(x <= limit) }
}

/// The linear half: within plus and minus `limit`, and `offset` added.
#[cube]
fn bounded_linear(x: f32, limit: f32, offset: f32) -> Bounded {
    let above = bounded_above(x, limit);
    let below = bounded_above(-above.value, limit);
    Bounded { value: offset - below.value, passes: above.passes * below.passes }
}

/// `x` is `[n, 2, f]`: gates, then the linear half; `width` is `f` in vectors. Only a `limited`
/// unit reads the limits and `offset`.
#[cube(launch)]
fn gated_forward<X: Float, N: Size>(
    x: &[Vector<X, N>],
    y: &mut [Vector<X, N>],
    width: u32,
    gate_limit: f32,
    limit: f32,
    offset: f32,
    #[comptime] kind: Activation,
    #[comptime] limited: bool,
    #[define(X)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= y.len() {
        terminate!();
    }
    let width = width as usize;
    let place = i + i / width * width;
    let gates = Vector::<f32, N>::cast_from(x[place]);
    let mut ups = Vector::<f32, N>::cast_from(x[place + width]);
    let lanes = gates.vector_size();
    #[unroll]
    for lane in 0..lanes {
        let mut gate = gates.extract(lane);
        let mut up = ups.extract(lane);
        if comptime!(limited) {
            gate = bounded_above(gate, gate_limit).value;
            up = bounded_linear(up, limit, offset).value;
        }
        ups.insert(lane, at(gate, kind).value * up);
    }
    y[i] = Vector::cast_from(ups);
}

/// Both halves of the gradient `[n, 2, f]`, by the unit of a vector of `dy [n, f]`; `width` is `f`
/// in vectors.
#[cube(launch)]
fn gated_backward<X: Float, N: Size>(
    x: &[Vector<X, N>],
    dy: &[Vector<X, N>],
    dx: &mut [Vector<X, N>],
    width: u32,
    gate_limit: f32,
    limit: f32,
    offset: f32,
    #[comptime] kind: Activation,
    #[comptime] limited: bool,
    #[define(X)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= dy.len() {
        terminate!();
    }
    let width = width as usize;
    let place = i + i / width * width;
    let mut gates = Vector::<f32, N>::cast_from(x[place]);
    let mut ups = Vector::<f32, N>::cast_from(x[place + width]);
    let slopes = Vector::<f32, N>::cast_from(dy[i]);
    let lanes = gates.vector_size();
    #[unroll]
    for lane in 0..lanes {
        let mut gate = gates.extract(lane);
        let mut up = ups.extract(lane);
        let slope = slopes.extract(lane);
        let mut dgate = slope;
        let mut dup = slope;
        if comptime!(limited) {
            let bounded = bounded_above(gate, gate_limit);
            gate = bounded.value;
            dgate *= bounded.passes;
            let bounded = bounded_linear(up, limit, offset);
            up = bounded.value;
            dup *= bounded.passes;
        }
        let point = at(gate, kind);
        gates.insert(lane, dgate * point.slope * up);
        ups.insert(lane, dup * point.value);
    }
    dx[place] = Vector::cast_from(gates);
    dx[place + width] = Vector::cast_from(ups);
}

/// See [`crate::activation()`].
pub fn activation<const D: usize>(x_tensor: &Tensor<D>, kind: Activation) -> Option<Tensor<D>> {
    let x = Buffer::from_tensor(x_tensor)?;
    let y = x.uninitialised_like();
    let lanes = x.lanes(x.len());
    let (count, dim) = x.grid(x.len() / lanes);
    plain_forward::launch(&x.0.client, count, dim, lanes, x.arg(), y.arg(), kind, x.storage());
    let x = x.kept();
    Some(attach_one(y, x_tensor, move |dy| backward(&dy, &x.buffer(), kind)))
}

fn backward(dy: &Buffer, x: &Buffer, kind: Activation) -> Buffer {
    let dx = x.uninitialised_like();
    let lanes = x.lanes(x.len());
    let (count, dim) = x.grid(x.len() / lanes);
    plain_backward::launch(&x.0.client, count, dim, lanes, x.arg(), dy.arg(), dx.arg(), kind, x.storage());
    dx
}

/// The gradient of [`activation`]'s input.
#[cfg(any(test, feature = "cuda"))]
pub(super) fn activation_gradient<const D: usize>(
    dy: &Tensor<D>,
    x: &Tensor<D>,
    kind: Activation,
) -> Option<Tensor<D>> {
    Some(backward(&Buffer::from_tensor(dy)?, &Buffer::from_tensor(x)?, kind).tensor())
}

/// See [`crate::glu`].
pub fn glu(x_bt2f: &Tensor<3>, unit: impl Into<GatedUnit>) -> Option<Tensor<3>> {
    let unit = unit.into();
    let (kind, is_limited, ([gate_limit, limit], offset)) = (unit.activation, !unit.is_plain(), unit.limits());
    let [b, t, double] = x_bt2f.dims();
    let width = u32::try_from(double / 2).ok()?;
    let x = Buffer::from_tensor(x_bt2f)?;
    let y = x.uninitialised([b, t, double / 2], x_bt2f.dtype());
    let lanes = x.lanes(double / 2);
    let (count, dim) = y.grid(y.len() / lanes);
    let width = width / lanes as u32;
    gated_forward::launch(
        &x.0.client,
        count,
        dim,
        lanes,
        x.arg(),
        y.arg(),
        width,
        gate_limit,
        limit,
        offset,
        kind,
        is_limited,
        x.storage(),
    );
    let kept = x.kept();
    Some(attach_one(y, x_bt2f, move |dy| {
        let x = kept.buffer();
        let dx = x.uninitialised_like();
        let (count, dim) = dy.grid(dy.len() / lanes);
        let (x_arg, dy_arg, dx_arg) = (x.arg(), dy.arg(), dx.arg());
        gated_backward::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x_arg,
            dy_arg,
            dx_arg,
            width,
            gate_limit,
            limit,
            offset,
            kind,
            is_limited,
            x.storage(),
        );
        dx
    }))
}
