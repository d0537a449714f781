//! Bit-exact ports of the random streams that fix Megatron's sample order (numpy's legacy
//! `RandomState`, numpy's `default_rng`, PyTorch's `randperm`). Datasets and model initialization
//! do not belong here.

mod mt19937;
mod pcg64;

pub use mt19937::{RandomState, SeedError, torch_randperm};
pub use pcg64::Pcg64;

#[cfg(test)]
mod tests;
