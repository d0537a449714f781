//! The products of attention, by a table that writes float32 where a kernel reads them next, or by
//! Burn.

use burn::tensor::{DType, Tensor};

use super::parts::Part;
use crate::cublaslt::{Element, Table, add_product, multiply};
use crate::precision::{narrow, widen};

/// Matrix products by a table, and by Burn for products that the table does not have.
#[derive(Clone)]
pub(super) struct Products<T>(pub Option<T>);

impl<T: Table> Products<T> {
    fn multiply(&self, a: &Tensor<4>, b: &Tensor<4>, result: DType) -> Option<Tensor<4>> {
        multiply(self.0.as_ref()?, a, b, Element::from_dtype(result)?)
    }

    /// `a b` in float32; by Burn, stored as the factors are.
    pub fn wide(&self, a: &Tensor<4>, b: &Tensor<4>) -> Tensor<4> {
        self.multiply(a, b, DType::F32).unwrap_or_else(|| a.clone().matmul(b.clone()))
    }

    /// Several products as [`Self::wide`] makes them, all of one dtype.
    pub fn wide_alike<const N: usize>(&self, pairs: [[&Tensor<4>; 2]; N]) -> [Tensor<4>; N] {
        let products = pairs.map(|[a, b]| self.wide(a, b));
        let is_any_wide = products.iter().any(|product| product.dtype() == DType::F32);
        products.map(|product| if is_any_wide { widen(product) } else { product })
    }

    /// `a b`, stored as the factors are.
    pub fn narrow(&self, a: &Tensor<4>, b: &Tensor<4>) -> Tensor<4> {
        self.multiply(a, b, a.dtype()).unwrap_or_else(|| a.clone().matmul(b.clone()))
    }

    /// `x` as a table takes it, so that a factor of several products is copied at most once.
    pub fn operand(&self, x: Tensor<4>) -> Tensor<4> {
        let operand = self.0.as_ref().and_then(|table| table.operand(x.clone()));
        operand.map_or(x, |operand| operand.tensor)
    }

    /// See [`add_product`].
    fn add(&self, a: &Tensor<4>, b: &Tensor<4>, into: &mut Option<Tensor<4>>) -> Option<Tensor<4>> {
        add_product(self.0.as_ref()?, a, b, into)
    }
}

/// Gradients of keys or values, added up in float32 over the parts of some sequences, and rounded
/// when these are through.
pub(super) struct Sums {
    /// Key/value heads, keys, columns.
    shape: [usize; 3],
    dtype: DType,
    /// Gradient of the sequences in progress, `[batches, g, s, columns]`.
    open: Option<Tensor<4>>,
    /// `[batches, s, g, columns]`.
    done: Vec<Tensor<4>>,
}

impl Sums {
    pub fn new(shape: [usize; 3], dtype: DType) -> Self {
        Self { shape, dtype, open: None, done: Vec::new() }
    }

    /// Adds a part's term of the sums for its keys: `own^T` `[batches, g, keys, rows]` times `rows`
    /// `[batches, g, rows, columns]`.
    pub fn add<T: Table>(&mut self, products: &Products<T>, part: &Part, own: &Tensor<4>, rows: &Tensor<4>) {
        let [g, s, columns] = self.shape;
        if part.query == 0 {
            self.close();
        }
        let zeros = || Tensor::zeros([part.batches, g, s, columns], (&own.device(), DType::F32));
        let (own, mut so_far) = (own.clone().transpose(), Some(self.open.take().unwrap_or_else(zeros)));
        // Parts begin at the first key, but for windows.
        if part.key == 0
            && let Some(sum) = products.add(&own, rows, &mut so_far)
        {
            self.open = Some(sum);
            return;
        }
        let sum = so_far.expect("what has no result leaves the sum");
        let keys = part.key..part.key + part.keys;
        let whole = sum.clone().narrow(2, part.key, part.keys) + widen(products.wide(&own, rows));
        self.open = Some(sum.slice_assign([0..part.batches, 0..g, keys, 0..columns], whole));
    }

    fn close(&mut self) {
        let sum = self.open.take();
        self.done.extend(sum.map(|sum| narrow(sum, self.dtype).permute([0, 2, 1, 3])));
    }

    pub fn finish(mut self) -> Tensor<4> {
        self.close();
        Tensor::cat(self.done, 0)
    }
}
