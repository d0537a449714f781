//! Flat tensors: their bytes, and ranges of them.

use std::ops::Range;

use bridge_regions::exchange::copied;
use burn::tensor::Tensor;

/// Bytes of a flat tensor's elements.
pub(super) fn bytes_of(tensor: &Tensor<1>) -> u64 {
    (tensor.dims()[0] * tensor.dtype().size()) as u64
}

/// A range of a flat tensor that does not keep the memory of the rest, as a view would.
pub(super) fn detached_part(value: Tensor<1>, range: &Range<usize>) -> Tensor<1> {
    if range.len() == value.dims()[0] { value } else { copied(part(value, range)) }
}

/// A range of a flat tensor.
pub(super) fn part(value: Tensor<1>, range: &Range<usize>) -> Tensor<1> {
    if range.len() == value.dims()[0] { value } else { value.slice(range.clone()) }
}
