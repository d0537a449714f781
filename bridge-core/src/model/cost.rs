//! Cost of a model: blocks compute it beside their maths, and the plan, the log and MFU read it.
//!
//! Shape legend: `n` tokens of a micro-batch on a context-parallel rank.

use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use serde::Serialize;

use super::{Declarations, EightBitLayer, RankPlace};

/// A micro-batch on one rank, as costs depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Sequences of a micro-batch.
    pub micro_batch_size: usize,
    /// Tokens of a whole sequence.
    pub seq_length: usize,
    /// The rank among those that share the model.
    pub place: RankPlace,
    /// Ranks that share each sequence.
    pub context_size: usize,
    /// Bytes of an element of activations.
    pub activation_bytes: u64,
    /// Bytes of an element of the residual stream between layers.
    pub stream_bytes: u64,
    /// Bytes of an element of activations in collectives, which do not sum float16: float16 is
    /// communicated as float32.
    pub collective_bytes: u64,
    /// True if attention stays inside documents, so that ranks exchange the document of each token.
    pub documents: bool,
    /// True if the kernels of the CPU run.
    pub on_cpu: bool,
    /// True if a GPU is known to have tensor cores that attention in 16 bits runs on.
    pub has_tensor_cores: bool,
    /// Rows of embedding and output tables, padding included.
    pub padded_vocab_size: usize,
    /// 8-bit computation of the linear layers, of the layer whose cost is computed
    /// ([`Self::in_layer`]).
    pub eight_bits: Option<EightBitLayer>,
}

impl Workload {
    /// One sequence of `seq_length` tokens on a rank that holds all, in float32.
    pub fn sequence(seq_length: usize, padded_vocab_size: usize) -> Self {
        Self {
            micro_batch_size: 1,
            seq_length,
            place: RankPlace::SINGLE,
            context_size: 1,
            activation_bytes: 4,
            stream_bytes: 4,
            collective_bytes: 4,
            documents: false,
            on_cpu: true,
            has_tensor_cores: false,
            padded_vocab_size,
            eight_bits: None,
        }
    }

    /// Tokens of a micro-batch over all ranks that share it.
    pub fn all_tokens(&self) -> f64 {
        self.micro_batch_size as f64 * self.seq_length as f64
    }

    /// Tokens of a micro-batch on a context-parallel rank: `n`.
    pub fn tokens(&self) -> u64 {
        (self.micro_batch_size * self.seq_length / self.context_size) as u64
    }

    /// Tokens that a rank holds between tensor-parallel blocks.
    pub fn tokens_between_blocks(&self) -> u64 {
        let parts = if self.place.sequence_parallel { self.place.tensor.size } else { 1 };
        self.tokens() / parts as u64
    }
}

/// Purpose of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficKind {
    /// Activations and their gradients between tensor-parallel ranks.
    Tensor,
    /// Statistics of the loss over a split vocabulary.
    Loss,
    /// Keys and values between context-parallel ranks.
    Context,
    /// Tokens to and from experts, and statistics of the router.
    Expert,
    /// Activations and their gradients between pipeline stages.
    Pipeline,
    /// Gradients over replicas.
    Gradients,
    /// Parameters over replicas that share optimizer state or the parameters themselves.
    Parameters,
    /// Gradients of parameters that tensor-parallel ranks hold copies of.
    SharedGradients,
    /// The gradient of an embedding tied over two stages.
    TiedEmbedding,
    /// Norms, losses and token counts; votes on how to go on.
    Scalars,
}

impl TrafficKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Tensor,
        Self::Loss,
        Self::Context,
        Self::Expert,
        Self::Pipeline,
        Self::Gradients,
        Self::Parameters,
        Self::SharedGradients,
        Self::TiedEmbedding,
        Self::Scalars,
    ];

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor parallel",
            Self::Loss => "loss statistics",
            Self::Context => "context parallel",
            Self::Expert => "experts",
            Self::Pipeline => "pipeline",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
            Self::SharedGradients => "shared gradients",
            Self::TiedEmbedding => "tied embedding",
            Self::Scalars => "scalars",
        }
    }
}

