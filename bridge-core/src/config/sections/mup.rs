//! What a model of another width than that which its settings were found at makes of them: muP, the parametrization in which they carry over
//! (Yang et al., arXiv:2203.03466, table 8).

use super::TransformerConfig;

impl TransformerConfig {
    /// How many times as wide the model is as the base of `use_mup`: initial hidden matrices are divided by its root, logits and the
    /// learning rates of hidden matrices by itself. 1 without muP.
    pub fn width_multiplier(&self) -> f64 {
        match self.mup_base_hidden_size.filter(|_| self.use_mup) {
            Some(base) => self.hidden_size as f64 / base as f64,
            None => 1.0,
        }
    }

    /// The scale of attention scores where `softmax_scale` gives none, for heads of `kv_channels`.
    pub fn usual_softmax_scale(&self, kv_channels: usize) -> f64 {
        let size = kv_channels.max(1) as f64;
        if !self.use_mup {
            return 1.0 / size.sqrt();
        }
        (self.mup_base_head_dim.unwrap_or(1) as f64).sqrt() / size.powf(self.mup_attn_scale_power)
    }
}
