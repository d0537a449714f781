//! Models whose layers have one block each: which block, and the settings of the blocks of kind
//! `mamba`.

use bridge_core::config::{NormPlacement, TransformerConfig};
use bridge_core::model::ModelBuildError;
use serde::{Deserialize, Serialize};

use super::choices::LayerPattern;
use super::config::{DecoderConfig, PositionEmbedding};
use super::limits::{LARGEST_SIZE, invalid};
use super::section::{SettingCodec, config_table, setting};

/// The key of the `[model]` section that says which block each layer has.
const PATTERN: &str = "model.hybrid_override_pattern";

/// Number of positions of a model without a position table and without attention: effectively
/// unlimited.
pub(crate) const UNLIMITED_POSITIONS: usize = 1 << 20;

/// The block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HybridBlock {
    /// Mamba-2's state space block.
    Mamba,
    /// Self-attention.
    Attention,
    /// The feed-forward block.
    Mlp,
    /// Experts.
    Moe,
}

impl HybridBlock {
    /// Every block with its letter.
    const LETTERS: [(char, Self); 4] = [('M', Self::Mamba), ('*', Self::Attention), ('-', Self::Mlp), ('E', Self::Moe)];

    fn from_letter(letter: char) -> Option<Self> {
        Self::LETTERS.into_iter().find(|(known, _)| *known == letter).map(|(_, block)| block)
    }

    fn letter(self) -> char {
        Self::LETTERS.into_iter().find(|(_, block)| *block == self).expect("every block has a letter").0
    }
}

/// A model whose layers have one block each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HybridConfig {
    /// The block of each layer.
    pub layers: Vec<HybridBlock>,
    /// The layers with a state space.
    pub mamba: MambaConfig,
}

config_table! {
    /// Sizes of Mamba-2's block.
    #[derive(Copy)]
    pub struct MambaConfig {
        /// Numbers that the state has for each channel.
        state_size: usize = 128 => setting!(mamba_state_dim);
        /// Channels of a head.
        head_size: usize = 64 => setting!(mamba_head_dim);
        /// Heads.
        num_heads: usize = 0 => SettingCodec {
            read: |section, mamba| {
                let derived = 2 * section.hidden_size / mamba.head_size.max(1);
                Ok(section.mamba_num_heads.unwrap_or(derived))
            },
            write: |heads, _, section| section.mamba_num_heads = Some(*heads),
        };
        /// Groups of heads that share inputs and outputs of the state.
        num_groups: usize = 8 => setting!(mamba_num_groups);
        /// Taps of the convolution.
        conv_kernel: usize = 4 => setting!(mamba_conv_kernel);
        /// Bias of the convolution.
        conv_bias: bool = true => setting!(mamba_conv_bias);
        /// Biases of the projections into and out of the block.
        proj_bias: bool = false => setting!(mamba_proj_bias);
        /// Tokens that the scan works on at once.
        chunk_size: usize = 128 => setting!(mamba_chunk_size);
        /// Least time step.
        least_time_step: f64 = 0.0 => setting!(mamba_time_step_min);
        /// Largest time step; `None` is unlimited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        largest_time_step: Option<f64> = None => setting!(mamba_time_step_max);
    }
}

impl MambaConfig {
    /// Channels of the block.
    pub fn inner_size(&self) -> usize {
        self.num_heads.saturating_mul(self.head_size)
    }

    /// Inputs, or outputs, of the states of all groups.
    pub fn group_size(&self) -> usize {
        self.num_groups.saturating_mul(self.state_size)
    }

