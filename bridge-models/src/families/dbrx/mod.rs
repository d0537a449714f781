//! DBRX: LayerNorm without biases, a limit on queries, keys and values, and experts in every layer,
//! whose rows are all in three matrices.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "dbrx",
    architecture: "DbrxForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    prefix: "transformer.",
    aliases: &[
        ("num_attention_heads", "n_heads"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("max_position_embeddings", "max_seq_len"),
    ],
    ..Family::USUAL
};
