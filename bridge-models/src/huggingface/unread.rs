//! Keys of `config.json` that have no effect here: a user is warned of those that may change the
//! function of a model.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Keys that do not affect the computation of a causal language model: keys of files and programs,
/// generation, other tasks, initialization, losses that the recipe sets, and speed.
const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "conv_use_xavier_init",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "ep_size",
    "experts_per_token",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initial_context_length",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "license",
    "mamba_ssm_cache_dtype",
    "mask_token_id",
    "max_length",
    "min_length",
    "model_name",
    "model_type",
    "moe_shared_expert_overlap",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_logits_to_keep",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "seq_aux",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
    "use_mamba_kernels",
];

/// The keys that are set, that nothing read, and that are not known to be harmless, with their
/// values.
pub(super) fn unread(settings: &Map<String, Value>, read_keys: &BTreeSet<String>) -> Vec<String> {
    let matters = |key: &str, value: &Value| !read_keys.contains(key) && !HARMLESS.contains(&key) && is_on(value);
    settings.iter().filter(|(key, value)| matters(key, value)).map(|(key, value)| shown(key, value)).collect()
}

/// True if a value asks for something: not null, false, zero or an empty list.
fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

/// A key and the beginning of its value.
fn shown(key: &str, value: &Value) -> String {
    const LONGEST: usize = 24;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("`{key}` = {}...", &text[..end]),
        None => format!("`{key}` = {text}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_may_matter_are_told() {
        let settings = json!({
            "read": 1, "use_cache": true, "attention_sinks": 4, "scale_depth": 1.4, "off": false, "none": null, "zero": 0.0, "empty": [],
            "of_a_long_value": "a text that is too long to be shown",
        });
        let read_keys = BTreeSet::from(["read".to_owned()]);
        assert_eq!(
            unread(settings.as_object().unwrap(), &read_keys),
            ["`attention_sinks` = 4", "`scale_depth` = 1.4", "`of_a_long_value` = \"a text that is too long..."]
        );
    }
}
