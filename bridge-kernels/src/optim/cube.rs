//! AdamW in one pass over parameter, gradient and moments, and sums of squares.

use std::ops::Range;

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, FloatDType, Tensor};

use super::steps::{AdamWConstants, AdamWState, AdamWStep};
use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;
use crate::reads::read_together;

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

/// One update, in place, and the new parameter rounded to another storage if that is wanted: a unit a vector.
#[cube(launch)]
fn update<G: Float, R: Float, N: Size>(
    parameter: &mut [Vector<f32, N>],
    exp_avg: &mut [Vector<f32, N>],
    exp_avg_sq: &mut [Vector<f32, N>],
    gradient: &[Vector<G, N>],
    rounded: ComptimeOption<&mut [Vector<R, N>]>,
    constants: Constants,
    #[define(G, R)] _storage: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i >= parameter.len() {
        terminate!();
    }
    let (mut p, mut m, mut v) = (parameter[i], exp_avg[i], exp_avg_sq[i]);
    let g = Vector::<f32, N>::cast_from(gradient[i]);
    let lanes = p.vector_size();
    #[unroll]
    for lane in 0..lanes {
        let before = p.extract(lane);
        let g = g.extract(lane) * constants.gradient_scale + before * constants.l2;
        let first = m.extract(lane) * constants.beta1 + g * constants.one_minus_beta1;
        let second = v.extract(lane) * constants.beta2 + g * g * constants.one_minus_beta2;
        let denominator = second.sqrt() / constants.root_correction2 + constants.epsilon;
        m.insert(lane, first);
        v.insert(lane, second);
        p.insert(lane, before * constants.keep - first / denominator * constants.step_size);
    }
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = p;
    #[comptime]
    match rounded {
        ComptimeOption::Some(rounded) => rounded[i] = Vector::cast_from(p),
        ComptimeOption::None => {}
    }
}

/// `sum + gradient`, in place: a unit a vector.
#[cube(launch)]
fn add<G: Float, N: Size>(sum: &mut [Vector<f32, N>], gradient: &[Vector<G, N>], #[define(G)] _storage: ElemType) {
    let i = ABSOLUTE_POS;
    if i < sum.len() {
        sum[i] += Vector::cast_from(gradient[i]);
    }
}

/// `first + second`: a unit a vector.
#[cube(launch)]
fn add_widened<A: Float, B: Float, N: Size>(
    first: &[Vector<A, N>],
    second: &[Vector<B, N>],
    sum: &mut [Vector<f32, N>],
    #[define(A, B)] _storage: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i < sum.len() {
        sum[i] = Vector::<f32, N>::cast_from(first[i]) + Vector::<f32, N>::cast_from(second[i]);
    }
}

/// Whether the kernels here read a gradient, of 16 or 32 bits.
pub fn reads(gradient: &Tensor<1>) -> bool {
    !gradient.is_autodiff() && Buffer::of(gradient).is_some()
}

/// See [`crate::optim::sum_widened`]; `None` unless both are outside any graph and on a CubeCL device.
pub fn sum_widened(first: &Tensor<1>, second: &Tensor<1>) -> Option<Tensor<1>> {
    (reads(first) && reads(second)).then_some(())?;
    let (first, second) = (Buffer::of(first)?, Buffer::of(second)?);
    let sum = first.uninitialised([first.len()], DType::F32);
    let lanes = sum.lanes(sum.len());
    let (count, dim) = sum.grid(sum.len() / lanes);
    let storage = [first.storage(), second.storage()];
    add_widened::launch(&sum.0.client, count, dim, lanes, first.arg(), second.arg(), sum.arg(), storage);
    Some(sum.tensor())
}

/// Whether a gradient of 16 or 32 bits can be added to a float32 sum here, in place.
pub fn can_accumulate(sum: &Tensor<1>, gradient: &Tensor<1>) -> bool {
    is_plain_f32(sum) && reads(gradient)
}

/// See [`crate::optim::accumulate`]. Only for what [`can_accumulate`].
pub fn accumulate(sum: Tensor<1>, gradient: &Tensor<1>) -> Tensor<1> {
    let gradient = Buffer::of(gradient).expect("the caller asked whether it applies");
    let sum = Buffer::owned(sum).expect("the caller asked whether it applies");
    let lanes = sum.lanes(sum.len());
    let (count, dim) = sum.grid(sum.len() / lanes);
    add::launch(&sum.0.client, count, dim, lanes, sum.arg(), gradient.arg(), gradient.storage());
    sum.tensor()
}

fn is_plain_f32(x: &Tensor<1>) -> bool {
    !x.is_autodiff() && Buffer::of_f32(x).is_some()
}

/// Whether all are outside any graph and on a CubeCL device, in float32 but for the gradient: what [`adamw`] asks for.
pub fn applies_to(state: &AdamWState, gradient: &Tensor<1>) -> bool {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    [parameter, exp_avg, exp_avg_sq].into_iter().all(is_plain_f32) && reads(gradient)
}

