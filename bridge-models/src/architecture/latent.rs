//! Consistency of the settings of latent attention and of its indexer.

use bridge_core::config::QkNormScope;
use bridge_core::model::ModelBuildError;

use super::choices::{KeySource, LayerPattern};
use super::config::{CompressedConfig, DecoderConfig, IndexerConfig, LatentConfig, PositionEmbedding};
use super::limits::{LARGEST_SIZE, check_above_zero, check_sizes, invalid, refuse};

impl DecoderConfig {
    pub(super) fn validate_latent(&self, latent: &LatentConfig) -> Result<(), ModelBuildError> {
        check_sizes(&[
            ("model.q_lora_rank", latent.q_lora_rank.unwrap_or(1)),
            ("model.kv_lora_rank", latent.kv_lora_rank),
            ("model.qk_head_dim", latent.qk_head_dim),
            ("model.qk_pos_emb_head_dim", latent.qk_pos_emb_head_dim),
            ("model.v_head_dim", latent.v_head_dim),
        ])?;
        check_above_zero(&[
            ("model.latent_layernorm_epsilon", latent.norm_epsilon),
            ("model.latent_kv_multiplier", latent.kv_multiplier.unwrap_or(1.0)),
        ])?;
        let message = format!(
            "expected num_attention_heads ({}) with multi_latent_attention, which gives each head its keys, found {}",
            self.num_attention_heads, self.num_query_groups
        );
        refuse(self.num_query_groups != self.num_attention_heads, "model.num_query_groups", message)?;
        let message = "expected false in a hybrid, whose attention has full or grouped key/value heads";
        refuse(self.hybrid.is_some(), "model.multi_latent_attention", message)?;
        let message = "expected head with multi_latent_attention: there the latent vectors have norms";
        refuse(self.qk_layernorm_scope != QkNormScope::Head, "model.qk_layernorm_scope", message)?;
        let message = "expected false with multi_latent_attention: there the latent vectors have norms";
        refuse(self.qk_layernorm_after_rope, "model.qk_layernorm_after_rope", message)?;
        let message = "expected element or head with multi_latent_attention, which has no query-key-value projection";
        refuse(self.has_fused_gates(), "model.attention_output_gate_form", message)?;
        let message = "expected null with multi_latent_attention, which has no query-key-value projection";
        refuse(self.clip_qkv.is_some(), "model.clip_qkv", message)?;
        let message = "expected false with multi_latent_attention: there the latent vectors have norms";
        refuse(self.qk_l2_norm, "model.qk_l2_norm", message)
    }

