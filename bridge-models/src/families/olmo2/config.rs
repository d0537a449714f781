//! Settings of OLMo 2; absent ones have the values of `Olmo2Config`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys { read: |fields, c| rope::read(fields, c, RopeForm::USUAL), write: write_rope },
];

/// Settings of OLMo 3 too.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
    }),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
];

/// Olmo2Config of transformers 4 takes two fields and no other.
fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    if let PositionEmbedding::Rope(RopeConfig { scaling: Some(RopeScaling::Linear { factor }), .. }) =
        &config.position_embedding
    {
        settings.insert("rope_scaling".into(), json!({ "type": "linear", "factor": factor }));
    }
}
