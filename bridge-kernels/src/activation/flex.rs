//! Activations on Flex.

use burn::tensor::Tensor;

#[cfg(any(test, feature = "cuda"))]
use super::cpu as kernel;
use super::kind::{Activation, GatedUnit};
#[cfg(any(test, feature = "cuda"))]
use crate::flex::Values;
use crate::flex::{Kernels, Typed, attach_one, gradient, tensor};
use crate::recomputable::{Recomputable, Recompute};

/// See [`crate::activation_recomputable`].
pub(crate) fn activation<E: Kernels, const D: usize>(x: &Tensor<D>, kind: Activation) -> Option<Recomputable<D>> {
    let dims = x.dims();
    let values = Typed::<E>::contiguous_of(x)?;
    let y = tensor(E::activation(values.slice(), kind), dims);
    let kept = values.clone();
    let recompute = Recompute::new(move || Typed::from_vec(E::activation(kept.slice(), kind), dims));
    let values = values.kept();
    let tensor = attach_one(y, x.clone(), move |dy: Typed<E>| {
        let mut dx = dy.into_vec();
        E::activation_backward(&mut dx, values.values().slice(), kind);
        gradient(dx, dims)
    });
    Some(Recomputable { tensor, recompute: Some(recompute) })
}

#[cfg(any(test, feature = "cuda"))]
pub(crate) fn activation_gradient<const D: usize>(dy: Tensor<D>, x: &Tensor<D>, kind: Activation) -> Option<Tensor<D>> {
    let (dims, x) = (x.dims(), Values::contiguous_of(x)?);
    let mut dx = Values::contiguous_of(&dy)?.into_vec();
    kernel::backward(&mut dx, x.slice(), kind);
    Some(tensor(dx, dims))
}

/// See [`crate::glu_recomputable`].
pub(crate) fn glu<E: Kernels>(x_bt2f: &Tensor<3>, unit: GatedUnit) -> Option<Recomputable<3>> {
    let dims = x_bt2f.dims();
    let [b, t, width] = [dims[0], dims[1], dims[2] / 2];
    let values = Typed::<E>::contiguous_of(x_bt2f)?;
    let y = tensor(E::glu(values.slice(), width, unit), [b, t, width]);
    let kept = values.clone();
    let recompute = Recompute::new(move || Typed::from_vec(E::glu(kept.slice(), width, unit), [b, t, width]));
    let values = values.kept();
    let tensor = attach_one(y, x_bt2f.clone(), move |dy: Typed<E>| {
        gradient(E::glu_backward(dy.slice(), values.values().slice(), width, unit), dims)
    });
    Some(Recomputable { tensor, recompute: Some(recompute) })
}