/// See [`crate::optim::adamw`], and [`crate::optim::adamw_rounded`] for a dtype of 16 bits. Only for what it [`applies_to`].
pub fn adamw(
    state: AdamWState,
    gradient: &Tensor<1>,
    step: &AdamWStep,
    dtype: Option<FloatDType>,
) -> (AdamWState, Option<Tensor<1>>) {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let gradient = Buffer::of(gradient).expect("the caller asked whether it applies");
    let owned = |x: Tensor<1>| Buffer::owned(x).expect("the caller asked whether it applies");
    let [parameter, exp_avg, exp_avg_sq] = [parameter, exp_avg, exp_avg_sq].map(owned);
    let rounded = dtype.map(|dtype| parameter.uninitialised([parameter.len()], dtype.into()));
    let lanes = parameter.lanes(parameter.len());
    let (count, dim) = parameter.grid(parameter.len() / lanes);
    update::launch(
        &parameter.0.client,
        count,
        dim,
        lanes,
        parameter.arg(),
        exp_avg.arg(),
        exp_avg_sq.arg(),
        gradient.arg(),
        rounded.as_ref().map(Buffer::arg).into(),
        constants(step),
        [gradient.storage(), rounded.as_ref().unwrap_or(&parameter).storage()],
    );
    let state =
        AdamWState { parameter: parameter.tensor(), exp_avg: exp_avg.tensor(), exp_avg_sq: exp_avg_sq.tensor() };
    (state, rounded.map(Buffer::tensor))
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

/// `partial[first + i]` gets the sum of the squares of the `i`-th of `blocks` blocks of `x`.
#[cube(launch)]
fn block_squares<X: Float, N: Size>(
    x: &[Vector<X, N>],
    partial: &mut [f32],
    first: u32,
    blocks: u32,
    #[comptime] units: usize,
    #[define(X)] _storage: ElemType,
) {
    let (block, unit) = (CUBE_POS, UNIT_POS as usize);
    if block >= blocks as usize {
        terminate!();
    }
    let lanes = N::value();
    let vectors = comptime!(BLOCK / lanes);
    let begin = block * vectors;
    let end = min(begin + vectors, x.len());
    let mut sum = 0.0f32;
    for i in range_stepped(begin + unit, end, units) {
        let values = Vector::<f32, N>::cast_from(x[i]);
        let lanes = values.vector_size();
        #[unroll]
        for lane in 0..lanes {
            let value = values.extract(lane);
            sum += value * value;
        }
    }
    let sum = cube_sum(sum, units);
    if unit == 0 {
        partial[first as usize + block] = sum;
    }
}

/// Blocks of one piece of memory, unless a tensor has more.
const ROOM: usize = 1 << 14;

/// Sums of squares of blocks of tensors, in float32 (elements beyond 1e19 make one infinite), side by side: each read of a device costs a turn of its thread.
#[derive(Default)]
pub struct BlockSums {
    /// Memory, and how much of it is written.
    pieces: Vec<(Buffer, usize)>,
}

impl std::fmt::Debug for BlockSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockSums").field("pieces", &self.pieces.len()).finish()
    }
}

/// Where the sums of a tensor's blocks are: which piece of memory, and from where to where.
#[derive(Clone, Debug)]
pub struct Place {
    piece: usize,
    range: Range<usize>,
}

impl BlockSums {
    /// Adds the blocks of a tensor; `None` where this does not apply.
    pub fn add(&mut self, x: &Tensor<1>) -> Option<Place> {
        let x = Buffer::of(x)?;
        let blocks = x.len().div_ceil(BLOCK);
        let has_room =
            |(memory, used): &(Buffer, usize)| used + blocks <= memory.len() && memory.0.device == x.0.device;
        if !self.pieces.last().is_some_and(has_room) {
            self.pieces.push((x.uninitialised([blocks.max(ROOM)], DType::F32), 0));
        }
        let piece = self.pieces.len() - 1;
        let (memory, used) = &mut self.pieces[piece];
        let lanes = x.lanes(x.len());
        let (count, dim, units) = x.cube_per_row(blocks, x.len() / lanes);
        let (first, number) = (*used as u32, blocks as u32);
        block_squares::launch(&x.0.client, count, dim, lanes, x.arg(), memory.arg(), first, number, units, x.storage());
        let range = *used..*used + blocks;
        *used = range.end;
        Some(Place { piece, range })
    }

    /// The sum of each tensor, in float64; a device is waited for once.
    #[must_use]
    pub fn finish(self, places: &[Place]) -> Vec<f64> {
        let written = self.pieces.into_iter().map(|(memory, used)| memory.tensor::<1>().narrow(0, 0, used)).collect();
        let pieces: Vec<Vec<f64>> =
            read_together(written).into_iter().map(|sums| sums.iter::<f64>().collect()).collect();
        places.iter().map(|Place { piece, range }| pieces[*piece][range.clone()].iter().sum()).collect()
    }
}
