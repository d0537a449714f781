//! Features of Zamba2. Import, export and reference values are tested for all families in
//! `huggingface/tests`.

use serde_json::json;

use super::FAMILY;
use crate::decoder::{HybridBlock, PositionEmbedding};
use crate::families::testing::{parse, read_back, wrong_key};

#[test]
fn layers_use_shared_blocks_in_turn() {
    let types = ["mamba", "hybrid", "hybrid", "hybrid"];
    let config = read_back(&FAMILY, json!({ "layers_block_type": types, "num_mem_blocks": 2, "n_mamba_heads": 6 }));
    let hybrid = config.hybrid.clone().unwrap();
    let uses: Vec<_> = (0..4).map(|layer| hybrid.shared_use(layer)).collect();
    let holders: Vec<_> = uses.iter().map(|shared| shared.map(|shared| (shared.number, shared.holder))).collect();
    assert_eq!(holders, [None, Some((0, 1)), Some((1, 2)), Some((2, 1))]);
    assert!(!uses[2].unwrap().is_last && uses[3].unwrap().is_last);
    assert_eq!((config.carried_into(0), config.carried_into(3)), (vec!["words"], vec!["words"]));
    assert!(config.carried_into(4).is_empty());
    assert_eq!((config.kv_channels, config.softmax_scale, config.max_position_embeddings), (8, 0.5, 4096));
    assert_eq!((hybrid.mamba.head_size, hybrid.mamba.state_size, hybrid.shared.adapter_rank), (8, 64, 128));
    assert!(config.share_embeddings_and_output_weights && config.position_embedding == PositionEmbedding::None);
    let other = json!({ "layers_block_type": types, "n_mamba_heads": 6, "use_mem_rope": true, "rms_norm_eps": 1e-3 });
    let other = read_back(&FAMILY, other);
    assert!(matches!(other.position_embedding, PositionEmbedding::Rope(_)));
    assert_eq!(other.hybrid.unwrap().mamba.norm_epsilon, Some(1e-5));
}

#[test]
fn absent_layers_are_those_of_the_published_model() {
    let config = parse(&FAMILY, json!({ "num_hidden_layers": 54, "n_mamba_heads": 6 })).unwrap();
    let layers = config.hybrid.unwrap().layers;
    let shared = layers.iter().enumerate().filter(|(_, block)| **block == HybridBlock::SharedMamba).map(|(i, _)| i);
    assert_eq!(shared.collect::<Vec<_>>(), [6, 12, 18, 24, 30, 36, 42, 47, 51]);
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let types = json!(["hybrid", "hybrid", "hybrid", "mamba"]);
    for (key, value) in [
        ("layers_block_type", json!(["hybrid"])),
        ("layers_block_type", json!(["hybrid", "mamba", "hybrid", "attention"])),
        ("n_mamba_heads", json!(7)),
        ("mamba_ngroups", json!(4)),
        ("num_attention_heads", json!(9)),
        ("use_shared_attention_adapter", json!(true)),
        ("tie_word_embeddings", json!(false)),
    ] {
        let mut settings = json!({ "layers_block_type": types, "n_mamba_heads": 6 });
        settings[key] = value;
        assert_eq!(wrong_key(&FAMILY, settings), key);
    }
}
