//! Keys of `config.json` that are absent, null, or overridden by other keys, and their meaning in
//! transformers.

use bridge_core::config::RouterDType;
use serde_json::{Map, Value, json};

use super::{family, fields::Fields};
use crate::decoder::{DecoderConfig, LayerPattern, PositionEmbedding, RopeScaling};
use crate::huggingface::HfError;

/// A decoder of 64 heads of two elements, from a file with nothing but sizes and `more`.
fn read(name: &str, more: Value) -> Result<DecoderConfig, HfError> {
    let sizes = json!({
        "vocab_size": 51, "hidden_size": 128, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 64,
    });
    let tables = [sizes, more].map(|table| table.as_object().unwrap().clone());
    let settings: Map<String, Value> = tables.into_iter().flatten().collect();
    family(name).decoder_config(&Fields::new(&settings))
}

/// The same, as it is written and read again.
fn read_back(name: &str, more: Value) -> DecoderConfig {
    let config = read(name, more).unwrap();
    let written = family(name).settings(&config).unwrap();
    assert_eq!(family(name).decoder_config(&Fields::new(&written)).unwrap(), config, "{name}");
    config
}

#[test]
fn groups_of_keys_and_values_are_the_familys_own_where_no_key_says_so() {
    let usual = [
        ("llama", 64),
        ("mistral", 8),
        ("mixtral", 8),
        ("qwen2", 32),
        ("qwen3", 32),
        ("qwen3_moe", 4),
        ("qwen2_moe", 16),
        ("minimax_m2", 8),
        ("hy_v3", 8),
        ("exaone_moe", 32),
        ("granitemoe", 64),
        ("sarvam_moe", 4),
        ("bailing_moe_v2", 4),
        ("solar_open", 8),
        ("smollm3", 4),
        ("starcoder2", 2),
        ("gemma2", 4),
        ("gemma3_text", 4),
        ("glm4", 2),
        ("gpt_oss", 8),
        ("olmo2", 64),
        ("olmoe", 64),
        ("phi3", 64),
        ("granite", 64),
        ("cohere2", 64),
        ("gemma", 16),
        ("glm", 2),
        ("olmo3", 64),
        ("exaone4", 32),
        ("seed_oss", 8),
        ("ministral", 8),
        ("arcee", 64),
        ("ernie4_5", 2),
        ("cohere", 64),
        ("cwm", 8),
        ("vaultgemma", 4),
        ("mimo", 32),
    ];
    for (name, groups) in usual {
        // GPT-OSS and others with large heads need no other sizes here.
        assert_eq!(read(name, json!({})).unwrap().num_query_groups, groups, "{name}");
        assert_eq!(read(name, json!({ "num_key_value_heads": 16 })).unwrap().num_query_groups, 16, "{name}");
    }
    for name in ["mistral", "mixtral", "qwen2", "qwen3", "smollm3", "gpt_oss", "glm", "exaone4", "seed_oss", "cwm"] {
        assert_eq!(read(name, json!({ "num_key_value_heads": null })).unwrap().num_query_groups, 64, "{name}");
    }
    match read("mistral", json!({ "num_attention_heads": 4 })) {
        Err(HfError::Setting { key, .. }) => assert_eq!(key, "num_key_value_heads"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_switch_that_is_null_is_off() {
    assert!(read("glm4", json!({})).unwrap().qkv_bias);
    assert!(!read("glm4", json!({ "attention_bias": null })).unwrap().qkv_bias);
    assert!(!read_back("smollm3", json!({ "tie_word_embeddings": null })).share_embeddings_and_output_weights);
    assert!(!read_back("starcoder2", json!({ "use_bias": null })).mlp_bias);
}

#[test]
fn keys_of_the_first_mamba_2_say_nothing_to_transformers() {
    let plain = read_back("mamba2", json!({ "num_heads": 4 }));
    assert_eq!(read_back("mamba2", json!({ "num_heads": 4, "rms_norm": false, "norm_before_gate": true })), plain);
}

#[test]
fn factors_of_one_scale_nothing_and_layers_without_positions_may_be_all() {
    let positions = |more| read_back("llama", more).position_embedding;
    let one = json!({ "rope_type": "linear", "factor": 1.0 });
    assert_eq!(positions(json!({ "rope_parameters": one })), positions(json!({})));
    let bands = json!({
        "rope_type": "llama3", "factor": 1, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    });
    assert_eq!(positions(json!({ "rope_scaling": bands })), positions(json!({})));
    let config = read_back("smollm3", json!({ "no_rope_layers": [0, 0, 0] }));
    assert_eq!((config.position_embedding, config.no_rope_layers), (PositionEmbedding::None, LayerPattern::None));
}

#[test]
fn layers_of_multi_token_prediction_that_transformers_drops_are_none() {
    let config = read_back("nemotron_h", json!({ "num_nextn_predict_layers": 1 }));
    assert_eq!(config.mtp_num_layers, 0);
}

#[test]
fn a_share_of_the_head_says_nothing_where_whole_heads_are_rotated() {
    for more in
        [json!({ "partial_rotary_factor": 0.5 }), json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } })]
    {
        for name in ["llama", "qwen3", "mistral"] {
            let config = read_back(name, more.clone());
            assert!(
                matches!(config.position_embedding, PositionEmbedding::Rope(rope) if rope.percent == 1.0),
                "{name}"
            );
        }
    }
    let scaled = json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5 } });
    match read("llama", scaled) {
        Err(HfError::Setting { key, .. }) => assert_eq!(key, "rope_parameters.partial_rotary_factor"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn routers_with_sigmoids_compute_in_float32() {
    let precision = |config: DecoderConfig| config.moe.unwrap().router_precision;
    let latent = json!({ "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7 });
    let config = read_back("deepseek_v3", latent);
    assert_eq!(config.latent.as_ref().unwrap().q_lora_rank, Some(1536), "absent is not null");
    assert_eq!(precision(config), Some(RouterDType::Fp32));
    assert_eq!(precision(read_back("nemotron_h", json!({}))), Some(RouterDType::Fp32));
    assert_eq!(precision(read_back("mixtral", json!({}))), None);
}

#[test]
fn scores_of_latent_attention_grow_with_yarn_alone() {
    let with = |rope: Value| {
        let sizes = json!({ "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7, "rope_scaling": rope });
        read("deepseek_v3", sizes)
    };
    let linear = |growth: Value| with(json!({ "type": "linear", "factor": 4.0, "mscale_all_dim": growth }));
    assert!(linear(json!(0)).is_ok());
    match linear(json!(1.0)) {
        Err(HfError::Setting { key, .. }) => assert_eq!(key, "rope_scaling.mscale_all_dim"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nemotron_h_has_an_output_of_its_own_whatever_the_key_says() {
    let tied = |name, more| read_back(name, more).share_embeddings_and_output_weights;
    assert!(!tied("nemotron_h", json!({ "tie_word_embeddings": true })));
    assert!(tied("mamba2", json!({ "tie_word_embeddings": true, "num_heads": 4 })));
}

#[test]
fn gemma_3_reads_the_old_table_as_an_addition_to_the_new_one() {
    let scaling = |more| match read("gemma3_text", more).unwrap().position_embedding {
        PositionEmbedding::Rope(rope) => rope.scaling,
        other => panic!("{other:?}"),
    };
    let linear = Some(RopeScaling::Linear { factor: 8.0 });
    assert_eq!(scaling(json!({ "rope_scaling": { "type": "linear", "factor": 8.0 } })), None);
    assert_eq!(scaling(json!({ "rope_scaling": { "rope_type": "linear", "factor": 8.0 } })), linear);
    let new = json!({ "full_attention": { "rope_type": "linear", "factor": 2.0 } });
    assert_eq!(scaling(json!({ "rope_parameters": new, "rope_scaling": { "factor": 8.0 } })), linear);
    let new = json!({ "full_attention": { "rope_type": "linear", "factor": 8.0 } });
    assert_eq!(scaling(json!({ "rope_parameters": new, "rope_scaling": {} })), linear);
    assert_eq!(scaling(json!({ "rope_parameters": {} })), None);
    // Tables of types of layers have lengths of their own.
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 });
    let beside = json!({ "rope_scaling": yarn, "original_max_position_embeddings": 16 });
    assert_eq!(scaling(beside), scaling(json!({ "rope_scaling": yarn })));
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "truncate": false });
    let found = scaling(json!({ "rope_parameters": { "full_attention": yarn } }));
    assert!(matches!(found, Some(RopeScaling::Yarn(yarn)) if yarn.truncate), "the key is not looked for there");
    let windowed = |more| read("gemma3_text", more).unwrap().window_layers;
    assert_eq!(windowed(json!({ "_sliding_window_pattern": 2 })), windowed(json!({})));
    assert_ne!(windowed(json!({ "sliding_window_pattern": 2 })), windowed(json!({})));
}

#[test]
fn the_two_parts_of_t5s_feed_forward_may_be_said_apart() {
    let read = |more: Value| {
        let sizes = json!({ "vocab_size": 51, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_heads": 4, "num_layers": 2 });
        let tables = [sizes, more].map(|table| table.as_object().unwrap().clone());
        let settings: Map<String, Value> = tables.into_iter().flatten().collect();
        let config = family("t5").decoder_config(&Fields::new(&settings)).unwrap();
        (config.gated_linear_unit, config.activation)
    };
    use bridge_core::config::Activation::{GeluTanh, Relu, Silu};
    assert_eq!(read(json!({})), (false, Relu));
    assert_eq!(read(json!({ "feed_forward_proj": "gated-gelu" })), (true, GeluTanh));
    assert_eq!(read(json!({ "feed_forward_proj": "gated-gelu", "dense_act_fn": "silu" })), (true, Silu));
    assert_eq!(read(json!({ "dense_act_fn": "gelu_new", "is_gated_act": true })), (true, GeluTanh));
}
