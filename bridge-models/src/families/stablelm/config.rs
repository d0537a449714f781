//! Settings of StableLM; absent ones have the values of `StableLmConfig`.

use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { percent: Some(0.25), ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    Setting::Rule(|fields, c| {
        let (hidden_size, heads) = (c.hidden_size, c.num_attention_heads);
        let expected = format!("a divisor of hidden_size ({hidden_size})");
        fields.require(hidden_size.is_multiple_of(heads), "num_attention_heads", &heads.to_string(), &expected)
    }),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Always(|c| {
        c.kv_channels = c.hidden_size / c.num_attention_heads;
        c.norm.kind = Normalization::LayerNorm;
        c.gated_linear_unit = true;
    }),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Silu),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Rule(|fields, _| {
        let rate = fields.number("hidden_dropout")?.unwrap_or(0.0);
        let expected = "0: dropout of the feed-forward block alone is not implemented";
        fields.require(rate == 0.0, "hidden_dropout", &rate.to_string(), expected)
    }),
    Setting::Switch("use_qkv_bias", |c| &mut c.qkv_bias, false),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys {
        read: |fields, c| {
            if fields.bool("qk_layernorm")?.unwrap_or(false) {
                (c.qk_layernorm, c.qk_layernorm_scope) = (true, QkNormScope::EachHead);
            }
            if fields.bool("use_parallel_residual")?.unwrap_or(false) {
                c.residual.blocks = BlockOrder::ParallelSharedNorm;
            }
            Ok(())
        },
        write: |c, settings| {
            settings.insert("qk_layernorm".into(), json!(c.qk_layernorm));
            settings.insert("use_parallel_residual".into(), json!(c.residual.blocks == BlockOrder::ParallelSharedNorm));
        },
    },
    Setting::Group(&FORM),
];
