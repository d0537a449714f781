//! Embedding look-up.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
mod cube;
mod flex;

use burn::tensor::{Int, Tensor, TensorData};

use crate::flex::by_element;
use crate::precision::{narrow, widen};
use crate::quantized::{LinearWeight, QuantizedMatrix};

/// Rows of a table.
///
/// # Shapes
/// `weight_vc` `[v, c]`, `ids_bt` `[b, t]` with values in `0..v` -> `[b, t, c]`.
///
/// # Panics
/// If an id is not below `v` (on the CPU; on a GPU its row is not finite).
pub fn embedding(weight_vc: impl Into<LinearWeight>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    match weight_vc.into() {
        LinearWeight::Whole(weight_vc) => {
            #[cfg(feature = "cube")]
            if let Some(rows) = cube::embedding(&weight_vc, &ids_bt) {
                return rows;
            }
            by_element!(weight_vc, E => flex::embedding::<E>(&weight_vc, &ids_bt))
                .unwrap_or_else(|| reference(weight_vc, ids_bt))
        }
        LinearWeight::Quantized(matrix) => quantized_rows(&matrix, &ids_bt),
    }
}

/// The values of the rows of a table that is held quantised; they have no gradient.
fn quantized_rows(matrix: &QuantizedMatrix, ids_bt: &Tensor<2, Int>) -> Tensor<3> {
    let ([v, c], [b, t]) = (matrix.shape(), ids_bt.dims());
    let device = ids_bt.device().without_autodiff();
    let row = |(position, id): (usize, i64)| {
        let row = usize::try_from(id).ok().filter(|id| *id < v);
        row.unwrap_or_else(|| panic!("token id {id} at position {position} is not in 0..{v}, the vocabulary"))
    };
    let ids: Vec<usize> = ids_bt.clone().into_data().iter::<i64>().enumerate().map(row).collect();
    let values: Vec<f32> = ids.into_iter().flat_map(|id| matrix.rows(id..id + 1)).collect();
    Tensor::from_data(TensorData::new(values, [b, t, c]), &device)
}

/// [`embedding`] in plain Burn operations.
///
/// A table in 16 bits is widened first, so that its gradient is summed in float32 and rounded once:
/// a common id's row would stop growing in 16 bits, where adding 1 to 256 changes nothing.
pub fn reference(weight_vc: Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    let [b, t] = ids_bt.dims();
    let [_, c] = weight_vc.dims();
    let dtype = weight_vc.dtype();
    narrow(widen(weight_vc).select(0, ids_bt.reshape([b * t])).reshape([b, t, c]), dtype)
}
