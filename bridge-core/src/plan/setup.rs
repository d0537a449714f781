//! Inputs of the rest of the plan: sizes, dtypes, placement and schedule, resolved from the
//! configuration. No counting here.

use bridge_dist::mesh::{Mesh, MeshError};
use bridge_dist::schedule::placement::{PlacementError, StageContent};
use bridge_dist::schedule::{PipelineShape, ScheduleError, ScheduleKind};
use serde::Serialize;

use super::offload::Offload;
use super::recompute::Recompute;
use super::settings;
use crate::config::{ConfigErrors, DType, FinalModel, RunConfig, TokenizerType, pipeline_placement, pipeline_schedule};
use crate::model::{
    Declaration, Declarations, Member, ModelBuildError, ModelRegistry, Outline, RankPlace, ReplicaGroup, SegmentCost,
    Stage, Workload,
};
use crate::optim::rules::{MasterFormat, Rule, Unit, find, named};
use crate::optim::{
    DistributionSettings, Holder, OffloadSettings, OverrideProvider, RuleOverrides, ShardCounts, Sharding,
    UnmatchedRule, WholeLayout, holders, layout as whole_layout,
};

/// Reason for which no plan can be made.
#[derive(thiserror::Error)]
pub enum PlanError {
    /// A setting cannot be counted.
    #[error("{key}: {message}")]
    Setting {
        /// Key path of the setting.
        key: &'static str,
        /// Description of the problem, with found and expected values.
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
    /// A rule of single parameters matches none.
    #[error(transparent)]
    Rule(#[from] UnmatchedRule),
    /// The model cannot be built so.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
    /// The kind of model does not declare its costs.
    #[error(
        "model.kind: expected a kind that declares its costs, found `{kind}`, which can be trained and not planned"
    )]
    NoCosts {
        /// The kind.
        kind: String,
    },
}

/// Layout of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Ranks.
    pub world_size: usize,
    /// Tensor parallel.
    pub tensor: usize,
    /// True if activations between tensor-parallel blocks are split along the sequence.
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

/// Sequences and tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// Sequences of a step.
    pub global_batch_size: u64,
    /// Sequences of a micro-batch on one model replica.
    pub micro_batch_size: u64,
    /// Micro-batches of a step on one model replica.
    pub num_microbatches: u64,
    /// Tokens of a sequence.
    pub seq_length: u64,
    /// Tokens of a step.
    pub tokens: u64,
    /// Rows of embedding and output tables, padding included.
    pub padded_vocab_size: u64,
}

/// Bytes of an element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementBytes {
    pub parameter: u64,
    /// Activations inside layers.
    pub activation: u64,
    /// The residual stream between layers.
    pub stream: u64,
    /// Activations in collectives, which do not sum float16: float16 is communicated as float32.
    pub collective: u64,
    /// Messages between pipeline stages.
    pub pipeline: u64,
    /// Gradients summed over micro-batches.
    pub gradient: u64,
    /// Gradients on their way between replicas.
    pub reduction: u64,
    /// Optimizer state of one element, moments and master value, that is beside the parameter.
    pub optimizer: f64,
    /// The rest of it: formats that are in host memory where the device is a GPU.
    pub host_optimizer: f64,
    /// Bytes of the parameter that an update in host memory reads.
    pub update_reads: u64,
    /// Scales of the optimizer state of one tensor that is beside the parameter.
    pub scales: u64,
    /// Number of these scales that are in host memory if the device is a GPU.
    pub host_scales: u64,
}

/// A chunk of a stage.
pub(super) struct Chunk {
    pub content: StageContent,
    pub declarations: Declarations,
    /// One a segment.
    pub costs: Vec<SegmentCost>,
}

/// Everything resolved.
pub(super) struct Setup<'a> {
    pub config: &'a RunConfig,
    pub model: &'a FinalModel,
    pub layout: Layout,
    pub mesh: Mesh,
    pub padded_vocab: u64,
    /// Content of each chunk of each stage.
    pub stages: Vec<Vec<Chunk>>,
    pub schedule: ScheduleKind,
    pub shape: PipelineShape,
    /// Distribution of gradients, state and parameters over replicas.
    pub distribution: DistributionSettings,
    pub bytes: ElementBytes,
    /// Settings of parameter groups.
    pub overrides: RuleOverrides,
    /// Optimizer states in host memory.
    pub optimizer_offload: Option<OffloadSettings>,
    pub recompute: Recompute,
    pub activation_offload: Offload,
}

