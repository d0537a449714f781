//! GPT-NeoX and Pythia: LayerNorm, biases everywhere, heads of which a part is rotated, blocks side
//! by side.

mod config;
#[cfg(test)]
mod tests;
mod weights;

use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_neox",
    architecture: "GPTNeoXForCausalLM",
    settings: config::SETTINGS,
    weights: &[weights::WEIGHTS],
    prefix: "gpt_neox.",
    buffers: &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"],
    module_names: &[("embed_out", "lm_head")],
    ..Family::USUAL
};
