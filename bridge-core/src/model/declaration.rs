//! Declaration of a parameter: made once, where the block that owns it is built (see
//! [`Scope`](super::Scope)), and read by all others.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use bridge_kernels::Quantization;
use burn::module::ParamId;
use serde::Serialize;

use super::{
    DelayedScalingLayer, ModelBuildError, PassStream, Placement, QuantizedValues, RankPlace, ReplicaGroup, Segment,
    Shard, SharedRows,
};

/// Role of a parameter in its block. It decides on weight decay and separate learning rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRole {
    /// The matrix of a product, or any other value that is learned like one.
    Weight,
    /// Added to a product or to a normalized value.
    Bias,
    /// Factors of a norm.
    Norm,
    /// Factors of a norm of queries or keys (`optimizer.apply_wd_to_qk_layernorm` applies).
    QueryKeyNorm,
    /// Table of word or position vectors (`optimizer.decoupled_lr` applies).
    Embedding,
    /// The output projection (`optimizer.decoupled_lr` applies).
    Output,
    /// Values of channels that no product reads as a matrix: taps of a convolution, decay rates.
    Channels,
    /// Added to a router's scores of experts for the choice: not trained, but moved by how many
    /// tokens each expert was given (`model.moe_router_bias_update_rate`), in float32
    /// ([`Declaration::is_float32`]).
    ExpertBias,
    /// Scales of 8-bit operands and their history (`model.fp8_recipe = "delayed"`): not trained,
    /// updated after each step from the operands' magnitudes, in float32
    /// ([`Declaration::is_float32`]).
    CastState,
}

/// Part of a model that a parameter belongs to, for counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// Word and position embedding.
    Embedding,
    /// Blocks that mix tokens: query-key-value and output projection of attention.
    Attention,
    /// Blocks that mix tokens by a state that goes through the sequence.
    StateSpace,
    /// Feed-forward blocks that every token passes.
    Mlp,
    /// Routed experts.
    Experts,
    /// Routers.
    Router,
    /// Norms.
    Norm,
    /// The output projection, where it is not the word embedding.
    Output,
}

impl Component {
    /// Every component.
    pub const ALL: [Self; 8] = [
        Self::Embedding,
        Self::Attention,
        Self::StateSpace,
        Self::Mlp,
        Self::Experts,
        Self::Router,
        Self::Norm,
        Self::Output,
    ];

    /// Name of the part.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::StateSpace => "state_space",
            Self::Mlp => "mlp",
            Self::Experts => "experts",
            Self::Router => "router",
            Self::Norm => "norm",
            Self::Output => "output",
        }
    }
}

/// Tokens or heads that a replicated parameter is applied to on a rank, which decides whether the
/// rank's gradient of it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientScope {
    /// The residual stream: all tokens, or under sequence parallelism those of this rank, so that
    /// gradients are then summed.
    ResidualStream,
    /// Values of this rank alone, such as its heads: gradients are always summed over the
    /// tensor-parallel ranks.
    OwnPart,
}

/// Sharding of a parameter over the tensor-parallel ranks; inside an expert, over the
/// expert-tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorPartition {
    /// Each rank holds all of it.
    Replicated(GradientScope),
    /// Equal runs of rows: the outputs of a column-parallel linear layer.
    Rows,
    /// Equal runs of columns: the inputs of a row-parallel linear layer.
    Columns,
    /// Equal runs of the rows of each of this number of equal blocks: the halves of a gated unit.
    Blocks(usize),
    /// Equal runs of the rows of each of these blocks, with their numbers of rows: outputs of one
    /// matrix for several uses. Empty sections are skipped.
    Sections([usize; 6]),
    /// Rows of this number of key/value groups, each with its query heads, a key and a value head.
    /// With more ranks than groups several ranks hold the same key and value
    /// heads ([`SharedRows`]).
    KeyValueGroups {
        /// Key/value heads.
        groups: usize,
        /// Rows of a key head, and of a value head.
        head_sizes: [usize; 2],
        /// True if each group also has a gate a query head, after the query heads.
        gates: bool,
    },
    /// Rows of this number of groups, each with its query heads, then as many gates.
    GatedQueries {
        /// Groups of query heads.
        groups: usize,
    },
    /// Rows of this number of key heads. With more ranks than heads several ranks hold the same one
    /// ([`SharedRows`]).
    KeyHeads {
        /// Key heads.
        heads: usize,
    },
    /// Rows of a vocabulary, which need not divide: padding must not depend on the ranks, or a
    /// checkpoint would.
    VocabularyRows,
}

