//! Settings of GPT-NeoX; absent ones have the values of `GPTNeoXConfig`.

use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("intermediate_size", |c| &mut c.ffn_hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Rule(|fields, c| {
        let (hidden_size, heads) = (c.hidden_size, c.num_attention_heads);
        let expected = format!("a divisor of hidden_size ({hidden_size})");
        fields.require(hidden_size.is_multiple_of(heads), "num_attention_heads", &heads.to_string(), &expected)
    }),
    Setting::Always(|c| {
        c.num_query_groups = c.num_attention_heads;
        c.kv_channels = c.hidden_size / c.num_attention_heads;
        c.norm.kind = Normalization::LayerNorm;
        c.mlp_bias = true;
    }),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Gelu),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Number("hidden_dropout", |c| &mut c.hidden_dropout, |_, _| Ok(0.0)),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| {
        c.proj_bias = c.qkv_bias;
        c.embedding_dropout = c.hidden_dropout;
    }),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_blocks, write: write_blocks },
    Setting::Keys { read: |fields, c| rope::read(fields, c, FORM), write: write_rope },
];

fn read_blocks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let are_parallel = fields.bool("use_parallel_residual")?.unwrap_or(true);
    config.residual.blocks = if are_parallel { BlockOrder::Parallel } else { BlockOrder::Sequential };
    Ok(())
}

fn write_blocks(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("use_parallel_residual".into(), json!(config.residual.blocks == BlockOrder::Parallel));
}

/// The usual tables, beside which the keys have names of the family's own: the usual ones there say
/// nothing.
const FORM: RopeForm = RopeForm { beside: ["rotary_emb_base", "rotary_pct"], percent: Some(0.25), ..RopeForm::USUAL };

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write_with_percent(config, settings);
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rotary_pct".into(), json!(rope.percent));
        settings.insert("rotary_emb_base".into(), json!(rope.base));
    }
}
