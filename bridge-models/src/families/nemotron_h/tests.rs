//! What `config.json` of Nemotron-H says of the layers.

use serde_json::{Map, Value, json};

use crate::decoder::DecoderConfig;
use crate::huggingface::fields::Fields;

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
