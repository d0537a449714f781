//! The data of a save. Writes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::error::CheckpointError;
use super::fsio::CHUNK_BYTES;
use super::tensor::{DType, HostTensor};
use super::train_state::TrainState;

/// The data that a checkpoint holds once, on any number of ranks.
#[derive(Debug, Clone, Default)]
pub struct RunFiles {
    /// The train state of the run; its `step` names the checkpoint.
    pub train_state: TrainState,
    /// The iteration with the lowest validation loss of those saved in this root, this one
    /// included; `None` where none is kept for that.
    pub best: Option<u64>,
    /// The resolved configuration, as TOML.
    pub run_config: String,
    /// Iteration of an older checkpoint that retention must not delete.
    pub protected: Option<u64>,
    /// Other small files by name, `/` between folders: those of the tokenizer, for example.
    pub files: BTreeMap<String, Bytes>,
}

/// Everything that one process saves. It owns, shares or makes its values, so that it can be
/// written in the background.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All data except tensors.
    pub run: RunFiles,
    /// Tensors by purpose.
    pub groups: Vec<TensorGroup>,
}

/// Group of tensors that belong to no parameter of the model: a run copies them from checkpoint to
/// checkpoint.
pub const CARRIED_GROUP: &str = "carried";

/// Tensors that are stored in separate shard files and can be listed separately.
#[derive(Debug, Clone)]
pub struct TensorGroup {
    /// Prefix of its shard files: `model`, `optimizer`.
    pub name: String,
    /// Tensors of the group.
    pub tensors: Vec<ShardTensor>,
}

/// A tensor, or the slice of it that this rank stores.
#[derive(Debug, Clone)]
pub struct ShardTensor {
    /// Name of the tensor, the same on all ranks and unique among all groups of the checkpoint.
    pub name: String,
    /// The shape of the whole tensor.
    pub global_shape: Vec<usize>,
    /// Offset of the slice in the whole tensor, per dimension.
    pub offset: Vec<usize>,
    /// Values of the tensor.
    pub source: Content,
}

/// The values of a tensor that is saved.
#[derive(Clone)]
pub enum Content {
    /// Values in memory.
    Memory(HostTensor),
    /// Values that are computed while they are written.
    Stream(Arc<dyn TensorStream>),
}

/// Makes the values of a tensor that need not be in memory as a whole.
pub trait TensorStream: Send + Sync {
    /// The type of its elements.
    fn dtype(&self) -> DType;

    /// Dimensions, slowest first.
    fn shape(&self) -> &[usize];

    /// Hands over its bytes, little-endian and row-major, piece by piece.
    ///
    /// # Errors
    /// Errors of `write`, and [`CheckpointError::InvalidTensor`] if the values cannot be made.
    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError>;
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype(), self.shape())
    }
}

impl Content {
    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Memory(tensor) => tensor.dtype(),
            Self::Stream(stream) => stream.dtype(),
        }
    }

    /// The dimensions, slowest first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Memory(tensor) => tensor.shape(),
            Self::Stream(stream) => stream.shape(),
        }
    }

    /// Number of bytes.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Memory(tensor) => tensor.bytes().len(),
            Self::Stream(stream) => stream.dtype().byte_len(stream.shape()).unwrap_or(usize::MAX),
        }
    }

    /// Hands over the bytes in pieces.
    pub(super) fn write(
        &self,
        write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        match self {
            Self::Memory(tensor) => tensor.bytes().chunks(CHUNK_BYTES).try_for_each(write),
            Self::Stream(stream) => {
                let mut rest = self.num_bytes();
                let wrong = || CheckpointError::InvalidTensor {
                    reason: format!("a stream of {self:?} has not as many bytes as it says"),
                };
                stream.write(&mut |bytes| {
                    rest = rest.checked_sub(bytes.len()).ok_or_else(wrong)?;
                    write(bytes)
                })?;
                if rest == 0 { Ok(()) } else { Err(wrong()) }
            }
        }
    }
}

impl ShardTensor {
    /// A whole tensor.
    pub fn whole(name: impl Into<String>, source: HostTensor) -> Self {
        Self::with_content(name.into(), Content::Memory(source))
    }

    /// A whole tensor whose values are made while they are written.
    pub fn streamed(name: impl Into<String>, stream: Arc<dyn TensorStream>) -> Self {
        Self::with_content(name.into(), Content::Stream(stream))
    }

    fn with_content(name: String, source: Content) -> Self {
        let global_shape = source.shape().to_vec();
        Self { name, offset: vec![0; global_shape.len()], global_shape, source }
    }

    /// The slice at `offset` of a tensor of `global_shape`. The save checks that it lies inside,
    /// and that the slices of all ranks tile the tensor.
    pub fn slice(
        name: impl Into<String>,
        global_shape: impl Into<Vec<usize>>,
        offset: impl Into<Vec<usize>>,
        source: HostTensor,
    ) -> Self {
        let source = Content::Memory(source);
        Self { name: name.into(), global_shape: global_shape.into(), offset: offset.into(), source }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.global_shape == self.source.shape()
    }
}
