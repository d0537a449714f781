//! From the configuration: sharding over replicas, and the cuts of the graphs of chunks. A plan
//! counts by it, and a run does it.

use super::offload::Offload;
use super::recompute::{GraphCuts, Recompute};
use crate::config::optimizer_rules::KeptFormats;
use crate::config::{self, DType, RunConfig};
use crate::model::{Declarations, ModelBuildError, ModelConfig, ModelRegistry, SegmentRole, Stage, Workload};
use crate::optim::rules::{self, MasterFormat, StateFormats};
use crate::optim::{
    BucketPadding, BucketRule, DistributionSettings, GroupSettings, OffloadSettings, OverrideContext, OverrideProvider,
    RuleOverrides, Sharding, StandardOverrides, TransferTiming, UnmatchedRule,
};

/// Bucket rule without a size in the recipe: Megatron's default, in elements, but several buckets
/// also for a smaller model.
fn default_bucket_rule(data_parallel_size: usize) -> BucketRule {
    BucketRule::Share { parts: DEFAULT_PARTS, max_elements: (1_000_000 * data_parallel_size).max(40_000_000) }
}

/// Tokens of a vocabulary where the recipe does not say how many there are.
pub(crate) const ANY_VOCABULARY: usize = 1024;

/// Divisor of a chunk's elements at which a bucket is closed by default. The last bucket's transfer
/// is not overlapped.
const DEFAULT_PARTS: usize = 16;

/// Distribution of gradients, state and parameters over replicas.
pub(crate) fn distribution(config: &RunConfig) -> DistributionSettings {
    let (ddp, replicas) = (&config.ddp, config.parallel.data * config.parallel.context);
    // Small buckets only help to start early; without overlap there is one.
    let bucket_rule = if ddp.overlap_grad_reduce || ddp.overlap_param_gather {
        ddp.bucket_size.map_or_else(|| default_bucket_rule(replicas), BucketRule::Elements)
    } else {
        BucketRule::One
    };
    DistributionSettings {
        sharding: sharding(config),
        bucket_rule,
        padding: match ddp.pad_buckets_for_high_nccl_busbw {
            true => BucketPadding::HighBandwidth,
            false => BucketPadding::EqualParts,
        },
        overlap_grad_reduce: ddp.overlap_grad_reduce,
        average_in_collective: ddp.average_in_collective,
        overlap_param_gather: ddp.overlap_param_gather,
        fp8_param_gather: ddp.fp8_param_gather && config.model.fp8.is_some(),
    }
}

/// Finalized recipes say it under each of its names.
fn sharding(config: &RunConfig) -> Sharding {
    let ddp = &config.ddp;
    match ddp.data_parallel_sharding_strategy {
        config::ShardingStrategy::OptimGradsParams if ddp.use_megatron_fsdp => Sharding::Full,
        config::ShardingStrategy::OptimGrads if ddp.use_megatron_fsdp => Sharding::Gradients,
        _ if ddp.use_distributed_optimizer => Sharding::Optimizer,
        _ => Sharding::None,
    }
}

/// Cuts of the graph, so that gradients and parameters are not all whole at once.
pub(crate) fn cuts(config: &RunConfig) -> GraphCuts {
    // Experts may have replicas where the rest has none.
    let sizes = &config.parallel;
    let of_expert = sizes.expert * sizes.expert_tensor * sizes.pipeline;
    let has_experts = config.model.num_moe_experts.is_some();
    let has_replicas = sizes.data * sizes.context > 1 || has_experts && sizes.world_size > of_expert;
    match sharding(config) {
        Sharding::Full => GraphCuts::EachLayerRecomputed,
        // Gradients are reduced segment by segment, so that they are not all whole at once.
        Sharding::Gradients => GraphCuts::EachSegment,
        _ if has_replicas && config.ddp.overlap_grad_reduce => GraphCuts::EachSegment,
        _ => GraphCuts::AsNeeded,
    }
}

/// Activations to recompute.
pub(crate) fn recompute(config: &RunConfig) -> Recompute {
    let model = &config.model;
    let layers = model.recompute_num_layers.unwrap_or(1);
    match (model.recompute_granularity, model.recompute_method) {
        (None, _) => Recompute::Off,
        (Some(config::RecomputeGranularity::Full), Some(config::RecomputeMethod::Block)) => Recompute::Block { layers },
        (Some(config::RecomputeGranularity::Full), _) => Recompute::Uniform { layers },
        (Some(config::RecomputeGranularity::Selective), _) => {
            // Recompute works on whole segments: a segment's norm is recomputed with it. The
            // model's own blocks recompute smaller parts.
            let mut roles = Vec::new();
            for module in &model.recompute_modules {
                match module.as_str() {
                    "core_attn" => roles.push(SegmentRole::Attention),
                    "mlp" => roles.push(SegmentRole::Mlp),
                    "moe" => roles.push(SegmentRole::Moe),
                    "layernorm" => roles.extend([SegmentRole::Attention, SegmentRole::Mlp, SegmentRole::Moe]),
                    "moe_act" | "shared_experts" | "mla_up_proj" => {}
                    other => unreachable!("`finalize` refuses {other}"),
                }
            }
            if roles.is_empty() { Recompute::Off } else { Recompute::Selective(roles) }
        }
    }
}

