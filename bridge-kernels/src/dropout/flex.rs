//! Dropout on Flex.

use burn::tensor::Tensor;

use super::cpu::{Mask, apply};
use super::key::DropoutKey;
use crate::cpu::element::Element;
use crate::flex::{Typed, attach_one, gradient, tensor};

pub(crate) fn dropout<E: Element, const D: usize>(x: &Tensor<D>, rate: f64, key: DropoutKey) -> Option<Tensor<D>> {
    let dims = x.dims();
    let mask = Mask::new(rate, key);
    let y = apply(Typed::<E>::contiguous_of(x)?.slice(), mask);
    Some(attach_one(tensor(y, dims), x.clone(), move |dy: Typed<E>| gradient(apply(dy.slice(), mask), dims)))
}
