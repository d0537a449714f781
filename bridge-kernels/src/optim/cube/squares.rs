//! Sums of squares, of several tensors a launch.

use std::ops::Range;

use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor, TensorData};

use super::many::{Queues, room};
use crate::cube::Buffer;
use crate::cube::reduce::cube_sum;
use crate::reads::read_together;

/// Elements whose squares one cube adds up.
const BLOCK: usize = 1 << 14;

/// `partial[first + i]` gets the sum of the squares of the `i`-th block of all tensors, one after
/// the other: no block has elements of two.
#[cube(launch)]
fn block_squares<X: Float, N: Size>(
    xs: &Sequence<Box<[Vector<X, N>]>>,
    partial: &mut [f32],
    first: u32,
    #[comptime] units: usize,
    #[define(X)] _storage: ElemType,
) {
    let (cube, unit) = (CUBE_POS, UNIT_POS as usize);
    let lanes = N::value();
    let vectors = comptime!(BLOCK / lanes);
    let mut sum = 0.0f32;
    let mut blocks = 0usize;
    #[unroll]
    for tensor in 0..xs.len() {
        let len = xs[tensor].len();
        let end_block = blocks + len.div_ceil(vectors);
        if cube >= blocks && cube < end_block {
            let begin = (cube - blocks) * vectors;
            let end = min(begin + vectors, len);
            for i in range_stepped(begin + unit, end, units) {
                let values = Vector::<f32, N>::cast_from(xs[tensor][i]);
                let lanes = values.vector_size();
                #[unroll]
                for lane in 0..lanes {
                    let value = values.extract(lane);
                    sum += value * value;
                }
            }
        }
        blocks = end_block;
    }
    if cube >= blocks {
        terminate!();
    }
    let sum = cube_sum(sum, units);
    if unit == 0 {
        partial[first as usize + cube] = sum;
    }
}

/// Blocks of one piece of memory, unless a launch has more.
const ROOM: usize = 1 << 14;

/// Sums of squares of blocks of tensors, in float32 (elements beyond 1e19 make one infinite), side
/// by side: each read of a device costs a turn of its thread.
#[derive(Default)]
pub struct BlockSums {
    /// Memory, and how much of it is written.
    pieces: Vec<(Buffer, usize)>,
    /// Places of the block sums of each tensor, once they are launched.
    places: Vec<Place>,
    /// Tensors that are batched by kind, with their index.
    waiting: Queues<Kind, (Index, Buffer)>,
}

/// Index of a tensor among those that were added.
#[derive(Clone, Copy, Debug)]
pub struct Index(usize);

/// A piece of memory, and from where to where.
#[derive(Clone, Default)]
struct Place {
    piece: usize,
    range: Range<usize>,
}

/// Properties that the tensors of one launch share.
#[derive(PartialEq)]
struct Kind {
    device: cubecl::Device,
    lanes: usize,
    storage: ElemType,
}

impl std::fmt::Debug for BlockSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockSums").field("tensors", &self.places.len()).finish_non_exhaustive()
    }
}

impl BlockSums {
    /// Adds the blocks of a tensor; `None` where this does not apply. The tensor is held until it
    /// is launched with others, and is not to be written before.
    pub fn add(&mut self, x: &Tensor<1>) -> Option<Index> {
        let x = Buffer::from_tensor(x)?;
        let index = Index(self.places.len());
        self.places.push(Place::default());
        let (lanes, len) = (x.lanes(x.len()), x.len());
        let kind = Kind { device: x.0.device.clone(), lanes, storage: x.storage() };
        let room = room(&x, 1, 1);
        if let Some((_, tensors)) = self.waiting.add(kind, (index, x), len, room) {
            self.launch(lanes, &tensors);
        }
        Some(index)
    }

    /// Launches the pending sums.
    pub fn launch_all(&mut self) {
        for (kind, tensors) in self.waiting.take() {
            self.launch(kind.lanes, &tensors);
        }
    }

    fn launch(&mut self, lanes: usize, tensors: &[(Index, Buffer)]) {
        let Some((_, like)) = tensors.first() else { return };
        let blocks_of = |x: &Buffer| x.len().div_ceil(BLOCK);
        let blocks = tensors.iter().map(|(_, x)| blocks_of(x)).sum::<usize>();
        let has_room =
            |(memory, used): &(Buffer, usize)| used + blocks <= memory.len() && memory.0.device == like.0.device;
        if !self.pieces.last().is_some_and(has_room) {
            self.pieces.push((like.uninitialised([blocks.max(ROOM)], DType::F32), 0));
        }
        let piece = self.pieces.len() - 1;
        let (memory, used) = &mut self.pieces[piece];
        // Units beyond the vectors of a small tensor add zeros to its sum.
        let longest = tensors.iter().map(|(_, x)| x.len() / lanes).max().unwrap_or_default();
        let (count, dim, units) = like.cube_per_row(blocks, longest);
        let (args, first) = (tensors.iter().map(|(_, x)| x.arg()).collect(), *used as u32);
        block_squares::launch(&like.0.client, count, dim, lanes, args, memory.arg(), first, units, like.storage());
        for (Index(index), x) in tensors {
            let range = *used..*used + blocks_of(x);
            *used = range.end;
            self.places[*index] = Place { piece, range };
        }
    }

    /// The sum of each tensor, in float64, and the values of `others`, which are on the same
    /// device: it is waited for once.
    #[must_use]
    pub fn finish(mut self, tensors: &[Index], others: Vec<Tensor<1>>) -> (Vec<f64>, Vec<TensorData>) {
        self.launch_all();
        let count = self.pieces.len();
        let written = self.pieces.into_iter().map(|(memory, used)| memory.tensor::<1>().narrow(0, 0, used));
        let mut read = read_together(written.chain(others).collect());
        let others = read.split_off(count);
        let pieces: Vec<Vec<f64>> = read.into_iter().map(|sums| sums.iter::<f64>().collect()).collect();
        let sum = |Index(index): &Index| {
            let Place { piece, range } = &self.places[*index];
            pieces[*piece][range.clone()].iter().sum()
        };
        (tensors.iter().map(sum).collect(), others)
    }
}
