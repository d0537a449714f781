//! Arithmetic in float32 on tensors of 16 bits: widened before, rounded once after.

use burn::backend::Flex;
use burn::tensor::{DType, FloatDType, Tensor};

#[cfg(feature = "cube")]
use crate::cube::{Buffer, columns::column_sums};
use crate::flex::{narrowed_tensor, widened_tensor};

/// `x` in a dtype; on the CPU between float32 and bfloat16 on all threads.
pub fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if dtype == FloatDType::F32 { float32(x) } else { narrow(x, dtype.into()) }
}

/// To float32, where the dtype is narrower.
pub(crate) fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => widened_tensor(&x).unwrap_or_else(|| x.cast(FloatDType::F32)),
        _ => x,
    }
}

/// True for a tensor of 16 bits on the CPU: operations with a kernel for float32 alone widen their
/// inputs.
pub(crate) fn is_narrow_on_cpu<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype().size() == 2 && x.clone().without_autodiff().try_into_primitive::<Flex>().is_ok()
}

/// To float32 from any dtype.
pub(crate) fn float32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F32 => x,
        DType::BF16 => widen(x),
        _ => x.cast(FloatDType::F32),
    }
}

/// Back to `dtype` after [`widen`].
pub(crate) fn narrow<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    match dtype {
        _ if x.dtype() == dtype => x,
        DType::BF16 => narrowed_tensor(&x).unwrap_or_else(|| x.cast(FloatDType::BF16)),
        _ => x.cast(FloatDType::from(dtype)),
    }
}

/// The sum of the rows of `x_nc`, a tensor outside any graph, in float32 and rounded once to
/// `dtype`. On GPUs it has a fixed order.
pub(crate) fn sum_of_rows(x_nc: Tensor<2>, dtype: DType) -> Tensor<1> {
    let [_, columns] = x_nc.dims();
    #[cfg(feature = "cube")]
    if let Some(x) = Buffer::from_tensor(&x_nc) {
        return column_sums(&x, columns, dtype).tensor::<2>().reshape([columns]);
    }
    narrow(widen(x_nc).sum_dim(0).reshape([columns]), dtype)
}
