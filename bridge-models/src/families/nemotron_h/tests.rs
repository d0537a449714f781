//! Layers of a Nemotron-H `config.json`.

use bridge_core::config::RouterScoreFunction;
use serde_json::{Map, Value, json};

use crate::decoder::DecoderConfig;
use crate::huggingface::fields::Fields;
use crate::huggingface::{ExpertLayout, WeightMap};

fn read(more: Value) -> Result<DecoderConfig, String> {
    let base = json!({ "vocab_size": 50, "hidden_size": 24, "mamba_num_heads": 8, "num_attention_heads": 4 });
    let tables = [base, more].map(|table| table.as_object().unwrap().clone());
    let settings: Map<String, Value> = tables.into_iter().flatten().collect();
    let family = &super::FAMILY;
    family.decoder_config(&Fields::new(&settings)).map_err(|error| error.to_string())
}

#[test]
fn letters_old_names_and_new_names_mean_the_same() {
    let layers = |more: Value| read(more).unwrap().hybrid.unwrap().layers;
    let letters =
        layers(json!({ "hybrid_override_pattern": "M-*M", "num_hidden_layers": 4, "num_key_value_heads": 4 }));
    let old = json!({ "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_key_value_heads": 4 });
    let new = ["linear_attention", "mlp", "full_attention", "linear_attention"];
    let new = json!({ "layers_block_type": new, "hybrid_override_pattern": "**", "num_key_value_heads": 4 });
    assert_eq!(layers(old), letters);
    assert_eq!(layers(new), letters, "the list counts where there are both");
    for (more, key) in [
        (json!({ "hybrid_override_pattern": "M?" }), "hybrid_override_pattern"),
        (json!({ "hybrid_override_pattern": "" }), "layers_block_type"),
        (json!({ "layers_block_type": ["mamba", "conv"] }), "layers_block_type"),
        (json!({ "layers_block_type": "mamba" }), "layers_block_type"),
        (json!({ "hybrid_override_pattern": "M*", "num_key_value_heads": 3 }), "num_key_value_heads"),
        (json!({ "hybrid_override_pattern": "M*", "num_key_value_heads": 4, "sliding_window": 8 }), "sliding_window"),
    ] {
        let error = read(more).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn layers_with_experts_have_a_router_of_sigmoids() {
    let sizes =
        json!({ "hybrid_override_pattern": "ME*E", "num_key_value_heads": 2, "mlp_bias": true, "n_routed_experts": 6 });
    let config = read(sizes.clone()).unwrap();
    let moe = config.moe.clone().unwrap();
    assert_eq!((moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.num_groups), (6, 2, 7688, None));
    assert_eq!((moe.shared_expert_intermediate_size, moe.topk_scaling_factor), (Some(7688), None));
    assert!(
        moe.expert_bias && moe.score_function == RouterScoreFunction::Sigmoid && !moe.raw_scores && !moe.linear_bias
    );
    assert_eq!((0..4).filter(|layer| moe.layers.includes(*layer)).collect::<Vec<_>>(), [1, 3]);
    let family = &super::FAMILY;
    assert_eq!(family.decoder_config(&Fields::new(&family.settings(&config).unwrap())).unwrap(), config);
    let mut groups = sizes.as_object().unwrap().clone();
    groups.extend([
        ("n_group".into(), json!(3)),
        ("topk_group".into(), json!(2)),
        ("norm_topk_prob".into(), json!(false)),
    ]);
    let moe = read(Value::Object(groups)).unwrap().moe.unwrap();
    assert_eq!(
        (moe.num_groups, moe.group_topk, moe.group_score_topk, moe.raw_scores),
        (Some(3), Some(2), Some(2), true)
    );
    let none = json!({ "hybrid_override_pattern": "M*", "num_key_value_heads": 2, "time_step_limit": [0.0, 1.0] });
    let config = read(none).unwrap();
    let mamba = config.hybrid.unwrap().mamba;
    assert!(config.moe.is_none() && mamba.least_time_step == 1e-3 && mamba.largest_time_step.is_none());
}

#[test]
fn folders_on_disk_and_modules_have_other_names() {
    let sizes = json!({ "hybrid_override_pattern": "ME*M", "num_key_value_heads": 2, "n_routed_experts": 3 });
    let config = read(sizes).unwrap();
    let stored = |experts, name: &str| {
        let map = WeightMap::new(&super::FAMILY, &config, experts).unwrap();
        map.entry(name).unwrap().tensors[0].clone()
    };
    let name = "decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight";
    let apart = stored(ExpertLayout::Apart, name);
    assert_eq!((apart.name.as_str(), apart.part), ("backbone.layers.1.mixer.experts.2.up_proj.weight", None));
    let all = stored(ExpertLayout::Stacked, name);
    assert_eq!((all.name.as_str(), all.start()), ("model.layers.1.mixer.experts.up_proj", 2 * 7688 * 24));
    let embedding = "embedding.word_embeddings.weight";
    assert_eq!(stored(ExpertLayout::Apart, embedding).name, "backbone.embeddings.weight");
    assert_eq!(stored(ExpertLayout::Stacked, embedding).name, "model.embeddings.weight");
}

#[test]
fn experts_in_a_narrower_stream_have_layers_around_them() {
    let latent = |more: Value| {
        let mut sizes = json!({ "hybrid_override_pattern": "ME*M", "num_key_value_heads": 2, "mlp_bias": true });
        sizes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(sizes).unwrap()
    };
    let config = latent(json!({ "moe_latent_size": 14 }));
    let family = &super::FAMILY;
    let written = family.settings(&config).unwrap();
    assert_eq!(written["moe_latent_size"], 14);
    assert_eq!(family.decoder_config(&Fields::new(&written)).unwrap(), config);
    for experts in [ExpertLayout::Apart, ExpertLayout::Stacked] {
        let map = WeightMap::new(family, &config, experts).unwrap();
        for layer in
            ["fc1_latent_proj.weight", "fc1_latent_proj.bias", "fc2_latent_proj.weight", "fc2_latent_proj.bias"]
        {
            let stored = &map.entry(&format!("decoder.layers.1.mlp.{layer}")).unwrap().tensors[0].name;
            assert!(stored.ends_with(&format!("layers.1.mixer.{layer}")), "{stored}");
        }
    }
    let none = latent(json!({ "moe_latent_size": null }));
    assert_eq!(none, latent(json!({})));
    assert_eq!(none.moe.unwrap().latent_size, None);
    // Without layers of experts the key says nothing.
    let dense = read(json!({ "hybrid_override_pattern": "M*", "num_key_value_heads": 2, "moe_latent_size": 14 }));
    assert!(dense.unwrap().moe.is_none());
}

#[test]
fn what_is_written_is_read_by_old_and_new_readers() {
    let more =
        json!({ "hybrid_override_pattern": "M-*M", "num_key_value_heads": 2, "mlp_bias": true, "use_bias": true });
    let config = read(more).unwrap();
    let family = &super::FAMILY;
    let written = family.settings(&config).unwrap();
    assert_eq!(written["hybrid_override_pattern"], "M-*M");
    assert_eq!(written["num_hidden_layers"], 4);
    assert_eq!(written["layers_block_type"][2], "full_attention");
    assert_eq!(family.decoder_config(&Fields::new(&written)).unwrap(), config);
}
