//! Consistency of the fields of a configuration with an encoder. Each error has the key of the
//! `[model]` section.

use bridge_core::config::Activation;
use bridge_core::model::ModelBuildError;

use crate::architecture::choices::LayerPattern;
use crate::architecture::config::{DecoderConfig, PositionEmbedding, RelativeConfig, ResidualConfig};
use crate::architecture::limits::{invalid, refuse};

/// Checks that the other fields fit an encoder, and that relative positions are used only with an
/// encoder. Fails with the first key that does not fit, and the expected value.
pub(crate) fn validate(config: &DecoderConfig) -> Result<(), ModelBuildError> {
    let key = "model.position_embedding_type";
    let (encoder, relative) = match (&config.encoder, &config.position_embedding) {
        (None, PositionEmbedding::Relative(_)) => {
            return Err(invalid(key, "relative needs an encoder: model.kind = \"t5\"".into()));
        }
        (None, _) => return Ok(()),
        (Some(encoder), PositionEmbedding::Relative(relative)) => (encoder, relative),
        (Some(_), PositionEmbedding::LearnedAbsolute | PositionEmbedding::Rope(_) | PositionEmbedding::None) => {
            return Err(invalid(key, "expected relative: with an encoder no other positions are implemented".into()));
        }
    };
    validate_relative(*relative)?;
    let sizes = [
        ("model.encoder_num_layers", encoder.num_layers, 1 << 16),
        ("model.seq_length_dec", encoder.target_length, (1 << 31) - 1),
    ];
    if let Some((key, size, most)) = sizes.into_iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
        return Err(invalid(key, format!("expected 1 to {most}, found {size}")));
    }
    let message =
        format!("expected a token of the vocabulary of {}, found {}", config.padded_vocab_size, encoder.start_token);
    refuse(encoder.start_token >= config.padded_vocab_size, "model.decoder_start_token_id", message)?;
    let absent = [
        ("model.num_moe_experts", config.moe.is_some()),
        ("model.hybrid_override_pattern", config.hybrid.is_some()),
        ("model.multi_latent_attention", config.latent.is_some()),
        ("model.add_bias_linear", config.qkv_bias || config.proj_bias || config.mlp_bias),
        ("model.qk_layernorm", config.qk_layernorm),
        ("model.qk_l2_norm", config.qk_l2_norm),
        ("model.v_l2_norm", config.v_l2_norm),
        ("model.attention_k_eq_v", config.keys_as_values),
        ("model.num_kv_shared_layers", config.num_kv_shared_layers > 0),
        ("model.attention_sinks", config.attention_sinks),
        config.other_values(),
        ("model.attention_output_gate", config.output_gate.is_some()),
        ("model.clip_qkv", config.clip_qkv.is_some()),
        ("model.query_scale_beta", config.query_scale.is_some()),
        ("model.embedding_layernorm", config.embedding_norm),
        ("model.enable_mhc_connections", config.streams.is_some()),
        ("model.altup_num_inputs", config.altup.is_some()),
        ("model.activation_sparsity_pattern", config.activation_sparsity.is_some()),
        ("model.hidden_size_per_layer_input", config.per_layer.is_some()),
        ("model.layer_scalar", config.layer_scalar),
        ("model.add_output_layer_bias", config.output_bias),
        ("model.activation_func", config.activation == Activation::Xielu),
        ("model.embedding_multiplier", config.embedding_multiplier != 1.0),
        ("model.logit_multiplier", config.logit_multiplier != 1.0),
        ("model.num_query_groups", config.num_query_groups != config.num_attention_heads),
        ("model.window_size", config.window_size.is_some()),
        ("model.no_rope_freq", config.no_rope_layers != LayerPattern::None),
        ("model.attn_logit_softcapping", config.attention_softcap.is_some()),
        ("model", config.residual != ResidualConfig::neutral()),
    ];
    match absent.into_iter().find(|(_, is_there)| *is_there) {
        Some((key, _)) => Err(invalid(key, "is not implemented in models with an encoder".into())),
        None => Ok(()),
    }
}

fn validate_relative(RelativeConfig { num_buckets, max_distance }: RelativeConfig) -> Result<(), ModelBuildError> {
    let message = format!("expected an even number of at least 4, found {num_buckets}");
    refuse(num_buckets < 4 || !num_buckets.is_multiple_of(2), "model.relative_attention_num_buckets", message)?;
    let message = format!(
        "expected more than half of model.relative_attention_num_buckets = {num_buckets}, which distances have for themselves, \
             found {max_distance}"
    );
    refuse(max_distance <= num_buckets / 2, "model.relative_attention_max_distance", message)
}
