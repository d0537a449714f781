//! The data of a save. Writes nothing.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::tensor::HostTensor;
use super::train_state::TrainState;

/// The data that a checkpoint holds once, on any number of ranks.
#[derive(Debug, Clone, Default)]
pub struct RunFiles {
    /// The train state of the run; its `step` names the checkpoint.
    pub train_state: TrainState,
    /// The iteration with the lowest validation loss of those saved in this root, this one included; `None` where none is kept for that.
    pub best: Option<u64>,
    /// The resolved configuration, as TOML.
    pub run_config: String,
    /// An older checkpoint that retention must leave.
    pub keeps: Option<u64>,
    /// Other small files by name, `/` between folders: those of the tokenizer, for example.
    pub files: BTreeMap<String, Bytes>,
}

/// Everything that one process saves. It owns or shares all memory, so that it can be written in the background.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All data except tensors.
    pub run: RunFiles,
    /// Tensors by purpose.
    pub groups: Vec<TensorGroup>,
}

/// Tensors that are stored in separate shard files and can be listed separately.
#[derive(Debug, Clone)]
pub struct TensorGroup {
    /// Prefix of its shard files: `model`, `optimizer`.
    pub name: String,
    /// Its tensors.
    pub tensors: Vec<ShardTensor>,
}

/// A tensor, or the slice of it that this rank stores.
#[derive(Debug, Clone)]
pub struct ShardTensor {
    /// Its name, the same on all ranks and unique among all groups of the checkpoint.
    pub name: String,
    /// The shape of the whole tensor.
    pub global_shape: Vec<usize>,
    /// Offset of the slice in the whole tensor, per dimension.
    pub offset: Vec<usize>,
    /// The memory of the slice.
    pub source: HostTensor,
}

impl ShardTensor {
    /// A whole tensor.
    pub fn whole(name: impl Into<String>, source: HostTensor) -> Self {
        let global_shape = source.shape().to_vec();
        Self { name: name.into(), offset: vec![0; global_shape.len()], global_shape, source }
    }

    /// The slice at `offset` of a tensor of `global_shape`. The save checks that it lies inside, and that the slices of all
    /// ranks tile the tensor.
    pub fn slice(
        name: impl Into<String>,
        global_shape: impl Into<Vec<usize>>,
        offset: impl Into<Vec<usize>>,
        source: HostTensor,
    ) -> Self {
        Self { name: name.into(), global_shape: global_shape.into(), offset: offset.into(), source }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.global_shape == self.source.shape()
    }
}
