//! Values derived from the fields of a [`DecoderConfig`]: sizes, factors, features by layer.

use std::borrow::Cow;

use bridge_core::config::{Activation, OutputGateForm};
use bridge_kernels::{FeedForwardUnit, GatedUnit};

use super::choices::{KeySource, RopeScaling};
use super::config::{
    DecoderConfig, IndexerConfig, MoeConfig, PositionEmbedding, QueryScaleConfig, RopeConfig, WindowedConfig,
};
use super::hybrid::HybridBlock;

/// Name in boundaries of the output of experts that is added at the end of the next layer.
pub(crate) const SHORTCUT: &str = "shortcut";
/// Name in boundaries of the embedding's output, where later layers read it.
pub(crate) const WORDS: &str = "words";

impl DecoderConfig {
    /// Layers of each stack, in the order in which activations pass through them.
    pub fn stacks(&self) -> Vec<usize> {
        self.encoder.iter().map(|encoder| encoder.num_layers).chain([self.num_layers]).collect()
    }

    /// The longest sequence that positions allow, in tokens; relative ones allow any.
    pub fn longest_sequence(&self) -> usize {
        match self.position_embedding {
            // Far above any length, and lengths can be added to it.
            PositionEmbedding::Relative(_) => usize::MAX / 2,
            PositionEmbedding::LearnedAbsolute | PositionEmbedding::Rope(_) | PositionEmbedding::None => {
                self.max_position_embeddings
            }
        }
    }

    /// Window of layer `index` (global), if it has one.
    pub fn window(&self, index: usize) -> Option<usize> {
        self.window_size.filter(|_| self.window_layers.includes(index))
    }

