//! Region operations: collectives on Burn tensors, with gradients, for tensor-, sequence-, context-
//! and expert-parallel layers.
//!
//! A region is the part of a model between two such operations, where a tensor is sharded over the
//! ranks of a group or replicated on them. Each operation is a pair: its forward, and the adjoint
//! in backward (Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198,
//! section 4.2).
//!
//! | operation | forward | backward | gradient of the result on each rank |
//! | --- | --- | --- | --- |
//! | [`copy_to_group`] | identity | all-reduce | its share |
//! | [`reduce_from_group`] | all-reduce | identity | the same everywhere |
//! | [`gather_sequence`], [`all_gather`] | all-gather | reduce-scatter | its share |
//! | [`reduce_scatter_sequence`], [`reduce_scatter`] | reduce-scatter | all-gather | of its part |
//! | [`scatter`] | own part | all-gather | of its part |
//! | [`gather_replicated`] | all-gather | own part | the same everywhere |
//! | [`all_to_all`], [`all_to_all_uneven`] | all-to-all | all-to-all | of what it received |
//!
//! Operations work on float tensors of any rank, in float32, bfloat16 and float64 (float16 is sent
//! as float32). In a group of one rank they return their input unchanged and add no node to the
//! graph. Float tensors stay on their device if the group supports this ([`crate::exchange`]).
//! Otherwise they go through host memory, as integers always do. Results have the same bits.
//!
//! # Order
//! Every rank of a group must run the same operations in the same order, in backward too. Burn
//! visits the nodes of a graph in an order that follows from the graph's shape, so models whose
//! graphs have the same shape on all ranks satisfy this.
//!
//! # Panics
//! All operations panic with a [`CommError`](bridge_dist::comm::CommError) as payload
//! (`std::panic::panic_any`) when the communicator fails, because neither a forward nor a backward
//! of Burn can return an error. The program that runs a rank catches it
//! (`std::panic::catch_unwind`) and downcasts.

mod cut;
pub mod exchange;
mod host;
mod place;

use bridge_kernels::vjp::attach;
use burn::tensor::{Int, Tensor, TensorData};

pub use cut::Cut;
use cut::{Block, whole_from_parts};
use host::unwrap;
use place::{exchange, sum};

use bridge_dist::comm::Group;

/// An operation on the values of `x` whose adjoint is `backward`.
fn paired<const D: usize, const E: usize>(
    x: Tensor<D>,
    forward: impl FnOnce(Tensor<D>) -> Tensor<E>,
    backward: impl FnOnce(Tensor<E>) -> Tensor<D> + Send + 'static,
) -> Tensor<E> {
    let input = x.clone().into_dispatch();
    let y = forward(x.without_autodiff());
    attach(y, vec![input], move |dy| vec![backward(dy).into_dispatch()])
}

/// Enters a region whose ranks compute different things from the same tensor (before a
/// column-parallel layer).
///
/// Forward: identity. Backward: all-reduce, because each rank has only its share of the gradient.
///
/// # Shapes
/// any -> the same.
///
/// # Panics
/// See the [module documentation](self).
pub fn copy_to_group<const D: usize>(x: Tensor<D>, group: &Group) -> Tensor<D> {
    if group.size() == 1 {
        return x;
    }
    let group = group.clone();
    paired(x, |x| x, move |dy| sum(dy, &group))
}

/// Leaves a region whose ranks hold terms of a sum (after a row-parallel layer).
///
/// Forward: all-reduce. Backward: identity, because every rank gets the gradient of the sum.
///
/// # Shapes
/// any -> the same.
///
/// # Panics
/// See the [module documentation](self).
pub fn reduce_from_group<const D: usize>(x: Tensor<D>, group: &Group) -> Tensor<D> {
    if group.size() == 1 {
        return x;
    }
    paired(x, |x| sum(x, group), |dy| dy)
}

/// One dimension of a tensor, sharded over the ranks of a group.
#[derive(Clone, Debug)]
struct Sharing {
    dim: usize,
    cut: Cut,
    group: Group,
}

