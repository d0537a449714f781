//! The optimizer's kernels for GPUs, each of which takes many tensors a launch (`many`): sums of
//! gradients, AdamW and sums of squares.

mod adamw;
mod many;
mod squares;
mod sums;

use burn::tensor::Tensor;

pub use adamw::{Updates, applies_to};
pub use squares::{BlockSums, Index};
pub use sums::{Sums, adds};

use crate::cube::Buffer;

/// True if the kernels of this folder read the gradient, of 16 or 32 bits.
pub fn reads(gradient: &Tensor<1>) -> bool {
    !gradient.is_autodiff() && Buffer::from_tensor(gradient).is_some()
}

fn is_plain_f32(x: &Tensor<1>) -> bool {
    !x.is_autodiff() && Buffer::from_f32(x).is_some()
}
