//! Division of host buffers in collectives with one part for each rank: pieces that bound the
//! memory in use, packed for a transfer and unpacked after it.

use std::ops::Range;

use super::buffer::{Buffer, BufferMut, HostBuffer, ReduceOp};
use super::reduce::reduce_ordered;

/// Ranges of at most `width` elements; none if there are no elements.
pub fn chunks(len: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.div_ceil(width)).map(move |index| index * width..((index + 1) * width).min(len))
}

/// Reduces the equal parts of `parts`, one per rank, in rank order.
pub fn reduce_parts(op: ReduceOp, parts: &HostBuffer, output: BufferMut<'_>) {
    let (width, view) = (output.len(), parts.view());
    let ranks = view.len().checked_div(width).unwrap_or(0);
    let inputs: Vec<Buffer<'_>> = (0..ranks).map(|rank| view.slice(rank * width..(rank + 1) * width)).collect();
    if !inputs.is_empty() {
        reduce_ordered(op, &inputs, output);
    }
}

/// The same range of each of `size` parts of `part` elements.
pub fn columns(input: &Buffer<'_>, part: usize, size: usize, range: &Range<usize>) -> HostBuffer {
    let width = range.len();
    let mut packed = HostBuffer::zeros(input.dtype(), width * size);
    for index in 0..size {
        let source = input.slice(index * part + range.start..index * part + range.end);
        packed.view_mut().slice(index * width..(index + 1) * width).copy_from(source);
    }
    packed
}

/// The inverse of packing `columns`.
pub fn spread(packed: &HostBuffer, output: &mut BufferMut<'_>, part: usize, size: usize, range: &Range<usize>) {
    let width = range.len();
    for index in 0..size {
        let source = packed.view().slice(index * width..(index + 1) * width);
        output.slice(index * part + range.start..index * part + range.end).copy_from(source);
    }
}
