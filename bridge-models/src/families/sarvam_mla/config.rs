//! Settings of Sarvam 105B; absent ones have the values of `SarvamMLAConfig`.

use crate::families::deepseek_v3::config::{
    HEADS, OWN_KEYS, PREDICTED_LAYERS, SHARED, latent, read_rope, write_query_rank, write_rope,
};
use crate::families::mixture::{SigmoidRouter, read_first_dense, read_shared, write_first_dense, write_shared};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    OWN_KEYS,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Keys {
        read: |fields, c| {
            latent(c).q_lora_rank = fields.size("q_lora_rank")?;
            Ok(())
        },
        write: write_query_rank,
    },
    size_or("kv_lora_rank", |c| &mut latent(c).kv_lora_rank, |_, _| Ok(512)),
    size_or("qk_rope_head_dim", |c| &mut latent(c).qk_pos_emb_head_dim, |_, _| Ok(64)),
    size_or("qk_nope_head_dim", |c| &mut latent(c).qk_head_dim, |_, _| Ok(128)),
    size_or("v_head_dim", |c| &mut latent(c).v_head_dim, |_, _| Ok(128)),
    HEADS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(2048)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Only("score_function", || json!("sigmoid")),
    Setting::Only("moe_router_enable_expert_bias", || json!(true)),
    Setting::Keys { read: |fields, c| ROUTER.read(fields, c), write: SigmoidRouter::write },
    Setting::Keys {
        read: |fields, c| read_shared(fields, c, SHARED, Some(1)),
        write: |c, settings| write_shared(c, settings, SHARED),
    },
    Setting::Keys { read: |fields, c| read_first_dense(fields, c, 1), write: write_first_dense },
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.006)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "q_head_dim", "qk_head_dim"]),
];

const ROUTER: SigmoidRouter = SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED };
