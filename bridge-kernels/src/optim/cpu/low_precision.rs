//! AdamW on states of less than 32 bits, in one pass over memory: blocks that fit into the
//! first-level cache are widened to float32, updated as all float32 states are, and rounded back.

use rayon::prelude::*;

use super::super::formats::{MIDWAY, is_rounded_up, join, join_rounded_up, narrow_bf16, widen_bf16};
use super::super::steps::AdamWConstants;
use super::CHUNK;
use super::blocks::{BlockSlice, BlockSliceMut};
use crate::cpu::simd::vectorised;
use crate::cpu::small::{E4M3, Half, decode, encode};

/// Elements that are widened at once: a multiple of the elements that share a scale.
const BLOCK: usize = 512;

/// Elements of any format, to be read.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Float32(&'a [f32]),
    BFloat16(&'a [u16]),
    /// With their scale.
    Float16(&'a [u16], f32),
    /// With their scale.
    Float8(&'a [u8], f32),
    Blocks(BlockSlice<'a>),
}

impl<'a> Source<'a> {
    fn part(self, start: usize, len: usize) -> Self {
        match self {
            Self::Float32(x) => Self::Float32(&x[start..start + len]),
            Self::BFloat16(x) => Self::BFloat16(&x[start..start + len]),
            Self::Float16(x, scale) => Self::Float16(&x[start..start + len], scale),
            Self::Float8(x, scale) => Self::Float8(&x[start..start + len], scale),
            Self::Blocks(blocks) => Self::Blocks(blocks.part(start, len)),
        }
    }

    /// The elements in float32: themselves, or widened into `buffer`.
    #[inline(always)]
    fn float32<'b>(self, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        match self {
            Self::Float32(x) => x,
            narrow => {
                narrow.widen(buffer);
                buffer
            }
        }
    }

    #[inline(always)]
    fn widen(self, to: &mut [f32]) {
        match self {
            Self::Float32(x) => to.copy_from_slice(x),
            Self::BFloat16(x) => {
                for (to, x) in to.iter_mut().zip(x) {
                    *to = widen_bf16(*x);
                }
            }
            Self::Float16(x, scale) => {
                for (to, x) in to.iter_mut().zip(x) {
                    *to = decode::<Half>(u32::from(*x)) * scale;
                }
            }
            Self::Float8(x, scale) => {
                for (to, x) in to.iter_mut().zip(x) {
                    *to = decode::<E4M3>(u32::from(*x)) * scale;
                }
            }
            Self::Blocks(BlockSlice { code, codes, scales, .. }) => code.widen(codes, scales, to),
        }
    }
}

/// Elements of any format, to be updated.
pub enum Place<'a> {
    Float32(&'a mut [f32]),
    BFloat16(&'a mut [u16]),
    /// With the scale that they have and the one that they get.
    Float16(&'a mut [u16], [f32; 2]),
    /// With the scale that they have and the one that they get.
    Float8(&'a mut [u8], [f32; 2]),
    Blocks(BlockSliceMut<'a>),
}

impl<'a> Place<'a> {
    /// Parts of `len` elements each.
    fn parts(self, len: usize) -> Vec<Self> {
        match self {
            Self::Float32(x) => x.chunks_mut(len).map(Self::Float32).collect(),
            Self::BFloat16(x) => x.chunks_mut(len).map(Self::BFloat16).collect(),
            Self::Float16(x, scales) => x.chunks_mut(len).map(|x| Self::Float16(x, scales)).collect(),
            Self::Float8(x, scales) => x.chunks_mut(len).map(|x| Self::Float8(x, scales)).collect(),
            Self::Blocks(blocks) => blocks.parts(len).map(Self::Blocks).collect(),
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Float32(x) => Source::Float32(x),
            Self::BFloat16(x) => Source::BFloat16(x),
            Self::Float16(x, [scale, _]) => Source::Float16(x, *scale),
            Self::Float8(x, [scale, _]) => Source::Float8(x, *scale),
            Self::Blocks(blocks) => Source::Blocks(blocks.as_slice()),
        }
    }

    /// The elements from `start` on in float32: themselves, or widened into `buffer`.
    #[inline(always)]
    fn float32<'b>(&'b mut self, start: usize, buffer: &'b mut [f32]) -> &'b mut [f32] {
        match self {
            Self::Float32(x) => &mut x[start..start + buffer.len()],
            narrow => {
                narrow.source().part(start, buffer.len()).widen(buffer);
                buffer
            }
        }
    }

    /// Ends an update of the values of [`float32`](Self::float32).
    #[inline(always)]
    fn keep(&mut self, start: usize, buffer: &[f32]) {
        if !matches!(self, Self::Float32(_)) {
            self.narrow(start, buffer);
        }
    }

    /// Rounds `from` to the elements at `start`.
    #[inline(always)]
    fn narrow(&mut self, start: usize, from: &[f32]) {
        let range = start..start + from.len();
        match self {
            Self::Float32(x) => x[range].copy_from_slice(from),
            Self::BFloat16(x) => {
                for (x, from) in x[range].iter_mut().zip(from) {
                    *x = narrow_bf16(*from);
                }
            }
            Self::Float16(x, [_, scale]) => {
                for (x, from) in x[range].iter_mut().zip(from) {
                    *x = encode::<Half>(from / *scale) as u16;
                }
            }
            Self::Float8(x, [_, scale]) => {
                for (x, from) in x[range].iter_mut().zip(from) {
                    *x = encode::<E4M3>(from / *scale) as u8;
                }
            }
            Self::Blocks(blocks) => blocks.narrow(start, from),
        }
    }
}

/// A parameter with the rest of its float32 value.
pub enum Weights<'a> {
    /// A float32 parameter.
    Float32(&'a mut [f32]),
    /// A 16-bit parameter, with a master copy of higher precision.
    Master { value: Place<'a>, master: Place<'a> },
    /// bfloat16, with the low halves of the float32 values, and the places at which these were
    /// midway and rounded up.
    Remainders { value: &'a mut [u16], low: &'a mut [u16], ties: &'a [u32] },
}

/// Read-only form of [`Weights`].
#[derive(Clone, Copy)]
pub enum WeightsSource<'a> {
    /// The parameter, or its master copy.
    Plain(Source<'a>),
    /// See [`Weights::Remainders`].
    Remainders { value: &'a [u16], low: &'a [u16], ties: &'a [u32] },
}

/// Widens low halves: `start` is the place of the first in the tensor, which `ties` count from.
#[inline(always)]
fn widen_remainders(to: &mut [f32], value: &[u16], low: &[u16], ties: &[u32], start: usize) {
    for (to, (high, low)) in to.iter_mut().zip(value.iter().zip(low)) {
        *to = join(*high, *low);
    }
    let first = ties.partition_point(|tie| (*tie as usize) < start);
    let len = to.len();
    for tie in ties[first..].iter().map(|tie| *tie as usize - start).take_while(|tie| *tie < len) {
        to[tie] = join_rounded_up(value[tie]);
    }
}

impl WeightsSource<'_> {
    #[inline(always)]
    fn widen(self, start: usize, to: &mut [f32]) {
        let end = start + to.len();
        match self {
            Self::Plain(source) => source.part(start, to.len()).widen(to),
            Self::Remainders { value, low, ties } => {
                widen_remainders(to, &value[start..end], &low[start..end], ties, start);
            }
        }
    }
}

impl<'a> Weights<'a> {
    fn parts(self, len: usize) -> Vec<Self> {
        match self {
            Self::Float32(x) => x.chunks_mut(len).map(Self::Float32).collect(),
            Self::Master { value, master } => {
                let parts = value.parts(len).into_iter().zip(master.parts(len));
                parts.map(|(value, master)| Self::Master { value, master }).collect()
            }
            Self::Remainders { value, low, ties } => {
                let parts = value.chunks_mut(len).zip(low.chunks_mut(len));
                parts.map(|(value, low)| Self::Remainders { value, low, ties }).collect()
            }
        }
    }
}

/// Range of elements that one task updates, from `start` on.
struct Task<'a> {
    start: usize,
    weights: Weights<'a>,
    moments: [Place<'a>; 2],
    gradient: Source<'a>,
}

impl Task<'_> {
    /// Returns the places, in the tensor, of float32 values that were midway and rounded up.
    #[inline(always)]
    fn run(&mut self, step: AdamWConstants, len: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let [mut p, mut m, mut v, mut g] = [[0.0_f32; BLOCK]; 4];
        for start in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - start);
            let [p, m, v, g] = [&mut p[..count], &mut m[..count], &mut v[..count], &mut g[..count]];
            let [exp_avg, exp_avg_sq] = &mut self.moments;
            {
                let (m, v) = (exp_avg.float32(start, m), exp_avg_sq.float32(start, v));
                let g = self.gradient.part(start, count).float32(g);
                match &mut self.weights {
                    Weights::Float32(x) => step.run(&mut x[start..start + count], m, v, g),
                    Weights::Master { value, master } => {
                        let wide = master.float32(start, p);
                        step.run(wide, m, v, g);
                        value.narrow(start, wide);
                        master.keep(start, p);
                    }
                    Weights::Remainders { value, low, ties } => {
                        let (value, low) = (&mut value[start..start + count], &mut low[start..start + count]);
                        widen_remainders(p, &*value, &*low, ties, self.start + start);
                        step.run(p, m, v, g);
                        split(p, value, low, self.start + start, &mut found);
                    }
                }
            }
            exp_avg.keep(start, m);
            exp_avg_sq.keep(start, v);
        }
        found
    }
}

/// Divides float32 values into bfloat16 and low halves; `start` is the place of the first.
#[inline(always)]
fn split(p: &[f32], value: &mut [u16], low: &mut [u16], start: usize, ties: &mut Vec<u32>) {
    for (value, p) in value.iter_mut().zip(p) {
        *value = narrow_bf16(*p);
    }
    for (low, p) in low.iter_mut().zip(p) {
        *low = p.to_bits() as u16;
    }
    if low.contains(&MIDWAY) {
        let rounded_up = p.iter().enumerate().filter(|(_, p)| is_rounded_up(**p));
        ties.extend(rounded_up.map(|(i, _)| (start + i) as u32));
    }
}

/// One AdamW update in place. With [`Weights::Remainders`], returns the places of values midway
/// that are rounded up, in order.
pub fn adamw(weights: Weights<'_>, moments: [Place<'_>; 2], gradient: Source<'_>, step: AdamWConstants) -> Vec<u32> {
    let [exp_avg, exp_avg_sq] = moments.map(|moment| moment.parts(CHUNK));
    let parts = weights.parts(CHUNK).into_iter().zip(exp_avg.into_iter().zip(exp_avg_sq)).enumerate();
    let tasks = parts.map(|(i, (weights, (m, v)))| {
        let (start, len) = (i * CHUNK, m.source().len());
        Task { start, weights, moments: [m, v], gradient: gradient.part(start, len) }
    });
    let tasks: Vec<_> = tasks.collect();
    let found = tasks.into_par_iter().map(|mut task| {
        let len = task.gradient.len();
        vectorised!(task.run(step, len))
    });
    found.collect::<Vec<_>>().concat()
}

/// The largest magnitudes of parameter and moments after an update, which is not made.
pub fn magnitudes(
    weights: WeightsSource<'_>,
    moments: [Source<'_>; 2],
    gradient: Source<'_>,
    step: AdamWConstants,
) -> [f32; 3] {
    let look = Look { weights, moments, gradient, step };
    let chunks = (0..gradient.len().div_ceil(CHUNK)).into_par_iter();
    let of_chunks = chunks.map(|chunk| {
        let start = chunk * CHUNK;
        vectorised!(look.run(start, CHUNK.min(gradient.len() - start)))
    });
    of_chunks.reduce(|| [0.0; 3], |a, b| [a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])])
}

/// Inputs of [`magnitudes`].
#[derive(Clone, Copy)]
struct Look<'a> {
    weights: WeightsSource<'a>,
    moments: [Source<'a>; 2],
    gradient: Source<'a>,
    step: AdamWConstants,
}

impl Look<'_> {
    #[inline(always)]
    fn run(self, start: usize, len: usize) -> [f32; 3] {
        let [mut p, mut m, mut v, mut g] = [[0.0_f32; BLOCK]; 4];
        let (mut largest, end) = ([0.0_f32; 3], start + len);
        for start in (start..end).step_by(BLOCK) {
            let count = BLOCK.min(end - start);
            let [p, m, v, g] = [&mut p[..count], &mut m[..count], &mut v[..count], &mut g[..count]];
            self.weights.widen(start, p);
            self.moments[0].part(start, count).widen(m);
            self.moments[1].part(start, count).widen(v);
            self.gradient.part(start, count).widen(g);
            self.step.run(p, m, v, g);
            for (largest, block) in largest.iter_mut().zip([p, m, v]) {
                *largest = largest.max(largest_of(block));
            }
        }
        largest
    }
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn largest_of(values: &[f32]) -> f32 {
    const LANES: usize = 32;
    let mut lanes = [0.0_f32; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            let a = block[i].abs();
            lanes[i] = if a > lanes[i] { a } else { lanes[i] };
        }
    }
    rest.iter().chain(&lanes).fold(0.0, |most, x| if x.abs() > most { x.abs() } else { most })
}

