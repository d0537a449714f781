//! Matrix products by a library that does more in one call than multiply: [`description`] describes
//! a product, a [`Table`] runs it.
//!
//! [`CublasLt`](cuda::CublasLt) (feature `cuda`) is NVIDIA's cuBLASLt, loaded at run time. The
//! stand-in of tests computes the product of the translated description on the host, element by
//! element, so that a wrong layout, transposition or epilogue shows without a GPU; one of the tests
//! on devices does that for tensors of CubeCL. Callers of a table: `linear/cublaslt.rs`,
//! `fp8/cublaslt.rs` and attention.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod description;
#[cfg(feature = "cube")]
pub mod on_device;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use description::{
    CODES_MULTIPLE, ColumnMajor, Compute, Element, Epilogue, Layout, Matrix, Operation, Order, Product,
};
pub use table::{Operand, Operands, Results, Table, add_product, multiply};
