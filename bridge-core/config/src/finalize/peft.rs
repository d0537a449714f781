//! `[peft]`: rules.

use super::super::choice::{AdapterInit, BaseQuantization, DType, DropoutPosition, PeftKind, ShardingStrategy};
use super::super::sections::PeftConfig;
use super::Draft;
use super::data_parallel::computes_on_cpu;

/// Rules of adapters.
pub(super) fn check(draft: &mut Draft<'_>) {
    let Some(peft) = draft.recipe.peft.clone() else {
        return;
    };
    draft.require(
        draft.recipe.checkpoint.pretrained_checkpoint.is_some(),
        "checkpoint.pretrained_checkpoint",
        "must be given with [peft]",
    );
    draft.require(
        draft.recipe.model.freeze_parameters.is_empty(),
        "model.freeze_parameters",
        "excludes [peft]: all but the adapters is frozen there",
    );
    let names_layers = !peft.target_modules.is_empty() || !peft.canonical_mapping.is_empty();
    draft.require(
        !names_layers || peft.exclude_modules.is_empty(),
        "peft.exclude_modules",
        "excludes peft.target_modules and peft.canonical_mapping: set peft.target_modules = [] to adapt all other layers",
    );
    draft.require(
        peft.canonical_mapping.is_empty() || peft.target_modules == PeftConfig::default().target_modules,
        "peft.canonical_mapping",
        "excludes peft.target_modules",
    );
    let is_post = peft.dropout_position == DropoutPosition::Post;
    let is_lora = peft.kind == PeftKind::Lora;
    draft.require(is_lora || !is_post, "peft.dropout_position", "must be pre with kind = \"dora\"");
    draft.idle_unless(!is_post || peft.dropout > 0.0, "peft.dropout_position", "has no effect without peft.dropout");
    draft.require(is_lora || !peft.normalize_moe_lora, "peft.normalize_moe_lora", "must be false with kind = \"dora\"");
    let zeros = [peft.lora_A_init_method, peft.lora_B_init_method].map(|method| method == AdapterInit::Zero);
    draft.require(
        zeros != [true, true],
        "peft.lora_A_init_method",
        "must not be zero with a B of zeros: nothing is learned",
    );
    check_quantization(draft, &peft);
}

/// Rules of a quantised base.
fn check_quantization(draft: &mut Draft<'_>, peft: &PeftConfig) {
    let block = "peft.base_quantization_block_size";
    let size = peft.base_quantization_block_size;
    let settings = [
        ("peft.base_quantization", peft.base_quantization),
        ("peft.base_quantization_embedding", peft.base_quantization_embedding),
    ];
    let Some((key, _)) = settings.into_iter().find(|(_, quantization)| *quantization != BaseQuantization::None) else {
        let is_default = size == PeftConfig::default().base_quantization_block_size;
        let message = "has no effect without peft.base_quantization or peft.base_quantization_embedding";
        return draft.idle_unless(is_default, block, message);
    };
    draft.require(size.is_multiple_of(2), block, "must be even: a byte holds two codes of 4 bits");
    let is_cpu = computes_on_cpu(&draft.recipe.device);
    draft.require(is_cpu, key, "must be none on a GPU: only the CPU has products with quantised weights");
    let is_float32 = draft.recipe.model.params_dtype == DType::Float32;
    draft.require(
        is_float32,
        key,
        "needs model.params_dtype = \"fp32\": products with quantised weights are computed in float32 alone",
    );
    let is_sharded = draft.recipe.ddp.data_parallel_sharding_strategy == ShardingStrategy::OptimGradsParams;
    draft.require(
        !is_sharded,
        key,
        "must be none where parameters are sharded: ranks own runs of elements of one dtype, which end inside blocks",
    );
}
