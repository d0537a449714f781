//! Whether the fields of a decoder's configuration fit each other. Each error has the key of the `[model]` section.

use bridge_core::model::ModelBuildError;

use super::config::{DecoderConfig, LayerPattern, MoeConfig, PositionEmbedding, RopeConfig, RopeScaling};

impl DecoderConfig {
    /// Checks that the fields fit each other.
    ///
    /// # Errors
    /// With the first key that does not, what it is and what was expected.
    pub fn validate(&self) -> Result<(), ModelBuildError> {
        self.validate_sizes()?;
        if let PositionEmbedding::Rope(rope) = &self.position_embedding {
            rope.validate(self.kv_channels)?;
        }
        let rates = [
            ("model.hidden_dropout", self.embedding_dropout),
            ("model.hidden_dropout", self.hidden_dropout),
            ("model.attention_dropout", self.attention_dropout),
        ];
        for (key, rate) in rates {
            if !(0.0..1.0).contains(&rate) {
                return Err(invalid(key, format!("expected a number in [0, 1), found {rate}")));
            }
        }
        for (key, value) in
            [("model.layernorm_epsilon", self.norm.epsilon), ("model.init_method_std", self.init_method_std)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return Err(invalid(key, format!("expected a number above 0, found {value}")));
            }
        }
        if let Some(moe) = &self.moe {
            moe.validate()?;
        }
        let moe_layers = self.moe.as_ref().map(|moe| ("model.moe_layer_freq", &moe.layers));
        let patterns =
            [("model.no_rope_freq", &self.no_rope_layers), ("model.window_attn_skip_freq", &self.window_layers)];
        for (key, pattern) in patterns.into_iter().chain(moe_layers) {
            if let LayerPattern::Listed(layers) = pattern
                && layers.len() != self.num_layers
            {
                let message = format!("expected one entry a layer ({}), found {}", self.num_layers, layers.len());
                return Err(invalid(key, message));
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ModelBuildError> {
        let sizes = [
            ("model.num_layers", self.num_layers),
            ("model.hidden_size", self.hidden_size),
            ("model.ffn_hidden_size", self.ffn_hidden_size),
            ("model.num_attention_heads", self.num_attention_heads),
            ("model.num_query_groups", self.num_query_groups),
            ("model.kv_channels", self.kv_channels),
            ("model.vocab_size", self.vocab_size),
            ("model.seq_length", self.max_position_embeddings),
        ];
        for (key, value) in sizes {
            if value == 0 {
                return Err(invalid(key, "expected at least 1, found 0".into()));
            }
        }
        let (heads, groups) = (self.num_attention_heads, self.num_query_groups);
        if heads % groups != 0 {
            let message = format!("expected a divisor of num_attention_heads ({heads}), found {groups}");
            return Err(invalid("model.num_query_groups", message));
        }
        if self.padded_vocab_size < self.vocab_size {
            let message =
                format!("expected at least vocab_size ({}), found {}", self.vocab_size, self.padded_vocab_size);
            return Err(invalid("padded vocabulary size", message));
        }
        Ok(())
    }
}

impl MoeConfig {
    fn validate(&self) -> Result<(), ModelBuildError> {
        let sizes = [
            ("model.num_moe_experts", self.num_experts),
            ("model.moe_ffn_hidden_size", self.ffn_hidden_size),
            ("model.moe_shared_expert_intermediate_size", self.shared_expert_intermediate_size.unwrap_or(1)),
            ("model.moe_router_topk", self.topk),
        ];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(invalid(key, "expected at least 1, found 0".into()));
        }
        if self.topk > self.num_experts {
            let message = format!("expected at most num_moe_experts ({}), found {}", self.num_experts, self.topk);
            return Err(invalid("model.moe_router_topk", message));
        }
        if self.topk == 1 && !self.pre_softmax {
            let message =
                "expected moe_router_pre_softmax = true with one expert a token: the softmax over one score is 1";
            return Err(invalid("model.moe_router_topk", message.into()));
        }
        let factors = [
            ("model.moe_aux_loss_coeff", self.aux_loss_coeff),
            ("model.moe_z_loss_coeff", self.z_loss_coeff),
            ("model.moe_router_topk_scaling_factor", self.topk_scaling_factor.unwrap_or(1.0)),
        ];
        match factors.into_iter().find(|(_, factor)| !(*factor >= 0.0 && factor.is_finite())) {
            Some((key, factor)) => Err(invalid(key, format!("expected a number of at least 0, found {factor}"))),
            None => Ok(()),
        }
    }
}

impl RopeConfig {
    fn validate(&self, head_size: usize) -> Result<(), ModelBuildError> {
        let rotated = self.rotary_size(head_size);
        if !(self.percent > 0.0 && self.percent <= 1.0) || rotated == 0 || !rotated.is_multiple_of(2) {
            let message = format!(
                "expected a share in (0, 1] that rotates an even number of a head's {head_size} elements, found {} \
                 ({rotated} elements)",
                self.percent
            );
            return Err(invalid("model.rotary_percent", message));
        }
        if !(self.base >= 1.0 && self.base.is_finite()) {
            return Err(invalid("model.rotary_base", format!("expected at least 1, found {}", self.base)));
        }
        match self.scaling {
            Some(RopeScaling::Linear { factor }) if !(factor > 0.0 && factor.is_finite()) => {
                Err(invalid("model.seq_len_interpolation_factor", format!("expected a number above 0, found {factor}")))
            }
            Some(RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, .. })
                if !(factor >= 1.0 && low > 0.0 && high > low) =>
            {
                let message = format!(
                    "expected a factor of at least 1 and 0 < low_freq_factor < high_freq_factor, found factor {factor}, \
                     low_freq_factor {low}, high_freq_factor {high}"
                );
                Err(invalid("model.rope_scaling_factor", message))
            }
            _ => Ok(()),
        }
    }
}

/// The error about a key.
pub(crate) fn invalid(key: &str, message: String) -> ModelBuildError {
    ModelBuildError::Invalid { key: key.to_owned(), message }
}
