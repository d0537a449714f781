//! Composition of a parameter from tensors: shapes of the tensors, and the order of the parameter's
//! rows in them.

use std::ops::Range;

use super::rules::{Storage, WeightRule};
use crate::architecture::config::LinearAttentionConfig;
use crate::decoder::DecoderConfig;

/// Composition of a parameter from tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// One unchanged tensor.
    Single,
    /// One tensor with a row a token, padded with zero rows.
    Vocabulary,
    /// One tensor without dimensions, of a parameter with one element.
    Scalar,
    /// One tensor with one row, `[1, columns]`, of a vector.
    Row,
    /// One tensor with the taps of a channel in a row, `[channels, 1, taps]`.
    Convolution,
    /// Rows of query, key and value from a tensor each.
    Qkv,
    /// Rows of query, key and value from one tensor that has all queries first, then keys, then
    /// values.
    PackedQkv,
    /// The same three tensors, where the first has the rows of a query head, then those of its
    /// gate, and so on.
    GatedQkv,
    /// One tensor with a row of weights a head, `[heads, head size]`, of a vector of all.
    HeadRows,
    /// A tensor a head, of a vector of all; `{head}` in the name is the number of the head.
    EachHead,
    /// Rows of the gate, then of the other half, from a tensor each.
    GateUp,
    /// One tensor with interleaved rows of the gate and of the other half.
    Alternating,
    /// Rows of linear attention from several tensors, one after the other, with these numbers of
    /// rows.
    Linear(&'static [LinearRows]),
    /// Rows of linear attention from two tensors that are ordered by key heads: for each its
    /// queries, keys, values and gates in the first, its betas and decays in the second.
    LinearByHead,
    /// Taps of linear attention's channels, `[channels, 1, taps]`, from several tensors with these
    /// numbers of channels.
    LinearConvolution(&'static [LinearRows]),
    /// One tensor with a number a head, `[1, 1, heads, 1]`.
    PerHead,
}

impl Fusion {
    /// The parameter's rows in order, as ranges of the rows of its tensors one after the other, of
    /// which there are `stored`, and the step from row to row in each. Only ranges within one
    /// tensor have another step than 1.
    pub(super) fn order(self, heads: Heads, linear: LinearSizes, stored: usize) -> Vec<(Range<usize>, usize)> {
        match self {
            Self::Single
            | Self::Scalar
            | Self::Row
            | Self::Convolution
            | Self::Vocabulary
            | Self::GateUp
            | Self::Linear(_)
            | Self::LinearConvolution(_)
            | Self::PerHead
            | Self::HeadRows
            | Self::EachHead => vec![(0..stored, 1)],
            Self::LinearByHead => linear.rows_by_head().map(|rows| (rows, 1)).collect(),
            Self::GatedQkv => heads.stored_rows_with_gates().map(|rows| (rows, 1)).collect(),
            Self::Alternating => vec![(0..stored, 2), (1..stored, 2)],
            Self::Qkv | Self::PackedQkv => heads.stored_rows().map(|rows| (rows, 1)).collect(),
        }
    }
}

impl WeightRule {
    /// Shapes of the stored tensors of a parameter of shape `shape`.
    pub(super) fn tensor_shapes(&self, shape: &[usize], heads: Heads, sizes: Sizes) -> Vec<Vec<usize>> {
        let (Sizes { linear, vocab_size, .. }, d) = (sizes, heads.head_size);
        let (queries, keys) = (heads.groups * heads.queries_per_group * d, heads.groups * d);
        let rows = match self.fusion {
            Fusion::Single | Fusion::PackedQkv | Fusion::Alternating => vec![shape[0]],
            Fusion::Scalar => return vec![Vec::new()],
            Fusion::Row => return vec![vec![1, shape[0]]],
            Fusion::Convolution => return vec![vec![shape[0], 1, shape[1]]],
            Fusion::Vocabulary => vec![vocab_size],
            Fusion::Qkv => vec![queries, keys, heads.groups * heads.value_size],
            Fusion::GatedQkv => vec![2 * queries, keys, keys],
            Fusion::HeadRows => return vec![vec![shape[0] / d, d]],
            Fusion::EachHead => vec![d; shape[0] / d],
            Fusion::GateUp => vec![shape[0] / 2; 2],
            Fusion::Linear(parts) => parts.iter().map(|part| part.count(linear)).collect(),
            Fusion::LinearByHead => {
                let of_heads = 2 * linear.value_heads;
                vec![shape[0] - of_heads, of_heads]
            }
            Fusion::LinearConvolution(parts) => {
                return parts.iter().map(|part| vec![part.count(linear), 1, shape[1]]).collect();
            }
            Fusion::PerHead => return vec![vec![1, 1, shape[0], 1]],
        };
        rows.into_iter()
            .map(|rows| match (shape.get(1), self.storage) {
                (None, _) => vec![rows],
                (Some(columns), Storage::RowsAreOutputs) => vec![rows, *columns],
                (Some(columns), Storage::RowsAreInputs) => vec![*columns, rows],
            })
            .collect()
    }
}

/// Sizes that a map needs besides those of the parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) linear: LinearSizes,
    pub(super) vocab_size: usize,
    pub(super) num_experts: usize,
    pub(super) num_identity_experts: usize,
    pub(super) num_layers: usize,
    /// Layers of multi-token prediction.
    pub(super) num_predictions: usize,
}

