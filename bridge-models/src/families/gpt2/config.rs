//! Settings of GPT-2; absent ones have the values of `GPT2Config`.

use crate::families::prelude::*;
use crate::huggingface::settings::usual_softmax_scale;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Always(|c| {
        c.position_embedding = PositionEmbedding::LearnedAbsolute;
        c.norm.kind = Normalization::LayerNorm;
        (c.qkv_bias, c.proj_bias, c.mlp_bias) = (true, true, true);
    }),
    Setting::Only("scale_attn_by_inverse_layer_idx", || json!(false)),
    Setting::Only("add_cross_attention", || json!(false)),
    size("vocab_size", |c| &mut c.vocab_size),
    size_or("n_positions", |c| &mut c.max_position_embeddings, |fields, _| Ok(fields.size("n_ctx")?.unwrap_or(1024))),
    size("n_embd", |c| &mut c.hidden_size),
    size("n_layer", |c| &mut c.num_layers),
    size("n_head", |c| &mut c.num_attention_heads),
    Setting::Rule(|fields, c| {
        let (hidden_size, heads) = (c.hidden_size, c.num_attention_heads);
        let expected = format!("a divisor of n_embd ({hidden_size})");
        fields.require(hidden_size.is_multiple_of(heads), "n_head", &heads.to_string(), &expected)
    }),
    Setting::Always(|c| {
        c.num_query_groups = c.num_attention_heads;
        c.kv_channels = c.hidden_size / c.num_attention_heads;
    }),
    size_or("n_inner", |c| &mut c.ffn_hidden_size, |_, c| Ok(4 * c.hidden_size)),
    Setting::Activation("activation_function", |c| &mut c.activation, Activation::GeluTanh),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, |_, _| Ok(0.1)),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, |_, _| Ok(0.1)),
    Setting::Number("attn_pdrop", |c| &mut c.attention_dropout, |_, _| Ok(0.1)),
    Setting::Number("layer_norm_epsilon", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Keys {
        read: |fields, c| {
            let is_scaled = fields.bool("scale_attn_weights")?.unwrap_or(true);
            c.softmax_scale = if is_scaled { usual_softmax_scale(c) } else { 1.0 };
            Ok(())
        },
        write: |c, settings| {
            settings.insert("scale_attn_weights".into(), json!(c.softmax_scale == usual_softmax_scale(c)));
        },
    },
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, true),
];
