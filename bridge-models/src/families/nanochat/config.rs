//! Settings of nanochat; absent ones have the values of `NanoChatConfig`.

use crate::families::gemma2::config::{read_logits_cap, write_logits_cap};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        (c.gated_linear_unit, c.norm.affine, c.embedding_norm) = (false, false, true);
        (c.qk_layernorm, c.qk_layernorm_after_rope) = (true, true);
    }),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "relu2"),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Keys { read: |fields, c| read_logits_cap(fields, c, Some(15.0)), write: write_logits_cap },
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write },
];

fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, RopeForm::USUAL)?;
    if let PositionEmbedding::Rope(rope) = &mut config.position_embedding {
        rope.reversed = true;
    }
    Ok(())
}
