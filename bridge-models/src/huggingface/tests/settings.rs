//! `config.json` to a decoder and back: forms, defaults, refusals.

use serde_json::json;

use super::*;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeScaling, YarnConfig};
use crate::families;

fn scaling(settings: &Map<String, Value>) -> (f64, Option<RopeScaling>) {
    match parse(settings).unwrap().position_embedding {
        PositionEmbedding::Rope(rope) => (rope.base, rope.scaling),
        other => panic!("{other:?}"),
    }
}

fn llama_with(changes: Value) -> Map<String, Value> {
    let mut settings = settings_of("llama");
    settings.extend(changes.as_object().unwrap().clone());
    settings
}

#[test]
fn both_forms_of_rotary_settings_are_read() {
    let old = |theta: Value, scaling: Value| {
        let mut settings = llama_with(json!({ "rope_theta": theta, "rope_scaling": scaling }));
        settings.remove("rope_parameters");
        settings
    };
    assert_eq!(scaling(&old(json!(50000.0), Value::Null)), (50_000.0, None));
    assert_eq!(scaling(&old(Value::Null, Value::Null)), (10_000.0, None));
    let linear = Some(RopeScaling::Linear { factor: 2.5 });
    assert_eq!(scaling(&old(json!(3.0), json!({ "type": "linear", "factor": 2.5 }))), (3.0, linear.clone()));
    let new = json!({ "rope_parameters": { "rope_type": "linear", "rope_theta": 3.0, "factor": 2.5 } });
    assert_eq!(scaling(&llama_with(new)), (3.0, linear));
    let llama3 = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let expected = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    assert_eq!(scaling(&old(json!(5e5), llama3)), (5e5, Some(expected)));
    // An empty table says nothing, whichever it is.
    let empty =
        json!({ "rope_scaling": {}, "rope_parameters": { "rope_type": "linear", "rope_theta": 3.0, "factor": 2.5 } });
    assert_eq!(scaling(&llama_with(empty)), (3.0, Some(RopeScaling::Linear { factor: 2.5 })));
    let empty =
        json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.5 }, "rope_parameters": {}, "rope_theta": 3.0 });
    assert_eq!(scaling(&llama_with(empty)), (3.0, Some(RopeScaling::Linear { factor: 2.5 })));
    let empty = json!({ "rope_scaling": {}, "rope_parameters": {}, "rope_theta": null });
    assert_eq!(scaling(&llama_with(empty)), (10_000.0, None));
    // transformers reads the old table where a file has both.
    let both = json!({ "rope_scaling": { "type": "linear", "factor": 2.5 }, "rope_parameters": { "rope_theta": 4.0 }, "rope_theta": 3.0 });
    assert_eq!(scaling(&llama_with(both)), (3.0, Some(RopeScaling::Linear { factor: 2.5 })));
}