impl TensorPartition {
    /// Placement of a parameter of shape `shape` with this sharding.
    ///
    /// # Panics
    /// If a dimension that must divide over the ranks does not; builders refuse such sizes.
    pub fn placement(self, shape: &[usize], place: &RankPlace, replicas: ReplicaGroup) -> Placement {
        let group = match replicas {
            ReplicaGroup::Dense => place.tensor,
            ReplicaGroup::Expert => place.expert_tensor,
        };
        let whole = Placement { replicas, ..Placement::default() };
        if group.size == 1 {
            return whole;
        }
        let cut = |shard: Shard| Placement { shard: Some(shard), ..whole.clone() };
        let even = |dim: usize, blocks: usize| cut(Shard::even(dim, shape[dim], blocks, group.rank, group.size));
        match self {
            Self::Replicated(meets) => {
                Placement { partial_gradient: place.sequence_parallel || meets == GradientScope::OwnPart, ..whole }
            }
            Self::Rows => even(0, 1),
            Self::Columns => even(1, 1),
            Self::Blocks(blocks) => even(0, blocks),
            Self::Sections(rows) => cut(Shard::sections(0, &rows, group.rank, group.size)),
            Self::KeyValueGroups { groups, .. } | Self::GatedQueries { groups } if group.size <= groups => even(0, 1),
            Self::GatedQueries { groups } => {
                let rows =
                    SharedRows { count: 0, ranks: group.size / groups, rank: group.rank % (group.size / groups) };
                cut(part_of_group(shape[0], groups, group.rank, rows, 2))
            }
            Self::KeyValueGroups { groups, head_sizes: [keys, values], gates } => {
                let rows = SharedRows {
                    count: keys + values,
                    ranks: group.size / groups,
                    rank: group.rank % (group.size / groups),
                };
                let blocks = if gates { 2 } else { 1 };
                Placement { shared: Some(rows), ..cut(part_of_group(shape[0], groups, group.rank, rows, blocks)) }
            }
            Self::KeyHeads { heads } if group.size <= heads => even(0, 1),
            Self::KeyHeads { heads } => {
                let (ranks, size) = (group.size / heads, shape[0] / heads);
                let rows = SharedRows { count: size, ranks, rank: group.rank % ranks };
                let start = group.rank / ranks * size;
                let whole_head =
                    Shard { dim: 0, size: shape[0], parts: std::iter::once(start..start + size).collect() };
                Placement { shared: Some(rows), ..cut(whole_head) }
            }
            Self::VocabularyRows => cut(Shard::balanced(0, shape[0], group.rank, group.size)),
        }
    }
}

/// Rows of one of `groups` that `rank` holds: its part of each of the equal `blocks` of query heads
/// and gates, and `rows` of key and value.
fn part_of_group(size: usize, groups: usize, rank: usize, rows: SharedRows, blocks: usize) -> Shard {
    let of_group = size / groups;
    let start = rank / rows.ranks * of_group;
    let block = (of_group - rows.count) / blocks;
    let part = block / rows.ranks;
    let firsts = (0..blocks).map(|number| start + number * block + rows.rank * part);
    let shared = start + blocks * block..start + of_group;
    let parts = firsts.map(|first| first..first + part).chain(Some(shared)).filter(|rows| !rows.is_empty());
    Shard { dim: 0, size, parts: parts.collect() }
}

/// Initial value of a parameter: a function of seed and name alone, so that it depends neither on
/// the order of creation nor on ranks or pipeline stages. A rank that holds a slice has that slice
/// of the whole parameter's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normal draws around 0 with this standard deviation.
    Normal(f64),
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Uniform draws from this range.
    Uniform([f64; 2]),
    /// Logarithms of uniform draws from this range.
    LogOfUniform([f64; 2]),
    /// Values whose softplus is a time step: the logarithms of the time steps are drawn uniformly.
    TimeSteps {
        /// The range of the draws.
        range: [f64; 2],
        /// No step is smaller.
        least: f64,
    },
}

impl Initial {
    /// The value of a draw from `[0, 1)`, for the distributions that are made of uniform draws.
    pub(super) fn of_uniform(self, draw: f64) -> Option<f64> {
        let between = |low: f64, high: f64| low + draw * (high - low);
        match self {
            Self::Normal(_) | Self::Zeros | Self::Ones => None,
            Self::Uniform([low, high]) => Some(between(low, high)),
            Self::LogOfUniform([low, high]) => Some(between(low, high).ln()),
            Self::TimeSteps { range: [low, high], least } => {
                let step = between(low.ln(), high.ln()).exp().max(least);
                // The inverse of the softplus.
                Some(step + (-(-step).exp_m1()).ln())
            }
        }
    }
}

