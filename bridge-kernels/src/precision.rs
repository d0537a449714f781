//! Arithmetic in float32 on tensors of 16 bits: widened before, rounded once after.

use burn::tensor::{DType, FloatDType, Tensor};

/// To float32, where the dtype is narrower.
pub(crate) fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(FloatDType::F32),
        _ => x,
    }
}

/// To float32, whatever the dtype is.
pub(crate) fn float32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F32 { x } else { x.cast(FloatDType::F32) }
}

/// Back to `dtype` after [`widen`].
pub(crate) fn narrow<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(FloatDType::from(dtype)) }
}
