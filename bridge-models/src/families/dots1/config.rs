//! Settings of dots.llm1; absent ones have the values of `Dots1Config`.

use crate::families::deepseek_v3::config::SHARED;
use crate::families::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Always(|c| c.qk_layernorm = true),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1408)),
    size("n_routed_experts", |c| &mut experts(c).num_experts),
    size("num_experts_per_tok", |c| &mut experts(c).topk),
    Setting::Group(&ROUTER),
    Setting::Group(&SharedExperts(SHARED, None)),
    Setting::Group(&FirstDense(FIRST_DENSE, 0)),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    Setting::Keys { read: read_window, write: write_window },
];

const ROUTER: SigmoidRouter = SigmoidRouter { normalizes: false, ..SigmoidRouter::UNGROUPED };

/// A window in upper layers unless `sliding_window` is null.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = if fields.has("sliding_window") { fields.size("sliding_window")? } else { Some(4096) };
    windows::read_upper_layers(fields, config, size, 62)
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    windows::write_of_all(config, settings);
    settings.insert("layer_types".into(), windows::type_names(&windows::windowed_layers(config)));
}
