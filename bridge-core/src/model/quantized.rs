//! Quantised weights of frozen linear layers and tables. The parameter of the module keeps its
//! shape and has no memory; its values are stored here.

use std::sync::{Arc, PoisonError, RwLock};

use bridge_kernels::{LinearWeight, Quantization, QuantizedMatrix};
use burn::module::Param;
use burn::tensor::Tensor;

use super::EightBitProducts;

/// The values of a parameter that is held quantised. Clones share them.
#[derive(Clone, Debug)]
pub struct QuantizedValues {
    quantization: Quantization,
    matrix: Arc<RwLock<Option<Arc<QuantizedMatrix>>>>,
}

impl QuantizedValues {
    /// Values that are not set yet.
    pub(super) fn new(quantization: Quantization) -> Self {
        Self { quantization, matrix: Arc::default() }
    }

    /// Quantization of the values.
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// The matrix.
    ///
    /// # Panics
    /// If it has no values.
    pub fn matrix(&self) -> Arc<QuantizedMatrix> {
        let matrix = self.matrix.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(matrix.as_ref().expect("a quantised parameter is read before it has values"))
    }

    /// Weight for products.
    ///
    /// # Panics
    /// As [`Self::matrix`].
    pub fn weight(&self) -> LinearWeight {
        LinearWeight::Quantized(self.matrix())
    }

    /// Quantises `values`, row-major, or leaves nothing.
    pub(super) fn set(&self, values: Option<Tensor<1>>, shape: [usize; 2]) {
        let matrix = values.map(|values| {
            let values: Vec<f32> = values.into_data().iter::<f32>().collect();
            Arc::new(QuantizedMatrix::new(&values, shape, self.quantization))
        });
        *self.matrix.write().unwrap_or_else(PoisonError::into_inner) = matrix;
    }
}

/// The weight of a linear layer, or a table, as its scope makes it.
#[derive(Debug)]
pub struct LinearParameter {
    /// The parameter, `[outputs, inputs]`, or `[v, c]`. One that is held quantised has a shape, and
    /// no values here.
    pub param: Param<Tensor<2>>,
    /// Values of a quantized weight.
    pub quantized: Option<QuantizedValues>,
    /// 8-bit products of the weight, if it has any.
    pub eight_bits: Option<EightBitProducts>,
}
