//! `[peft]`: rules.

use super::super::choice::{AdapterInit, BaseQuantization, DType, ShardingStrategy};
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
        peft.canonical_mapping.is_empty() || peft.target_modules == PeftConfig::default().target_modules,
        "peft.canonical_mapping",
        "excludes peft.target_modules",
    );
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
        return;
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
