//! Scaling with the model's width: muP, the parametrization in which settings found at one width
//! carry over to another (Yang et al., arXiv:2203.03466, table 8).

use super::super::choice::PositionEmbeddingType;
use super::TransformerConfig;

impl TransformerConfig {
    /// Ratio of the model's width to that of the base of `use_mup`: initial hidden matrices are
    /// divided by its square root, logits and the learning rates of hidden matrices by the ratio
    /// itself. 1 without muP.
    pub fn width_multiplier(&self) -> f64 {
        match self.mup_base_hidden_size.filter(|_| self.use_mup) {
            Some(base) => self.hidden_size as f64 / base as f64,
            None => 1.0,
        }
    }

    /// The scale of attention scores where `softmax_scale` gives none, for heads of `kv_channels`.
    pub fn usual_softmax_scale(&self, kv_channels: usize) -> f64 {
        let size = kv_channels.max(1) as f64;
        let of_size = match self.use_mup {
            false => 1.0 / size.sqrt(),
            true => (self.mup_base_head_dim.unwrap_or(1) as f64).sqrt() / size.powf(self.mup_attn_scale_power),
        };
        of_size * self.latent_growth().powi(2)
    }

    /// Growth of queries and keys of latent attention with YaRN's `yarn_mscale_all_dim`
    /// (DeepSeek-V2, arXiv:2405.04434, section 3.1.4, after arXiv:2309.00071, equation 22): only a
    /// part of a head is rotated, so cosines and sines cannot carry the factor. 1 for all other
    /// attention.
    fn latent_growth(&self) -> f64 {
        let is_latent = self.multi_latent_attention && self.position_embedding_type == PositionEmbeddingType::Yarn;
        match (self.yarn_rotary_scaling_factor, self.yarn_mscale_all_dim) {
            (Some(factor), Some(m)) if is_latent && factor > 1.0 => 0.1 * m * factor.ln() + 1.0,
            (Some(_) | None, Some(_) | None) => 1.0,
        }
    }
}
