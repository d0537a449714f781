//! Point-wise activations and their derivatives, plain and gated.

use std::marker::PhantomData;

use rayon::prelude::*;

use super::kind::{Activation, GatedUnit};
use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::simd::{normal_cdf_pdf, sigmoid, tanh, vectorised};

/// Elements of one task.
const CHUNK: usize = 1 << 14;

/// `sqrt(2 / pi)`.
const ROOT_2_OVER_PI: f32 = 0.797_884_6;
/// Coefficient of the cubic term in the tanh approximation of GELU.
const CUBIC: f32 = 0.044_715;

/// A function and its derivative at one point.
trait Pointwise: Sync {
    /// `(f(x), f'(x))`; the compiler removes an unused one.
    fn at(x: f32) -> (f32, f32);
}

struct Gelu;
struct GeluTanh;
struct Silu;
struct Relu;
struct SquaredRelu;
struct QuickGelu;

impl Pointwise for Gelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let (cdf, pdf) = normal_cdf_pdf(x);
        // 0 * inf: far to the left the product is 0.
        let y = if cdf == 0.0 { 0.0 } else { x * cdf };
        (y, if pdf == 0.0 { cdf } else { cdf + x * pdf })
    }
}

impl Pointwise for GeluTanh {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let square = x * x;
        // (1 + tanh u) / 2 is sigmoid(2 u), which keeps its relative accuracy on the left.
        let half = sigmoid(2.0 * ROOT_2_OVER_PI * x * (1.0 + CUBIC * square));
        let slope = ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * square);
        (x * half, half + 2.0 * x * half * (1.0 - half) * slope)
    }
}

impl Pointwise for Silu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let s = sigmoid(x);
        (x * s, s * (1.0 + x * (1.0 - s)))
    }
}

impl Pointwise for QuickGelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let s = sigmoid(1.702 * x);
        (x * s, s * (1.0 + 1.702 * x * (1.0 - s)))
    }
}

impl Pointwise for Relu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        // NaN stays NaN.
        if x <= 0.0 { (0.0, 0.0) } else { (x, 1.0) }
    }
}

impl Pointwise for SquaredRelu {
    #[inline(always)]
    fn at(x: f32) -> (f32, f32) {
        let y = if x <= 0.0 { 0.0 } else { x };
        (y * y, 2.0 * y)
    }
}

/// Calls a function that is generic over the activation.
macro_rules! by_kind {
    ($kind:expr, $function:ident($($argument:expr),*)) => {
        match $kind {
            Activation::Gelu => $function::<Gelu, _>($($argument),*),
            Activation::GeluTanh => $function::<GeluTanh, _>($($argument),*),
            Activation::Silu => $function::<Silu, _>($($argument),*),
            Activation::Relu => $function::<Relu, _>($($argument),*),
            Activation::SquaredRelu => $function::<SquaredRelu, _>($($argument),*),
            Activation::QuickGelu => $function::<QuickGelu, _>($($argument),*),
        }
    };
}

/// `activation(x)`.
pub fn forward<E: Element>(x: &[E], kind: Activation) -> Vec<E> {
    by_kind!(kind, map(x))
}

/// Turns `dy` into the gradient of the input, in place.
pub fn backward<E: Element>(dy: &mut [E], x: &[E], kind: Activation) {
    by_kind!(kind, map_backward(dy, x));
}

/// `activation(gate) * up` for `x [n, 2 f]` whose rows hold `gate` and `up`, both as `unit` limits
/// them: `[n, f]`.
pub fn glu<E: Element>(x: &[E], width: usize, unit: GatedUnit) -> Vec<E> {
    by_kind!(unit.activation, glu_of(x, width, unit))
}

/// Gradient of the input of [`glu`], `[n, 2 f]`, from the gradient `dy [n, f]` of its output.
pub fn glu_backward<E: Element>(dy: &[E], x: &[E], width: usize, unit: GatedUnit) -> Vec<E> {
    by_kind!(unit.activation, glu_backward_of(dy, x, width, unit))
}

fn glu_of<P: Pointwise, E: Element>(x: &[E], width: usize, unit: GatedUnit) -> Vec<E> {
    if unit.is_plain() { gated(x, width, Plain::<P>(PhantomData)) } else { gated(x, width, Limited::<P>::new(unit)) }
}

