//! Embedding look-up.

pub(crate) mod cpu;
mod flex;

use burn::tensor::{Int, Tensor};

use crate::precision::{narrow, widen};

/// Rows of a table.
///
/// # Shapes
/// `weight_vc` `[v, c]`, `ids_bt` `[b, t]` with values in `0..v` -> `[b, t, c]`.
///
/// # Panics
/// If an id is not below `v` (on the CPU; elsewhere the backend decides).
pub fn embedding(weight_vc: Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    flex::embedding(&weight_vc, &ids_bt).unwrap_or_else(|| reference(weight_vc, ids_bt))
}

/// [`embedding`] in plain Burn operations.
///
/// A table in 16 bits is widened first, so that its gradient is summed in float32 and rounded once: a common id's row
/// would stop growing in 16 bits, where adding 1 to 256 changes nothing.
pub fn reference(weight_vc: Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    let [b, t] = ids_bt.dims();
    let [_, c] = weight_vc.dims();
    let dtype = weight_vc.dtype();
    narrow(widen(weight_vc).select(0, ids_bt.reshape([b * t])).reshape([b, t, c]), dtype)
}
