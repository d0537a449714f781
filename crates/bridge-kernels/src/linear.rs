//! Linear layer and embedding look-up.

use burn::tensor::{Int, Tensor};

use crate::norm::{narrow, widen};

/// `x w^T + bias`.
///
/// # Shapes
/// `x` `[.., i]`, `weight_oi` `[o, i]` (rows are outputs, as PyTorch and Megatron store them), `bias_o` `[o]` -> `[.., o]`.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear<const D: usize>(x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
    let [outputs, inputs] = weight_oi.dims();
    assert!(
        D > 0 && x.dims()[D - 1] == inputs,
        "linear: an input of {:?} does not fit a weight of {:?}",
        x.dims(),
        [outputs, inputs]
    );
    if let Some(bias_o) = &bias_o {
        assert_eq!(bias_o.dims(), [outputs], "linear: the bias does not fit a weight of {:?}", [outputs, inputs]);
    }
    crate::fast::linear(&x, &weight_oi, bias_o.as_ref()).unwrap_or_else(|| reference(x, weight_oi, bias_o))
}

/// [`linear`] in plain Burn operations.
pub fn reference<const D: usize>(x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
    let mut shape = x.dims();
    let [outputs, inputs] = weight_oi.dims();
    assert_eq!(
        shape[D - 1],
        inputs,
        "linear: the input's last dimension does not match the weight {:?}",
        weight_oi.dims()
    );
    let rows: usize = shape[..D - 1].iter().product();
    let mut y_no = x.reshape([rows, inputs]).matmul(weight_oi.transpose());
    if let Some(bias_o) = bias_o {
        y_no = y_no + bias_o.unsqueeze();
    }
    shape[D - 1] = outputs;
    y_no.reshape(shape)
}

/// Rows of a table.
///
/// # Shapes
/// `weight_vc` `[v, c]`, `ids_bt` `[b, t]` with values in `0..v` -> `[b, t, c]`.
///
/// # Panics
/// If an id is not below `v` (on the CPU; elsewhere the back end decides).
pub fn embedding(weight_vc: Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    crate::fast::embedding(&weight_vc, &ids_bt).unwrap_or_else(|| embedding_reference(weight_vc, ids_bt))
}

/// [`embedding`] in plain Burn operations.
///
/// A table in 16 bits is widened first, so that its gradient is summed in float32 and rounded once: a common id's row
/// would stop growing in 16 bits, where adding 1 to 256 changes nothing.
pub fn embedding_reference(weight_vc: Tensor<2>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
    let [b, t] = ids_bt.dims();
    let [_, c] = weight_vc.dims();
    let dtype = weight_vc.dtype();
    narrow(widen(weight_vc).select(0, ids_bt.reshape([b * t])).reshape([b, t, c]), dtype)
}