    fn validate(&self) -> Result<(), ModelBuildError> {
        let sizes = [
            ("model.mamba_state_dim", self.state_size),
            ("model.mamba_head_dim", self.head_size),
            ("model.mamba_num_heads", self.num_heads),
            ("model.mamba_num_groups", self.num_groups),
            ("model.mamba_conv_kernel", self.conv_kernel),
            ("model.mamba_chunk_size", self.chunk_size),
        ];
        for (key, size) in sizes {
            if !(1..=LARGEST_SIZE).contains(&size) {
                let message = format!("expected from 1 to {}, found {size}", LARGEST_SIZE);
                return Err(invalid(key, message));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_groups) {
            let message = format!("expected a divisor of the {} heads, found {}", self.num_heads, self.num_groups);
            return Err(invalid("model.mamba_num_groups", message));
        }
        let (least, largest) = (self.least_time_step, self.largest_time_step.unwrap_or(f64::INFINITY));
        if !(least >= 0.0 && least.is_finite() && largest > least) {
            let message = format!("expected a number above mamba_time_step_min ({least}), found {largest}");
            return Err(invalid("model.mamba_time_step_max", message));
        }
        Ok(())
    }
}

/// The blocks that a section's pattern means; `None` without one.
fn pattern(section: &TransformerConfig) -> Result<Option<Vec<HybridBlock>>, ModelBuildError> {
    let Some(letters) = &section.hybrid_override_pattern else {
        return Ok(None);
    };
    let block = |letter: char| {
        HybridBlock::from_letter(letter).ok_or_else(|| {
            let message =
                format!("expected M (Mamba), * (attention), - (MLP) or E (experts) for each layer, found {letter:?}");
            invalid(PATTERN, message)
        })
    };
    let layers = letters.chars().map(block).collect::<Result<Vec<_>, _>>()?;
    if layers.len() != section.num_layers {
        let message = format!("expected a letter for each of {} layers, found {}", section.num_layers, layers.len());
        return Err(invalid(PATTERN, message));
    }
    Ok(Some(layers))
}

/// The letters of a pattern.
pub(crate) fn letters(layers: &[HybridBlock]) -> String {
    layers.iter().map(|block| block.letter()).collect()
}

/// The layers with experts, where a pattern says.
pub(crate) fn layers_with_experts(section: &TransformerConfig) -> Result<Option<LayerPattern>, ModelBuildError> {
    let layers = pattern(section)?;
    Ok(layers.map(|layers| LayerPattern::from_list(layers.iter().map(|block| *block == HybridBlock::Moe).collect())))
}

pub(crate) const CODEC: SettingCodec<Option<HybridConfig>, DecoderConfig> = SettingCodec {
    read: |section, _| match pattern(section)? {
        Some(layers) => Ok(Some(HybridConfig { layers, mamba: MambaConfig::read(section)? })),
        None => Ok(None),
    },
    write: |hybrid, decoder, section| {
        if let Some(hybrid) = hybrid {
            section.hybrid_override_pattern = Some(letters(&hybrid.layers));
            if decoder.has_block(HybridBlock::Mamba) {
                hybrid.mamba.write(section);
            }
        }
    },
};

impl DecoderConfig {
    /// True if any layer has this block.
    pub fn has_block(&self, block: HybridBlock) -> bool {
        match &self.hybrid {
            Some(hybrid) => hybrid.layers.contains(&block),
            None => match block {
                HybridBlock::Mamba => false,
                HybridBlock::Attention => true,
                HybridBlock::Mlp => self.moe.as_ref().is_none_or(|moe| moe.layers != LayerPattern::All),
                HybridBlock::Moe => self.moe.is_some(),
            },
        }
    }

    /// True if the length of a text is unbounded.
    pub(crate) fn has_unlimited_positions(&self) -> bool {
        !self.has_block(HybridBlock::Attention) && self.position_embedding == PositionEmbedding::None
    }

    /// The decoder with neutral values for settings of blocks that no layer has.
    #[must_use]
    pub(crate) fn without_unused(mut self) -> Self {
        if self.hybrid.is_none() {
            return self;
        }
        let neutral = Self::neutral();
        if !self.has_block(HybridBlock::Attention) {
            (self.num_attention_heads, self.num_query_groups, self.kv_channels) = (1, 1, self.hidden_size);
            self.softmax_scale = 1.0 / (self.hidden_size as f64).sqrt();
            (self.attention_dropout, self.qk_layernorm) = (neutral.attention_dropout, neutral.qk_layernorm);
            self.attention_sinks = neutral.attention_sinks;
            (self.qkv_bias, self.proj_bias) = (neutral.qkv_bias, neutral.proj_bias);
        }
        if self.has_unlimited_positions() {
            self.max_position_embeddings = UNLIMITED_POSITIONS;
        }
        if !self.has_block(HybridBlock::Mlp) && !self.has_block(HybridBlock::Moe) {
            self.ffn_hidden_size = 4 * self.hidden_size;
            (self.gated_linear_unit, self.activation) = (neutral.gated_linear_unit, neutral.activation);
            self.mlp_bias = neutral.mlp_bias;
        }
        if let Some(hybrid) = &mut self.hybrid
            && !hybrid.layers.contains(&HybridBlock::Mamba)
        {
            hybrid.mamba = MambaConfig::neutral();
        }
        self
    }

    /// Checks that the other fields fit the layers' blocks.
    pub(crate) fn validate_hybrid(&self) -> Result<(), ModelBuildError> {
        let Some(hybrid) = &self.hybrid else {
            return Ok(());
        };
        if hybrid.layers.len() != self.num_layers {
            let message =
                format!("expected a letter for each of {} layers, found {}", self.num_layers, hybrid.layers.len());
            return Err(invalid(PATTERN, message));
        }
        if self.has_block(HybridBlock::Mamba) {
            hybrid.mamba.validate()?;
        }
        if self.has_block(HybridBlock::Moe) != self.moe.is_some() {
            let message = "expected layers with experts (E) exactly where there is num_moe_experts";
            return Err(invalid(PATTERN, message.into()));
        }
        if matches!(self.position_embedding, PositionEmbedding::Rope(_)) && !self.has_block(HybridBlock::Attention) {
            let message = "expected none or learned_absolute: there is no layer with attention, which rope rotates";
            return Err(invalid("model.position_embedding_type", message.into()));
        }
        if self.residual.norms != NormPlacement::Before {
            return Err(invalid(
                PATTERN,
                "expected norms before blocks only: a layer has one block and one norm".into(),
            ));
        }
        Ok(())
    }
}
