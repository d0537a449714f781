//! Settings of Mixtral; absent ones have the values of `MixtralConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Always(|c| experts(c).ffn_hidden_size = c.ffn_hidden_size),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, |_, _| Ok(8)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(2)),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL }),
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];
