//! Features of MiniCPM3 beyond Llama. Import, export and reference values are tested for all
//! families in `huggingface/tests`.

use serde_json::{Value, json};

use super::FAMILY;
use crate::decoder::{DecoderConfig, PositionEmbedding};
use crate::families::testing::{read_back, wrong_key};

fn with(more: Value) -> DecoderConfig {
    let mut settings = json!({ "num_key_value_heads": 6 });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read_back(&FAMILY, settings)
}

#[test]
fn absent_settings_have_the_familys_defaults() {
    let config = with(json!({}));
    let latent = config.latent.clone().unwrap();
    assert_eq!((latent.q_lora_rank, latent.kv_lora_rank, latent.v_head_dim), (Some(768), 256, 4));
    assert_eq!((config.kv_channels, latent.qk_pos_emb_head_dim, latent.norm_epsilon), (96, 32, 1e-6));
    assert_eq!((config.embedding_multiplier, config.residual.branch_multiplier), (12.0, 0.7));
    assert_eq!((config.norm.epsilon, config.init_method_std), (1e-5, 0.1));
    assert!(config.share_embeddings_and_output_weights);
    assert!(matches!(config.position_embedding, PositionEmbedding::Rope(rope) if !rope.interleaved));
    assert_eq!(wrong_key(&FAMILY, json!({ "num_key_value_heads": 3 })), "num_key_value_heads");
}

#[test]
fn null_factors_scale_nothing() {
    let config = with(json!({ "scale_depth": null, "dim_model_base": null, "q_lora_rank": null, "v_head_dim": 7 }));
    assert_eq!((config.residual.branch_multiplier, config.logit_multiplier), (1.0, 1.0));
    let latent = config.latent.unwrap();
    assert_eq!((latent.q_lora_rank, latent.v_head_dim), (None, 7));
    assert_eq!(with(json!({ "dim_model_base": 12 })).logit_multiplier, 0.5);
}

#[test]
fn latent_norms_keep_their_epsilon_in_a_recipe() {
    let config = with(json!({ "rms_norm_eps": 1e-3 }));
    let section = config.to_transformer().unwrap();
    assert_eq!(section.latent_layernorm_epsilon, Some(1e-6));
    assert_eq!(DecoderConfig::from_transformer(&section, 50).unwrap(), config);
}
