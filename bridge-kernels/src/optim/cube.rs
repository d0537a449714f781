//! AdamW in one pass over parameter, gradient and moments, and sums of squares.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use super::steps::{AdamWConstants, AdamWState, AdamWStep};
use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;

/// [`AdamWConstants`] as a kernel sees them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Constants {
    gradient_scale: f32,
    keep: f32,
    l2: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    root_correction2: f32,
    epsilon: f32,
    step_size: f32,
}

/// One update, in place: a unit an element.
#[cube(launch)]
fn update<G: Float>(
    parameter: &mut [f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
    gradient: &[G],
    constants: Constants,
    #[define(G)] _storage: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= parameter.len() {
        terminate!();
    }
    let p = parameter[i];
    let g = f32::cast_from(gradient[i]) * constants.gradient_scale + p * constants.l2;
    let m = exp_avg[i] * constants.beta1 + g * constants.one_minus_beta1;
    let v = exp_avg_sq[i] * constants.beta2 + g * g * constants.one_minus_beta2;
    let denominator = v.sqrt() / constants.root_correction2 + constants.epsilon;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = p * constants.keep - m / denominator * constants.step_size;
}

/// Whether all are outside any graph and on a CubeCL device, in float32 but for the gradient: what [`adamw`] asks for.
pub fn applies_to(state: &AdamWState, gradient: &Tensor<1>) -> bool {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let plain = |x: &Tensor<1>| !x.is_autodiff() && Buffer::of_f32(x).is_some();
    [parameter, exp_avg, exp_avg_sq].into_iter().all(plain) && !gradient.is_autodiff() && Buffer::of(gradient).is_some()
}

/// See [`crate::optim::adamw`]. Only for what it [`applies_to`].
pub fn adamw(state: AdamWState, gradient: &Tensor<1>, step: &AdamWStep) -> AdamWState {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let gradient = Buffer::of(gradient).expect("the caller asked whether it applies");
    let owned = |x: Tensor<1>| Buffer::owned(x).expect("the caller asked whether it applies");
    let [parameter, exp_avg, exp_avg_sq] = [parameter, exp_avg, exp_avg_sq].map(owned);
    let (count, dim) = parameter.unit_per_element();
    update::launch(
        &parameter.0.client,
        count,
        dim,
        parameter.arg(),
        exp_avg.arg(),
        exp_avg_sq.arg(),
        gradient.arg(),
        constants(step),
        gradient.storage(),
    );
    AdamWState { parameter: parameter.tensor(), exp_avg: exp_avg.tensor(), exp_avg_sq: exp_avg_sq.tensor() }
}

fn constants(step: &AdamWStep) -> ConstantsLaunch {
    let c = AdamWConstants::new(step);
    ConstantsLaunch::new(
        c.gradient_scale,
        c.keep,
        c.l2,
        c.beta1,
        c.one_minus_beta1,
        c.beta2,
        c.one_minus_beta2,
        c.root_correction2,
        c.epsilon,
        c.step_size,
    )
}

/// Elements whose squares one cube adds up.
const BLOCK: usize = 1 << 14;

/// `partial[i]` gets the sum of the squares of the `i`-th block of `x`.
#[cube(launch)]
fn block_squares<X: Float>(x: &[X], partial: &mut [f32], #[comptime] units: usize, #[define(X)] _storage: ElemType) {
    let (block, unit) = (CUBE_POS, UNIT_POS as usize);
    if block >= partial.len() {
        terminate!();
    }
    let first = block * BLOCK;
    let last = min(first + BLOCK, x.len());
    let mut sum = 0.0f32;
    for i in range_stepped(first + unit, last, units) {
        let value = f32::cast_from(x[i]);
        sum += value * value;
    }
    let sum = cube_sum(sum, units);
    if unit == 0 {
        partial[block] = sum;
    }
}

/// The sums of the squares of blocks of `x`, in float32: elements beyond 1e19 make one infinite.
pub fn square_sums_of_blocks(x: &Tensor<1>) -> Option<Tensor<1>> {
    let x = Buffer::of(x)?;
    let blocks = x.len().div_ceil(BLOCK);
    let partial = x.uninitialised([blocks], DType::F32);
    let (count, dim, units) = x.cube_per_row(blocks, x.len());
    block_squares::launch(&x.0.client, count, dim, x.arg(), partial.arg(), units, x.storage());
    Some(partial.tensor())
}