fn glu_backward_of<P: Pointwise, E: Element>(dy: &[E], x: &[E], width: usize, unit: GatedUnit) -> Vec<E> {
    match unit.is_plain() {
        true => gated_backward(dy, x, width, Plain::<P>(PhantomData)),
        false => gated_backward(dy, x, width, Limited::<P>::new(unit)),
    }
}

/// The gated unit at one pair of elements.
trait Gate: Sync {
    /// The output.
    fn value(&self, gate: f32, up: f32) -> f32;

    /// The gradients of both elements, from that of the output.
    fn gradients(&self, dy: f32, gate: f32, up: f32) -> (f32, f32);
}

/// A unit that takes both halves as they are.
struct Plain<P>(PhantomData<P>);

impl<P: Pointwise> Gate for Plain<P> {
    #[inline(always)]
    fn value(&self, gate: f32, up: f32) -> f32 {
        P::at(gate).0 * up
    }

    #[inline(always)]
    fn gradients(&self, dy: f32, gate: f32, up: f32) -> (f32, f32) {
        let (value, slope) = P::at(gate);
        (dy * up * slope, dy * value)
    }
}

/// A unit with bounds, which may be infinite, and an offset.
struct Limited<P> {
    gate_limit: f32,
    limit: f32,
    offset: f32,
    of: PhantomData<P>,
}

impl<P> Limited<P> {
    fn new(unit: GatedUnit) -> Self {
        let ([gate_limit, limit], offset) = unit.limits();
        Self { gate_limit, limit, offset, of: PhantomData }
    }

    /// Both halves within their bounds; NaN stays NaN.
    #[inline(always)]
    fn bounded(&self, gate: f32, up: f32) -> (f32, f32) {
        let gate = if gate > self.gate_limit { self.gate_limit } else { gate };
        let up = if up > self.limit { self.limit } else { up };
        (gate, if up < -self.limit { -self.limit } else { up })
    }
}

impl<P: Pointwise> Gate for Limited<P> {
    #[inline(always)]
    fn value(&self, gate: f32, up: f32) -> f32 {
        let (gate, up) = self.bounded(gate, up);
        P::at(gate).0 * (up + self.offset)
    }

    #[inline(always)]
    fn gradients(&self, dy: f32, gate: f32, up: f32) -> (f32, f32) {
        let (gate_passes, up_passes) = (gate <= self.gate_limit, up.abs() <= self.limit);
        let (gate, up) = self.bounded(gate, up);
        let (value, slope) = P::at(gate);
        let (dgate, dup) = (dy * (up + self.offset) * slope, dy * value);
        (if gate_passes { dgate } else { 0.0 }, if up_passes { dup } else { 0.0 })
    }
}

fn map<P: Pointwise, E: Element>(x: &[E]) -> Vec<E> {
    filled(x.len(), |y| {
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
            vectorised!(y.iter_mut().zip(x).for_each(|(y, x)| *y = E::narrow(P::at(x.wide()).0)));
        });
    })
}

fn map_backward<P: Pointwise, E: Element>(dy: &mut [E], x: &[E]) {
    dy.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(dy, x)| {
        vectorised!(dy.iter_mut().zip(x).for_each(|(dy, x)| *dy = E::narrow(dy.wide() * P::at(x.wide()).1)));
    });
}

/// Rows of one task.
fn rows_per_task(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

fn gated<G: Gate, E: Element>(x: &[E], width: usize, unit: G) -> Vec<E> {
    let rows = rows_per_task(width);
    filled(x.len() / 2, |y| {
        if width == 0 {
            return;
        }
        y.par_chunks_mut(rows * width).zip(x.par_chunks(rows * 2 * width)).for_each(|(y, x)| {
            vectorised!({
                for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(2 * width)) {
                    let (gate, up) = x.split_at(width);
                    let inputs = gate.iter().zip(up);
                    y.iter_mut().zip(inputs).for_each(|(y, (g, u))| *y = E::narrow(unit.value(g.wide(), u.wide())));
                }
            });
        });
    })
}

