//! What the rest of the plan reads: sizes, dtypes, placement and schedule, resolved from the configuration. No counting here.

use bridge_dist::mesh::{Mesh, MeshError};
use bridge_dist::schedule::placement::{PlacementError, StageContent};
use bridge_dist::schedule::{PipelineShape, ScheduleError, ScheduleKind};
use serde::Serialize;

use super::{Batch, ParameterCounts, ParameterKind};
use crate::config::{ConfigErrors, DType, FinalModel, RunConfig, TokenizerType, pipeline_placement, pipeline_schedule};
use crate::optim::{DistributionSettings, ShardCounts, Sharding};
use crate::schedule::{FlopsError, FlopsShape};
use crate::train::{Recompute, configured_distribution, configured_recompute, flops_shape};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A setting cannot be counted.
    #[error("{key}: {message}")]
    Setting {
        /// Key path of the setting.
        key: &'static str,
        /// What is wrong, what was found and expected.
        message: String,
    },
    /// The configuration's vocabulary does not fit.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The sizes make no mesh.
    #[error("parallel sizes: {0}")]
    Mesh(#[from] MeshError),
    /// The layers do not spread over the stages.
    #[error("pipeline stages: {0}")]
    Placement(#[from] PlacementError),
    /// The schedule cannot run this pipeline.
    #[error("pipeline schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// The FLOP count refuses the shape.
    #[error(transparent)]
    Flops(#[from] FlopsError),
}

/// How the ranks are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Ranks.
    pub world_size: usize,
    /// Tensor parallel.
    pub tensor: usize,
    /// Whether activations between tensor-parallel blocks are split along the sequence.
    pub sequence_parallel: bool,
    /// Context parallel.
    pub context: usize,
    /// Data parallel.
    pub data: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Model chunks on each stage.
    pub virtual_pipeline: usize,
    /// Expert parallel.
    pub expert: usize,
    /// Tensor parallel inside experts.
    pub expert_tensor: usize,
    /// Data parallel of experts.
    pub expert_data: usize,
}

/// Bytes of an element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementBytes {
    pub parameter: u64,
    /// Activations between and inside layers.
    pub activation: u64,
    /// Activations in collectives, which add up no float16: that travels as float32.
    pub collective: u64,
    /// Messages between pipeline stages.
    pub pipeline: u64,
    /// Gradients summed over micro-batches.
    pub gradient: u64,
    /// Gradients on their way between replicas.
    pub reduction: u64,
    /// Optimizer state of one parameter: moments, and a float32 copy of a narrower one.
    pub optimizer: u64,
}

/// Everything resolved.
pub(super) struct Setup<'a> {
    pub config: &'a RunConfig,
    pub model: &'a FinalModel,
    pub layout: Layout,
    pub mesh: Mesh,
    pub padded_vocab: u64,
    /// What each chunk of each stage holds.
    pub stages: Vec<Vec<StageContent>>,
    pub schedule: ScheduleKind,
    pub shape: PipelineShape,
    /// How gradients, state and parameters are spread over replicas.
    pub distribution: DistributionSettings,
    pub bytes: ElementBytes,
    pub recompute: Recompute,
}

impl<'a> Setup<'a> {
    pub fn new(config: &'a RunConfig) -> Result<Self, PlanError> {
        let model = &config.model;
        let mesh = config.mesh()?;
        let layout = layout(config, &mesh);
        let padded_vocab = padded_vocab(config)? as u64;
        check_divisions(config, padded_vocab)?;
        let stages = pipeline_placement(model, model.num_layers)?.chunks;
        let num_chunks = stages.first().map_or(1, Vec::len);
        let shape = PipelineShape {
            num_stages: layout.pipeline,
            num_chunks,
            num_microbatches: config.train.num_microbatches.max(1),
        };
        Ok(Self {
            config,
            model,
            layout: Layout { virtual_pipeline: num_chunks, ..layout },
            mesh,
            padded_vocab,
            stages,
            schedule: pipeline_schedule(model, num_chunks),
            shape,
            distribution: configured_distribution(config),
            bytes: element_bytes(config),
            recompute: configured_recompute(config),
        })
    }

    /// Rows of the vocabulary on the tensor-parallel rank that has most.
    pub fn vocabulary_rows(&self) -> u64 {
        self.padded_vocab.div_ceil(self.layout.tensor as u64)
    }

    /// Tokens of a micro-batch on a context-parallel rank.
    pub fn tokens(&self) -> u64 {
        (self.config.train.micro_batch_size * self.model.seq_length / self.layout.context) as u64
    }

    /// Of these, the ones a rank holds between tensor-parallel blocks.
    pub fn tokens_between_blocks(&self) -> u64 {
        if self.layout.sequence_parallel { self.tokens() / self.layout.tensor as u64 } else { self.tokens() }
    }

    /// Key/value heads on a tensor-parallel rank.
    pub fn local_groups(&self) -> u64 {
        (self.model.num_query_groups / self.layout.tensor).max(1) as u64
    }

    /// Tensor-parallel ranks that hold the same key/value heads.
    pub fn group_copies(&self) -> usize {
        (self.layout.tensor / self.model.num_query_groups.max(1)).max(1)
    }

    pub fn batch(&self) -> Batch {
        let micro_batch_size = self.config.train.micro_batch_size as u64;
        let num_microbatches = self.shape.num_microbatches as u64;
        // What a step really takes, where the batch may be rounded down.
        let global_batch_size = micro_batch_size * num_microbatches * self.layout.data as u64;
        let seq_length = self.model.seq_length as u64;
        Batch {
            global_batch_size,
            micro_batch_size,
            num_microbatches,
            seq_length,
            tokens: global_batch_size * seq_length,
            padded_vocab_size: self.padded_vocab,
        }
    }