/// Number of rows of a part of linear attention's projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearRows {
    /// All queries, or all keys.
    Keys,
    /// All values, or all gates.
    Values,
    /// Queries, keys and values.
    Mixed,
    /// A row for each value head.
    Heads,
    /// The decays.
    Decays,
}

impl LinearRows {
    /// Queries, keys and values from a tensor each.
    pub const QKV: &[Self] = &[Self::Keys, Self::Keys, Self::Values];
    /// All parts from a tensor each: queries, keys, values, gates, betas and decays.
    pub const ALL: &[Self] = &[Self::Keys, Self::Keys, Self::Values, Self::Values, Self::Heads, Self::Decays];

    fn count(self, linear: LinearSizes) -> usize {
        let (keys, values) = (linear.key_heads * linear.key_size, linear.value_heads * linear.value_size);
        match self {
            Self::Keys => keys,
            Self::Values => values,
            Self::Mixed => 2 * keys + values,
            Self::Heads => linear.value_heads,
            Self::Decays => linear.value_heads * linear.decays,
        }
    }
}

/// Sizes that say how query, key and value rows interleave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) groups: usize,
    pub(super) queries_per_group: usize,
    pub(super) head_size: usize,
    pub(super) value_size: usize,
}

impl Heads {
    /// The heads of a layer with this configuration of attention.
    pub(super) fn new(config: &DecoderConfig) -> Self {
        Self {
            groups: config.num_query_groups,
            queries_per_group: config.num_attention_heads / config.num_query_groups,
            head_size: config.kv_channels,
            value_size: config.value_size(),
        }
    }

    /// Row ranges of `[queries, keys, values]` in the order of the fused projection: for each group
    /// its queries, its key and its value.
    pub(super) fn stored_rows(self) -> impl Iterator<Item = Range<usize>> {
        let Self { groups, queries_per_group, head_size, value_size } = self;
        let keys = groups * queries_per_group * head_size;
        let values = keys + groups * head_size;
        let queries = queries_per_group * head_size;
        (0..groups).flat_map(move |group| {
            [
                group * queries..(group + 1) * queries,
                keys + group * head_size..keys + (group + 1) * head_size,
                values + group * value_size..values + (group + 1) * value_size,
            ]
        })
    }

    /// Row ranges of `[queries with gates, keys, values]` in the order of the fused projection: for
    /// each group its queries, their gates, its key and its value.
    pub(super) fn stored_rows_with_gates(self) -> impl Iterator<Item = Range<usize>> {
        let Self { groups, queries_per_group, head_size: d, .. } = self;
        let keys = 2 * groups * queries_per_group * d;
        let values = keys + groups * d;
        (0..groups).flat_map(move |group| {
            let heads = group * queries_per_group..(group + 1) * queries_per_group;
            let begins = move |offset: usize| heads.clone().map(move |head| 2 * head * d + offset);
            let shared = [keys + group * d, values + group * d];
            begins(0).chain(begins(d)).chain(shared).map(move |begin| begin..begin + d)
        })
    }
}

/// Sizes of linear attention; zero where no layer has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinearSizes {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    /// Decays of a value head.
    pub(super) decays: usize,
}

impl LinearSizes {
    pub(super) fn new(linear: &LinearAttentionConfig) -> Self {
        Self {
            key_heads: linear.num_key_heads,
            value_heads: linear.num_value_heads,
            key_size: linear.key_head_size,
            value_size: linear.value_head_size,
            decays: linear.decay_size() / linear.num_value_heads,
        }
    }

    /// Row ranges of queries, keys, values, gates, betas and decays in two tensors that are ordered
    /// by key heads.
    pub(super) fn rows_by_head(self) -> impl Iterator<Item = Range<usize>> {
        let times = self.value_heads / self.key_heads;
        let (keys, values) = (self.key_size, times * self.value_size);
        let of_head = 2 * (keys + values);
        let first = [(0, keys), (keys, keys), (2 * keys, values), (2 * keys + values, values)];
        let second = [(0, times), (times, times)];
        let begin = self.key_heads * of_head;
        let parts = first.map(|part| (0, of_head, part)).into_iter().chain(second.map(|part| (begin, 2 * times, part)));
        parts.flat_map(move |(begin, of_head, (start, count))| {
            (0..self.key_heads).map(move |head| begin + head * of_head + start).map(move |row| row..row + count)
        })
    }
}
