//! Values of tensors on the host.

use burn::tensor::{Tensor, TensorData, Transaction};

/// The values of tensors of one device, which is waited for once, not for each of them.
pub fn read_together<const D: usize>(tensors: Vec<Tensor<D>>) -> Vec<TensorData> {
    tensors.into_iter().fold(Transaction::default(), Transaction::register).execute()
}