#[test]
fn yarn_and_longrope_have_the_defaults_of_transformers() {
    let table = |table: Value| scaling(&llama_with(json!({ "rope_scaling": table }))).1.unwrap();
    let whole = YarnConfig {
        factor: 4.0,
        original_max_position_embeddings: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: None,
        mscale_all_dim: None,
        attention_factor: None,
        truncate: true,
    };
    // The context grows from 32 tokens to the 128 of the model. Zero has no effect, and neither has
    // `mscale` without `mscale_all_dim` or beside `attention_factor`.
    let short = json!({ "type": "yarn", "original_max_position_embeddings": 32, "mscale": 0.7, "beta_fast": 0 });
    assert_eq!(table(short), RopeScaling::Yarn(whole));
    let long = json!({
        "rope_type": "yarn", "factor": 3, "original_max_position_embeddings": 64, "beta_fast": 20, "beta_slow": 2,
        "mscale": 0.7, "mscale_all_dim": 0.9, "attention_factor": 1.5, "truncate": false,
    });
    let expected = YarnConfig {
        factor: 3.0,
        original_max_position_embeddings: 64,
        beta_fast: 20.0,
        beta_slow: 2.0,
        mscale: None,
        mscale_all_dim: Some(0.9),
        attention_factor: Some(1.5),
        truncate: false,
    };
    assert_eq!(table(long), RopeScaling::Yarn(expected));
    let factors: Vec<f64> = (1..9).map(f64::from).collect();
    let longrope = |more: Value| {
        let mut settings = json!({
            "type": "su", "short_factor": factors, "long_factor": factors, "original_max_position_embeddings": 32,
        });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        match table(settings) {
            RopeScaling::LongRope { attention_factor, long_factor, .. } if long_factor == factors => attention_factor,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(longrope(json!({})), (1.0 + 4_f64.ln() / 32_f64.ln()).sqrt());
    assert_eq!(longrope(json!({ "factor": 1.0 })), 1.0);
    assert_eq!(longrope(json!({ "attention_factor": 1.25 })), 1.25);
}

/// transformers 4.57 warns of every other key of these tables.
#[test]
fn the_old_table_has_the_keys_that_its_kind_knows() {
    let factors = [1.0; 8];
    for (table, known) in [
        (json!({ "rope_type": "linear", "factor": 4.0 }), &["factor"][..]),
        (
            json!({
                "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }),
            &["factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"],
        ),
        (
            json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 }),
            &["beta_fast", "beta_slow", "factor", "original_max_position_embeddings", "truncate"],
        ),
        (
            json!({
                "rope_type": "longrope", "factor": 4.0, "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": 32,
            }),
            &["attention_factor", "factor", "long_factor", "original_max_position_embeddings", "short_factor"],
        ),
    ] {
        let settings = llama_with(json!({ "rope_theta": 500.0, "rope_scaling": table, "rope_parameters": null }));
        let config = parse(&settings).unwrap();
        let written = family("llama").settings(&config).unwrap();
        let keys = written["rope_scaling"].as_object().unwrap().keys().filter(|key| *key != "rope_type");
        assert_eq!(keys.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>(), known);
        assert_eq!((&written["rope_theta"], &written["rope_parameters"]["rope_theta"]), (&json!(500.0), &json!(500.0)));
        assert_eq!(written["rope_scaling"]["factor"], 4.0);
        // The only length of LongRoPE that transformers 4 reads.
        let beside = written.get("original_max_position_embeddings");
        assert_eq!(beside, (table["rope_type"] == "longrope").then_some(&json!(32)));
    }
}

#[test]
fn errors_of_a_folder_name_its_file_and_the_files_key() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 32,
    });
    let linear = json!({ "rope_type": "linear", "factor": -1.0 });
    for (change, key) in [
        (json!({ "hidden_act": "gelu_10" }), "hidden_act"),
        (json!({ "model_type": "qwen9" }), "model_type"),
        (json!({ "rope_scaling": llama3 }), "rope_scaling.high_freq_factor"),
        (json!({ "rope_scaling": null, "rope_parameters": linear }), "rope_parameters.factor"),
        (json!({ "rms_norm_eps": -1.0 }), "rms_norm_eps"),
        (json!({ "attention_dropout": 1.0 }), "attention_dropout"),
        (json!({ "num_hidden_layers": 1000 }), "num_hidden_layers"),
    ] {
        let folder = changed_copy("llama", |_| {});
        let path = folder.path().join("config.json");
        std::fs::write(&path, Value::Object(llama_with(change)).to_string()).unwrap();
        let error = HfModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: {key}: ", path.display())), "{key}: {error}");
    }
}

#[test]
fn absent_settings_have_the_families_defaults() {
    let mut settings = settings_of("llama");
    for key in [
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "hidden_act",
        "rope_parameters",
        "attention_bias",
        "mlp_bias",
        "tie_word_embeddings",
        "attention_dropout",
        "initializer_range",
        "max_position_embeddings",
    ] {
        settings.remove(key);
    }
    let config = parse(&settings).unwrap();
    assert_eq!((config.num_query_groups, config.kv_channels, config.max_position_embeddings), (4, 16, 2048));
    assert_eq!(config.norm.epsilon, 1e-6);
    assert!(!config.share_embeddings_and_output_weights && !config.qkv_bias && !config.mlp_bias);

    let mut settings = settings_of("gpt2");
    for key in ["n_inner", "activation_function", "layer_norm_epsilon", "tie_word_embeddings", "embd_pdrop"] {
        settings.remove(key);
    }
    let config = parse(&settings).unwrap();
    assert_eq!((config.ffn_hidden_size, config.activation), (256, bridge_core::config::Activation::GeluTanh));
    assert_eq!((config.embedding_dropout, config.hidden_dropout), (0.1, 0.0));
    assert!(config.share_embeddings_and_output_weights);
}

