//! Stage 2, second part: what data-parallel ranks divide among themselves. The same wish has a name in several sections; all of them say
//! it afterwards.

use super::super::choice::ShardingStrategy;
use super::super::run_config::ParallelSizes;
use super::super::section::Section;
use super::Draft;

/// Settings that say the same.
const SAME: [&[&str]; 3] = [
    &["optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"],
    &["optimizer.overlap_param_gather", "ddp.overlap_param_gather"],
    &["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"],
];

/// Reports names of one wish of which one was set to true and another to false.
fn contradictions(draft: &mut Draft<'_>, names: &[&str]) {
    let values = draft.recipe.to_node();
    let is_on = |name: &&&str| values.get_path(name).is_some_and(|value| value.to_inline() == "true");
    let Some(on) = names.iter().find(is_on) else {
        return;
    };
    for off in names.iter().filter(|name| !is_on(name)) {
        let is_explicit = draft.is_explicit(off);
        draft.require(!is_explicit, off, format!("says the same as {on}, which is true"));
    }
}

/// Makes the names of one wish agree, and checks the combinations.
pub(super) fn resolve(draft: &mut Draft<'_>, parallel: &ParallelSizes) {
    for names in SAME {
        contradictions(draft, names);
    }
    let recipe = &mut draft.recipe;
    let (optimizer, ddp, dist) = (&mut recipe.optimizer, &mut recipe.ddp, &mut recipe.dist);
    let is_sharded = optimizer.use_distributed_optimizer || ddp.use_distributed_optimizer;
    let overlaps = optimizer.overlap_param_gather || ddp.overlap_param_gather;
    let is_fsdp = ddp.use_megatron_fsdp || ddp.use_custom_fsdp || dist.use_megatron_fsdp;
    (optimizer.use_distributed_optimizer, ddp.use_distributed_optimizer) = (is_sharded, is_sharded);
    (optimizer.overlap_param_gather, ddp.overlap_param_gather) = (overlaps, overlaps);
    if ddp.use_custom_fsdp {
        draft.warnings.push("ddp.use_custom_fsdp is the old name of ddp.use_megatron_fsdp".into());
    }
    (ddp.use_megatron_fsdp, ddp.use_custom_fsdp, dist.use_megatron_fsdp) = (is_fsdp, false, is_fsdp);
    strategy(draft, is_fsdp);
    let strategy = draft.recipe.ddp.data_parallel_sharding_strategy;
    draft.require(
        !overlaps || is_sharded || strategy != ShardingStrategy::NoShard,
        "ddp.overlap_param_gather",
        "needs ddp.use_distributed_optimizer: otherwise there is nothing to gather",
    );
    instances(draft, parallel, is_sharded || strategy != ShardingStrategy::NoShard);
}

/// Several instances of a distributed optimizer divide the replicas among themselves.
fn instances(draft: &mut Draft<'_>, parallel: &ParallelSizes, is_sharded: bool) {
    let key = "ddp.num_distributed_optimizer_instances";
    let instances = draft.recipe.ddp.num_distributed_optimizer_instances;
    if instances <= 1 {
        return;
    }
    draft.require(is_sharded, key, "needs ddp.use_distributed_optimizer: otherwise there is no state to divide");
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

/// What the strategies go with.
fn strategy(draft: &mut Draft<'_>, is_fsdp: bool) {
    let key = "ddp.data_parallel_sharding_strategy";
    let strategy = draft.recipe.ddp.data_parallel_sharding_strategy;
    draft.require(is_fsdp || strategy == ShardingStrategy::NoShard, key, "needs ddp.use_megatron_fsdp");
    draft.require(
        !is_fsdp || !draft.recipe.dist.use_tp_pp_dp_mapping,
        "dist.use_tp_pp_dp_mapping",
        "excludes ddp.use_megatron_fsdp",
    );
    // Of replicas that update shares of whole parameters; with sharded parameters it follows from them.
    if is_fsdp && matches!(strategy, ShardingStrategy::Optim | ShardingStrategy::OptimGrads) {
        (draft.recipe.optimizer.use_distributed_optimizer, draft.recipe.ddp.use_distributed_optimizer) = (true, true);
    }
}
