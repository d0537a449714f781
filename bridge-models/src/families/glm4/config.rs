//! Settings of GLM-4; absent ones have the values of `Glm4Config`.

use crate::decoder::{DecoderConfig, PositionEmbedding};
use crate::families::llama::config::{BLOCKS, SIZES};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::rope::{self, RopeForm};
use crate::huggingface::settings::{Setting, size_or};
use bridge_core::config::NormPlacement;

const FORM: RopeForm = RopeForm { percent: Some(0.5), ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| c.residual.norms = NormPlacement::Sandwich),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1.5625e-7)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write_with_percent },
];

fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, FORM)?;
    if let PositionEmbedding::Rope(rope) = &mut config.position_embedding {
        rope.interleaved = true;
    }
    Ok(())
}
