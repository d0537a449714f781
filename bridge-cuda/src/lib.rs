//! What only NVIDIA devices have, and no GPU has run yet: experimental.

#[cfg(feature = "nccl")]
pub mod nccl;
