//! The parts of a linear layer that makes several things at once: which rows they are, in the whole
//! layer and on a rank.
//!
//! Shape legend: `n` rows of input, `o` a rank's rows of a weight, `g` a rank's key/value groups.

use std::ops::Range;

use bridge_core::model::{LinearLayer, TensorPartition};
use burn::tensor::Tensor;

/// Division of a layer's rows into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// The layer has one output and is not fused.
    One,
    /// Queries, keys and values: the rows of `groups` groups, each its query heads, a key and a
    /// value head of `head_sizes` rows. With `gates` the rows of queries are followed by as many of
    /// their gates, which are of the same part.
    Heads { groups: usize, head_sizes: [usize; 2], gates: bool },
    /// A gate and the linear term that it multiplies, one after the other.
    Gated,
}

impl Parts {
    pub fn from_layer(layer: &LinearLayer) -> Self {
        match layer.cut {
            TensorPartition::KeyValueGroups { groups, head_sizes, gates } => Self::Heads { groups, head_sizes, gates },
            TensorPartition::Blocks(2) => Self::Gated,
            TensorPartition::Replicated(_)
            | TensorPartition::Rows
            | TensorPartition::Columns
            | TensorPartition::Blocks(_)
            | TensorPartition::Sections(_)
            | TensorPartition::KeyHeads { .. }
            | TensorPartition::GatedQueries { .. }
            | TensorPartition::VocabularyRows => Self::One,
        }
    }

    /// The names of the parts, as Megatron calls layers that make one each. `layer` is the short
    /// name of the layer.
    pub fn names(self, layer: &str) -> Vec<String> {
        match self {
            Self::One => Vec::new(),
            Self::Heads { .. } => ["linear_q", "linear_k", "linear_v"].map(str::to_owned).to_vec(),
            Self::Gated => ["gate", "up"].map(|part| format!("{layer}_{part}")).to_vec(),
        }
    }

    /// The rows of a part of a layer of `outputs` rows.
    pub fn rows(self, part: usize, outputs: usize) -> usize {
        match self {
            Self::One => outputs,
            Self::Heads { groups, head_sizes, .. } => groups * in_group(outputs / groups, head_sizes)[part],
            Self::Gated => outputs / 2,
        }
    }

    /// Sharding of a part, if the layer is sharded by its own rule.
    pub fn cut(self, part: usize, layer: &LinearLayer) -> TensorPartition {
        match self {
            Self::One => layer.cut_by_outputs(),
            Self::Heads { groups, .. } if part > 0 => TensorPartition::KeyHeads { heads: groups },
            Self::Heads { groups, gates: true, .. } => TensorPartition::GatedQueries { groups },
            Self::Heads { .. } | Self::Gated => TensorPartition::Rows,
        }
    }

    /// The parts on one of `ranks` ranks.
    pub fn on_rank(self, ranks: usize) -> Self {
        match self {
            Self::Heads { groups, head_sizes, gates } => {
                Self::Heads { groups: (groups / ranks).max(1), head_sizes, gates }
            }
            Self::One | Self::Gated => self,
        }
    }

    /// The rows of `weight_oi` that are a part, in their order.
    pub fn select(self, part: usize, weight_oi: Tensor<2>) -> Tensor<2> {
        let [outputs, inputs] = weight_oi.dims();
        match self {
            Self::One => weight_oi,
            Self::Gated => weight_oi.narrow(0, part * (outputs / 2), outputs / 2),
            Self::Heads { groups, head_sizes, .. } => {
                let of_group = outputs / groups;
                let counts = in_group(of_group, head_sizes);
                let (first, count) = (counts[..part].iter().sum(), counts[part]);
                let grouped = weight_oi.reshape([groups, of_group, inputs]).narrow(1, first, count);
                grouped.reshape([groups * count, inputs])
            }
        }
    }

    /// Positions of a part's rows among `outputs`, in their order.
    pub fn places(self, part: usize, outputs: usize) -> Vec<Range<usize>> {
        // Where the first begins, how many rows each has, how far they are apart, how many there
        // are.
        let (first, count, apart, times) = match self {
            Self::One => (0, outputs, outputs, 1),
            Self::Gated => (part * (outputs / 2), outputs / 2, outputs, 1),
            Self::Heads { groups, head_sizes, .. } => {
                let of_group = outputs / groups;
                let counts = in_group(of_group, head_sizes);
                let (first, count) = (counts[..part].iter().sum(), counts[part]);
                (first, count, of_group, groups)
            }
        };
        (0..times).map(|group| group * apart + first).map(|begin| begin..begin + count).collect()
    }

    /// The columns of all parts, `[n, rows of the part]` each, in the order of a layer's `outputs`;
    /// `fill` where a part has none.
    ///
    /// # Panics
    /// If no part has any.
    pub fn join(self, parts_no: Vec<Option<Tensor<2>>>, outputs: usize, fill: f64) -> Tensor<2> {
        let some = parts_no.iter().flatten().next().expect("a layer with branches has one");
        let (n, options) = (some.dims()[0], (&some.device(), some.dtype()));
        let filled = |part: Option<Tensor<2>>, count| part.unwrap_or_else(|| Tensor::full([n, count], fill, options));
        match self {
            Self::One => parts_no.into_iter().flatten().next().expect("the layer's only part"),
            Self::Gated => {
                let halves = parts_no.into_iter().map(|part| filled(part, outputs / 2)).collect();
                Tensor::cat(halves, 1)
            }
            Self::Heads { groups, head_sizes, .. } => {
                let counts = in_group(outputs / groups, head_sizes);
                let grouped = |(part, count): (Option<Tensor<2>>, usize)| {
                    filled(part, groups * count).reshape([n, groups, count])
                };
                let parts_ngo: Vec<Tensor<3>> = parts_no.into_iter().zip(counts).map(grouped).collect();
                Tensor::cat(parts_ngo, 2).reshape([n, outputs])
            }
        }
    }
}

/// Rows of queries, of the key and of the value among the `rows` of a group.
fn in_group(rows: usize, [key, value]: [usize; 2]) -> [usize; 3] {
    [rows - key - value, key, value]
}
