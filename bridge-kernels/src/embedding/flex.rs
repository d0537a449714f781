//! Embedding look-up on Flex.

use burn::tensor::{Int, Tensor};

use crate::flex::{Kernels, Typed, attach_one, gradient, indices, tensor};

pub(crate) fn embedding<E: Kernels>(weight_vc: &Tensor<2>, ids_bt: &Tensor<2, Int>) -> Option<Tensor<3>> {
    let ([v, c], [b, t]) = (weight_vc.dims(), ids_bt.dims());
    let table = Typed::<E>::contiguous_of(weight_vc)?;
    let ids = indices(ids_bt)?;
    let y = tensor(E::embedding(table.slice(), c, &ids), [b, t, c]);
    Some(attach_one(y, weight_vc.clone(), move |dy: Typed<E>| {
        gradient(E::embedding_backward(dy.slice(), c, &ids, v), [v, c])
    }))
}
