//! Transfer of tensors over a group: through host memory, or on their device if the group supports
//! this ([`TensorExchange`](crate::exchange::TensorExchange)). Both give the same bits and the same
//! counts.

use burn::tensor::{DType, FloatDType, Tensor};

use super::cut::{Cut, part_of_whole, parts_from_whole, whole_from_parts};
use super::host::{Like, to_host, unwrap};
use super::{RowCounts, Sharing};
use crate::exchange::{TensorExchange, copied};
use bridge_dist::comm::{Group, HostBuffer, ReduceOp, UnevenExchange};

impl<const D: usize> Like<D> {
    /// The group's way on the device.
    fn exchange<'a>(&self, group: &'a Group) -> Option<TensorExchange<'a>> {
        TensorExchange::for_device(group, &self.device)
    }

    /// A tensor like this one, of received elements.
    fn unflat(&self, flat: Tensor<1>) -> Tensor<D> {
        let x = flat.reshape(self.shape);
        if x.dtype() == self.dtype { x } else { x.cast(FloatDType::from(self.dtype)) }
    }
}

/// Elements in the dtype of the transfer: float16 is sent as float32, because communicators do not
/// sum float16.
fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F16 { x.cast(FloatDType::F32) } else { x }
}

fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let len = x.dims().iter().product::<usize>();
    x.reshape([len])
}

/// The sum over the group of a tensor that is not part of a graph.
pub(super) fn sum<const D: usize>(x: Tensor<D>, group: &Group) -> Tensor<D> {
    let like = Like::new(&x);
    if let Some(exchange) = like.exchange(group) {
        return like.unflat(unwrap(exchange.all_reduce(flat(widened(x)), ReduceOp::Sum)));
    }
    let mut values = to_host(x);
    unwrap(group.all_reduce(values.view_mut(), ReduceOp::Sum));
    like.tensor(values)
}

/// Part of a dimension that a rank holds, in one tensor.
fn part_along<const D: usize>(whole: &Tensor<D>, sharing: &Sharing, rank: usize) -> Tensor<D> {
    let ranges = sharing.cut.parts(whole.dims()[sharing.dim], rank, sharing.group.size());
    let pieces = ranges.into_iter().map(|range| whole.clone().narrow(sharing.dim, range.start, range.len()));
    Tensor::cat(pieces.collect(), sharing.dim)
}

/// The whole from the parts of all ranks, in new memory.
fn whole_along<const D: usize>(parts: Vec<Tensor<D>>, dim: usize, cut: Cut) -> Tensor<D> {
    match cut {
        Cut::Contiguous => Tensor::cat(parts, dim),
        Cut::Zigzag => {
            let half = parts[0].dims()[dim] / 2;
            let piece = |part: &Tensor<D>, start: usize| part.clone().narrow(dim, start, half);
            let firsts = parts.iter().map(|part| piece(part, 0));
            let lasts = parts.iter().rev().map(|part| piece(part, half));
            Tensor::cat(firsts.chain(lasts).collect(), dim)
        }
    }
}

impl Sharing {
    /// The whole tensor from every rank's part.
    pub(super) fn gather<const D: usize>(&self, part: Tensor<D>) -> Tensor<D> {
        let like = Like::new(&part);
        let shape = self.whole_shape(like.shape);
        if let Some(exchange) = like.exchange(&self.group) {
            let (dim, cut, part_shape) = (self.dim, self.cut, like.shape);
            let put_together = move |parts: Vec<Tensor<1>>| {
                let parts = parts.into_iter().map(|part| part.reshape(part_shape)).collect();
                flat(whole_along(parts, dim, cut))
            };
            let whole = unwrap(exchange.gather_parts(flat(widened(part)), put_together));
            return like.with_shape(shape).unflat(whole);
        }
        let part = to_host(part);
        let mut parts = HostBuffer::zeros(part.dtype(), part.len() * self.group.size());
        unwrap(self.group.all_gather(part.view(), parts.view_mut()));
        like.with_shape(shape).tensor(whole_from_parts(parts, &self.block(shape)))
    }

    /// This rank's part of the sum over ranks.
    pub(super) fn reduce<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        let like = Like::new(&whole);
        let shape = self.part_shape(like.shape);
        if let Some(exchange) = like.exchange(&self.group) {
            let whole = widened(whole);
            let parts = (0..self.group.size()).map(|rank| flat(part_along(&whole, self, rank)));
            let part = unwrap(exchange.reduce_parts(parts.collect(), ReduceOp::Sum));
            return like.with_shape(shape).unflat(part);
        }
        let parts = parts_from_whole(to_host(whole), &self.block(like.shape));
        let mut part = HostBuffer::zeros(parts.dtype(), parts.len() / self.group.size());
        unwrap(self.group.reduce_scatter(parts.view(), part.view_mut(), ReduceOp::Sum));
        like.with_shape(shape).tensor(part)
    }

    /// This rank's part of a tensor that all ranks hold.
    pub(super) fn own<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        let like = Like::new(&whole);
        let shape = self.part_shape(like.shape);
        if like.exchange(&self.group).is_some() {
            // A view would keep the whole.
            return copied(part_along(&whole, self, self.group.rank()));
        }
        let part = part_of_whole(&to_host(whole), &self.block(like.shape), self.group.rank());
        like.with_shape(shape).tensor(part)
    }
}

/// Sends rows to each rank and returns those that come from each.
pub(super) fn exchange<const D: usize>(x: Tensor<D>, counts: &RowCounts, group: &Group) -> Tensor<D> {
    let like = Like::new(&x);
    let width: usize = like.shape[1..].iter().product();
    let elements = |rows: &[usize]| -> Vec<usize> { rows.iter().map(|rows| rows * width).collect() };
    let (send, receive) = (elements(&counts.send), elements(&counts.receive));
    let mut shape = like.shape;
    shape[0] = counts.receive.iter().sum();
    if let Some(exchange) = like.exchange(group) {
        let received = unwrap(exchange.all_to_all_uneven(flat(widened(x)), &send, &receive));
        return like.with_shape(shape).unflat(received);
    }
    let input = to_host(x);
    let mut output = HostBuffer::zeros(input.dtype(), shape[0] * width);
    unwrap(group.all_to_all_uneven(UnevenExchange {
        input: input.view(),
        send_counts: &send,
        output: output.view_mut(),
        recv_counts: &receive,
    }));
    like.with_shape(shape).tensor(output)
}
