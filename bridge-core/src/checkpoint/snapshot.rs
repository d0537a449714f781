//! What is handed over to be saved. Writes nothing.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::tensor::TensorSource;
use super::train_state::TrainState;

/// What a checkpoint holds once, however many ranks there are.
#[derive(Debug, Clone, Default)]
pub struct RunFiles {
    /// Where the run stands; its `step` names the checkpoint.
    pub train_state: TrainState,
    /// The resolved configuration, as TOML.
    pub run_config: String,
    /// Other small files by name, `/` between folders: those of the tokenizer, for example.
    pub files: BTreeMap<String, Bytes>,
}

/// Everything one process saves. With `'static` it owns or shares all memory and can be written in the background.
#[derive(Debug, Clone, Default)]
pub struct Snapshot<'a> {
    /// What is no tensor.
    pub run: RunFiles,
    /// Tensors by purpose.
    pub groups: Vec<TensorGroup<'a>>,
}

/// Tensors that are stored in shard files of their own, and can be listed apart from others.
#[derive(Debug, Clone)]
pub struct TensorGroup<'a> {
    /// Opens the names of its shard files: `model`, `optimizer`.
    pub name: String,
    /// Its tensors.
    pub tensors: Vec<ShardTensor<'a>>,
}

/// A tensor, or the slice of it that this rank stores.
#[derive(Debug, Clone)]
pub struct ShardTensor<'a> {
    /// Its name, the same on all ranks and unique among all groups of the checkpoint.
    pub name: String,
    /// The shape of the whole tensor.
    pub global_shape: Vec<usize>,
    /// Where the slice begins in the whole tensor, per dimension.
    pub offset: Vec<usize>,
    /// The memory of the slice.
    pub source: TensorSource<'a>,
}

impl<'a> ShardTensor<'a> {
    /// All of a tensor.
    pub fn whole(name: impl Into<String>, source: impl Into<TensorSource<'a>>) -> Self {
        let source = source.into();
        let global_shape = source.shape().to_vec();
        Self { name: name.into(), offset: vec![0; global_shape.len()], global_shape, source }
    }

    /// The part of a tensor of `global_shape` that begins at `offset`. Whether it lies inside, and whether the parts of
    /// all ranks make up the tensor, is checked when it is saved.
    pub fn slice(
        name: impl Into<String>,
        global_shape: impl Into<Vec<usize>>,
        offset: impl Into<Vec<usize>>,
        source: impl Into<TensorSource<'a>>,
    ) -> Self {
        Self { name: name.into(), global_shape: global_shape.into(), offset: offset.into(), source: source.into() }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.global_shape == self.source.shape()
    }
}
