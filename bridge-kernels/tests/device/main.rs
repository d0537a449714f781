//! The kernels of `cube` on a device: outputs and gradients against the references in plain Burn
//! operations, those on the CPU and those on the same device.
//!
//! Built only with a GPU feature (`cargo xtask test --device wgpu`), and then a device is needed:
//! without one all tests fail.
#![recursion_limit = "256"]

mod activation;
mod attention;
mod common;
mod cross_entropy;
mod cublaslt;
mod dropout;
mod embedding;
mod fp8;
mod graph;
mod grouped;
mod half;
mod linear;
mod norm;
mod offload;
#[path = "../operands/mod.rs"]
mod operands;
mod optim;
mod packed;
mod rotary;
mod state_space;
mod training;
