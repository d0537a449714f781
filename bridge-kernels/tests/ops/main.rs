//! Each operation against float64 arithmetic, against its reference in plain Burn operations, and
//! against itself on other numbers of threads.

mod activation;
mod attention;
mod common;
mod cross_entropy;
mod delta_rule;
mod dropout;
mod embedding;
mod grouped;
mod half;
mod linear;
mod linear_deferred;
mod low_rank;
mod norm;
#[path = "../operands/mod.rs"]
mod operands;
mod optim;
mod optim_blocks;
mod optim_low_precision;
mod packed_attention;
mod plain;
mod quantized;
mod rotary;
mod state_space;
mod vjp;
mod vocab_parallel_cross_entropy;
