//! Features of Gemma 3 beyond Gemma 2. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{LayerPattern, PositionEmbedding, RopeConfig, RopeScaling};
use crate::families::testing::{read_back, wrong_key};

fn rope(more: Value) -> RopeConfig {
    let mut settings = json!({ "sliding_window_pattern": 2 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    match read_back(&FAMILY, settings).position_embedding {
        PositionEmbedding::Rope(rope) => rope,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = read_back(&FAMILY, json!({ "num_hidden_layers": 7 }));
    assert_eq!((config.kv_channels, config.max_position_embeddings, config.window_size), (256, 131_072, Some(4095)));
    let layers = [true, true, true, true, true, false, true];
    assert_eq!(config.window_layers, LayerPattern::Listed(layers.to_vec()));
    assert_eq!((config.attention_softcap, config.logit_softcap), (None, None));
    let capped = read_back(&FAMILY, json!({ "attn_logit_softcapping": 6.0, "final_logit_softcapping": 20.0 }));
    assert_eq!((capped.attention_softcap, capped.logit_softcap), (None, Some(20.0)));
    assert!(config.qk_layernorm && config.norm.zero_centered_gamma && config.share_embeddings_and_output_weights);
}

#[test]
fn windowed_layers_have_a_rotary_base_of_their_own_in_both_forms() {
    let usual = rope(json!({}));
    assert_eq!((usual.base, usual.windowed_base, usual.scaling.clone()), (1e6, Some(1e4), None));
    let linear = Some(RopeScaling::Linear { factor: 8.0 });
    let old = rope(json!({
        "rope_theta": 5e5, "rope_local_base_freq": 3e3, "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
    }));
    assert_eq!((old.base, old.windowed_base, old.scaling), (5e5, Some(3e3), linear.clone()));
    let new = rope(json!({ "rope_parameters": {
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 5e5 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 3e3 },
    } }));
    assert_eq!((new.base, new.windowed_base, new.scaling), (5e5, Some(3e3), linear));
    // Without windowed layers there is nothing that it would be the base of.
    let types = ["full_attention"; 4];
    assert_eq!(rope(json!({ "layer_types": types })).windowed_base, None);
    let scaled = json!({ "rope_parameters": { "sliding_attention": { "rope_type": "linear", "factor": 2.0 } } });
    assert_eq!(wrong_key(&FAMILY, scaled), "rope_parameters.sliding_attention.rope_type");
    let flat = json!({ "rope_parameters": { "rope_theta": 5e5 } });
    assert_eq!(wrong_key(&FAMILY, flat), "rope_parameters");
}
