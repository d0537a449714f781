//! Code that the operations' files `cpu.rs` share. CPU kernels work on plain slices of float32
//! or of any [`element::Element`], and know nothing of tensors or gradient graphs.
//!
//! Three rules hold in every such file:
//! - work is cut into tasks by the shapes alone, never by the number of threads, and partial sums
//!   are added in task order: results are the same, bit for bit, from run to run and on any number
//!   of threads (matrix products are cut by the number of threads, but not the sum of an element);
//! - inner loops are plain Rust that the compiler vectorises, compiled for the widest vector
//!   extension the machine has by `simd::vectorised!`; only products with bfloat16 use intrinsics;
//! - slices are row-major and contiguous unless a stride is given beside them.

pub(crate) mod bf16;
pub(crate) mod buffer;
pub(crate) mod documents;
pub(crate) mod element;
pub(crate) mod gemm;
pub(crate) mod matrix;
pub(crate) mod simd;
pub(crate) mod small;
#[cfg(test)]
mod tests;