/// One parameter, as a rank holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Dotted name, unique in the model.
    pub name: String,
    /// Shape of this rank's shard.
    pub shape: Vec<usize>,
    /// Sharding over tensor-parallel ranks.
    pub partition: TensorPartition,
    /// Placement in the whole parameter.
    pub placement: Placement,
    /// Role of the parameter.
    pub role: ParameterRole,
    /// Component that it is counted in.
    pub component: Component,
    /// The segments that use it, in ascending order: a tied parameter has several.
    pub segments: Vec<usize>,
    /// Global number of the layer that it is part of, if it is part of one.
    pub layer: Option<usize>,
    /// False for frozen parameters: no gradient, no optimizer state.
    pub trainable: bool,
    /// True if the parameter belongs to an adapter, so that the plain model lacks it.
    pub of_adapter: bool,
    /// True if the parameter belongs to the layer that replaces the output projection
    /// ([`LinearForLastLayer`](super::LinearForLastLayer)): weights of the plain model lack it.
    pub of_last_layer: bool,
    /// True if it is the weight of a layer that casts it to 8 bits with one scale.
    pub has_cast: bool,
    /// Quantization of the values, if they are not a tensor.
    pub quantization: Option<Quantization>,
}

impl Declaration {
    /// True if the parameter comes from an adapter or the replaced output projection: weights of
    /// the plain model lack it.
    pub fn is_added(&self) -> bool {
        self.of_adapter || self.of_last_layer
    }

    /// Number of elements on this rank.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the values are always float32, for any dtype of the model's parameters. Such a
    /// parameter is not trained, is in no bucket, and is whole on each rank that has it, even if
    /// parameters are sharded.
    pub fn is_float32(&self) -> bool {
        matches!(self.role, ParameterRole::ExpertBias | ParameterRole::CastState)
    }

    /// Rows and columns of a parameter of two dimensions. Panics if it has others.
    pub(super) fn matrix(&self) -> [usize; 2] {
        self.shape.as_slice().try_into().expect("a weight of a linear layer has two dimensions")
    }

    /// Bytes of this rank's part, with `of_element` bytes for each element of a tensor.
    pub fn bytes(&self, of_element: u64) -> u64 {
        match self.quantization {
            Some(quantization) => quantization.bytes(self.matrix()),
            None if self.is_float32() => self.num_elements() as u64 * 4,
            None => self.num_elements() as u64 * of_element,
        }
    }

    /// Shape of the whole parameter.
    pub fn global_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(shard) = &self.placement.shard {
            shape[shard.dim] = shard.size;
        }
        shape
    }

    /// Rows of the whole parameter that are one matrix each, if a projection is fused of several:
    /// queries, gates, keys and values of all groups, or sections. Empty for a single matrix.
    pub fn fused_rows(&self) -> Vec<Vec<Range<usize>>> {
        let rows = self.global_shape().first().copied().unwrap_or(0);
        let repeated = |groups: usize, sizes: &[usize]| {
            let starts = sizes.iter().scan(0, |next, size| Some((std::mem::replace(next, *next + size), *size)));
            let of_groups = |(start, size): (usize, usize)| {
                let first = move |group: usize| group * (rows / groups) + start;
                (0..groups).map(|group| first(group)..first(group) + size).filter(|rows| !rows.is_empty()).collect()
            };
            starts.map(of_groups).filter(|part: &Vec<_>| !part.is_empty()).collect()
        };
        match self.partition {
            TensorPartition::KeyValueGroups { groups, head_sizes: [keys, values], gates } => {
                let rest = rows / groups - keys - values;
                match gates {
                    true => repeated(groups, &[rest / 2, rest / 2, keys, values]),
                    false => repeated(groups, &[rest, keys, values]),
                }
            }
            TensorPartition::GatedQueries { groups } => repeated(groups, &[rows / groups / 2; 2]),
            TensorPartition::Sections(sizes) => repeated(1, &sizes),
            _ => Vec::new(),
        }
    }

    /// True if rules of matrices update the parameter: the matrix of a product inside the model.
    pub fn is_hidden_matrix(&self) -> bool {
        self.role == ParameterRole::Weight && self.shape.len() == 2 && !self.of_last_layer
    }

    /// The elements of this rank that other tensor-parallel ranks hold too ([`SharedRows`]): the
    /// last ones, or none.
    pub fn shared_elements(&self) -> Range<usize> {
        let count = self.num_elements();
        let shared = self.placement.shared.map_or(0, |rows| rows.count * (count / self.shape[0].max(1)));
        count - shared..count
    }

    /// The elements of this rank's slice that it counts and saves, of the ranks that hold the same
    /// ones the first.
    pub fn counted_elements(&self) -> Range<usize> {
        match self.placement.shared {
            Some(rows) if rows.rank > 0 => 0..self.shared_elements().start,
            _ => 0..self.num_elements(),
        }
    }

    /// True if tensor-parallel ranks hold copies, so that only one of them counts in norms.
    pub fn is_replicated(&self) -> bool {
        self.placement.shard.is_none()
    }
}

