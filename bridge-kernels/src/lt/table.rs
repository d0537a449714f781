//! Whatever runs products: cuBLASLt on a CUDA device, and in tests a stand-in on the host.

use burn::tensor::Tensor;

use super::description::{Matrix, Product};

/// A tensor and how it lies in its memory, from its first element on.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The tensor, without a graph. Its shape is that before any [`transposed`](Self::transposed).
    pub tensor: Tensor<2>,
    /// Its memory.
    pub matrix: Matrix,
}

impl Operand {
    /// The transpose, in the same memory.
    pub fn transposed(&self) -> Self {
        Self { tensor: self.tensor.clone(), matrix: self.matrix.transposed() }
    }
}

/// The tensors of a [`Product`]. Their memory is laid out as the product says.
#[derive(Debug)]
pub struct Operands {
    /// The first factor.
    pub a: Tensor<2>,
    /// The second factor.
    pub b: Tensor<2>,
    /// What is added. A product that runs takes it, and where nobody else has this tensor the result may have its memory.
    pub c: Option<Tensor<2>>,
    /// The bias that the epilogue adds, `[n]`.
    pub bias: Option<Tensor<1>>,
}

/// What a product writes.
#[derive(Debug)]
pub struct Results {
    /// The result, `[m, n]`.
    pub d: Tensor<2>,
    /// The value before an activation, `[m, n]`, if the epilogue keeps it.
    pub kept: Option<Tensor<2>>,
    /// The sums of rows of the first factor, `[m]`, if the epilogue makes them, stored as the result is.
    pub bias_gradient: Option<Tensor<1>>,
}

/// A device's products.
pub trait Table: Clone + Send + 'static {
    /// How `x` lies in memory; of a copy, if there is no [`Matrix`] for its strides. `None` for a tensor that is not on the device, is
    /// empty, or has a dtype that no product is made of.
    fn operand(&self, x: Tensor<2>) -> Option<Operand>;

    /// Runs a product; `None` if the device has no way to, and then `operands` are as they were.
    ///
    /// # Panics
    /// If an operand that the product reads is missing.
    fn multiply(&self, product: &Product, operands: &mut Operands) -> Option<Results>;
}