    /// The configuration of attention in layer `index` (global): its heads and sinks are those of
    /// the layer.
    pub fn of_layer(&self, index: usize) -> Cow<'_, Self> {
        match self.window(index).is_some() && !self.windowed.is_neutral() {
            true => Cow::Owned(self.of_windowed()),
            false => Cow::Borrowed(self),
        }
    }

    /// The configuration of attention in layers with a window.
    pub(crate) fn of_windowed(&self) -> Self {
        let WindowedConfig { num_attention_heads, num_query_groups, kv_channels, value_channels, attention_sinks } =
            self.windowed;
        Self {
            num_attention_heads: num_attention_heads.unwrap_or(self.num_attention_heads),
            num_query_groups: num_query_groups.unwrap_or(self.num_query_groups),
            kv_channels: kv_channels.unwrap_or(self.kv_channels),
            value_channels: value_channels.or(self.value_channels),
            attention_sinks: attention_sinks.unwrap_or(self.attention_sinks),
            ..self.clone()
        }
    }

    /// Size of one head of values.
    pub fn value_size(&self) -> usize {
        self.value_channels.unwrap_or(self.kv_channels)
    }

    /// True if values have another size than keys, or a factor.
    pub(crate) fn has_other_values(&self) -> bool {
        self.value_size() != self.kv_channels || self.value_scale != 1.0
    }

    /// Elements of a token in all residual streams.
    pub fn stream_size(&self) -> usize {
        let altup = self.altup.map(|altup| altup.count);
        self.hidden_size.saturating_mul(self.streams.map(|streams| streams.count).or(altup).unwrap_or(1))
    }

    /// Number of standard deviations above the mean up to which layer `index` (global) sets gates
    /// to zero.
    pub(crate) fn gate_cutoff(&self, index: usize) -> Option<f64> {
        let share = *self.activation_sparsity.as_ref()?.get(index)?;
        (share > 0.0).then(|| normal_quantile(f64::from(share as f32)))
    }

    /// Rows of the query-key-value projection.
    pub fn qkv_size(&self) -> usize {
        let gates = if self.has_fused_gates() { self.num_attention_heads } else { 0 };
        let values = self.num_query_groups * self.value_size();
        (self.num_attention_heads + gates + self.num_query_groups) * self.kv_channels + values
    }

    /// Layer (global) whose keys and values layer `index` uses in place of its own.
    pub fn keys_from(&self, index: usize) -> Option<usize> {
        let own = self.num_layers.saturating_sub(self.num_kv_shared_layers);
        let is_windowed = |layer| self.window(layer).is_some();
        if self.num_kv_shared_layers == 0 || index < own {
            return None;
        }
        (0..own).rev().find(|layer| is_windowed(*layer) == is_windowed(index))
    }

    /// True if later layers use the keys and values of layer `index` (global).
    pub(crate) fn leaves_keys(&self, index: usize) -> bool {
        (index + 1..self.num_layers).any(|layer| self.keys_from(layer) == Some(index))
    }

    /// True if the values of layer `index` (global) are its keys.
    pub(crate) fn has_keys_as_values(&self, index: usize) -> bool {
        self.keys_as_values && self.window(index).is_none()
    }

    /// Rows of all projections of layer `index` (global) to queries, keys and values; the
    /// configuration is that of the layer.
    pub(crate) fn projected_size(&self, index: usize) -> usize {
        let (queries, keys) = (self.num_attention_heads, self.num_query_groups);
        match (self.keys_from(index), self.has_keys_as_values(index)) {
            (Some(_), _) => queries * self.kv_channels,
            (None, true) => (queries + keys) * self.kv_channels,
            (None, false) => self.qkv_size(),
        }
    }

    /// Width of the dense feed-forward block of layer `index` (global).
    pub(crate) fn ffn_size(&self, index: usize) -> usize {
        let is_wide = self.double_wide_mlp && index >= self.num_layers - self.num_kv_shared_layers;
        if is_wide { 2 * self.ffn_hidden_size } else { self.ffn_hidden_size }
    }

    /// True if the query-key-value projection makes the gates on attention's output too.
    pub fn has_fused_gates(&self) -> bool {
        self.output_gate == Some(OutputGateForm::Fused)
    }

    /// Gates on attention's output that a linear layer of its own makes, for heads of `size`
    /// elements.
    pub(crate) fn separate_gates(&self, size: usize) -> Option<usize> {
        match self.output_gate? {
            OutputGateForm::Fused => None,
            OutputGateForm::Element => Some(self.num_attention_heads * size),
            OutputGateForm::Head => Some(self.num_attention_heads),
        }
    }

    /// True if layer `index` (global) rotates queries and keys.
    pub(crate) fn rotates(&self, index: usize) -> bool {
        matches!(self.position_embedding, PositionEmbedding::Rope(_)) && !self.no_rope_layers.includes(index)
    }

    /// True if layer `index` (global) has the norms of queries and keys that the model has.
    pub(crate) fn normalizes_heads(&self, index: usize) -> bool {
        !self.qk_layernorm_after_rope || self.rotates(index)
    }

    /// The factor on queries in layer `index` (global).
    pub(crate) fn query_scale(&self, index: usize) -> Option<QueryScaleConfig> {
        self.query_scale.filter(|scale| !scale.unrotated_only || !self.rotates(index))
    }

    /// Elements of a head that rotary embedding works on, whole or in part.
    pub fn rotary_head(&self) -> usize {
        self.latent.as_ref().map_or(self.kv_channels, |latent| latent.qk_pos_emb_head_dim)
    }

    /// Elements of a head that are rotated.
    pub(crate) fn rotated_size(&self) -> usize {
        match &self.position_embedding {
            PositionEmbedding::Rope(rope) => rope.rotary_size(self.rotary_head()),
            _ => 0,
        }
    }

    /// Keys that queries of layer `index` (global) attend to, if there is an indexer.
    fn key_source(&self, index: usize) -> KeySource {
        self.key_sources.as_ref().and_then(|sources| sources.get(index).copied()).unwrap_or(KeySource::Chosen)
    }

    /// The indexer, if queries of layer `index` (global) attend to chosen keys.
    pub(crate) fn chosen_keys(&self, index: usize) -> Option<&IndexerConfig> {
        self.indexer.as_ref().filter(|_| self.key_source(index) != KeySource::All)
    }

    /// The indexer of layer `index` (global), if the layer has one.
    pub(crate) fn indexer_of(&self, index: usize) -> Option<&IndexerConfig> {
        self.indexer.as_ref().filter(|_| self.key_source(index) == KeySource::Chosen)
    }

    /// The indexer of compressed entries of layer `index` (global).
    pub(crate) fn compressed_indexer(&self, index: usize) -> Option<&IndexerConfig> {
        let has_entries = self.compressed.as_ref().is_some_and(|compressed| compressed.rates[index] > 0);
        self.indexer_of(index).filter(|_| has_entries)
    }

    /// Layer (global) whose choice of keys layer `index` uses.
    pub(crate) fn choice_from(&self, index: usize) -> Option<usize> {
        if self.indexer.is_none() || self.key_source(index) != KeySource::Shared {
            return None;
        }
        (0..index).rev().find(|layer| self.indexer_of(*layer).is_some())
    }

    /// Equal blocks of rows of a first feed-forward projection: two halves of a gated unit, or just
    /// one.
    pub fn fc1_blocks(&self) -> usize {
        if self.gated_linear_unit { 2 } else { 1 }
    }

    /// Activation without parameters; `None` for one that has some.
    pub(crate) fn plain_activation(&self) -> Option<bridge_kernels::Activation> {
        Some(match self.activation {
            Activation::Xielu => return None,
            Activation::Gelu => bridge_kernels::Activation::Gelu,
            Activation::GeluTanh => bridge_kernels::Activation::GeluTanh,
            Activation::Silu => bridge_kernels::Activation::Silu,
            Activation::Relu => bridge_kernels::Activation::Relu,
            Activation::SquaredRelu => bridge_kernels::Activation::SquaredRelu,
            Activation::QuickGelu => bridge_kernels::Activation::QuickGelu,
        })
    }

    /// Unit between the products of a feed-forward block; `None` for one with parameters.
    pub(crate) fn feed_forward_unit(&self) -> Option<FeedForwardUnit> {
        let activation = self.plain_activation()?;
        if !self.gated_linear_unit {
            return Some(FeedForwardUnit::Plain(activation));
        }
        Some(FeedForwardUnit::Gated(GatedUnit {
            activation,
            clamp: self.activation_clamp,
            linear_offset: self.linear_offset,
            ..activation.into()
        }))
    }

    /// Bounds of the units of layer `index` (global): of its dense or shared block, and of experts.
    pub(crate) fn output_limits(&self, index: usize) -> [Option<f64>; 2] {
        let of_experts = self.moe.as_ref().and_then(|moe| moe.output_limits.as_ref());
        [self.output_limits.as_ref(), of_experts]
            .map(|limits| limits.and_then(|limits| limits.get(index).copied()).filter(|limit| *limit > 0.0))
    }

    /// Divisor of initial hidden matrices: with muP the root of the width multiplier (Yang et al.,
    /// arXiv:2203.03466, table 8).
    pub(crate) fn initial_divisor(&self) -> f64 {
        self.width_multiplier.unwrap_or(1.0).sqrt()
    }

    /// The factor on the logits, that of muP included.
    pub(crate) fn factor_on_logits(&self) -> f64 {
        self.logit_multiplier / self.width_multiplier.unwrap_or(1.0)
    }

    /// True if every linear layer has a bias.
    pub(crate) fn has_all_biases(&self) -> bool {
        self.qkv_bias && self.proj_bias && self.mlp_bias
    }

    /// The experts beside the dense block of layer `index` (global), if it has such.
    pub(crate) fn shortcut_experts(&self, index: usize) -> Option<&MoeConfig> {
        self.moe_layer(index).filter(|moe| moe.shortcut)
    }

    /// Names of the tensors that layer `index` (global) gets besides the residual stream.
    pub(crate) fn carried_into(&self, index: usize) -> Vec<&'static str> {
        let before = index.checked_sub(1).and_then(|before| self.shortcut_experts(before));
        let later = self.hybrid.as_ref().and_then(|hybrid| hybrid.layers.get(index..));
        let reads_words = later.is_some_and(|layers| layers.contains(&HybridBlock::SharedMamba));
        before.map(|_| SHORTCUT).into_iter().chain(reads_words.then_some(WORDS)).collect()
    }

    /// The experts of layer `index` (global), if it has them.
    pub fn moe_layer(&self, index: usize) -> Option<&MoeConfig> {
        self.moe.as_ref().filter(|moe| moe.layers.includes(index))
    }
}

