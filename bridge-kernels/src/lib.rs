//! Fused operations for language-model training on Burn.
//!
//! One folder an operation:
//! - `mod.rs`: a public function on Burn tensors, which picks the implementation by the tensor's
//!   device and documents shapes, and a `reference` made of plain Burn operations, which runs, with
//!   gradients, on every backend;
//! - `cpu.rs`: kernels on slices of float32, many of bfloat16 too; `flex.rs`: their connection to
//!   tensors of the Flex backend; `cube.rs`: kernels for GPUs. They exist if they are faster, with
//!   a hand-written backward, attached to the graph by [`vjp`];
//! - a file for their shared types: options, states, tables.
//!
//! Code that operations share is in the folders `cpu`, `flex` and `cube`.
//!
//! This crate knows no model, recipe or rank.
//!
//! Shape legend used throughout: `b` batch, `t` sequence, `s` key sequence, `h` query heads, `g`
//! key/value heads, `d` head size, `c` hidden size, `f` feed-forward size, `v` vocabulary, `n`
//! tokens (`b * t`).

#[cfg(all(feature = "cube", not(any(feature = "cuda", feature = "vulkan", feature = "wgpu"))))]
compile_error!("the feature `cube` is turned on by `cuda`, `vulkan` or `wgpu`; alone it has no runtime");

pub mod activation;
pub mod attention;
pub mod causal_conv;
mod cpu;
pub mod cross_entropy;
#[cfg(feature = "cube")]
mod cube;
#[cfg(any(test, feature = "cube"))]
pub mod cublaslt;
pub mod dropout;
pub mod embedding;
mod flex;
#[cfg(feature = "cuda")]
pub mod foreign;
pub mod fp8;
pub mod gated_delta_rule;
pub mod gated_norm;
pub mod graph;
pub mod grouped;
pub mod linear;
pub mod low_rank;
pub mod norm;
pub mod offload;
pub mod optim;
pub mod packed_attention;
mod precision;
pub mod quantized;
pub mod random;
mod reads;
pub mod recomputable;
pub mod recompute;
pub mod rotary;
pub mod selective_scan;
pub mod split;
pub mod ssd_scan;
pub mod vjp;
pub mod vocab_parallel_cross_entropy;

pub use bridge_memory as memory;

pub use activation::{
    Activation, FeedForwardUnit, GatedUnit, XieluParameters, activation, activation_recomputable, glu,
    glu_recomputable, xielu,
};
pub use attention::{AttentionOptions, KeyChoice, MaxLogit, MaxLogitProbe, attention, mark_best};
pub use causal_conv::{causal_conv, linear_causal_conv};
pub use cross_entropy::{
    CrossEntropyOptions, OutputLayer, TokenAccuracy, linear_cross_entropy, linear_cross_entropy_counting,
};
pub use dropout::{DropoutKey, dropout};
pub use embedding::embedding;
pub use flex::address_on_cpu;
pub use fp8::{CodePlaces, Fp8Format, Fp8Pass, Fp8Rule, Fp8Scaling, OperandMaxima, WeightCast, fp8_linear};
pub use gated_delta_rule::{DeltaInputs, DeltaOptions, gated_delta_rule, gated_delta_rule_from};
pub use gated_norm::gated_rms_norm;
pub use grouped::{GroupedLinear, GroupedMlp, grouped_linear, grouped_mlp};
pub use linear::deferred::{WeightGradient, linear_deferred};
pub use linear::{linear, linear_activation, linear_glu, linear_of_activation, linear_of_glu, linear_residual};
pub use low_rank::{LowRank, LowRankSum, linear_low_rank, low_rank_row_squares, low_rank_sum};
pub use norm::{layer_norm, residual_layer_norm, residual_rms_norm, rms_norm};
pub use packed_attention::{PackedHeads, packed_attention};
pub use precision::cast;
pub use quantized::{CodeFormat, LinearWeight, Quantization, QuantizedMatrix, linear_weighted};
pub use random::Philox;
pub use reads::read_together;
pub use recomputable::{Recomputable, Recompute};
pub use recompute::recomputed;
pub use rotary::{RotaryTable, apply_rotary};
pub use selective_scan::{SelectiveInputs, selective_scan, selective_scan_from};
pub use split::split;
pub use ssd_scan::{ScanInputs, ScanOptions, ssd_scan, ssd_scan_from};
pub use vocab_parallel_cross_entropy::vocab_parallel_cross_entropy;
