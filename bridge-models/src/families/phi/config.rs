//! Settings of Phi; absent ones have the values of `PhiConfig`.

use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { percent: Some(0.5), ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        c.residual.blocks = BlockOrder::ParallelSharedNorm;
        (c.qkv_bias, c.proj_bias, c.mlp_bias, c.output_bias) = (true, true, true, true);
    }),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "gelu_new"),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, |_, _| Ok(0.0)),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, |_, _| Ok(0.0)),
    Setting::Switch("qk_layernorm", |c| &mut c.qk_layernorm, false),
    Setting::Rule(|fields, c| {
        let size = c.hidden_size / c.num_attention_heads;
        let expected = format!("{size}: the family's norms of queries have hidden_size / num_attention_heads elements");
        let fits = !c.qk_layernorm || c.kv_channels == size;
        fields.require(fits, "head_dim", &c.kv_channels.to_string(), &expected)
    }),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Group(&FORM),
];
