//! Sums of gradients in float32, of several tensors a launch.

use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use super::many::{Queues, room};
use super::reads;
use crate::cube::Buffer;

/// `sum += second`, or where there are first ones `sum = first + second`: a unit a vector, tensor
/// after tensor.
#[cube(launch)]
fn add<A: Float, B: Float, N: Size>(
    sums: &mut Sequence<Box<[Vector<f32, N>]>>,
    firsts: &Sequence<Box<[Vector<A, N>]>>,
    seconds: &Sequence<Box<[Vector<B, N>]>>,
    #[define(A, B)] _storage: [ElemType; 2],
) {
    let unit = ABSOLUTE_POS;
    let mut begin = 0usize;
    #[unroll]
    for tensor in 0..sums.len() {
        let end = begin + sums[tensor].len();
        if unit >= begin && unit < end {
            let i = unit - begin;
            let second = Vector::<f32, N>::cast_from(seconds[tensor][i]);
            let count = comptime!(firsts.len());
            if comptime!(count > 0) {
                sums.index_mut(tensor)[i] = Vector::<f32, N>::cast_from(firsts[tensor][i]) + second;
            } else {
                let sum = sums[tensor][i];
                sums.index_mut(tensor)[i] = sum + second;
            }
        }
        begin = end;
    }
}

/// A sum that was not launched yet.
struct Sum {
    sum: Buffer,
    /// First summand; `None` if it is in the sum already.
    first: Option<Buffer>,
    second: Buffer,
}

/// Properties that the sums of one launch share.
#[derive(PartialEq)]
struct Kind {
    device: cubecl::Device,
    lanes: usize,
    storage: [ElemType; 2],
    is_in_place: bool,
}

/// Sums that are batched by kind, so that a launch has several tensors. Dropping this launches the
/// remaining sums.
#[derive(Default)]
pub struct Sums {
    waiting: Queues<Kind, Sum>,
}

impl Sums {
    /// Adds `first + second`, in place if the first is float32, and returns its tensor, which must
    /// not be read before [`launch`](Self::launch). Only for tensors that it [`adds`].
    pub fn add(&mut self, first: Tensor<1>, second: &Tensor<1>) -> Tensor<1> {
        const APPLIES: &str = "the caller asked whether it applies";
        let second = Buffer::from_tensor(second).expect(APPLIES);
        let (sum, first) = if first.dtype() == DType::F32 {
            (Buffer::owned(first).expect(APPLIES), None)
        } else {
            let first = Buffer::from_tensor(&first).expect(APPLIES);
            (first.uninitialised([first.len()], DType::F32), Some(first))
        };
        let (lanes, len, result) = (sum.lanes(sum.len()), sum.len(), sum.clone().tensor());
        let storage = [first.as_ref().unwrap_or(&sum).storage(), second.storage()];
        let kind = Kind { device: sum.0.device.clone(), lanes, storage, is_in_place: first.is_none() };
        let room = room(&sum, if kind.is_in_place { 2 } else { 3 }, 0);
        if let Some((kind, sums)) = self.waiting.add(kind, Sum { sum, first, second }, len, room) {
            launch(kind, &sums);
        }
        result
    }

    /// Launches the pending sums.
    pub fn launch(&mut self) {
        for (kind, sums) in self.waiting.take() {
            launch(&kind, &sums);
        }
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.launch();
    }
}

/// True if both tensors are outside any graph, of 16 or 32 bits and on a CubeCL device: the
/// condition of [`Sums::add`].
pub fn adds(first: &Tensor<1>, second: &Tensor<1>) -> bool {
    reads(first) && reads(second)
}

fn launch(kind: &Kind, sums: &[Sum]) {
    let Some(Sum { sum: like, .. }) = sums.first() else { return };
    let (count, dim) = like.grid(sums.iter().map(|sum| sum.sum.len() / kind.lanes).sum());
    add::launch(
        &like.0.client,
        count,
        dim,
        kind.lanes,
        sums.iter().map(|sum| sum.sum.arg()).collect(),
        sums.iter().filter_map(|sum| Some(sum.first.as_ref()?.arg())).collect(),
        sums.iter().map(|sum| sum.second.arg()).collect(),
        kind.storage,
    );
}