impl MoeConfig {
    /// The experts of layer `index` (global): `hash_layers` is above 0 if a table chooses there.
    pub(crate) fn of_layer(&self, index: usize) -> Cow<'_, Self> {
        match (self.hash_layers, index < self.hash_layers) {
            (0, _) => Cow::Borrowed(self),
            (_, true) => Cow::Owned(Self { expert_bias: false, ..self.clone() }),
            (_, false) => Cow::Owned(Self { hash_layers: 0, ..self.clone() }),
        }
    }

    /// Experts that the router chooses among.
    pub fn num_choices(&self) -> usize {
        self.num_experts.saturating_add(self.num_identity_experts)
    }

    /// Elements of a token that an expert reads and writes.
    pub fn expert_width(&self, decoder: &DecoderConfig) -> usize {
        self.latent_size.unwrap_or(decoder.hidden_size)
    }
}

impl WindowedConfig {
    /// True if windowed layers are as others.
    pub(crate) fn is_neutral(&self) -> bool {
        *self == Self::neutral()
    }

    /// The settings without those that other layers of `decoder` have too.
    #[must_use]
    pub(crate) fn where_not_of(self, decoder: &DecoderConfig) -> Self {
        let values = decoder.value_channels.or(self.kv_channels).unwrap_or(decoder.kv_channels);
        Self {
            num_attention_heads: self.num_attention_heads.filter(|heads| *heads != decoder.num_attention_heads),
            num_query_groups: self.num_query_groups.filter(|groups| *groups != decoder.num_query_groups),
            kv_channels: self.kv_channels.filter(|size| *size != decoder.kv_channels),
            value_channels: self.value_channels.filter(|size| *size != values),
            attention_sinks: self.attention_sinks.filter(|has| *has != decoder.attention_sinks),
        }
    }
}

