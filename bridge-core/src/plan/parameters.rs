//! Parameters: how many there are, and how many a rank holds. Shapes and order are those of the decoder in bridge-models.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::segments::{chunk_segments, stage_segments};
use super::setup::Setup;
use crate::config::{Normalization, PositionEmbeddingType};
use crate::model::{ReplicaGroup, Segment, SegmentRole};

/// What a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterKind {
    /// Word and position embedding.
    Embedding,
    /// Query-key-value and output projection of attention.
    Attention,
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

impl ParameterKind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Embedding, Self::Attention, Self::Mlp, Self::Experts, Self::Router, Self::Norm, Self::Output];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Experts => "experts",
            Self::Router => "router",
            Self::Norm => "norm",
            Self::Output => "output",
        }
    }
}

/// Numbers of parameters, in all and by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// All of them.
    pub total: u64,
    by_kind: [u64; ParameterKind::ALL.len()],
}

impl ParameterCounts {
    /// Those of one kind.
    pub const fn get(&self, kind: ParameterKind) -> u64 {
        self.by_kind[kind as usize]
    }

    fn add(&mut self, kind: ParameterKind, count: u64) {
        self.total += count;
        self.by_kind[kind as usize] += count;
    }
}

impl Serialize for ParameterCounts {
    /// `{"total": .., "embedding": .., ..}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + self.by_kind.len()))?;
        map.serialize_entry("total", &self.total)?;
        for kind in ParameterKind::ALL {
            map.serialize_entry(kind.name(), &self.get(kind))?;
        }
        map.end()
    }
}

/// One parameter of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub kind: ParameterKind,
    /// Elements in the whole model, of those that other expert-parallel ranks have in its place too; 0 for a second copy of a tied weight.
    pub total: u64,
    /// Elements on a rank that has it.
    pub local: u64,
    /// The ranks with the same elements.
    pub replicas: ReplicaGroup,
    /// Whether tensor-parallel ranks hold copies and each has only its share of the gradient.
    pub partial_gradient: bool,
    /// The last of the local elements, which other tensor-parallel ranks hold too and share the gradient of.
    pub shared: u64,
}

/// Lists the parameters of a segment.
struct List<'s, 'a> {
    setup: &'s Setup<'a>,
    parameters: Vec<Parameter>,
}

impl List<'_, '_> {
    fn push(&mut self, kind: ParameterKind, total: u64, ranks: u64) {
        let (replicas, local) = (ReplicaGroup::Dense, total / ranks);
        self.parameters.push(Parameter { kind, total, local, replicas, partial_gradient: false, shared: 0 });
    }

    /// The projection of queries, keys and values, each output with `inputs` elements. Ranks have query heads of their own, and the keys and
    /// values that those use.
    fn push_qkv(&mut self, inputs: u64) {
        let setup = self.setup;
        let (h, g) = (setup.model.num_attention_heads as u64, setup.model.num_query_groups as u64);
        let each = setup.model.kv_channels as u64 * inputs;
        self.push(ParameterKind::Attention, (h + 2 * g) * each, 1);
        let pushed = self.parameters.last_mut().expect("just pushed");
        pushed.local = (h / setup.layout.tensor as u64 + 2 * setup.local_groups()) * each;
        pushed.shared = if setup.group_copies() > 1 { 2 * each } else { 0 };
    }

    /// A table of the vocabulary, `c` wide. Its rows need not divide over the ranks: the plan is of those that hold most.
    fn push_table(&mut self, kind: ParameterKind, c: u64) {
        self.push(kind, self.setup.padded_vocab * c, 1);
        self.parameters.last_mut().expect("just pushed").local = self.setup.vocabulary_rows() * c;
    }

    /// A parameter that all tensor-parallel ranks hold and use on their part of the sequence.
    fn push_replicated(&mut self, kind: ParameterKind, total: u64) {
        self.push(kind, total, 1);
        let is_partial = self.setup.layout.sequence_parallel;
        self.parameters.last_mut().expect("just pushed").partial_gradient = is_partial;
    }

    /// `size` elements of one expert, cut over `ranks` inside it. Each expert-parallel rank has another one in this place.
    fn push_expert(&mut self, size: u64, ranks: u64) {
        let (kind, replicas) = (ParameterKind::Experts, ReplicaGroup::Expert);
        let (total, local) = (size * self.setup.layout.expert as u64, size / ranks);
        self.parameters.push(Parameter { kind, total, local, replicas, partial_gradient: false, shared: 0 });
    }

    fn norm(&mut self, size: u64) {
        self.push_replicated(ParameterKind::Norm, size);
        if self.setup.model.normalization == Normalization::LayerNorm {
            self.push_replicated(ParameterKind::Norm, size);
        }
    }

    fn embedding(&mut self) {
        let model = self.setup.model;
        let c = model.hidden_size as u64;
        self.push_table(ParameterKind::Embedding, c);
        if model.position_embedding_type == PositionEmbeddingType::LearnedAbsolute {
            self.push_replicated(ParameterKind::Embedding, model.seq_length as u64 * c);
        }
    }

