//! Kernels for the CPU, on plain float32 slices. Nothing here knows Burn, tensors or gradients graphs.
//!
//! Three rules hold in every file:
//! - work is cut into tasks by the shapes alone, never by the number of threads, and partial sums are added in task
//!   order: results are the same, bit for bit, from run to run and on any number of threads;
//! - inner loops are plain Rust that the compiler vectorises, compiled for the widest vector extension the machine has
//!   by `simd::vectorised!`;
//! - slices are row-major and contiguous unless a stride is given beside them.

pub mod activation;
pub mod attention;
mod attention_backward;
pub mod buffer;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod gemm;
pub mod linear;
pub mod norm;
pub mod optim;
pub mod rotary;
pub mod simd;
