//! T5, v1.0 and v1.1, Flan-T5: an encoder and a decoder with relative positions. Query, key and
//! value are three matrices there.

mod config;
mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "t5",
    architecture: "T5ForConditionalGeneration",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    // Every file has the tables' full names.
    prefix: "",
    // A table of the first files, which no layer uses.
    buffers: &[".EncDecAttention.relative_attention_bias.weight"],
    aliases: &[
        ("hidden_size", "d_model"),
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
        ("head_dim", "d_kv"),
    ],
    ..Family::USUAL
};