impl Sharing {
    fn block<const D: usize>(&self, whole: [usize; D]) -> Block {
        Block {
            outer: whole[..self.dim].iter().product(),
            size: whole[self.dim],
            inner: whole[self.dim + 1..].iter().product(),
            cut: self.cut,
            ranks: self.group.size(),
        }
    }

    fn whole_shape<const D: usize>(&self, mut part: [usize; D]) -> [usize; D] {
        part[self.dim] *= self.group.size();
        part
    }

    fn part_shape<const D: usize>(&self, mut whole: [usize; D]) -> [usize; D] {
        let chunks = self.group.size() * if self.cut == Cut::Zigzag { 2 } else { 1 };
        assert!(
            whole[self.dim].is_multiple_of(chunks),
            "dimension {} of {whole:?} does not divide into {chunks} equal parts over the group `{}`",
            self.dim,
            self.group.name()
        );
        whole[self.dim] /= self.group.size();
        whole
    }

    /// An operation with its backward; both are no-ops in a group of one.
    fn paired<const D: usize>(
        self,
        x: Tensor<D>,
        forward: fn(&Self, Tensor<D>) -> Tensor<D>,
        backward: fn(&Self, Tensor<D>) -> Tensor<D>,
    ) -> Tensor<D> {
        if self.group.size() == 1 {
            return x;
        }
        let sharing = self.clone();
        paired(x, move |x| forward(&sharing, x), move |dy| backward(&self, dy))
    }
}

/// Gathers a tensor whose dimension `dim` is sharded over the group, for ranks that compute
/// different things from the whole.
///
/// Forward: all-gather. Backward: reduce-scatter.
///
/// # Shapes
/// `[.., n, ..]` -> `[.., n * size, ..]`, at `dim`. Under [`Cut::Zigzag`] `n` is even.
///
/// # Panics
/// See the [module documentation](self); also if `dim` is not a dimension, or does not divide as
/// the cut needs.
pub fn all_gather<const D: usize>(x: Tensor<D>, dim: usize, cut: Cut, group: &Group) -> Tensor<D> {
    Sharing { dim, cut, group: group.clone() }.paired(x, Sharing::gather, Sharing::reduce)
}

/// Sums the terms held by the ranks and shards the sum along `dim`.
///
/// Forward: reduce-scatter. Backward: all-gather.
///
/// # Shapes
/// `[.., n * size, ..]` -> `[.., n, ..]`, at `dim`.
///
/// # Panics
/// See the [module documentation](self); also if `dim` is not a dimension, or does not divide as
/// the cut needs.
pub fn reduce_scatter<const D: usize>(x: Tensor<D>, dim: usize, cut: Cut, group: &Group) -> Tensor<D> {
    Sharing { dim, cut, group: group.clone() }.paired(x, Sharing::reduce, Sharing::gather)
}

/// Keeps this rank's part, along `dim`, of a tensor that all ranks hold.
///
/// Forward: own part. Backward: all-gather.
///
/// # Shapes
/// `[.., n * size, ..]` -> `[.., n, ..]`, at `dim`.
///
/// # Panics
/// See the [module documentation](self); also if `dim` is not a dimension, or does not divide as
/// the cut needs.
pub fn scatter<const D: usize>(x: Tensor<D>, dim: usize, cut: Cut, group: &Group) -> Tensor<D> {
    Sharing { dim, cut, group: group.clone() }.paired(x, Sharing::own, Sharing::gather)
}

/// Gathers a tensor whose dimension `dim` is sharded over the group, for ranks that all compute the
/// same from the whole.
///
/// Forward: all-gather. Backward: own part, because every rank has the whole gradient.
///
/// # Shapes
/// `[.., n, ..]` -> `[.., n * size, ..]`, at `dim`.
///
/// # Panics
/// See the [module documentation](self); also if `dim` is not a dimension, or does not divide as
/// the cut needs.
pub fn gather_replicated<const D: usize>(x: Tensor<D>, dim: usize, cut: Cut, group: &Group) -> Tensor<D> {
    Sharing { dim, cut, group: group.clone() }.paired(x, Sharing::gather, Sharing::own)
}

