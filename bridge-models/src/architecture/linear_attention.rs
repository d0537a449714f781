//! Linear attention in some layers: sizes that follow from its settings, and their checks.

use bridge_core::config::AttentionVariant;
use bridge_core::model::ModelBuildError;

use super::config::{DecoderConfig, LinearAttentionConfig, ResidualConfig};
use super::limits::{check_sizes, refuse};

impl LinearAttentionConfig {
    /// Elements of all query heads, or of all key heads.
    pub fn key_size(&self) -> usize {
        self.num_key_heads.saturating_mul(self.key_head_size)
    }

    /// Elements of all value heads.
    pub fn value_size(&self) -> usize {
        self.num_value_heads.saturating_mul(self.value_head_size)
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn conv_size(&self) -> usize {
        self.key_size().saturating_mul(2).saturating_add(self.value_size())
    }

    /// Decays of a token.
    pub fn decay_size(&self) -> usize {
        match self.variant {
            AttentionVariant::GatedDeltaNet | AttentionVariant::Dsa => self.num_value_heads,
            AttentionVariant::KimiDeltaAttention => self.num_value_heads.saturating_mul(self.key_head_size),
        }
    }

    /// Rows of the projection from the stream: queries, keys, values, gates, betas and decays.
    /// Gates and decays that two matrices make have none.
    pub fn projected(&self) -> [usize; 6] {
        let own = |size| if self.gate_rank.is_some() { 0 } else { size };
        let (keys, values) = (self.key_size(), self.value_size());
        [keys, keys, values, own(values), self.num_value_heads, own(self.decay_size())]
    }

    fn validate(&self, config: &DecoderConfig) -> Result<(), ModelBuildError> {
        check_sizes(&[
            ("model.linear_conv_kernel_dim", self.conv_kernel),
            ("model.linear_key_head_dim", self.key_head_size),
            ("model.linear_value_head_dim", self.value_head_size),
            ("model.linear_num_key_heads", self.num_key_heads),
            ("model.linear_num_value_heads", self.num_value_heads),
            ("model.linear_gate_rank", self.gate_rank.unwrap_or(1)),
        ])?;
        let message = format!(
            "expected a multiple of linear_num_key_heads ({}), found {}",
            self.num_key_heads, self.num_value_heads
        );
        refuse(!self.num_value_heads.is_multiple_of(self.num_key_heads), "model.linear_num_value_heads", message)?;
        let message = "needs model.kind = \"gpt\": other kinds choose the blocks of their layers otherwise";
        refuse(config.hybrid.is_some() || config.encoder.is_some(), "model.experimental_attention_variant", message)
    }
}

impl DecoderConfig {
    /// Settings of linear attention in layer `index` (global), if it has it.
    pub fn linear_layer(&self, index: usize) -> Option<&LinearAttentionConfig> {
        self.linear_attention.as_ref().filter(|linear| linear.layers.includes(index))
    }

    /// Connection of the blocks of layer `index` (global) to the stream.
    pub(crate) fn residual_of(&self, index: usize) -> ResidualConfig {
        let norms = self.linear_layer(index).and_then(|linear| linear.norms);
        ResidualConfig { norms: norms.unwrap_or(self.residual.norms), ..self.residual }
    }

    pub(crate) fn validate_linear_attention(&self) -> Result<(), ModelBuildError> {
        self.linear_attention.as_ref().map_or(Ok(()), |linear| linear.validate(self))
    }
}