/// Optimizer states in host memory, and the transfer of their updates' inputs; `None` on a CPU,
/// which has no other memory.
pub(crate) fn optimizer_offload(config: &RunConfig) -> Option<OffloadSettings> {
    let optimizer = &config.optimizer;
    let is_on = optimizer.optimizer_cpu_offload && !config.computes_on_cpu();
    let transfers =
        if optimizer.overlap_cpu_optimizer_d2h_h2d { TransferTiming::Prefetched } else { TransferTiming::OnDemand };
    is_on.then_some(OffloadSettings { fraction: optimizer.optimizer_offload_fraction, transfers })
}

/// Activations that are moved to the host between forward and backward. A CPU's activations are
/// there anyway.
pub(crate) fn activation_offload(config: &RunConfig) -> Offload {
    let model = &config.model;
    if config.computes_on_cpu() {
        return Offload::Nothing;
    }
    match (model.cpu_offloading, model.fine_grained_activation_offloading) {
        (true, _) => Offload::Layers(model.cpu_offloading_num_layers),
        (false, true) => Offload::Modules(model.offload_modules.clone()),
        (false, false) => Offload::Nothing,
    }
}

/// Formats of the optimizer's states and master weights; `None` keeps all in float32.
pub(crate) fn state_formats(config: &RunConfig) -> Option<StateFormats> {
    let optimizer = &config.optimizer;
    let (rule, is_aware) = (rules::find(optimizer.optimizer), optimizer.use_precision_aware_optimizer);
    if !is_aware && rule.declared.formats != KeptFormats::Blocks {
        return None;
    }
    let is_bfloat16 = config.model.params_dtype == DType::BFloat16;
    let master = match optimizer.main_params_dtype {
        DType::Float32 if is_aware && is_bfloat16 && optimizer.store_param_remainders => MasterFormat::Remainders,
        DType::Float32 => MasterFormat::Float32,
        _ => MasterFormat::Float16,
    };
    Some(rule.formats(optimizer, master))
}

/// The usual settings of parameter groups.
pub(crate) fn standard_overrides(config: &RunConfig) -> StandardOverrides {
    let optimizer = &config.optimizer;
    let embeddings_and_output = match optimizer.decoupled_lr {
        None => GroupSettings::default(),
        max_lr => GroupSettings {
            max_lr,
            min_lr: optimizer.decoupled_min_lr,
            is_decoupled_lr: true,
            ..GroupSettings::default()
        },
    };
    let width = config.model.width_multiplier();
    let scalar_rule = optimizer.optimizer.rule().and_then(|rule| rule.scalar_rule(optimizer));
    // Orthogonalized updates have the size that the scale mode says, for any width.
    let hidden_matrices = match config.model.use_mup && scalar_rule.is_none() {
        false => GroupSettings::default(),
        true => GroupSettings {
            max_lr: Some(optimizer.lr / width),
            min_lr: Some(optimizer.min_lr / width),
            // Gradients shrink with the width, and so do the roots that epsilon is added to (Yang
            // et al., arXiv:2203.03466, appendix B.3).
            eps_mult: 1.0 / width,
            ..GroupSettings::default()
        },
    };
    StandardOverrides {
        embeddings_and_output,
        hidden_matrices,
        decay_qk_layernorm: optimizer.apply_wd_to_qk_layernorm || config.scheduler.no_weight_decay_cond_type.is_some(),
        scalar_rule: scalar_rule.map(|rule| rule.name),
    }
}

/// Settings of parameter groups with the rules of the recipe, for a model with these declarations.
///
/// # Errors
/// If a rule matches no parameter.
pub(crate) fn overrides(
    config: &RunConfig,
    model: &dyn ModelConfig,
    declarations: &Declarations,
) -> Result<RuleOverrides, UnmatchedRule> {
    let rules = &config.recipe().optimizer_config_override_provider.rules;
    let mut overrides = RuleOverrides::new(standard_overrides(config), rules);
    overrides.prepare(&override_context(config, declarations, &|name| model.other_names(name)))?;
    Ok(overrides)
}

/// The same for a model that is not built: if there are rules, the whole model is outlined. Names
/// of parameters are the same with any vocabulary.
///
/// # Errors
/// If a rule matches no parameter, or there is no such model.
pub(crate) fn overrides_of_outline<E: From<UnmatchedRule> + From<ModelBuildError>>(
    config: &RunConfig,
    models: &ModelRegistry,
) -> Result<RuleOverrides, E> {
    if config.recipe().optimizer_config_override_provider.rules.is_empty() {
        return Ok(RuleOverrides::new(standard_overrides(config), &[]));
    }
    let model = models.config(&config.model)?;
    let adapter = models.adapter(config.peft.as_ref(), &config.model)?;
    let work = Workload::sequence(config.model.seq_length, ANY_VOCABULARY);
    let outline = model.builder().outline(&work, &Stage::whole(model.stacks()), adapter)?;
    Ok(overrides(config, model.as_ref(), &outline.declarations)?)
}

/// Configuration and model that the settings of parameters may depend on.
pub(crate) fn override_context<'a>(
    config: &'a RunConfig,
    declarations: &'a Declarations,
    other_names: &'a dyn Fn(&str) -> Vec<String>,
) -> OverrideContext<'a> {
    OverrideContext {
        optimizer: &config.optimizer,
        scheduler: &config.scheduler.schedule,
        parameters: declarations.parameters(),
        other_names,
    }
}
