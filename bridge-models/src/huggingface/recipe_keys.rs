//! Keys of `config.json` in place of the recipe's settings that the checks of a decoder name.

use std::path::Path;

use bridge_core::model::ModelBuildError;
use serde_json::{Map, Value};

use super::error::HfError;
use super::fields::Fields;

/// Tables with rotary settings, the one that is read first at the head.
const ROPE_TABLES: [&str; 3] = ["rope_scaling", "rope_parameters", "rope_parameters.full_attention"];

/// Settings of `[model]` with the keys that mean the same; `*` is one of [`ROPE_TABLES`]. A setting
/// whose key has the same name is not listed.
const KEYS: &[(&str, &[&str])] = &[
    ("num_layers", &["num_hidden_layers", "n_layer", "num_decoder_layers"]),
    ("encoder_num_layers", &["num_layers"]),
    ("hidden_size", &["n_embd", "d_model"]),
    ("ffn_hidden_size", &["intermediate_size", "n_inner", "d_ff"]),
    ("num_attention_heads", &["n_head", "num_heads"]),
    ("num_query_groups", &["num_key_value_heads"]),
    ("kv_channels", &["head_dim", "attention_head_dim", "d_kv"]),
    ("seq_length", &["max_position_embeddings", "n_positions"]),
    ("attention_dropout", &["attn_pdrop"]),
    ("hidden_dropout", &["dropout_rate", "resid_pdrop", "residual_dropout"]),
    ("embedding_dropout", &["embd_pdrop"]),
    ("layernorm_epsilon", &["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"]),
    ("init_method_std", &["initializer_range", "initializer_factor"]),
    ("embedding_multiplier", &["scale_emb"]),
    ("residual_multiplier", &["scale_depth"]),
    ("logit_multiplier", &["logit_scale", "logits_scaling", "dim_model_base"]),
    ("add_output_layer_bias", &["lm_head_bias"]),
    ("activation_func_clamp_value", &["swiglu_limit"]),
    ("rotary_base", &["*.rope_theta", "rope_theta", "rotary_emb_base"]),
    ("rotary_base_local", &["rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"]),
    ("seq_len_interpolation_factor", &["*.factor"]),
    ("rope_ntk_alpha", &["*.alpha"]),
    ("mhc_num_residual_streams", &["hc_mult"]),
    ("mhc_sinkhorn_iterations", &["hc_sinkhorn_iters"]),
    ("mhc_epsilon", &["hc_eps"]),
    ("mhc_output_magnitude", &["hc_magnitude"]),
    ("rope_proportional_share", &["*.partial_rotary_factor"]),
    ("window_chunks", &["attention_chunk_size"]),
    ("clip_qkv", &["attn_config.clip_qkv"]),
    ("query_scale_beta", &["*.llama_4_scaling_beta", "attn_scale"]),
    ("query_scale_length", &["*.original_max_position_embeddings", "floor_scale"]),
    ("rope_scaling_factor", &["*.factor"]),
    ("rope_scaling_high_freq_factor", &["*.high_freq_factor"]),
    ("yarn_rotary_scaling_factor", &["*.factor"]),
    ("yarn_beta_fast", &["*.beta_fast"]),
    ("yarn_beta_slow", &["*.beta_slow"]),
    ("yarn_mscale", &["*.mscale"]),
    ("yarn_mscale_all_dim", &["*.mscale_all_dim"]),
    ("yarn_attention_factor", &["*.attention_factor"]),
    ("longrope_attention_factor", &["*.attention_factor"]),
    ("longrope_short_factor", &["*.short_factor"]),
    ("longrope_long_factor", &["*.long_factor"]),
    ("num_moe_experts", &["num_local_experts", "num_experts", "n_routed_experts"]),
    ("moe_ffn_hidden_size", &["moe_intermediate_size", "intermediate_size"]),
    ("moe_router_topk", &["num_experts_per_tok", "num_experts_per_token"]),
    ("moe_num_identity_experts", &["zero_expert_num"]),
    ("moe_router_sparsemixer_jitter", &["router_jitter_noise"]),
    ("moe_router_num_groups", &["n_group", "num_expert_group"]),
    ("moe_router_group_topk", &["topk_group"]),
    ("moe_router_topk_scaling_factor", &["routed_scaling_factor"]),
    ("mtp_num_layers", &["num_nextn_predict_layers"]),
    ("qk_head_dim", &["qk_nope_head_dim"]),
    ("qk_pos_emb_head_dim", &["qk_rope_head_dim"]),
    ("mamba_state_dim", &["state_size", "ssm_state_size", "mamba_d_state"]),
    ("mamba_head_dim", &["mamba_d_head", "head_dim"]),
    ("mamba_num_heads", &["mamba_n_heads", "num_heads"]),
    ("mamba_num_groups", &["n_groups", "mamba_n_groups"]),
    ("mamba_conv_kernel", &["conv_kernel", "mamba_d_conv"]),
    ("mamba_chunk_size", &["chunk_size"]),
    ("short_conv_kernel", &["conv_L_cache"]),
    ("mamba_time_step_max", &["time_step_limit"]),
];

/// The first of these keys that has a value.
pub(super) fn first_in_file(fields: &Fields, keys: &[&str]) -> Option<String> {
    let paths = keys.iter().flat_map(|key| match key.strip_prefix('*') {
        Some(key) => ROPE_TABLES.map(|table| format!("{table}{key}")).to_vec(),
        None => vec![(*key).to_owned()],
    });
    let has_value = |path: &String| {
        let mut parts = path.split('.');
        let first = parts.next().and_then(|part| fields.peek(part));
        parts.try_fold(first?, |table, part| table.get(part)).filter(|value| !value.is_null())
    };
    paths.into_iter().find(|path| has_value(path).is_some())
}

/// An error about settings, with the file that has them and the file's own key.
pub(super) fn in_file(path: &Path, settings: &Map<String, Value>, error: HfError) -> HfError {
    match error {
        HfError::Setting { key, found, expected, .. } => {
            HfError::Setting { path: path.to_owned(), key, found, expected }
        }
        HfError::Model(ModelBuildError::Invalid { key, message }) => {
            let name = key.strip_prefix("model.").unwrap_or(&key);
            let listed = KEYS.iter().find(|(recipe, _)| *recipe == name).map_or(&[][..], |(_, keys)| keys);
            let own = first_in_file(&Fields::new(settings), &[listed, &[name]].concat());
            let source = ModelBuildError::Invalid { key: own.unwrap_or(key), message };
            HfError::Described { path: path.to_owned(), source }
        }
        HfError::Model(source) => HfError::Described { path: path.to_owned(), source },
        other => other,
    }
}
