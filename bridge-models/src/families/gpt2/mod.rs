//! GPT-2. Its linear layers are `Conv1D`s, which store a row an input.

mod config;
pub(super) mod gguf;
mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt2",
    architecture: "GPT2LMHeadModel",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    prefix: "transformer.",
    buffers: &[".attn.bias", ".attn.masked_bias"],
    aliases: &[
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ],
    ..Family::USUAL
};
