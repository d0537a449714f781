//! Splitting on Flex: rows are copied.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::flex::{Typed, gradient, tensor, tracked};
use crate::vjp;

/// Elements of one task, about.
const CHUNK: usize = 1 << 15;

pub(crate) fn split<E: Element, const D: usize, const N: usize>(
    x: &Tensor<D>,
    sizes: [usize; N],
) -> Option<[Tensor<D>; N]> {
    let values = Typed::<E>::contiguous_of(x)?;
    let dims = x.dims();
    let columns = dims[D - 1];
    if values.slice().is_empty() || sizes.contains(&0) {
        return None;
    }
    let rows = values.slice().len() / columns;
    let mut start = 0;
    let parts = sizes.map(|size| {
        start += size;
        let from = start - size;
        let part = filled(rows * size, |part| copy(part, size, 0, values.slice(), columns, from, size));
        tensor::<E, D>(part, with_columns(dims, size)).into_dispatch()
    });
    let outputs = vjp::attach_all(parts.into(), tracked![x], move |gradients| {
        let whole = filled(rows * columns, |whole| {
            let mut start = 0;
            for (size, part) in sizes.into_iter().zip(gradients) {
                let zeros = || Typed::from_vec(vec![E::zeroed(); rows * size], with_columns(dims, size));
                let part = part.map_or_else(zeros, |part| Typed::from_gradient(Tensor::<D>::from_dispatch(part)));
                copy(&mut *whole, columns, start, part.slice(), size, 0, size);
                start += size;
            }
        });
        vec![gradient(whole, dims)]
    });
    let mut outputs = outputs.into_iter();
    Some(sizes.map(|_| Tensor::from_dispatch(outputs.next().expect("an output for each part"))))
}

fn with_columns<const D: usize>(dims: [usize; D], columns: usize) -> [usize; D] {
    let mut dims = dims;
    dims[D - 1] = columns;
    dims
}

/// Copies `size` columns of each row between matrices, from and to the given columns.
fn copy<E: Element>(to: &mut [E], to_columns: usize, at: usize, from: &[E], columns: usize, first: usize, size: usize) {
    let rows = (CHUNK / columns.max(to_columns)).max(1);
    to.par_chunks_mut(rows * to_columns).zip(from.par_chunks(rows * columns)).for_each(|(to, from)| {
        for (to, from) in to.chunks_exact_mut(to_columns).zip(from.chunks_exact(columns)) {
            to[at..at + size].copy_from_slice(&from[first..first + size]);
        }
    });
}
