//! The sizes that a search varies: candidates for a model and a world, and their settings.

use std::fmt;

use serde::Serialize;

use super::super::Plan;
use super::SearchOptions;
use crate::config::{
    PipelineSchedule, RawConfig, RecomputeGranularity, RecomputeMethod, ShardingStrategy, TransformerConfig,
};

/// The most chunks a stage, and sequences a micro-batch, that are tried.
const MOST_CHUNKS: usize = 16;
const MOST_SEQUENCES: usize = 8;
/// Pipelines of more stages and sequences over more ranks are not tried, nor parts of a sequence
/// with fewer tokens.
const MOST_STAGES: usize = 64;
const MOST_CONTEXT: usize = 32;
const FEWEST_TOKENS: usize = 1024;

/// Activations that are recomputed in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recomputed {
    /// No activations.
    Nothing,
    /// Feed-forward blocks, dense or of experts.
    FeedForward,
    /// Every layer.
    Layers,
}

/// State that replicas divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Divided {
    /// Optimizer state, by the distributed optimizer.
    Optimizer,
    /// Optimizer state, gradients and parameters: full sharding.
    All,
}

/// Parallel sizes with recompute and sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Tensor parallel, with sequence parallelism.
    pub tensor: usize,
    /// Context parallel.
    pub context: usize,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Chunks of a stage.
    pub chunks: usize,
    /// Expert parallel.
    pub expert: usize,
    /// Tensor parallel inside experts.
    pub expert_tensor: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Activations that are recomputed.
    pub recomputed: Recomputed,
    /// State that replicas divide.
    pub divided: Divided,
}

impl Sizes {
    /// One rank.
    pub const SINGLE: Self = Self {
        tensor: 1,
        context: 1,
        pipeline: 1,
        chunks: 1,
        expert: 1,
        expert_tensor: 1,
        micro_batch: 1,
        recomputed: Recomputed::Nothing,
        divided: Divided::Optimizer,
    };

    /// The sizes of a plan, with nothing recomputed and optimizer state divided.
    pub(super) fn from_plan(plan: &Plan) -> Self {
        let layout = plan.layout;
        Self {
            tensor: layout.tensor,
            context: layout.context,
            pipeline: layout.pipeline,
            chunks: layout.virtual_pipeline,
            expert: layout.expert,
            expert_tensor: layout.expert_tensor,
            micro_batch: plan.batch.micro_batch_size as usize,
            recomputed: Recomputed::Nothing,
            divided: Divided::Optimizer,
        }
    }

    /// The model on one stage, a sequence at a time.
    pub(super) fn on_one_stage(self) -> Self {
        Self { pipeline: 1, chunks: 1, micro_batch: 1, ..self }
    }

    /// True if ranks divide the model in the same way.
    pub(super) fn same_parallel_sizes(&self, other: &Self) -> bool {
        let parallel = |sizes: &Self| Self { chunks: 1, micro_batch: 1, recomputed: Recomputed::Nothing, ..*sizes };
        parallel(self) == parallel(other)
    }

    /// The ranks that share a model replica.
    pub(super) fn ranks(&self) -> usize {
        self.tensor * self.context * self.pipeline
    }