#[test]
fn biases_are_told_apart() {
    for (attention, mlp) in [(true, false), (false, true), (true, true)] {
        let config = parse(&llama_with(json!({ "attention_bias": attention, "mlp_bias": mlp }))).unwrap();
        assert_eq!((config.qkv_bias, config.proj_bias, config.mlp_bias), (attention, attention, mlp));
        let names: Vec<String> = WeightMap::new(family("llama"), &config, ExpertLayout::Apart)
            .unwrap()
            .entries()
            .iter()
            .map(|e| e.parameter.clone())
            .collect();
        assert_eq!(names.contains(&"decoder.layers.0.self_attention.linear_proj.bias".to_owned()), attention);
        assert_eq!(names.contains(&"decoder.layers.1.mlp.linear_fc1.bias".to_owned()), mlp);
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let cases = [
        (json!({ "hidden_act": "gelu_10" }), "hidden_act", "gelu_10"),
        (json!({ "model_type": "qwen9" }), "model_type", "qwen9"),
        (json!({ "model_type": null, "architectures": null }), "model_type", "no value"),
        (json!({ "rope_parameters": { "rope_type": "dynamic", "factor": 2 } }), "rope_parameters.rope_type", "dynamic"),
        (json!({ "rope_parameters": { "rope_type": "longrope" } }), "rope_parameters.short_factor", "no value"),
        (json!({ "rope_parameters": { "rope_type": "linear" } }), "rope_parameters.factor", "no value"),
        (
            json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5 } }),
            "rope_parameters.partial_rotary_factor",
            "0.5",
        ),
        (
            json!({ "rope_parameters": { "full_attention": { "rope_type": "default" } } }),
            "rope_parameters.full_attention",
            "table",
        ),
        (json!({ "num_key_value_heads": 3 }), "num_key_value_heads", "3"),
        (json!({ "hidden_size": -64 }), "hidden_size", "-64"),
        (json!({ "hidden_size": null }), "hidden_size", "no value"),
        (json!({ "num_hidden_layers": "two" }), "num_hidden_layers", "two"),
        (json!({ "head_dim": 15 }), "head_dim", "15"),
        (json!({ "attention_bias": 1 }), "attention_bias", "1"),
        (json!({ "quantization_config": {} }), "quantization_config.quant_method", "no value"),
    ];
    for (change, expected, part) in cases {
        match parse(&llama_with(change)) {
            Err(HfError::Setting { key, found, .. }) => {
                assert_eq!(key, expected);
                assert!(found.contains(part), "{key}: {found}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
    let mut settings = settings_of("gpt2");
    settings.insert("scale_attn_by_inverse_layer_idx".into(), json!(true));
    assert!(parse(&settings).unwrap_err().to_string().contains("scale_attn_by_inverse_layer_idx"));
}

#[test]
fn the_model_section_of_an_import_gives_the_same_decoder() {
    for name in &golden_models() {
        let config = parse(&settings_of(name)).unwrap();
        let section = config.to_transformer().unwrap();
        assert_eq!(DecoderConfig::from_transformer(&section, config.padded_vocab_size).unwrap(), config, "{name}");
    }
}

#[test]
fn settings_that_are_written_are_read_back() {
    for name in &golden_models() {
        let config = parse(&settings_of(name)).unwrap();
        let model_type = settings_of(name)["model_type"].as_str().unwrap().to_owned();
        let family = families::find(&config, Some(&model_type)).unwrap();
        assert_eq!(family.model_type(), model_type);
        let mut settings = family.settings(&config).unwrap();
        settings.insert("model_type".into(), json!(family.model_type()));
        assert_eq!(parse(&settings).unwrap(), config, "{name}");
    }
}

#[test]
fn a_decoder_of_no_family_cannot_be_written_and_the_setting_is_named() {
    let llama = parse(&settings_of("llama")).unwrap();
    for (key, config) in [
        ("no_rope_layers", DecoderConfig { no_rope_layers: LayerPattern::All, ..llama.clone() }),
        ("window_size", DecoderConfig { window_size: Some(4), ..llama.clone() }),
        ("logit_softcap", DecoderConfig { logit_softcap: Some(30.0), ..llama.clone() }),
        ("proj_bias", DecoderConfig { proj_bias: true, ..llama.clone() }),
        ("gated_linear_unit", DecoderConfig { gated_linear_unit: false, ..llama.clone() }),
        ("num_key_value_heads", DecoderConfig { num_query_groups: 3, ..llama.clone() }),
    ] {
        match family("llama").settings(&config) {
            Err(HfError::NotOfFamily { family: "llama", key: named, .. }) => assert_eq!(named, key),
            other => panic!("{other:?}"),
        }
    }
    let error = families::find(&DecoderConfig { qk_l2_norm: true, ..llama }, None).unwrap_err().to_string();
    for part in ["gpt2", "llama", "qwen3", "qk_l2_norm", "true", "false"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Every field, also inside tables, with another value: of the same type or, for optional fields, a
/// sample value.
fn changed_fields(path: &str, value: &Value, changed: &mut Vec<(String, Value)>) {
    let other = match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                changed_fields(&format!("{path}/{name}"), value, changed);
            }
            return;
        }
        Value::Bool(value) => json!(!value),
        Value::Number(number) if number.is_u64() => json!(number.as_u64().unwrap() + 1),
        Value::Number(number) => json!(number.as_f64().unwrap() * 0.5 + 0.2),
        Value::String(_) | Value::Null | Value::Array(_) => match path {
            "/position_embedding" => json!(if value == "none" { "learned_absolute" } else { "none" }),
            "/no_rope_layers" => json!("all"),
            "/window_layers" => json!({ "listed": [true, false] }),
            "/qk_layernorm_scope" => json!(if value == "head" { "projection" } else { "head" }),
            "/no_rope_layers/listed"
            | "/window_layers/listed"
            | "/moe/layers/listed"
            | "/linear_attention/layers/listed" => {
                let marks = value.as_array().unwrap().iter();
                json!(marks.map(|mark| !mark.as_bool().unwrap()).collect::<Vec<_>>())
            }
            "/hybrid/layers" => {
                let mut layers = value.clone();
                layers[0] = json!("mlp");
                layers
            }
            "/output_gate" => json!(if value == "head" { "element" } else { "head" }),
            "/norm/kind" => json!(if value == "RMSNorm" { "LayerNorm" } else { "RMSNorm" }),
            "/activation" => json!(if value == "squared_relu" { "relu" } else { "squared_relu" }),
            "/residual/norms" => json!(if value == "sandwich" { "before" } else { "sandwich" }),
            "/residual/blocks" => json!(if value == "parallel" { "sequential" } else { "parallel" }),
            "/window_size" => json!(4),
            "/activation_sparsity" => json!(vec![0.5; value.as_array().unwrap().len()]),
            "/windowed/attention_sinks" => json!(true),
            "/key_sources" => json!(["chosen", "chosen", "shared"]),
            "/output_limits" | "/moe/output_limits" => json!([0.25, 0.5, 0.0]),
            path if path.starts_with("/windowed/") => json!(2),
            "/attention_softcap" | "/logit_softcap" => json!(30.0),
            "/position_embedding/rope/windowed_base" => json!(50.0),
            "/position_embedding/rope/scaling" => json!({ "linear": { "factor": 2.0 } }),
            "/position_embedding/rope/scaling/yarn/attention_factor" => json!(1.25),
            "/position_embedding/rope/scaling/yarn/mscale" | "/position_embedding/rope/scaling/yarn/mscale_all_dim" => {
                json!(0.7)
            }
            "/position_embedding/rope/scaling/long_rope/short_factor"
            | "/position_embedding/rope/scaling/long_rope/long_factor" => {
                json!(vec![3.5; value.as_array().unwrap().len()])
            }
            "/linear_attention/layers" => json!({ "listed": [true, false] }),
            "/linear_attention/variant" => {
                json!(if value == "gated_delta_net" { "kimi_delta_attention" } else { "gated_delta_net" })
            }
            "/linear_attention/gate_rank" => json!(6),
            "/linear_attention/decay_bound" => json!(-2.0),
            "/linear_attention/norm_epsilon" => json!(1e-3),
            "/linear_attention/norms" => json!(if value == "output" { "before" } else { "output" }),
            "/moe/layers" => json!({ "listed": [true, false] }),
            "/moe/shared_expert_intermediate_size" => json!(24),
            "/moe/topk_scaling_factor" => json!(1.5),
            "/moe/latent_size" | "/latent/q_lora_rank" => json!(16),
            "/moe/num_groups" | "/moe/group_topk" | "/moe/group_score_topk" => json!(2),
            "/moe/score_function" => json!(if value == "softmax" { "sigmoid" } else { "softmax" }),
            "/moe/dispatcher" => json!("alltoall"),
            "/hybrid/mamba/out_bias" => json!(true),
            "/hybrid/mamba/dt_rank" => json!(3),
            "/hybrid/mamba/norm_epsilon" => json!(1e-3),
            "/hybrid/factors/mamba_parts" => json!([1.0, 2.0, 1.0, 0.5, 1.0]),
            "/moe/router_precision" => json!("fp64"),
            "/compressed/rates" => json!([2, 0, 3]),
            "/moe/capacity_factor" => json!(1.25),
            "/moe/drop_policy" => json!("position"),
            other => panic!("{other}: give another value than {value}"),
        },
    };
    changed.push((path.to_owned(), other));
}

#[test]
fn each_setting_of_a_decoder_is_written_or_refused() {
    for name in &golden_models() {
        let config = parse(&settings_of(name)).unwrap();
        let whole = serde_json::to_value(&config).unwrap();
        let mut changed = Vec::new();
        changed_fields("", &whole, &mut changed);
        let moe = json!({
            "num_experts": 4, "layers": "all", "ffn_hidden_size": 8, "shared_expert_intermediate_size": null, "topk": 2,
            "pre_softmax": false, "topk_scaling_factor": null, "aux_loss_coeff": 0.0,
            "z_loss_coeff": 0.0, "dispatcher": "allgather",
        });
        changed.push(("/moe".into(), moe));
        assert!(changed.len() > 30, "{changed:?}");
        let mut refused = 0;
        for (path, value) in changed {
            let mut other = whole.clone();
            match other.pointer_mut(&path) {
                Some(field) => *field = value,
                None => other[&path[1..]] = value,
            }
            let other: DecoderConfig = serde_json::from_value(other).unwrap();
            assert_ne!(other, config, "{path}");
            for family in families::FAMILIES {
                match family.settings(&other) {
                    Ok(settings) => {
                        let read = family.decoder_config(&fields::Fields::new(&settings)).unwrap();
                        assert_eq!(family::as_in_a_file(read), family::as_in_a_file(other.clone()), "{path}");
                    }
                    Err(HfError::NotOfFamily { .. }) => refused += 1,
                    Err(other) => panic!("{path}: {other}"),
                }
            }
        }
        assert!(refused > 20, "{name}: {refused}");
    }
}

#[test]
fn a_family_is_found_by_architecture_and_type() {
    let with = |changes: &[(&str, Value)]| {
        let mut settings = settings_of("llama");
        for (key, value) in changes {
            settings.insert((*key).to_owned(), value.clone());
        }
        parse(&settings).map_err(|error| error.to_string())
    };
    let expected = with(&[]);
    assert!(expected.is_ok());
    assert_eq!(with(&[("model_type", Value::Null)]), expected);
    assert_eq!(with(&[("architectures", Value::Null)]), expected);
    assert_eq!(with(&[("architectures", serde_json::json!([]))]), expected);
    let known = "LlamaForCausalLM (llama)";
    for (changes, words) in [
        (vec![("model_type", Value::from("bert"))], ["\"bert\", architectures \"LlamaForCausalLM\"", known]),
        (
            vec![("model_type", Value::Null), ("architectures", serde_json::json!(["BertModel"]))],
            ["\"BertModel\"", known],
        ),
        (vec![("model_type", Value::Null), ("architectures", Value::Null)], ["model_type", known]),
        (
            vec![("architectures", serde_json::json!(["LlamaForTokenClassification"]))],
            ["LlamaForTokenClassification", "LlamaForCausalLM"],
        ),
        (vec![("architectures", Value::from(3))], ["architectures", "a list of names"]),
    ] {
        let error = with(&changes).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
