//! Names that the tables of most families use: [`Setting`] and [`WeightRule`] with their
//! constructors, fields of the decoder with their choices, and rows that families share.

pub(super) use bridge_core::config::{
    Activation, BlockOrder, NormPlacement, Normalization, OutputGateForm, QkNormScope, RouterDType, RouterScoreFunction,
};
pub(super) use serde_json::{Map, Value, json};

pub(super) use super::mixture::experts;
pub(super) use super::rows::{
    ATTENTION_BIAS, BLOCKS, HEAD_SIZE, HeadSizeOr, MLP_BIAS, ROPE, SIZES, SIZES_BESIDE_MLP, head_size,
    initializer_range, positions, rms_norm_epsilon, tied_embeddings,
};
pub(super) use crate::decoder::{
    DecoderConfig, HybridBlock, HybridConfig, LayerPattern, MoeConfig, PositionEmbedding, RopeConfig, RopeScaling,
};
pub(super) use crate::huggingface::Family;
pub(super) use crate::huggingface::error::HfError;
pub(super) use crate::huggingface::fields::Fields;
pub(super) use crate::huggingface::gguf::{GgufFamily, GgufName, GgufNumber, GgufSetting, GgufWindows, Rearrangement};
pub(super) use crate::huggingface::rope::{self, OriginalLength, RopeForm};
pub(super) use crate::huggingface::settings::{KeyGroup, Setting, USUAL_SOFTMAX_SCALE, size, size_from, size_or};
pub(super) use crate::huggingface::weight_map::{Fusion, LinearRows, WeightRule, rule, stacked};
pub(super) use crate::huggingface::windows;

/// A [`rule`] of names with these two beginnings: ours and that of the tensors.
macro_rules! prefixed {
    ($ours:literal, $theirs:literal, $megatron:literal, $($tensor:literal),+ $(,)?) => {
        $crate::huggingface::weight_map::rule(concat!($ours, $megatron), &[$(concat!($theirs, $tensor)),+])
    };
}

/// A [`rule`] of a layer: our name in `decoder.layers.{}.`, and the names of tensors in
/// `model.layers.{}.`.
macro_rules! layer {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "model.layers.{}.", $($name),+) };
}

/// [`layer`] where a layer of the file, a mixer and a feed-forward block, is two layers of ours.
macro_rules! half_layer {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "model.layers.{/2}.", $($name),+) };
}

pub(super) use {half_layer, layer, prefixed};