fn gated_backward<G: Gate, E: Element>(dy: &[E], x: &[E], width: usize, unit: G) -> Vec<E> {
    let rows = rows_per_task(width);
    filled(x.len(), |dx| {
        if width == 0 {
            return;
        }
        let tasks = dx.par_chunks_mut(rows * 2 * width).zip(x.par_chunks(rows * 2 * width));
        tasks.zip(dy.par_chunks(rows * width)).for_each(|((dx, x), dy)| {
            vectorised!({
                let rows = dx.chunks_exact_mut(2 * width).zip(x.chunks_exact(2 * width));
                for ((dx, x), dy) in rows.zip(dy.chunks_exact(width)) {
                    let ((dgate, dup), (gate, up)) = (dx.split_at_mut(width), x.split_at(width));
                    gradients_of_row(&unit, dgate, dup, gate, up, dy);
                }
            });
        });
    })
}

/// Elements of one block of a row. A loop that writes two outputs from three inputs one element at
/// a time is not vectorized, because the compiler cannot rule out aliasing; a block that is read
/// whole before it is written is.
const BLOCK: usize = 16;

/// The gradients of the halves of a row, all of one length.
#[inline(always)]
fn gradients_of_row<G: Gate, E: Element>(unit: &G, dgate: &mut [E], dup: &mut [E], gate: &[E], up: &[E], dy: &[E]) {
    let ((dgates, dgate_rest), (dups, dup_rest)) = (dgate.as_chunks_mut::<BLOCK>(), dup.as_chunks_mut::<BLOCK>());
    let ((gates, gate_rest), (ups, up_rest), (dys, dy_rest)) =
        (gate.as_chunks::<BLOCK>(), up.as_chunks::<BLOCK>(), dy.as_chunks::<BLOCK>());
    let inputs = gates.iter().zip(ups).zip(dys);
    for ((dgate, dup), ((gate, up), dy)) in dgates.iter_mut().zip(dups).zip(inputs) {
        let (mut gate_gradients, mut up_gradients) = ([0.0; BLOCK], [0.0; BLOCK]);
        for i in 0..BLOCK {
            (gate_gradients[i], up_gradients[i]) = unit.gradients(dy[i].wide(), gate[i].wide(), up[i].wide());
        }
        (*dgate, *dup) = (gate_gradients.map(E::narrow), up_gradients.map(E::narrow));
    }
    let inputs = gate_rest.iter().zip(up_rest).zip(dy_rest);
    for ((dgate, dup), ((gate, up), dy)) in dgate_rest.iter_mut().zip(dup_rest).zip(inputs) {
        let (g, u) = unit.gradients(dy.wide(), gate.wide(), up.wide());
        (*dgate, *dup) = (E::narrow(g), E::narrow(u));
    }
}

/// `cap * tanh(x / cap)` in place; see [`crate::cross_entropy::cap`].
#[inline(always)]
pub fn softcap_in_place(x: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    x.iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks and the remainder have the gradients that single elements have, bit for bit, also of
    /// bounded and undefined values.
    #[test]
    fn gradients_of_a_row_are_those_of_its_elements() {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 9.0, -9.0];
        let value = |i: usize| match i % 5 {
            0 => special[i / 5 % special.len()],
            _ => ((i * 37 % 101) as f32 - 50.0) / 13.0,
        };
        let bounded = GatedUnit { clamp: Some(2.0), linear_offset: 1.0, ..Activation::QuickGelu.into() };
        let apart = GatedUnit { gate_clamp: Some(1.25), ..bounded };
        for unit in [Activation::Silu.into(), Activation::GeluTanh.into(), bounded, apart] {
            for width in [1, 15, 16, 17, 33, 48] {
                let x: Vec<f32> = (0..3 * 2 * width).map(value).collect();
                let dy: Vec<f32> = (0..3 * width).map(|i| value(i + 1)).collect();
                let dx = glu_backward(&dy, &x, width, unit);
                for (row, (dx, x)) in dx.chunks_exact(2 * width).zip(x.chunks_exact(2 * width)).enumerate() {
                    for i in 0..width {
                        // A row of one element has no block.
                        let alone = glu_backward(&dy[row * width + i..][..1], &[x[i], x[width + i]], 1, unit);
                        let (found, expected) = ([dx[i], dx[width + i]], [alone[0], alone[1]]);
                        let same = found
                            .iter()
                            .zip(&expected)
                            .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                        assert!(same, "{unit:?}, width {width}, row {row}, element {i}: {found:?}, alone {expected:?}");
                    }
                }
            }
        }
    }
}