/// The pass of a micro-batch in which something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// In forward, and again where recompute repeats it.
    Forward,
    /// Backward.
    Backward,
}

/// Operations on a group, in one pass of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Purpose of the communication.
    pub kind: TrafficKind,
    /// The group. On a group of one nothing happens.
    pub group: GroupKind,
    /// The operation.
    pub operation: Operation,
    /// The pass.
    pub pass: PassKind,
    /// Number of operations.
    pub operations: u64,
    /// Bytes of payload, all operations together.
    pub bytes: u64,
}

/// Cost of one segment on one micro-batch: on one rank, except for the FLOPs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SegmentCost {
    /// Floating-point operations, forward and backward, over all ranks that share it.
    pub flops: f64,
    /// FLOPs of gradients that frozen parameters do not need, and that training all parameters
    /// would add.
    pub skipped_flops: f64,
    /// Elements of its input, which recompute keeps and the pipeline sends.
    pub input: u64,
    /// Tensors of its input besides the residual stream.
    pub carried_tensors: u64,
    /// Bytes that it keeps from forward to backward besides its input.
    pub kept: u64,
    /// Bytes of `kept` and the input that recipes can move to the host by module
    /// (`model.offload_modules`), by the module's name.
    pub modules: Vec<(&'static str, u64)>,
    /// Bytes of `kept` that stay on the device where layers are moved to the host: Burn's own
    /// operations hold them, or they are small.
    pub unmoved: u64,
    /// Bytes that parts of it which run again in backward bring back, at once.
    pub brought_back: u64,
    /// Floating-point operations of these parts, over all ranks that share the segment: a forward
    /// each.
    pub recomputed_flops: f64,
    /// Bytes of gradients that are alive at once in backward.
    pub backward: u64,
    /// Bytes that a split backward leaves for its weight part: inputs of linear layers and
    /// gradients of their outputs.
    pub deferred: u64,
    /// Bytes of logits that exist at once.
    pub cross_entropy: u64,
    /// Bytes of attention scores that exist at once, for each thread.
    pub attention: u64,
    /// Parameters of the whole model that a token does not meet here: experts it is not sent to.
    pub idle_parameters: u64,
    /// Communication of the segment.
    pub exchanges: Vec<Exchange>,
}

impl SegmentCost {
    /// Adds the cost of another block of the segment.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.exchanges.extend(other.exchanges);
        self.modules.extend(other.modules);
        Self {
            flops: self.flops + other.flops,
            skipped_flops: self.skipped_flops + other.skipped_flops,
            input: self.input + other.input,
            carried_tensors: self.carried_tensors + other.carried_tensors,
            kept: self.kept + other.kept,
            modules: self.modules,
            unmoved: self.unmoved + other.unmoved,
            brought_back: self.brought_back.max(other.brought_back),
            recomputed_flops: self.recomputed_flops + other.recomputed_flops,
            backward: self.backward.max(other.backward),
            deferred: self.deferred + other.deferred,
            cross_entropy: self.cross_entropy.max(other.cross_entropy),
            attention: self.attention.max(other.attention),
            idle_parameters: self.idle_parameters + other.idle_parameters,
            exchanges: self.exchanges,
        }
    }
}

/// A chunk without tensors: its declarations and the costs of its segments.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Segments and parameters.
    pub declarations: Declarations,
    /// One cost for each segment; `None` for a model without costs. Such a model can be trained,
    /// but has no plan, and its logs have no TFLOP/s.
    pub costs: Option<Vec<SegmentCost>>,
}

impl Outline {
    /// Floating-point operations of a micro-batch, forward and backward, over all ranks that share
    /// it; `None` if the model does not say.
    pub fn flops(&self) -> Option<f64> {
        self.costs.as_ref().map(|costs| costs.iter().map(|cost| cost.flops).sum())
    }
}
