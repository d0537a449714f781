//! Kernels for the CPU, on plain float32 slices. Nothing here knows Burn, tensors or gradients graphs.
//!
//! Three rules hold in every file:
//! - work is cut into tasks by the shapes alone, never by the number of threads, and partial sums are added in task
//!   order: results are the same, bit for bit, from run to run and on any number of threads (matrix products are cut by
//!   the number of threads, but not the sum of an element);
//! - inner loops are plain Rust that the compiler vectorises, compiled for the widest vector extension the machine has
//!   by `simd::vectorised!`;
//! - slices are row-major and contiguous unless a stride is given beside them.

pub(crate) mod activation;
pub(crate) mod attention;
mod attention_backward;
pub(crate) mod buffer;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod gemm;
pub(crate) mod heads;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod rotary;
pub(crate) mod simd;
#[cfg(test)]
mod tests;
pub(crate) mod vocab_parallel_cross_entropy;
