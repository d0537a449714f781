//! Code for NVIDIA devices alone. Experimental: no GPU has run it yet.

#[cfg(feature = "nccl")]
pub mod nccl;