impl Source<'_> {
    fn len(self) -> usize {
        match self {
            Self::Float32(x) => x.len(),
            Self::BFloat16(x) | Self::Float16(x, _) => x.len(),
            Self::Float8(x, _) => x.len(),
            Self::Blocks(blocks) => blocks.len,
        }
    }
}

/// Elements as float32.
pub fn widened(source: Source<'_>) -> Vec<f32> {
    let mut values = vec![0.0; source.len()];
    let chunks = values.par_chunks_mut(CHUNK).enumerate();
    chunks.for_each(|(i, to)| vectorised!(source.part(i * CHUNK, to.len()).widen(to)));
    values
}

/// Rounds float32 values into a place.
pub fn narrow(place: Place<'_>, values: &[f32]) {
    let parts: Vec<_> = place.parts(CHUNK).into_iter().zip(values.chunks(CHUNK)).collect();
    parts.into_par_iter().for_each(|(mut place, values)| vectorised!(place.narrow(0, values)));
}

/// The largest magnitude of float32 values.
pub fn largest(values: &[f32]) -> f32 {
    values.par_chunks(CHUNK).map(|chunk| vectorised!(largest_of(chunk))).reduce(|| 0.0, f32::max)
}

/// The float32 values of `value` with low halves and ties, from the place `start` on.
pub fn joined(value: &[u16], low: &[u16], ties: &[u32], start: usize) -> Vec<f32> {
    let mut values = vec![0.0; value.len()];
    let chunks = values.par_chunks_mut(CHUNK).zip(value.par_chunks(CHUNK).zip(low.par_chunks(CHUNK))).enumerate();
    chunks.for_each(|(i, (to, halves))| vectorised!(widen_remainders(to, halves.0, halves.1, ties, start + i * CHUNK)));
    values
}

/// Low halves and ties of float32 values; `None` if one of them does not round to its element of
/// `value`.
pub fn remainders(values: &[f32], value: &[u16]) -> Option<(Vec<u16>, Vec<u32>)> {
    if values.iter().zip(value).any(|(wide, value)| narrow_bf16(*wide) != *value) {
        return None;
    }
    let low = values.iter().map(|wide| wide.to_bits() as u16).collect();
    let ties = values.iter().enumerate().filter(|(_, wide)| is_rounded_up(**wide)).map(|(i, _)| i as u32);
    Some((low, ties.collect()))
}
