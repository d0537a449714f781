//! Sizes that must divide over the ranks.

use bridge_core::model::{ModelBuildError, RankPlace};

use super::config::{DecoderConfig, MoeConfig};
use super::hybrid::HybridBlock;
use super::limits::{invalid, refuse};

/// Refuses sizes that do not divide over the ranks.
pub(crate) fn check_divides(config: &DecoderConfig, place: &RankPlace) -> Result<(), ModelBuildError> {
    let (ranks, windowed) = (place.tensor.size, config.of_windowed());
    let mut sizes = Vec::new();
    if config.has_block(HybridBlock::Attention) {
        sizes.push(("model.num_attention_heads", config.num_attention_heads));
        sizes.push(("model.window_num_attention_heads", windowed.num_attention_heads));
    }
    if config.hybrid.is_none() || config.has_block(HybridBlock::Mlp) {
        sizes.push(("model.ffn_hidden_size", config.ffn_hidden_size));
    }
    if let Some(hybrid) = config.hybrid.as_ref().filter(|_| config.has_block(HybridBlock::Mamba)) {
        // Each rank has whole groups, with all heads that share a state's inputs, over which the
        // gated norm is taken.
        sizes.push(("model.mamba_num_groups", hybrid.mamba.num_groups));
    }
    if let Some(hybrid) = config.hybrid.as_ref().filter(|_| config.has_block(HybridBlock::Selective)) {
        sizes.push(("model.mamba_num_heads", hybrid.mamba.inner_size()));
    }
    if config.has_block(HybridBlock::ShortConv) {
        sizes.push(("model.hidden_size", config.hidden_size));
    }
    if let Some(linear) = &config.linear_attention {
        // Each rank has whole key heads with their value heads.
        sizes.push(("model.linear_num_key_heads", linear.num_key_heads));
    }
    sizes.extend(config.compressed.as_ref().map(|one| ("model.attention_output_groups", one.output_groups)));
    if let Some(moe) = &config.moe {
        sizes.extend(
            moe.shared_expert_intermediate_size.map(|size| ("model.moe_shared_expert_intermediate_size", size)),
        );
        check_experts(moe, place)?;
    }
    let message = format!("expected a row for each of {ranks} ranks, found {}", config.padded_vocab_size);
    refuse(config.padded_vocab_size < ranks, "padded vocabulary size", message)?;
    if let Some(rows) = config.per_layer.map(|per_layer| per_layer.vocab_size).filter(|rows| *rows < ranks) {
        let message = format!("expected a row for each of {ranks} ranks, found {rows}");
        return Err(invalid("model.vocab_size_per_layer_input", message));
    }
    if let Some((key, size)) = sizes.into_iter().find(|(_, size)| !size.is_multiple_of(ranks)) {
        let message = format!("expected a multiple of model.tensor_model_parallel_size = {ranks}, found {size}");
        return Err(invalid(key, message));
    }
    let choosing = config.indexer.filter(|indexer| indexer.block_size.is_some());
    let mut groups = [
        ("model.dsa_indexer_n_heads", choosing.map_or(ranks, |indexer| indexer.heads)),
        ("model.num_query_groups", config.num_query_groups),
        ("model.window_num_query_groups", windowed.num_query_groups),
    ]
    .into_iter();
    let fits = |groups: usize| groups.is_multiple_of(ranks) || ranks.is_multiple_of(groups);
    match groups.find(|(_, groups)| config.has_block(HybridBlock::Attention) && !fits(*groups)) {
        None => Ok(()),
        Some((key, groups)) => {
            let expected = format!("expected a multiple or a divisor of model.tensor_model_parallel_size = {ranks}");
            Err(invalid(key, format!("{expected}, found {groups}")))
        }
    }
}

fn check_experts(moe: &MoeConfig, place: &RankPlace) -> Result<(), ModelBuildError> {
    let (tensor, expert, expert_tensor) = (place.tensor.size, place.expert.size, place.expert_tensor.size);
    for (key, size, ranks_key, ranks) in [
        ("model.num_moe_experts", moe.num_experts, "model.expert_model_parallel_size", expert),
        ("model.moe_ffn_hidden_size", moe.ffn_hidden_size, "model.expert_tensor_parallel_size", expert_tensor),
    ] {
        if !size.is_multiple_of(ranks) {
            return Err(invalid(key, format!("expected a multiple of {ranks_key} = {ranks}, found {size}")));
        }
    }
    if expert_tensor != tensor && tensor > 1 && !place.sequence_parallel {
        let message = format!(
            "expected model.tensor_model_parallel_size = {tensor}, found {expert_tensor}: experts that are cut over other ranks than the rest \
             need model.sequence_parallel, which gives each rank tokens of its own"
        );
        return Err(invalid("model.expert_tensor_parallel_size", message));
    }
    Ok(())
}
