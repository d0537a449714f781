//! Settings of GLM-4.7-Flash; absent ones have the values of `Glm4MoeLiteConfig`.

use crate::families::deepseek_v3::config::{
    HEADS, OWN_KEYS, PREDICTED_LAYERS, SHARED, latent, read_query_rank, read_rope, write_query_rank, write_rope,
};
use crate::families::mixture::{
    SigmoidRouter, first_is_dense, read_mlp_layer_types, read_shared, write_mlp_layer_types, write_shared,
};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    OWN_KEYS,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(202_752)),
    Setting::Keys { read: |fields, c| read_query_rank(fields, c, 768), write: write_query_rank },
    size_or("kv_lora_rank", |c| &mut latent(c).kv_lora_rank, |_, _| Ok(512)),
    size_or("qk_rope_head_dim", |c| &mut latent(c).qk_pos_emb_head_dim, |_, _| Ok(64)),
    size_or("qk_nope_head_dim", |c| &mut latent(c).qk_head_dim, |_, _| Ok(192)),
    size_or("v_head_dim", |c| &mut latent(c).v_head_dim, |_, _| Ok(256)),
    HEADS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1536)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(4)),
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Keys { read: |fields, c| ROUTER.read(fields, c), write: SigmoidRouter::write },
    Setting::Keys {
        read: |fields, c| read_shared(fields, c, SHARED, Some(1)),
        write: |c, settings| write_shared(c, settings, SHARED),
    },
    Setting::Keys { read: |fields, c| read_mlp_layer_types(fields, c, first_is_dense), write: write_mlp_layer_types },
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["qk_head_dim"]),
];

const ROUTER: SigmoidRouter = SigmoidRouter { factor: 1.8, ..SigmoidRouter::UNGROUPED };
