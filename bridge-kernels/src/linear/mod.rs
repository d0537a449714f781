//! Linear layer and embedding look-up.

use burn::tensor::{Int, Tensor};

use crate::activation::{Activation, activation, glu};
use crate::norm::{narrow, widen};

/// `x w^T + bias`.
///
/// # Shapes
/// `x` `[.., i]`, `weight_oi` `[o, i]` (rows are outputs, as PyTorch and Megatron store them), `bias_o` `[o]` -> `[.., o]`.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear<const D: usize>(x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    crate::fast::linear(&x, &weight_oi, bias_o.as_ref()).unwrap_or_else(|| reference(x, weight_oi, bias_o))
}

/// [`linear()`] added to a residual stream: `residual + x w^T + bias`, the sum made by the product.
///
/// # Shapes
/// As [`linear()`]; `residual` `[.., o]`.
///
/// # Panics
/// If the sizes differ.
pub fn linear_residual<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    residual: Tensor<D>,
) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    let mut expected = x.dims();
    expected[D - 1] = weight_oi.dims()[0];
    assert_eq!(residual.dims(), expected, "linear: the residual stream does not fit the product");
    crate::fast::linear_residual(&x, &weight_oi, bias_o.as_ref(), &residual)
        .unwrap_or_else(|| residual + linear(x, weight_oi, bias_o))
}

/// `activation(x w^T + bias)` as one operation.
///
/// # Shapes
/// As [`linear()`].
///
/// # Panics
/// If the sizes differ.
pub fn linear_activation<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    kind: Activation,
) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    crate::fast::linear_activation(&x, &weight_oi, bias_o.as_ref(), kind)
        .unwrap_or_else(|| activation(linear(x, weight_oi, bias_o), kind))
}

/// The gated activation [`glu`](glu()) of `x w^T + bias` as one operation. The weight has the rows of the gate, then the others.
///
/// # Shapes
/// `x_bti` `[b, t, i]`, `weight_oi` `[2f, i]`, `bias_o` `[2f]` -> `[b, t, f]`.
///
/// # Panics
/// If the sizes differ, or the weight's number of rows is odd.
pub fn linear_glu(x_bti: Tensor<3>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>, kind: Activation) -> Tensor<3> {
    check(&x_bti, &weight_oi, bias_o.as_ref());
    let [outputs, _] = weight_oi.dims();
    assert!(outputs.is_multiple_of(2), "a gated activation needs an even number of rows, got {outputs}");
    crate::fast::linear_glu(&x_bti, &weight_oi, bias_o.as_ref(), kind)
        .unwrap_or_else(|| glu(linear(x_bti, weight_oi, bias_o), kind))
}

/// Fails early on shapes that do not fit each other.
fn check<const D: usize>(x: &Tensor<D>, weight_oi: &Tensor<2>, bias_o: Option<&Tensor<1>>) {
    let [outputs, inputs] = weight_oi.dims();
    assert!(
        D > 0 && x.dims()[D - 1] == inputs,
        "linear: an input of {:?} does not fit a weight of {:?}",
        x.dims(),
        [outputs, inputs]
    );
    if let Some(bias_o) = bias_o {
        assert_eq!(bias_o.dims(), [outputs], "linear: the bias does not fit a weight of {:?}", [outputs, inputs]);
    }
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