    /// `recipe` with these sizes.
    pub fn apply(&self, recipe: &RawConfig) -> RawConfig {
        let mut raw = recipe.clone();
        let has_experts = raw.model.num_moe_experts.is_some();
        let splits_backward = raw.model.pipeline_schedule == Some(PipelineSchedule::ZeroBubbleH1);
        let model = &mut raw.model.config;
        model.tensor_model_parallel_size = self.tensor;
        model.sequence_parallel = self.tensor > 1;
        model.context_parallel_size = self.context;
        model.pipeline_model_parallel_size = self.pipeline;
        model.virtual_pipeline_model_parallel_size = (self.chunks > 1).then_some(self.chunks);
        model.expert_model_parallel_size = self.expert;
        model.expert_tensor_parallel_size = (self.expert_tensor != self.tensor).then_some(self.expert_tensor);
        model.num_layers_in_first_pipeline_stage = None;
        model.num_layers_in_last_pipeline_stage = None;
        model.pipeline_model_parallel_layout = None;
        model.microbatch_group_size_per_vp_stage = None;
        // Embedding and output layer count as layers where only so all stages have as many.
        let ends = ends_counted(model.num_layers, self.pipeline * self.chunks).unwrap_or(0);
        model.account_for_embedding_in_pipeline_split = ends == 2;
        model.account_for_loss_in_pipeline_split = ends >= 1;
        recompute(model, self.recomputed, has_experts);
        // Layouts are compared by device memory.
        (model.cpu_offloading, model.cpu_offloading_num_layers) = (false, 0);
        (model.fine_grained_activation_offloading, model.offload_modules) = (false, Vec::new());
        raw.train.micro_batch_size = Some(self.micro_batch);
        let is_all = self.divided == Divided::All;
        let ddp = &mut raw.ddp;
        ddp.use_megatron_fsdp = is_all;
        ddp.use_custom_fsdp = false;
        ddp.data_parallel_sharding_strategy =
            if is_all { ShardingStrategy::OptimGradsParams } else { ShardingStrategy::NoShard };
        ddp.use_distributed_optimizer = true;
        ddp.overlap_grad_reduce = !splits_backward;
        ddp.overlap_param_gather = true;
        ddp.bucket_size = None;
        ddp.num_distributed_optimizer_instances = 1;
        raw.dist.use_megatron_fsdp = is_all;
        (raw.optimizer.use_distributed_optimizer, raw.optimizer.overlap_param_gather) = (true, true);
        raw
    }
}

/// Number of the embedding and the output layer that count as a layer so that `parts` get equally
/// many layers.
fn ends_counted(num_layers: usize, parts: usize) -> Option<usize> {
    let ends = if parts > 1 { 0..=2 } else { 0..=0 };
    ends.into_iter().find(|ends| (num_layers + ends).is_multiple_of(parts) && num_layers + ends >= parts)
}

/// True if as many stages can have as many layers each, with the embedding and the output layer
/// counted or not.
pub(super) fn divides_layers(layers: usize, stages: usize) -> bool {
    ends_counted(layers, stages).is_some()
}

fn recompute(model: &mut TransformerConfig, recomputed: Recomputed, has_experts: bool) {
    model.recompute_granularity = None;
    model.recompute_method = None;
    model.recompute_num_layers = None;
    model.recompute_modules = None;
    match recomputed {
        Recomputed::Nothing => {}
        Recomputed::FeedForward => {
            model.recompute_granularity = Some(RecomputeGranularity::Selective);
            model.recompute_modules = Some(vec![if has_experts { "moe" } else { "mlp" }.into()]);
        }
        Recomputed::Layers => {
            model.recompute_granularity = Some(RecomputeGranularity::Full);
            model.recompute_method = Some(RecomputeMethod::Uniform);
            model.recompute_num_layers = Some(1);
        }
    }
}

/// The divisors of `number` up to `most`.
fn divisors(number: usize, most: usize) -> impl Iterator<Item = usize> + Clone {
    (1..=most.min(number)).filter(move |size| number.is_multiple_of(*size))
}

fn powers_of_two(most: usize) -> impl Iterator<Item = usize> + Clone {
    (0..usize::BITS - 1).map(|power| 1 << power).take_while(move |size| *size <= most)
}

impl fmt::Display for Sizes {
    /// Syntax of `bridge plan --layout`, without recompute and sharding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tp={}", self.tensor)?;
        let sizes = [("cp", self.context), ("pp", self.pipeline), ("vp", self.chunks), ("ep", self.expert)];
        for (name, size) in sizes.into_iter().filter(|(_, size)| *size > 1) {
            write!(f, ",{name}={size}")?;
        }
        if self.expert_tensor != self.tensor {
            write!(f, ",etp={}", self.expert_tensor)?;
        }
        write!(f, ",mbs={}", self.micro_batch)
    }
}