/// The table of a chunk: its segments, and its parameters joined to tensors by their ids.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    pub(super) segments: Vec<Segment>,
    pub(super) parameters: Vec<Declaration>,
    /// Places in `parameters`.
    pub(super) by_id: HashMap<ParamId, usize>,
    by_name: HashMap<String, usize>,
    /// Parameters whose initial values were left for later.
    pub(super) deferred: BTreeSet<usize>,
    /// The values of parameters that are held quantised.
    pub(super) quantized: HashMap<ParamId, QuantizedValues>,
    /// Current pass, for adaptations.
    pub(super) pass: PassStream,
    /// The linear layers in 8 bits with delayed scaling.
    pub(super) delayed_scaling: Vec<DelayedScalingLayer>,
}

impl Declarations {
    /// The segments in forward order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The parameters: in the order of the module where there is one, else as they were declared.
    pub fn parameters(&self) -> &[Declaration] {
        &self.parameters
    }

    /// The parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&Declaration> {
        self.by_name.get(name).map(|place| &self.parameters[*place])
    }

    pub(super) fn declare(&mut self, id: ParamId, declaration: Declaration) {
        let place = self.parameters.len();
        assert!(!self.by_name.contains_key(&declaration.name), "parameter `{}` is declared twice", declaration.name);
        self.by_name.insert(declaration.name.clone(), place);
        self.by_id.insert(id, place);
        self.parameters.push(declaration);
    }

    /// Says of the parameter called `name`, which was declared, that its layer casts it with one
    /// scale.
    pub(super) fn add_cast(&mut self, name: &str) {
        let place = self.by_name[name];
        self.parameters[place].has_cast = true;
    }

    /// Adds a segment to those that use the parameter called `name`.
    pub(super) fn add_use(&mut self, name: &str, segment: usize) {
        let place =
            *self.by_name.get(name).unwrap_or_else(|| panic!("no parameter `{name}` is declared before this use"));
        let segments = &mut self.parameters[place].segments;
        if segments.last() != Some(&segment) {
            segments.push(segment);
        }
    }

    /// The table with its parameters in the order `ids` of a module, which are these and no others:
    /// for each id the path of its field and the shape of its tensor.
    pub(super) fn in_order(self, ids: &[(ParamId, String, Vec<usize>)]) -> Result<Self, ModelBuildError> {
        let refused = |name: &str, message: String| ModelBuildError::Parameter { name: name.to_owned(), message };
        let mut left: Vec<Option<Declaration>> = self.parameters.into_iter().map(Some).collect();
        let mut sorted = Self {
            segments: self.segments,
            pass: self.pass,
            quantized: self.quantized,
            delayed_scaling: self.delayed_scaling,
            ..Self::default()
        };
        for (id, path, shape) in ids {
            let place = self.by_id.get(id);
            let Some(declaration) = place.and_then(|place| left[*place].take()) else {
                return Err(refused(path, "expected a declaration in the scope, found none for this field".into()));
            };
            if declaration.shape != *shape {
                let message = format!("expected the declared shape {:?}, found {shape:?}", declaration.shape);
                return Err(refused(&declaration.name, message));
            }
            if place.is_some_and(|place| self.deferred.contains(place)) {
                sorted.deferred.insert(sorted.parameters.len());
            }
            sorted.declare(*id, declaration);
        }
        match left.into_iter().flatten().next() {
            Some(missing) => {
                Err(refused(&missing.name, "expected a field of the module that holds it, found none".into()))
            }
            None => Ok(sorted),
        }
    }
}
