//! Linear layer.

pub(crate) mod cpu;
#[cfg(any(test, feature = "cuda"))]
mod cublaslt;
pub(crate) mod deferred;
pub(crate) mod flex;
mod kept;

use burn::tensor::{DType, Tensor};

use crate::activation::{Activation, GatedUnit, activation, glu};
#[cfg(feature = "cuda")]
use crate::cublaslt::cuda::CublasLt;
use crate::flex::by_element;
use crate::offload::in_unit;
use crate::precision::widen;
use crate::recompute::recomputed;

/// `x w^T + bias`.
///
/// # Shapes
/// `x` `[.., i]`, `weight_oi` `[o, i]` (rows are outputs, as PyTorch and Megatron store them),
/// `bias_o` `[o]` -> `[.., o]`.
///
/// # Panics
/// If the inner sizes differ.
pub fn linear<const D: usize>(x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    #[cfg(feature = "cuda")]
    if let Some(y) =
        CublasLt::from_tensor(&x).and_then(|table| cublaslt::linear(&table, &x, &weight_oi, bias_o.as_ref()))
    {
        return y;
    }
    by_element!(x, E => flex::linear::<E, D>(&x, &weight_oi, bias_o.as_ref()))
        .unwrap_or_else(|| kept::linear(&x, &weight_oi, bias_o.as_ref()))
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
    #[cfg(feature = "cuda")]
    if let Some(table) = CublasLt::from_tensor(&x)
        && let Some(y) = cublaslt::linear_residual(&table, &x, &weight_oi, bias_o.as_ref(), &residual)
    {
        return y;
    }
    by_element!(x, E => flex::linear_residual::<E, D>(&x, &weight_oi, bias_o.as_ref(), &residual))
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
    #[cfg(feature = "cuda")]
    if let Some(table) = CublasLt::from_tensor(&x)
        && let Some(y) = cublaslt::linear_activation(&table, &x, &weight_oi, bias_o.as_ref(), kind)
    {
        return y;
    }
    by_element!(x, E => flex::linear_activation::<E, D>(&x, &weight_oi, bias_o.as_ref(), kind)).unwrap_or_else(|| {
        let y = linear(x, weight_oi, bias_o);
        in_unit(|| activation(y, kind))
    })
}

/// The gated activation [`glu`](glu()) of `x w^T + bias` as one operation. The weight has the rows
/// of the gate, followed by the rows of the values.
///
/// # Shapes
/// `x_bti` `[b, t, i]`, `weight_oi` `[2f, i]`, `bias_o` `[2f]` -> `[b, t, f]`.
///
/// # Panics
/// If the sizes differ, or the weight's number of rows is odd.
pub fn linear_glu(
    x_bti: Tensor<3>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    unit: impl Into<GatedUnit>,
) -> Tensor<3> {
    check(&x_bti, &weight_oi, bias_o.as_ref());
    let [outputs, _] = weight_oi.dims();
    assert!(outputs.is_multiple_of(2), "a gated activation needs an even number of rows, got {outputs}");
    let unit = unit.into();
    by_element!(x_bti, E => flex::linear_glu::<E>(&x_bti, &weight_oi, bias_o.as_ref(), unit)).unwrap_or_else(|| {
        let y = linear(x_bti, weight_oi, bias_o);
        in_unit(|| glu(y, unit))
    })
}

/// `activation(x) w^T + bias`. Keeps `x` for backward, which recomputes the activation.
///
/// # Shapes
/// As [`linear()`].
///
/// # Panics
/// If the sizes differ.
pub fn linear_of_activation<const D: usize>(
    x: Tensor<D>,
    kind: Activation,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    by_element!(x, E => flex::linear_of_activation::<E, D>(&x, kind, &weight_oi, bias_o.as_ref()))
        .unwrap_or_else(|| product_with_recompute(x, weight_oi, bias_o, move |x| activation(x, kind)))
}

/// `glu(x) w^T + bias`. Keeps `x` for backward, which recomputes the gated activation.
///
/// # Shapes
/// `x_bt2i` `[b, t, 2i]`, `weight_oi` `[o, i]`, `bias_o` `[o]` -> `[b, t, o]`.
///
/// # Panics
/// If the sizes differ.
pub fn linear_of_glu(
    x_bt2i: Tensor<3>,
    unit: impl Into<GatedUnit>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
) -> Tensor<3> {
    let ([_, _, width], [_, inputs]) = (x_bt2i.dims(), weight_oi.dims());
    assert_eq!(width, 2 * inputs, "linear: a gated activation halves its input, which then fits the weight");
    let unit = unit.into();
    by_element!(x_bt2i, E => flex::linear_of_glu::<E>(&x_bt2i, unit, &weight_oi, bias_o.as_ref()))
        .unwrap_or_else(|| product_with_recompute(x_bt2i, weight_oi, bias_o, move |x| glu(x, unit)))
}

/// The product of `before(x)` with a weight. Backward recomputes `before(x)`; for devices without
/// a kernel for it.
fn product_with_recompute<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    before: impl Fn(Tensor<D>) -> Tensor<D> + Send + 'static,
) -> Tensor<D> {
    let mut parameters = vec![weight_oi.into_dispatch()];
    parameters.extend(bias_o.map(Tensor::into_dispatch));
    recomputed(vec![x.into_dispatch()], parameters, move |inputs| {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next();
        let (x, weight) = next().zip(next()).expect("an input and a weight");
        let x = before(Tensor::from_dispatch(x));
        linear(x, Tensor::from_dispatch(weight), next().map(Tensor::from_dispatch))
    })
}

/// `into + dy^T x` in float32: adds the weight gradient of a chunk of the head's tokens. `None` is
/// a gradient of zero.
///
/// On CUDA devices with cuBLASLt the product computes the sum, without intermediate rounding, and
/// in the memory of `into_oi` if that is exclusive. Elsewhere Burn's product is widened and added.
/// The result has no graph.
///
/// # Shapes
/// `into_oi` `[o, i]` of float32, `dy_no` `[n, o]`, `x_ni` `[n, i]` -> `[o, i]` of float32.
///
/// # Panics
/// If the sizes differ, or `into_oi` is not float32.
pub fn add_weight_gradient(into_oi: Option<Tensor<2>>, dy_no: &Tensor<2>, x_ni: &Tensor<2>) -> Tensor<2> {
    let ([n, outputs], [tokens, inputs]) = (dy_no.dims(), x_ni.dims());
    assert_eq!(n, tokens, "a weight's gradient is a sum over the tokens of both factors");
    if let Some(into) = &into_oi {
        assert_eq!((into.dims(), into.dtype()), ([outputs, inputs], DType::F32), "gradients add up in float32");
    }
    #[cfg(feature = "cuda")]
    let into_oi = {
        let mut into_oi = into_oi;
        if let Some(table) = CublasLt::from_tensor(x_ni)
            && let Some(sum) = cublaslt::add_weight_gradient(&table, &mut into_oi, dy_no, x_ni)
        {
            return sum;
        }
        into_oi
    };
    let part = widen(dy_no.clone().transpose().matmul(x_ni.clone()));
    match into_oi {
        Some(sum) => sum + part,
        None => part,
    }
}

/// Fails early on shapes that do not fit each other.
pub(crate) fn check<const D: usize>(x: &Tensor<D>, weight_oi: &Tensor<2>, bias_o: Option<&Tensor<1>>) {
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
