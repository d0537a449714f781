//! Stage 2, second part: what data-parallel ranks shard. The same setting exists in several
//! sections; afterwards all of them have the same value.

use super::super::choice::{PipelineSchedule, ShardingStrategy};
use super::super::run_config::ParallelSizes;
use super::Draft;

/// Settings with the same meaning: one of each list suffices.
pub const SAME_SETTINGS: [&[&str]; 3] = [
    &["ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"],
    &["ddp.overlap_param_gather", "optimizer.overlap_param_gather"],
    &["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"],
];

/// Makes settings with the same meaning agree, and checks the combinations.
pub(super) fn resolve(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    for names in SAME_SETTINGS {
        draft.refuse_contradictions(names);
    }
    let recipe = &mut draft.recipe;
    let (optimizer, ddp, dist) = (&mut recipe.optimizer, &mut recipe.ddp, &mut recipe.dist);
    let is_old_name_used = ddp.use_custom_fsdp;
    let is_sharded = optimizer.use_distributed_optimizer || ddp.use_distributed_optimizer;
    let overlaps = optimizer.overlap_param_gather || ddp.overlap_param_gather;
    let is_fsdp = ddp.use_megatron_fsdp || is_old_name_used || dist.use_megatron_fsdp;
    (optimizer.use_distributed_optimizer, ddp.use_distributed_optimizer) = (is_sharded, is_sharded);
    (optimizer.overlap_param_gather, ddp.overlap_param_gather) = (overlaps, overlaps);
    if is_old_name_used {
        draft.refuse_contradictions(&["ddp.use_custom_fsdp", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"]);
        draft.warnings.push("ddp.use_custom_fsdp is the old name of ddp.use_megatron_fsdp".into());
    }
    let (ddp, dist) = (&mut draft.recipe.ddp, &mut draft.recipe.dist);
    (ddp.use_megatron_fsdp, ddp.use_custom_fsdp, dist.use_megatron_fsdp) = (is_fsdp, false, is_fsdp);
    strategy(draft, is_fsdp);
    let strategy = draft.recipe.ddp.data_parallel_sharding_strategy;
    let shards = Shards { state: divides_state(draft), gradients: divides_gradients(strategy) };
    draft.require(
        !overlaps || shards.state,
        draft.chosen(&[
            "ddp.overlap_param_gather",
            "optimizer.overlap_param_gather",
            "comm_overlap.overlap_param_gather",
        ]),
        "needs ddp.use_distributed_optimizer: otherwise there is nothing to gather",
    );
    instances(draft, parallel, shards.state);
    buckets(draft, shards);
    let stated = draft.recipe.comm_overlap.as_ref().and_then(|config| config.data_parallel_size);
    draft.require(
        stated.is_none_or(|stated| stated == parallel.data),
        "comm_overlap.data_parallel_size",
        format!("cannot be chosen: the data-parallel size follows from the other sizes and is {}", parallel.data),
    );
    draft.require(
        !draft.recipe.dist.external_gpu_device_mapping || !computes_on_cpu(&draft.recipe.device),
        "dist.external_gpu_device_mapping",
        "concerns GPUs, but device is the CPU",
    );
}

/// State that replicas shard.
#[derive(Clone, Copy)]
struct Shards {
    /// Optimizer state.
    state: bool,
    /// Gradients, from the end of each micro-batch on.
    gradients: bool,
}

/// True if replicas shard optimizer state.
pub(super) fn divides_state(draft: &Draft<'_>) -> bool {
    let ddp = &draft.recipe.ddp;
    ddp.use_distributed_optimizer || ddp.data_parallel_sharding_strategy != ShardingStrategy::NoShard
}

fn divides_gradients(strategy: ShardingStrategy) -> bool {
    matches!(strategy, ShardingStrategy::OptimGrads | ShardingStrategy::OptimGradsParams)
}

/// When reductions begin, and the size of each.
fn buckets(draft: &mut Draft<'_>, shards: Shards) {
    let ddp = draft.recipe.ddp.clone();
    let defers_weights = draft.recipe.model.pipeline_schedule == Some(PipelineSchedule::ZeroBubbleH1);
    draft.require(
        !ddp.overlap_grad_reduce || !defers_weights,
        draft.chosen(&["ddp.overlap_grad_reduce", "comm_overlap.overlap_grad_reduce"]),
        "has no effect with model.pipeline_schedule = \"zb_h1\", which computes gradients of weights after the backward \
         passes: nothing is left for a reduction to hide behind",
    );
    let is_aligned_alone = draft.recipe.model.pipeline_model_parallel_size > 1 && ddp.overlap_grad_reduce;
    draft.require(
        draft.recipe.dist.align_grad_reduce || (is_aligned_alone && !shards.gradients),
        "dist.align_grad_reduce",
        "says when stages begin to reduce: it needs model.pipeline_model_parallel_size above 1 and \
         ddp.overlap_grad_reduce, and gradients that are reduced once a step",
    );
    let key = draft.chosen(&["ddp.bucket_size", "comm_overlap.bucket_size"]);
    draft.idle_unless(
        ddp.bucket_size.is_none() || ddp.overlap_grad_reduce || ddp.overlap_param_gather,
        key,
        "has no effect without ddp.overlap_grad_reduce or ddp.overlap_param_gather: there is one bucket then",
    );
    let strategy = ddp.data_parallel_sharding_strategy;
    draft.idle_unless(
        ddp.bucket_size.is_none() || !shards.gradients,
        key,
        format!(
            "has no effect with ddp.data_parallel_sharding_strategy = \"{strategy}\": each segment is one bucket then"
        ),
    );
    draft.require(
        !ddp.pad_buckets_for_high_nccl_busbw || shards.state,
        "ddp.pad_buckets_for_high_nccl_busbw",
        "needs ddp.use_distributed_optimizer: only sharded buckets are padded",
    );
    let sums_16_bits = draft.recipe.model.bf16 && !ddp.grad_reduce_in_fp32;
    draft.require(
        !ddp.reduce_scatter_with_fp32_accumulation || (shards.state && sums_16_bits),
        "ddp.reduce_scatter_with_fp32_accumulation",
        "is about gradients that are reduce-scattered in bfloat16: it needs ddp.use_distributed_optimizer, and model.bf16 \
         with ddp.grad_reduce_in_fp32 = false",
    );
}

pub(super) fn computes_on_cpu(device: &str) -> bool {
    matches!(device, "flex" | "cpu")
}

/// The number of instances of a distributed optimizer must divide the replicas.
fn instances(draft: &mut Draft<'_>, parallel: &ParallelSizes, is_sharded: bool) {
    let key = "ddp.num_distributed_optimizer_instances";
    let instances = draft.recipe.ddp.num_distributed_optimizer_instances;
    if instances <= 1 {
        return;
    }
    draft.require(is_sharded, key, "needs ddp.use_distributed_optimizer: otherwise no state is sharded");
    let replicas = parallel.data * parallel.context;
    let message = format!("{instances} does not divide the {replicas} replicas (data x context parallel)");
    draft.require(replicas.is_multiple_of(instances), key, message);
    if draft.recipe.model.num_moe_experts.is_some() {
        let model = parallel.pipeline.saturating_mul(parallel.expert).saturating_mul(parallel.expert_tensor);
        let replicas = parallel.world_size / model.max(1);
        let message = format!("{instances} does not divide the {replicas} replicas of experts");
        draft.require(replicas.is_multiple_of(instances), key, message);
    }
}

/// Combinations of the sharding strategies.
fn strategy(draft: &mut Draft<'_>, is_fsdp: bool) {
    let key = "ddp.data_parallel_sharding_strategy";
    let strategy = draft.recipe.ddp.data_parallel_sharding_strategy;
    draft.require(is_fsdp || strategy == ShardingStrategy::NoShard, key, "needs ddp.use_megatron_fsdp");
    draft.require(
        !is_fsdp || strategy != ShardingStrategy::NoShard,
        draft.chosen(&["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "ddp.use_custom_fsdp"]),
        "shards nothing with ddp.data_parallel_sharding_strategy = \"no_shard\"; expected \"optim\", \"optim_grads\" or \
         \"optim_grads_params\" beside it",
    );
    draft.require(
        !is_fsdp || !draft.recipe.dist.use_tp_pp_dp_mapping,
        "dist.use_tp_pp_dp_mapping",
        "excludes ddp.use_megatron_fsdp",
    );
    if !is_fsdp || strategy == ShardingStrategy::NoShard {
        return;
    }
    for name in ["optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"] {
        let is_off = draft.is_explicit(name) && !draft.recipe.ddp.use_distributed_optimizer;
        let message = format!("is false, but {key} = \"{strategy}\" shards the optimizer state");
        draft.require(!is_off, name, message);
    }
    (draft.recipe.optimizer.use_distributed_optimizer, draft.recipe.ddp.use_distributed_optimizer) = (true, true);
}
