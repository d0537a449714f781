//! Linear layers whose weight is frozen and quantised in blocks (Dettmers et al.,
//! arXiv:2305.14314), as the base of an adapter is.
//!
//! The product makes tiles of the weight float32 as it needs them; the whole is never there in
//! float32 on the CPU.

pub(crate) mod cpu;
mod encoding;
pub(crate) mod flex;
mod format;
mod matrix;
mod scales;

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use crate::linear::{linear, linear_residual};

pub use format::{CodeFormat, NF4, Quantization};
pub use matrix::QuantizedMatrix;

/// The weight of a linear layer, `[o, i]`, or a table that is read as one.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "made for a product and passed on at once, never stored")]
pub enum LinearWeight {
    /// A tensor.
    Whole(Tensor<2>),
    /// Codes and scales, without a gradient.
    Quantized(Arc<QuantizedMatrix>),
}

impl From<Tensor<2>> for LinearWeight {
    fn from(weight_oi: Tensor<2>) -> Self {
        Self::Whole(weight_oi)
    }
}

impl LinearWeight {
    /// Outputs and inputs.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Whole(weight_oi) => weight_oi.dims(),
            Self::Quantized(matrix) => matrix.shape(),
        }
    }

    /// True if the weight has a gradient.
    pub fn is_tracked(&self) -> bool {
        match self {
            Self::Whole(weight_oi) => weight_oi.is_tracked(),
            Self::Quantized(_) => false,
        }
    }

    /// The weight as a tensor, on `device` if it has to be made.
    pub fn whole(&self, device: &Device, dtype: FloatDType) -> Tensor<2> {
        match self {
            Self::Whole(weight_oi) => weight_oi.clone(),
            Self::Quantized(matrix) => {
                let plain = device.clone().without_autodiff();
                let made = Tensor::<2>::from_data(TensorData::new(matrix.values(), matrix.shape()), &plain).cast(dtype);
                if device.is_autodiff() { made.autodiff() } else { made }
            }
        }
    }
}

/// `residual + x w^T + bias`, for a weight of either kind.
///
/// # Shapes
/// `x` `[.., i]`, `weight` `[o, i]`, `bias_o` `[o]`, `residual` `[.., o]` -> `[.., o]`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn linear_weighted<const D: usize>(
    x: Tensor<D>,
    weight: &LinearWeight,
    bias_o: Option<Tensor<1>>,
    residual: Option<Tensor<D>>,
) -> Tensor<D> {
    if let LinearWeight::Quantized(matrix) = weight {
        let [outputs, inputs] = matrix.shape();
        let mut expected = x.dims();
        assert_eq!(expected[D - 1], inputs, "linear: an input of {:?} does not fit {inputs} inputs", x.dims());
        expected[D - 1] = outputs;
        assert!(
            bias_o.as_ref().is_none_or(|bias| bias.dims() == [outputs]),
            "linear: the bias does not fit {outputs} outputs"
        );
        assert!(
            residual.as_ref().is_none_or(|r| r.dims() == expected),
            "linear: the residual stream does not fit {expected:?}"
        );
        if let Some(y) = flex::linear_quantized(&x, matrix, bias_o.as_ref(), residual.as_ref()) {
            return y;
        }
    }
    reference(x, weight, bias_o, residual)
}

/// [`linear_weighted`] by other operations, which need the weight as a whole.
pub fn reference<const D: usize>(
    x: Tensor<D>,
    weight: &LinearWeight,
    bias_o: Option<Tensor<1>>,
    residual: Option<Tensor<D>>,
) -> Tensor<D> {
    let weight_oi = weight.whole(&x.device(), x.dtype().into());
    match residual {
        Some(residual) => linear_residual(x, weight_oi, bias_o, residual),
        None => linear(x, weight_oi, bias_o),
    }
}