/// [`all_gather`] of integers, which have no gradient.
///
/// # Panics
/// As [`all_gather`].
pub fn all_gather_int<const D: usize>(x: Tensor<D, Int>, dim: usize, cut: Cut, group: &Group) -> Tensor<D, Int> {
    if group.size() == 1 {
        return x;
    }
    let sharing = Sharing { dim, cut, group: group.clone() };
    let device = x.device().without_autodiff();
    let shape = sharing.whole_shape(x.dims());
    let part: Vec<i64> = x.into_data().iter::<i64>().collect();
    let mut parts = vec![0_i64; part.len() * group.size()];
    unwrap(group.all_gather((&part).into(), (&mut parts).into()));
    let whole = whole_from_parts(parts.into(), &sharing.block(shape));
    let values: Vec<i64> = whole.into_vec().expect("integers stay integers");
    Tensor::from_data(TensorData::new(values, shape), &device)
}

/// [`all_gather`] of contiguous parts: enters a tensor-parallel region from a sequence-parallel
/// one.
///
/// # Panics
/// As [`all_gather`].
pub fn gather_sequence<const D: usize>(x: Tensor<D>, dim: usize, group: &Group) -> Tensor<D> {
    all_gather(x, dim, Cut::Contiguous, group)
}

/// [`reduce_scatter`] into contiguous parts: leaves a tensor-parallel region into a
/// sequence-parallel one.
///
/// # Panics
/// As [`reduce_scatter`].
pub fn reduce_scatter_sequence<const D: usize>(x: Tensor<D>, dim: usize, group: &Group) -> Tensor<D> {
    reduce_scatter(x, dim, Cut::Contiguous, group)
}

/// Rows that one rank exchanges with each rank of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows for each rank, in rank order.
    pub send: Vec<usize>,
    /// Rows from each rank, in rank order.
    pub receive: Vec<usize>,
}

impl RowCounts {
    /// The counts of the reverse exchange.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { send: self.receive.clone(), receive: self.send.clone() }
    }
}

/// Sends the `j`-th of `size` equal parts of the rows to rank `j`; the result has the parts from
/// all ranks, in rank order.
///
/// Forward: all-to-all. Backward: all-to-all.
///
/// # Shapes
/// `[n * size, ..]` -> the same.
///
/// # Panics
/// See the [module documentation](self); also if the rows do not divide by the group's size.
pub fn all_to_all<const D: usize>(x: Tensor<D>, group: &Group) -> Tensor<D> {
    let (rows, ranks) = (x.dims()[0], group.size());
    assert!(rows.is_multiple_of(ranks), "all_to_all: {rows} rows do not divide over {ranks} ranks");
    let each = vec![rows / ranks; ranks];
    all_to_all_uneven(x, &RowCounts { send: each.clone(), receive: each }, group)
}

/// Sends rows to each rank, `counts.send[j]` consecutive ones to rank `j`; the result has the rows
/// from all ranks, in rank order.
///
/// Forward: all-to-all. Backward: all-to-all with the counts reversed.
///
/// # Shapes
/// `[n, ..]` with `n` the sum of `counts.send` -> `[m, ..]` with `m` the sum of `counts.receive`.
///
/// # Panics
/// See the [module documentation](self); also if the counts do not fit the rows or the group.
pub fn all_to_all_uneven<const D: usize>(x: Tensor<D>, counts: &RowCounts, group: &Group) -> Tensor<D> {
    assert_eq!(x.dims()[0], counts.send.iter().sum::<usize>(), "all_to_all: rows and the sum of the send counts");
    if group.size() == 1 {
        return x;
    }
    let (back, way_back) = (counts.reversed(), group.clone());
    paired(x, |x| exchange(x, counts, group), move |dy| exchange(dy, &back, &way_back))
}
