//! The last dimension cut into parts: the outputs of a projection that several operations read.

mod flex;

use burn::tensor::Tensor;

use crate::flex::by_element;

/// Columns of `x`, in parts of these sizes.
///
/// Gradients of the parts are written side by side once, instead of each into a zeroed copy of the
/// whole.
///
/// # Shapes
/// `x` `[.., c]` -> `[.., size]` for each of `sizes`, which add up to `c`.
///
/// # Panics
/// If the sizes do not add up to `c`.
pub fn split<const D: usize, const N: usize>(x: Tensor<D>, sizes: [usize; N]) -> [Tensor<D>; N] {
    let columns = x.dims()[D - 1];
    assert_eq!(sizes.iter().sum::<usize>(), columns, "parts of {sizes:?} of {columns} columns");
    by_element!(x, E => flex::split::<E, D, N>(&x, sizes)).unwrap_or_else(|| split_reference(x, sizes))
}

/// [`split`] in plain Burn operations.
pub fn split_reference<const D: usize, const N: usize>(x: Tensor<D>, sizes: [usize; N]) -> [Tensor<D>; N] {
    let mut start = 0;
    sizes.map(|size| {
        start += size;
        x.clone().narrow(D - 1, start - size, size)
    })
}