impl RopeConfig {
    /// The settings of windowed layers. With a base of their own their frequencies are not scaled.
    pub(crate) fn of_windowed(&self) -> Self {
        let Some(base) = self.windowed_base else { return self.clone() };
        Self { base, percent: self.windowed_percent.unwrap_or(self.percent), scaling: None, ..self.clone() }
    }

    /// Base of the frequencies of `rotated` elements.
    pub(crate) fn base_of(&self, rotated: usize) -> f64 {
        match self.scaling {
            Some(RopeScaling::Ntk { alpha }) => self.base * alpha.powf(rotated as f64 / (rotated as f64 - 2.0)),
            _ => self.base,
        }
    }

    /// Elements of a head of `head_size` that are rotated.
    pub fn rotary_size(&self, head_size: usize) -> usize {
        (head_size as f64 * self.percent) as usize
    }
}

/// The number below which a standard normal variable is with this probability, by Newton's method.
fn normal_quantile(probability: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    // Terms x, x^3 / 3, x^5 / (3 * 5), ...
    let series = |x: f64| {
        let terms = (1..200).scan(x, |term, k| {
            *term *= x * x / f64::from(2 * k + 1);
            Some(*term)
        });
        x + terms.sum::<f64>()
    };
    (0..50).fold(0.0, |x, _| x - (0.5 + density(x) * series(x) - probability) / density(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (probability, quantile) in
            [(0.5, 0.0), (0.95, 1.644_853_626_951), (0.1, -1.281_551_565_545), (0.999_999, 4.753_424_308_823)]
        {
            assert!((normal_quantile(probability) - quantile).abs() < 1e-9, "{probability}");
        }
    }
}
