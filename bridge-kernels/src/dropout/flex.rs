//! Dropout on Flex.

use burn::tensor::Tensor;

use super::cpu::Mask;
use super::key::DropoutKey;
use crate::flex::{Kernels, Typed, attach_one, gradient, tensor};

pub(crate) fn dropout<E: Kernels, const D: usize>(x: &Tensor<D>, rate: f64, key: DropoutKey) -> Option<Tensor<D>> {
    let dims = x.dims();
    let mask = Mask::new(rate, key);
    let y = E::dropout(Typed::<E>::contiguous_of(x)?.slice(), mask);
    Some(attach_one(tensor(y, dims), x.clone(), move |dy: Typed<E>| gradient(E::dropout(dy.slice(), mask), dims)))
}