    /// Width of one routed expert.
    pub fn expert_width(&self) -> u64 {
        self.model.moe_ffn_hidden_size.unwrap_or(self.model.ffn_hidden_size) as u64
    }

    pub fn num_experts(&self) -> u64 {
        self.model.num_moe_experts.unwrap_or(0) as u64
    }

    pub fn is_moe(&self, layer: usize) -> bool {
        self.model.moe_layers.get(layer).copied().unwrap_or(false)
    }

    /// The shape that the FLOP count needs.
    pub fn flops_shape(&self) -> FlopsShape {
        flops_shape(self.config, self.padded_vocab as usize)
    }

    /// Parameters without the experts that a token does not visit.
    pub fn active_parameters(&self, all: &ParameterCounts) -> u64 {
        let experts = all.get(ParameterKind::Experts);
        match self.num_experts() {
            0 => all.total,
            count => all.total - experts + experts / count * self.model.moe_router_topk as u64,
        }
    }

    /// What replicas divide among themselves.
    pub fn sharding(&self) -> Sharding {
        self.distribution.sharding
    }

    /// Ranks over which the optimizer state of dense parameters and of experts is sharded, or their gradients are reduced where it is not.
    pub fn shards(&self) -> ShardCounts {
        let (ShardCounts { dense, expert }, instances) = (self.replicas(), self.instances());
        ShardCounts { dense: dense / instances, expert: expert / instances }
    }

    /// Into how many groups of ranks that each shard optimizer state by themselves the replicas are divided.
    pub fn instances(&self) -> usize {
        if self.sharding().divides_state() { self.config.ddp.num_distributed_optimizer_instances } else { 1 }
    }

    /// Ranks that hold the same dense parameters, and the same experts.
    pub fn replicas(&self) -> ShardCounts {
        ShardCounts { dense: self.layout.data * self.layout.context, expert: self.layout.expert_data }
    }
}

fn layout(config: &RunConfig, mesh: &Mesh) -> Layout {
    let parallel = config.parallel;
    Layout {
        world_size: parallel.world_size,
        tensor: parallel.tensor,
        sequence_parallel: config.model.sequence_parallel,
        context: parallel.context,
        data: mesh.data_parallel_size(),
        pipeline: parallel.pipeline,
        virtual_pipeline: parallel.virtual_pipeline,
        expert: parallel.expert,
        expert_tensor: parallel.expert_tensor,
        expert_data: mesh.expert().sizes().dp,
    }
}

/// Rows of the embedding, without opening a tokenizer.
fn padded_vocab(config: &RunConfig) -> Result<usize, PlanError> {
    let tokenizer = &config.tokenizer;
    let tokenizer_size = match tokenizer.tokenizer_type {
        // The null tokenizer adds its end-of-document token.
        Some(TokenizerType::Null) => tokenizer.vocab_size.map(|size| size + 1),
        Some(TokenizerType::ByteLevelBpe) => tokenizer.bpe_vocab_size,
        _ => None,
    };
    match tokenizer_size.or(config.model.vocab_size) {
        Some(size) => Ok(config.model.padded_vocab_size(size)?),
        None => Err(PlanError::Setting {
            key: "model.vocab_size",
            message: "must be given for a plan, which opens no tokenizer".into(),
        }),
    }
}

/// What tensor parallelism cuts must divide, as far as recipes are not refused for it.
fn check_divisions(config: &RunConfig, padded_vocab: u64) -> Result<(), PlanError> {
    let (model, parallel) = (&config.model, config.parallel);
    let shared = model.moe_shared_expert_intermediate_size.unwrap_or(0);
    let expert_width = model.moe_ffn_hidden_size.unwrap_or(model.ffn_hidden_size);
    let routed = if model.moe_layers.contains(&true) { expert_width } else { 0 };
    let (tensor, expert_tensor) = ("model.tensor_model_parallel_size", "model.expert_tensor_parallel_size");
    let divisions = [
        ("model.ffn_hidden_size", model.ffn_hidden_size, tensor, parallel.tensor),
        ("model.vocab_size", if model.pads_vocabulary() { 0 } else { padded_vocab as usize }, tensor, parallel.tensor),
        ("model.moe_shared_expert_intermediate_size", shared, tensor, parallel.tensor),
        ("model.moe_ffn_hidden_size", routed, expert_tensor, parallel.expert_tensor),
    ];
    match divisions.into_iter().find(|(_, size, _, ranks)| !size.is_multiple_of(*ranks)) {
        None => Ok(()),
        Some((key, size, by, ranks)) => {
            let message = format!("expected a multiple of {by} ({ranks}), found {size}");
            Err(PlanError::Setting { key, message })
        }
    }
}

fn element_bytes(config: &RunConfig) -> ElementBytes {
    let size = |dtype: DType| match dtype {
        DType::Float32 => 4,
        DType::Float16 | DType::BFloat16 => 2,
        DType::UInt8 => 1,
    };
    let parameter = size(config.model.params_dtype);
    let collective = if config.model.params_dtype == DType::Float16 { 4 } else { parameter };
    let in_float32 = config.ddp.grad_reduce_in_fp32;
    ElementBytes {
        parameter,
        activation: parameter,
        collective,
        pipeline: config.model.pipeline_dtype.map_or(parameter, size),
        gradient: if in_float32 { 4 } else { parameter },
        reduction: if in_float32 { 4 } else { collective },
        optimizer: config.optimizer.rule().bytes_per_element() + if parameter < 4 { 4 } else { 0 },
    }
}
