//! Consistency of the settings of latent attention and of its indexer.

use bridge_core::config::QkNormScope;
use bridge_core::model::ModelBuildError;

use super::config::{DecoderConfig, IndexerConfig, LatentConfig, PositionEmbedding};
use super::limits::{LARGEST_SIZE, invalid};

impl DecoderConfig {
    pub(super) fn validate_latent(&self, latent: &LatentConfig) -> Result<(), ModelBuildError> {
        let sizes = [
            ("model.q_lora_rank", latent.q_lora_rank.unwrap_or(1)),
            ("model.kv_lora_rank", latent.kv_lora_rank),
            ("model.qk_head_dim", latent.qk_head_dim),
            ("model.qk_pos_emb_head_dim", latent.qk_pos_emb_head_dim),
            ("model.v_head_dim", latent.v_head_dim),
        ];
        if let Some((key, size)) = sizes.into_iter().find(|(_, size)| !(1..=LARGEST_SIZE).contains(size)) {
            return Err(invalid(key, format!("expected from 1 to {LARGEST_SIZE}, found {size}")));
        }
        let epsilon = latent.norm_epsilon;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            let message = format!("expected a number above 0, found {epsilon}");
            return Err(invalid("model.latent_layernorm_epsilon", message));
        }
        if latent.kv_multiplier.is_some_and(|factor| !(factor > 0.0 && factor.is_finite())) {
            return Err(invalid("model.latent_kv_multiplier", "expected a number above 0".into()));
        }
        if self.num_query_groups != self.num_attention_heads {
            let message = format!(
                "expected num_attention_heads ({}) with multi_latent_attention, which gives each head its keys, found {}",
                self.num_attention_heads, self.num_query_groups
            );
            return Err(invalid("model.num_query_groups", message));
        }
        if self.hybrid.is_some() {
            let message = "expected false in a hybrid, whose attention has full or grouped key/value heads";
            return Err(invalid("model.multi_latent_attention", message.into()));
        }
        if self.qk_layernorm_scope != QkNormScope::Head {
            let message = "expected head with multi_latent_attention: there the latent vectors have norms";
            return Err(invalid("model.qk_layernorm_scope", message.into()));
        }
        if self.qk_layernorm_after_rope {
            let message = "expected false with multi_latent_attention: there the latent vectors have norms";
            return Err(invalid("model.qk_layernorm_after_rope", message.into()));
        }
        if self.has_fused_gates() {
            let message =
                "expected element or head with multi_latent_attention, which has no query-key-value projection";
            return Err(invalid("model.attention_output_gate_form", message.into()));
        }
        if self.clip_qkv.is_some() {
            let message = "expected null with multi_latent_attention, which has no query-key-value projection";
            return Err(invalid("model.clip_qkv", message.into()));
        }
        if self.attention_sinks {
            let message = "expected false with multi_latent_attention, which has no sinks";
            return Err(invalid("model.attention_sinks", message.into()));
        }
        if self.qk_l2_norm {
            let message = "expected false with multi_latent_attention: there the latent vectors have norms";
            return Err(invalid("model.qk_l2_norm", message.into()));
        }
        Ok(())
    }

    pub(super) fn validate_indexer(&self, indexer: &IndexerConfig) -> Result<(), ModelBuildError> {
        if self.latent.is_none() {
            let message = "needs multi_latent_attention = true, whose keys it chooses";
            return Err(invalid("model.dsa_indexer_topk", message.into()));
        }
        let rotated = match &self.position_embedding {
            PositionEmbedding::Rope(rope) => rope.rotary_size(self.rotary_head()),
            _ => 1,
        };
        let sizes = [
            ("model.dsa_indexer_topk", indexer.topk, 1),
            ("model.dsa_indexer_n_heads", indexer.heads, 1),
            ("model.dsa_indexer_head_dim", indexer.head_size, rotated),
        ];
        if let Some((key, size, least)) =
            sizes.into_iter().find(|(_, size, least)| !(*least..=LARGEST_SIZE).contains(size))
        {
            return Err(invalid(key, format!("expected from {least} to {LARGEST_SIZE}, found {size}")));
        }
        let numbers = [
            ("model.dsa_indexer_loss_coeff", indexer.loss_coeff, indexer.loss_coeff >= 0.0),
            ("model.dsa_indexer_k_norm_epsilon", indexer.norm_epsilon, indexer.norm_epsilon > 0.0),
        ];
        if let Some((key, number, _)) = numbers.into_iter().find(|(_, number, fits)| !(*fits && number.is_finite())) {
            return Err(invalid(key, format!("expected a finite number that is not negative, found {number}")));
        }
        if indexer.loss_coeff > 0.0 && self.recomputed.mla_up_proj {
            let message = "expected null with \"mla_up_proj\" in recompute_modules, which runs attention twice";
            return Err(invalid("model.dsa_indexer_loss_coeff", message.into()));
        }
        Ok(())
    }
}