    pub(super) fn validate_indexer(&self, indexer: &IndexerConfig) -> Result<(), ModelBuildError> {
        if (self.latent.is_some() || self.compressed.is_some()) == indexer.block_size.is_some() {
            let message =
                "needs multi_latent_attention = true or compressed_attention_rates, or else dsa_indexer_block_size";
            return Err(invalid("model.dsa_indexer_topk", message.into()));
        }
        let sizes = [
            ("model.dsa_indexer_topk", indexer.topk, 1),
            ("model.dsa_indexer_n_heads", indexer.heads, 1),
            ("model.dsa_indexer_head_dim", indexer.head_size, self.rotated_size().max(1)),
            ("model.dsa_indexer_block_size", indexer.block_size.unwrap_or(1), 1),
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
        self.validate_key_sources()?;
        if let Some(size) = indexer.block_size {
            self.validate_blocks(indexer, size)?;
        }
        let message = "expected null with \"mla_up_proj\" in recompute_modules, which runs attention twice";
        refuse(indexer.loss_coeff > 0.0 && self.recomputed.mla_up_proj, "model.dsa_indexer_loss_coeff", message)
    }

    pub(super) fn validate_compressed(&self, compressed: &CompressedConfig) -> Result<(), ModelBuildError> {
        let key = "model.compressed_attention_rates";
        let message = format!("expected one entry a layer ({}), found {}", self.num_layers, compressed.rates.len());
        refuse(compressed.rates.len() != self.num_layers, key, message)?;
        let groups = compressed.output_groups;
        if groups == 0 || !self.num_attention_heads.is_multiple_of(groups) {
            let message = format!("expected a divisor of {} heads, found {groups}", self.num_attention_heads);
            return Err(invalid("model.attention_output_groups", message));
        }
        check_sizes(&[
            ("model.q_lora_rank", compressed.q_lora_rank),
            ("model.attention_output_rank", compressed.output_rank),
        ])?;
        let (rope, fits_indexer) = match (&self.position_embedding, &self.indexer) {
            (PositionEmbedding::Rope(rope), None) => (Some(rope), true),
            (PositionEmbedding::Rope(rope), Some(indexer)) => {
                let rotates = indexer.rotates_last && indexer.interleaved == rope.interleaved;
                (Some(rope), rotates && indexer.loss_coeff == 0.0)
            }
            _ => (None, true),
        };
        let shares = self.key_sources.as_ref().is_some_and(|sources| sources.contains(&KeySource::Shared));
        let reason = if self.num_query_groups != 1 {
            "num_query_groups other than 1"
        } else if self.window_size.is_none() || self.window_layers != LayerPattern::All || self.window_chunks {
            "layers without a sliding window"
        } else if rope.is_none() || self.no_rope_layers != LayerPattern::None {
            "layers without rotary embedding"
        } else if !fits_indexer || shares {
            "an indexer that has a loss, that layers share, or that does not rotate as attention does, at the end"
        } else if self.hybrid.is_some() || self.encoder.is_some() || self.linear_attention.is_some() {
            "layers of other kinds than softmax attention"
        } else if self.mtp_num_layers > 0 {
            "mtp_num_layers above 0"
        } else if self.output_gate.is_some() || self.clip_qkv.is_some() || self.query_scale.is_some() {
            "gates, limits or factors of queries"
        } else if self.attention_softcap.is_some() || self.qk_layernorm || self.qk_l2_norm || self.v_l2_norm {
            "a softcap, or norms of queries, keys or values"
        } else if self.qkv_bias || self.proj_bias || self.other_values().1 || self.keys_as_values {
            "biases, or heads of values of their own"
        } else if self.num_kv_shared_layers > 0 {
            "num_kv_shared_layers"
        } else {
            return Ok(());
        };
        Err(invalid(key, format!("cannot be combined with {reason}")))
    }

    /// Checks that a layer that shares a choice of keys is behind one that makes it.
    fn validate_key_sources(&self) -> Result<(), ModelBuildError> {
        let Some(sources) = &self.key_sources else { return Ok(()) };
        let shares = sources.contains(&KeySource::Shared);
        let first = sources.iter().find(|source| **source != KeySource::All);
        let message = if sources.len() != self.num_layers {
            format!("expected one entry a layer ({}), found {}", self.num_layers, sources.len())
        } else if first == Some(&KeySource::Shared) {
            "expected a layer that chooses before those that share its choice".into()
        } else if shares && self.window_size.is_some() {
            "cannot be combined with window_size: layers see other keys".into()
        } else {
            return Ok(());
        };
        Err(invalid("model.dsa_indexer_topk_freq", message))
    }

    /// Checks an indexer that chooses blocks of `size` keys, by a head for each group of query
    /// heads or by one for all.
    fn validate_blocks(&self, indexer: &IndexerConfig, size: usize) -> Result<(), ModelBuildError> {
        let key = "model.dsa_indexer_block_size";
        let message = format!("expected a multiple of dsa_indexer_block_size ({size}), found {}", indexer.topk);
        refuse(!indexer.topk.is_multiple_of(size), "model.dsa_indexer_topk", message)?;
        if ![1, self.num_query_groups].contains(&indexer.heads) {
            let groups = self.num_query_groups;
            let message = format!("expected 1 or num_query_groups ({groups}), found {}", indexer.heads);
            return Err(invalid("model.dsa_indexer_n_heads", message));
        }
        let message = "expected null with dsa_indexer_block_size: blocks have no loss";
        refuse(indexer.loss_coeff > 0.0, "model.dsa_indexer_loss_coeff", message)?;
        let reason = if self.window_size.is_some() {
            "window_size: blocks are counted from the first key"
        } else if self.hybrid.is_some() || self.encoder.is_some() || self.linear_attention.is_some() {
            "layers of other kinds than softmax attention"
        } else if self.num_kv_shared_layers > 0 {
            "num_kv_shared_layers"
        } else {
            return Ok(());
        };
        Err(invalid(key, format!("cannot be combined with {reason}")))
    }
}
