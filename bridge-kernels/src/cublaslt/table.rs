//! Interface of implementations of products: cuBLASLt on a CUDA device, and in tests a stand-in on
//! the host.

use std::convert::Infallible;

use burn::tensor::Tensor;

use super::description::{Compute, Element, Matrix, Product};

/// A tensor and its memory layout, from its first element on. Its last two dimensions are rows and
/// columns, the leading dimensions count matrices.
#[derive(Clone, Debug)]
pub struct Operand<const D: usize> {
    /// The tensor, without a graph. Its shape does not reflect [`transposed`](Self::transposed).
    pub tensor: Tensor<D>,
    /// Layout of the tensor's memory.
    pub matrix: Matrix,
}

impl<const D: usize> Operand<D> {
    /// The transpose, in the same memory.
    pub fn transposed(&self) -> Self {
        Self { tensor: self.tensor.clone(), matrix: self.matrix.transposed() }
    }
}

/// The tensors of a [`Product`]. Their memory is laid out as the product says.
#[derive(Clone, Debug)]
pub struct Operands<const D: usize> {
    /// The first factor.
    pub a: Tensor<D>,
    /// The second factor.
    pub b: Tensor<D>,
    /// Summand. A product that runs takes it, and if there is no other handle to this tensor, the
    /// result may have its memory.
    pub c: Option<Tensor<D>>,
    /// The bias that the epilogue adds, `[n]`.
    pub bias: Option<Tensor<1>>,
    /// Factors that dequantize the 8-bit codes of both operands: `[1]` of float32 each. See
    /// [`Element::dtype`] for the packing of codes in tensors: the first of four codes has the
    /// lowest bits.
    pub scales: Option<[Tensor<1>; 2]>,
}

impl<const D: usize> Operands<D> {
    /// Two factors.
    pub fn new(a: Tensor<D>, b: Tensor<D>) -> Self {
        Self { a, b, c: None, bias: None, scales: None }
    }
}

/// Results of a product.
#[derive(Debug)]
pub struct Results<const D: usize> {
    /// The result, `[.., m, n]`; for [`Product::onto`] the whole added tensor.
    pub d: Tensor<D>,
    /// The value before an activation, `[m, n]`, if the epilogue keeps it.
    pub kept: Option<Tensor<D>>,
    /// The sums of rows of the first factor, `[m]`, if the epilogue makes them, stored as the
    /// result is.
    pub bias_gradient: Option<Tensor<1>>,
}

impl Product {
    /// Shape of the tensor with the result.
    ///
    /// # Panics
    /// If the tensor that the product is added to is missing.
    pub fn shape_of_result<const D: usize>(&self, operands: &Operands<D>) -> [usize; D] {
        if self.is_onto() {
            return operands.c.as_ref().expect("the product adds a matrix").dims();
        }
        let mut shape = operands.a.dims();
        shape[D - 2..].copy_from_slice(&[self.d.rows, self.d.columns]);
        shape
    }
}

/// A device's products.
pub trait Table: Clone + Send + 'static {
    /// Layout of `x` in memory; of a copy, if no [`Matrix`] has its strides. `None` for a tensor
    /// that is not on the device, is empty, or has a dtype without products.
    fn operand<const D: usize>(&self, x: Tensor<D>) -> Option<Operand<D>>;

    /// True if the device has an algorithm for a product with operands in such memory. Their values
    /// do not matter.
    ///
    /// # Panics
    /// As [`multiply`](Self::multiply).
    fn has<const D: usize>(&self, product: &Product, operands: &Operands<D>) -> bool;

    /// Runs a product; `None` if the device does not support it; then `operands` are unchanged.
    ///
    /// # Panics
    /// If an operand that the product reads is missing.
    fn multiply<const D: usize>(&self, product: &Product, operands: &mut Operands<D>) -> Option<Results<D>>;
}

/// Table of devices without a library.
impl Table for Infallible {
    fn operand<const D: usize>(&self, _: Tensor<D>) -> Option<Operand<D>> {
        match *self {}
    }

    fn has<const D: usize>(&self, _: &Product, _: &Operands<D>) -> bool {
        match *self {}
    }

    fn multiply<const D: usize>(&self, _: &Product, _: &mut Operands<D>) -> Option<Results<D>> {
        match *self {}
    }
}

/// `a b` of each pair of matrices, `[.., m, k]` and `[.., k, n]`, stored as `result` says;
/// dimensions of one matrix are broadcast. `None` if the table does not have the product.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn multiply<T: Table, const D: usize>(
    table: &T,
    a: &Tensor<D>,
    b: &Tensor<D>,
    result: Element,
) -> Option<Tensor<D>> {
    let shapes = [a.dims(), b.dims()];
    let [a, b] = [(a, 0), (b, 1)].map(|(x, own)| table.operand(broadcast(x, shapes[1 - own])));
    let (a, b) = (a?, b?);
    let product = Product::new(a.matrix, b.matrix, result, Compute::Float32)?;
    table.multiply(&product, &mut Operands::new(a.tensor, b.tensor)).map(|results| results.d)
}

/// `x` with as many matrices as another tensor, where it has one; no memory is made.
fn broadcast<const D: usize>(x: &Tensor<D>, other: [usize; D]) -> Tensor<D> {
    let mut shape = x.dims();
    for (size, other) in shape[..D - 2].iter_mut().zip(other) {
        *size = if *size == 1 { other } else { *size };
    }
    if shape == x.dims() { x.clone() } else { x.clone().expand(shape) }
}

/// Adds `a b` of each pair of matrices, `[.., m, k]` and `[.., k, n]`, to the first `m` rows of the
/// matrices of `into`, `[.., s, n]`: in place if the memory is exclusive. If the table does not
/// support the product, or there are gaps in `into`, the result is `None`, and `into` still has the
/// sum so far.
///
/// # Panics
/// If the shapes do not fit each other, or `into` is `None`.
pub fn add_product<T: Table, const D: usize>(
    table: &T,
    a: &Tensor<D>,
    b: &Tensor<D>,
    into: &mut Option<Tensor<D>>,
) -> Option<Tensor<D>> {
    let (a, b) = (table.operand(a.clone())?, table.operand(b.clone())?);
    let sums = table.operand(into.clone().expect("there is a sum"))?;
    // A copy, if it was of other strides.
    *into = Some(sums.tensor);
    let whole = sums.matrix;
    assert!(whole.rows >= a.matrix.rows, "{} rows are added to {}", a.matrix.rows, whole.rows);
    let has_gaps = into.as_ref().is_some_and(|sums| whole != Matrix::from_shape(&sums.dims(), whole.element));
    (!has_gaps).then_some(())?;
    let part = Matrix { rows: a.matrix.rows, ..whole };
    let product = Product::new(a.matrix, b.matrix, part.element, Compute::Float32)?.onto(part)?;
    let mut operands = Operands { c: into.take(), ..Operands::new(a.tensor, b.tensor) };
    let results = table.multiply(&product, &mut operands);
    *into = operands.c;
    results.map(|results| results.d)
}
