//! Tensors that a save copies from another checkpoint.

use std::sync::Arc;

use super::error::CheckpointError;
use super::fsio::CHUNK_BYTES;
use super::metadata::TensorRecord;
use super::reader::Checkpoint;
use super::snapshot::{ShardTensor, TensorStream};
use super::tensor::DType;

/// A tensor of another checkpoint.
struct Copied {
    checkpoint: Arc<Checkpoint>,
    name: String,
    dtype: DType,
    shape: Vec<usize>,
}

impl TensorStream for Copied {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        self.checkpoint.load_tensor(&self.name)?.bytes().chunks(CHUNK_BYTES).try_for_each(write)
    }
}

impl ShardTensor {
    /// A tensor of another checkpoint, read while it is written.
    ///
    /// # Errors
    /// If `checkpoint` has no tensor of that name.
    pub fn copied(checkpoint: &Arc<Checkpoint>, name: &str) -> Result<Self, CheckpointError> {
        let TensorRecord { dtype, shape, .. } = checkpoint.tensor(name)?;
        let copy =
            Copied { name: name.to_owned(), dtype: *dtype, shape: shape.clone(), checkpoint: checkpoint.clone() };
        Ok(Self::streamed(name, Arc::new(copy)))
    }
}