/// All sizes of one stage that are tried: tensor, context and expert parallelism, recompute,
/// sharding.
pub(super) fn of_one_stage(recipe: &RawConfig, options: &SearchOptions) -> Vec<Sizes> {
    let model = &recipe.model;
    let node = options.rates.ranks_per_node;
    let contexts = powers_of_two(MOST_CONTEXT).filter(|size| {
        *size == 1 || model.seq_length.is_multiple_of(2 * size) && model.seq_length / size >= FEWEST_TOKENS
    });
    let experts: Vec<usize> = model.num_moe_experts.map_or(vec![1], |count| divisors(count, count).collect());
    let mut all = Vec::new();
    for tensor in powers_of_two(node).filter(|size| model.num_attention_heads.is_multiple_of(*size)) {
        for context in contexts.clone() {
            for expert in &experts {
                let inside = if model.num_moe_experts.is_some() && tensor > 1 { vec![1, tensor] } else { vec![tensor] };
                for expert_tensor in inside {
                    let world = options.world_size;
                    if !world.is_multiple_of(tensor * context) || !world.is_multiple_of(expert * expert_tensor) {
                        continue;
                    }
                    let sizes = |recomputed, divided| Sizes {
                        tensor,
                        context,
                        pipeline: 1,
                        chunks: 1,
                        expert: *expert,
                        expert_tensor,
                        micro_batch: 1,
                        recomputed,
                        divided,
                    };
                    let kept = [Recomputed::Nothing, Recomputed::FeedForward, Recomputed::Layers];
                    all.extend(kept.map(|recomputed| sizes(recomputed, Divided::Optimizer)));
                    // Fully sharded parameters go with recompute of every layer.
                    if world > tensor * context {
                        all.push(sizes(Recomputed::Nothing, Divided::All));
                    }
                }
            }
        }
    }
    all
}

/// Numbers of stages that go with the sizes of one stage, with the replicas that the ranks are
/// enough for.
pub(super) fn pipelines(one: Sizes, layers: usize, options: &SearchOptions) -> impl Iterator<Item = (usize, usize)> {
    let (world, ranks, experts) = (options.world_size, one.ranks(), one.expert * one.expert_tensor);
    let stages = divisors(world / ranks, MOST_STAGES.min(layers + 2));
    let is_possible = move |stages: &usize| {
        (*stages == 1 || one.divided != Divided::All) && (experts == 1 || world.is_multiple_of(experts * stages))
    };
    stages.filter(is_possible).map(move |stages| (stages, world / (ranks * stages)))
}

/// The pipelines and micro-batches that go with the sizes of one stage. Fully sharded parameters
/// would be gathered for every micro-batch of a pipeline, so they are only tried without one.
pub(super) fn with_stages(one: Sizes, recipe: &RawConfig, options: &SearchOptions) -> Vec<Sizes> {
    let (layers, batch) = (recipe.model.num_layers, recipe.train.global_batch_size.unwrap_or(1));
    let mut all = Vec::new();
    for (pipeline, replicas) in pipelines(one, layers, options).filter(|(_, replicas)| batch.is_multiple_of(*replicas))
    {
        let most_chunks = if pipeline > 1 { MOST_CHUNKS } else { 1 };
        for chunks in (1..=most_chunks).filter(|chunks| ends_counted(layers, pipeline * chunks).is_some()) {
            let sequences = powers_of_two(MOST_SEQUENCES);
            for micro_batch in sequences.filter(|size| (batch / replicas).is_multiple_of(*size)) {
                all.push(Sizes { pipeline, chunks, micro_batch, ..one });
            }
        }
    }
    all
}
