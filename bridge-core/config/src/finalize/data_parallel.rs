//! Stage 2, second part: sharding over data-parallel ranks. The same setting exists in several
//! sections; afterwards all of them have the same value.

use super::super::choice::ShardingStrategy;
use super::super::run_config::ParallelSizes;
use super::Draft;
use super::presets::has_shards;

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
    draft.require(
        !overlaps || has_shards(&draft.recipe),
        draft.chosen(&[
            "ddp.overlap_param_gather",
            "optimizer.overlap_param_gather",
            "comm_overlap.overlap_param_gather",
        ]),
        "needs ddp.use_distributed_optimizer: otherwise there is nothing to gather",
    );
    instances(draft, parallel);
    let is_aligned_alone = draft.recipe.model.pipeline_model_parallel_size > 1 && draft.recipe.ddp.overlap_grad_reduce;
    let divides_gradients = matches!(strategy, ShardingStrategy::OptimGrads | ShardingStrategy::OptimGradsParams);
    draft.require(
        draft.recipe.dist.align_grad_reduce || (is_aligned_alone && !divides_gradients),
        "dist.align_grad_reduce",
        "says when stages begin to reduce: it needs model.pipeline_model_parallel_size above 1 and \
         ddp.overlap_grad_reduce, and gradients that are reduced once a step",
    );
    let stated = draft.recipe.comm_overlap.as_ref().and_then(|config| config.data_parallel_size);
    draft.require(
        stated.is_none_or(|stated| stated == parallel.data),
        "comm_overlap.data_parallel_size",
        format!("cannot be chosen: the data-parallel size follows from the other sizes and is {}", parallel.data),
    );
}

/// The number of instances of a distributed optimizer must divide the replicas.
fn instances(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    let key = "ddp.num_distributed_optimizer_instances";
    let instances = draft.recipe.ddp.num_distributed_optimizer_instances;
    if instances <= 1 {
        return;
    }
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
    draft.require(
        !is_fsdp || strategy != ShardingStrategy::NoShard,
        draft.chosen(&["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "ddp.use_custom_fsdp"]),
        "shards nothing with ddp.data_parallel_sharding_strategy = \"no_shard\"; expected \"optim\", \"optim_grads\" or \
         \"optim_grads_params\" beside it",
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