impl<'a> Setup<'a> {
    pub fn new(
        config: &'a RunConfig,
        models: &ModelRegistry,
        padded_vocab_size: Option<usize>,
        has_tensor_cores: bool,
    ) -> Result<Self, PlanError> {
        let model = &config.model;
        let mesh = config.mesh()?;
        let layout = layout(config, &mesh);
        let padded_vocab = padded_vocab_size.map_or_else(|| padded_vocab(config), Ok)? as u64;
        let kind = models.config(model)?;
        let (builder, stacks) = (kind.builder(), kind.stacks());
        let bytes = element_bytes(config);
        let work = Workload {
            has_tensor_cores: has_tensor_cores && !config.computes_on_cpu(),
            ..workload(config, &layout, &bytes, padded_vocab as usize)
        };
        let adapter = models.adapter(config.peft.as_ref(), model)?;
        let chunk = |content: StageContent| {
            let stage = Stage::from_content(&stacks, &content);
            let Outline { declarations, costs } = builder.outline(&work, &stage, adapter.clone())?;
            let costs = costs.ok_or_else(|| PlanError::NoCosts { kind: model.kind.clone() })?;
            assert_eq!(
                costs.len(),
                declarations.segments().len(),
                "kind `{}` declares a cost for each segment",
                model.kind
            );
            Ok(Chunk { content, declarations, costs })
        };
        let overrides = settings::overrides_of_outline::<PlanError>(config, models)?;
        let contents = pipeline_placement(model, stacks.iter().sum())?.chunks;
        let num_chunks = contents.first().map_or(1, Vec::len);
        let of_stage = |chunks: Vec<StageContent>| chunks.into_iter().map(chunk).collect();
        let stages = contents.into_iter().map(of_stage).collect::<Result<_, PlanError>>()?;
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
            distribution: settings::distribution(config),
            bytes,
            overrides,
            optimizer_offload: settings::optimizer_offload(config),
            recompute: settings::recompute(config),
            activation_offload: settings::activation_offload(config),
        })
    }

    /// Tensor-parallel ranks that hold the same rows of a parameter.
    pub fn row_copies(&self) -> usize {
        let mut parameters = (0..self.stages.len()).flat_map(|stage| self.parameters(stage));
        parameters.find_map(|parameter| parameter.placement.shared).map_or(1, |rows| rows.ranks)
    }

    /// The parameters of a rank of a stage.
    pub fn parameters(&self, stage: usize) -> impl Iterator<Item = &Declaration> + Clone {
        self.stages[stage].iter().flat_map(|chunk| chunk.declarations.parameters())
    }

    /// Rule of the updates of a parameter.
    pub fn rule(&self, parameter: &Declaration) -> &'static Rule {
        let other = self.overrides.override_for(parameter).rule.and_then(named);
        other.unwrap_or_else(|| find(self.config.optimizer.optimizer))
    }

    /// Parameters of a stage that are updated whole, with the ranks that hold parts of them, if
    /// there are any.
    pub fn whole(&self, stage: usize, replicas: ReplicaGroup) -> Option<(Vec<Holder>, Vec<WholeLayout>)> {
        let is_whole =
            |p: &&Declaration| p.trainable && p.placement.replicas == replicas && self.rule(p).unit == Unit::Parameter;
        let mut parameters = self.parameters(stage).filter(is_whole).peekable();
        parameters.peek()?;
        let holders = self.holders(stage, replicas);
        let layouts = whole_layout(parameters, &holders);
        Some((holders, layouts))
    }

    /// The ranks that hold parts of the same parameters of a stage.
    pub fn holders(&self, stage: usize, replicas: ReplicaGroup) -> Vec<Holder> {
        let of_stage = |rank: &usize| self.mesh.coordinates(*rank).pp == stage;
        let rank = (0..self.mesh.world_size()).find(of_stage).expect("every stage has ranks");
        holders(&self.mesh, rank, replicas, self.sharding().divides_state())
    }

    pub fn batch(&self) -> Batch {
        let micro_batch_size = self.config.train.micro_batch_size as u64;
        let num_microbatches = self.shape.num_microbatches as u64;
        // Actual batch of a step, which may be rounded down.
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

    /// State that replicas divide.
    pub fn sharding(&self) -> Sharding {
        self.distribution.sharding
    }

    /// Ranks over which the optimizer state of dense parameters and of experts is sharded, or their
    /// gradients are reduced where it is not.
    pub fn shards(&self) -> ShardCounts {
        let (ShardCounts { dense, expert }, instances) = (self.replicas(), self.instances());
        ShardCounts { dense: dense / instances, expert: expert / instances }
    }

    /// Number of distributed-optimizer instances: groups of replicas that each hold all shards of
    /// optimizer state.
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

/// A micro-batch on the first rank of each group, which has most where parts are uneven.
fn workload(config: &RunConfig, layout: &Layout, bytes: &ElementBytes, padded_vocab: usize) -> Workload {
    let first = |size: usize| Member { rank: 0, size };
    Workload {
        micro_batch_size: config.train.micro_batch_size,
        seq_length: config.model.seq_length,
        place: RankPlace {
            tensor: first(layout.tensor),
            expert: first(layout.expert),
            expert_tensor: first(layout.expert_tensor),
            sequence_parallel: layout.sequence_parallel,
        },
        context_size: layout.context,
        activation_bytes: bytes.activation,
        stream_bytes: bytes.stream,
        collective_bytes: bytes.collective,
        documents: config.dataset.reset_attention_mask,
        on_cpu: config.computes_on_cpu(),
        has_tensor_cores: false,
        padded_vocab_size: padded_vocab,
        eight_bits: None,
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
    let formats = settings::state_formats(config);
    let has_master = parameter < 4;
    let optimizer = match &formats {
        Some(formats) => formats.bytes_per_element(has_master),
        None => {
            let states = find(config.optimizer.optimizer).state_bytes(&config.optimizer, &[1]);
            (states + if has_master { 4 } else { 0 }) as f64
        }
    };
    let of_host = formats.as_ref().filter(|_| !config.computes_on_cpu());
    let host_optimizer = of_host.map_or(0.0, |formats| formats.host_bytes_per_element(has_master));
    let host_scales = of_host.map_or(0, |formats| 4 * formats.num_host_scales() as u64);
    let has_whole_master = has_master && formats.as_ref().is_none_or(|f| f.master != MasterFormat::Remainders);
    ElementBytes {
        parameter,
        activation: parameter,
        stream: if config.model.fp32_residual_connection { 4 } else { parameter },
        collective,
        pipeline: config.model.pipeline_dtype.map_or(parameter, size),
        gradient: if in_float32 { 4 } else { parameter },
        reduction: if in_float32 { 4 } else { collective },
        optimizer: optimizer - host_optimizer,
        host_optimizer,
        update_reads: if has_whole_master { 0 } else { parameter },
        scales: formats.map_or(0, |formats| 4 * formats.num_scales() as u64) - host_scales,
        host_scales,
    }
}