    fn attention(&mut self) {
        let model = self.setup.model;
        let tp = self.setup.layout.tensor as u64;
        let (c, d) = (model.hidden_size as u64, model.kv_channels as u64);
        let h = model.num_attention_heads as u64;
        let kind = ParameterKind::Attention;
        self.norm(c);
        self.push_qkv(c);
        if model.add_bias_linear || model.add_qkv_bias {
            self.push_qkv(1);
        }
        if model.qk_layernorm {
            // Each rank normalizes its own heads, so each has its share of the gradient.
            let before = self.parameters.len();
            self.norm(d);
            self.norm(d);
            self.parameters[before..].iter_mut().for_each(|norm| norm.partial_gradient = tp > 1);
        }
        self.push(kind, c * h * d, tp);
        if model.add_bias_linear {
            self.push_replicated(kind, c);
        }
    }

    fn mlp(&mut self, layer: usize) {
        self.norm(self.setup.model.hidden_size as u64);
        if self.setup.is_moe(layer) {
            self.experts();
        } else {
            self.dense_mlp(self.setup.model.ffn_hidden_size as u64);
        }
    }

    fn dense_mlp(&mut self, f: u64) {
        let model = self.setup.model;
        let (c, tp) = (model.hidden_size as u64, self.setup.layout.tensor as u64);
        let first = if model.gated_linear_unit { 2 * f } else { f };
        self.push(ParameterKind::Mlp, first * c, tp);
        if model.add_bias_linear {
            self.push(ParameterKind::Mlp, first, tp);
        }
        self.push(ParameterKind::Mlp, c * f, tp);
        if model.add_bias_linear {
            self.push_replicated(ParameterKind::Mlp, c);
        }
    }

    fn experts(&mut self) {
        let setup = self.setup;
        let model = setup.model;
        let (c, f, e) = (model.hidden_size as u64, setup.expert_width(), setup.num_experts());
        let etp = setup.layout.expert_tensor as u64;
        let first = if model.gated_linear_unit { 2 * f } else { f };
        self.push_replicated(ParameterKind::Router, e * c);
        for _ in 0..e / setup.layout.expert as u64 {
            self.push_expert(first * c, etp);
            if model.add_bias_linear {
                self.push_expert(first, etp);
            }
            self.push_expert(c * f, etp);
            if model.add_bias_linear {
                self.push_expert(c, 1);
            }
        }
        if let Some(shared) = model.moe_shared_expert_intermediate_size {
            self.dense_mlp(shared as u64);
            if model.moe_shared_expert_gate {
                self.push_replicated(ParameterKind::Mlp, c);
            }
        }
    }

    fn head(&mut self) {
        let setup = self.setup;
        let c = setup.model.hidden_size as u64;
        self.norm(c);
        if !setup.model.share_embeddings_and_output_weights {
            self.push_table(ParameterKind::Output, c);
        } else if setup.tied_over_stages() {
            self.push_table(ParameterKind::Embedding, c);
            self.parameters.last_mut().expect("just pushed").total = 0;
        }
    }
}

impl Setup<'_> {
    /// Whether the output projection is a copy of a word embedding on another stage.
    pub(super) fn tied_over_stages(&self) -> bool {
        self.model.share_embeddings_and_output_weights && self.layout.pipeline > 1
    }
}

/// The parameters of a segment.
pub(super) fn of_segment(setup: &Setup<'_>, segment: Segment) -> Vec<Parameter> {
    let mut list = List { setup, parameters: Vec::new() };
    match (segment.role, segment.layer) {
        (SegmentRole::Embedding, _) => list.embedding(),
        (SegmentRole::Attention, _) => list.attention(),
        (SegmentRole::Mlp | SegmentRole::Moe, layer) => list.mlp(layer.unwrap_or(0)),
        (SegmentRole::Layer, layer) => {
            list.attention();
            list.mlp(layer.unwrap_or(0));
        }
        (SegmentRole::Head, _) => list.head(),
    }
    list.parameters
}

/// The parameters of a rank of a stage.
pub(super) fn list_of_stage(setup: &Setup<'_>, stage: usize) -> Vec<Parameter> {
    stage_segments(setup, stage).into_iter().flat_map(|segment| of_segment(setup, segment)).collect()
}

/// What a rank of a stage holds.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize) -> ParameterCounts {
    let mut counts = ParameterCounts::default();
    list_of_stage(setup, stage).iter().for_each(|parameter| counts.add(parameter.kind, parameter.local));
    counts
}

/// The whole model.
pub(super) fn of_model(setup: &Setup<'_>) -> ParameterCounts {
    let mut counts = ParameterCounts::default();
    for chunk in setup.stages.iter().flatten() {
        for segment in chunk_segments(setup, chunk) {
            of_segment(setup, segment).iter().for_each(|parameter| counts.add(parameter.kind, parameter.total));
        }
    }
    counts
}
