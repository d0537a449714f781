//! Models whose layers have one block each: which block, and the settings of the blocks of kind
//! `mamba`. A layer of a mixer and a feed-forward block is two of these layers.

use bridge_core::config::{Activation, NormPlacement, TransformerConfig};
use bridge_core::model::ModelBuildError;
use serde::{Deserialize, Serialize};

use super::choices::LayerPattern;
use super::config::{DecoderConfig, PositionEmbedding};
use super::limits::{check_above_zero, check_sizes, invalid, refuse};
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
    /// The first Mamba's state space block.
    Selective,
    /// A short convolution between two gates.
    ShortConv,
    /// Mamba-2's block and self-attention side by side.
    MambaAttention,
    /// Mamba-2's block, to whose input a transformer block that several layers share is added.
    SharedMamba,
}

impl HybridBlock {
    /// Every block with its letter.
    const LETTERS: [(char, Self); 8] = [
        ('M', Self::Mamba),
        ('*', Self::Attention),
        ('-', Self::Mlp),
        ('E', Self::Moe),
        ('S', Self::Selective),
        ('C', Self::ShortConv),
        ('P', Self::MambaAttention),
        ('Z', Self::SharedMamba),
    ];

    /// True if this block is `block`, or has it beside another.
    pub(crate) fn has(self, block: Self) -> bool {
        self == block
            || (matches!(self, Self::MambaAttention | Self::SharedMamba)
                && matches!(block, Self::Mamba | Self::Attention))
            || (self == Self::SharedMamba && block == Self::Mlp)
    }

    /// Name in messages of the block's part whose state goes through the whole sequence.
    pub(crate) fn recurrence(self) -> Option<&'static str> {
        match self {
            Self::Mamba | Self::Selective | Self::MambaAttention | Self::SharedMamba => Some("a Mamba layer"),
            Self::ShortConv => Some("a short convolution"),
            Self::Attention | Self::Mlp | Self::Moe => None,
        }
    }

    pub(crate) fn from_letter(letter: char) -> Option<Self> {
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
    /// The layers with a short convolution.
    #[serde(default = "ShortConvConfig::neutral")]
    pub short_conv: ShortConvConfig,
    /// Factors on inputs and outputs of blocks.
    #[serde(default = "BlockFactors::neutral")]
    pub factors: BlockFactors,
    /// The blocks that layers share.
    #[serde(default = "SharedConfig::neutral")]
    pub shared: SharedConfig,
}

impl HybridConfig {
    /// Layers with these blocks, whose settings are neutral.
    pub fn new(layers: Vec<HybridBlock>) -> Self {
        let (mamba, short_conv) = (MambaConfig::neutral(), ShortConvConfig::neutral());
        Self { layers, mamba, short_conv, factors: BlockFactors::neutral(), shared: SharedConfig::neutral() }
    }

    /// The use of a shared block in layer `index` (global), if it has one: layers take blocks in
    /// turn.
    pub(crate) fn shared_use(&self, index: usize) -> Option<SharedUse> {
        let layers = self.layers.iter().enumerate().filter(|(_, block)| **block == HybridBlock::SharedMamba);
        let users: Vec<usize> = layers.map(|(layer, _)| layer).collect();
        let number = users.iter().position(|layer| *layer == index)?;
        let holder = users[number % self.shared.num_blocks];
        Some(SharedUse { number, holder, is_last: number + 1 == users.len() })
    }
}

/// Use of a shared block by a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedUse {
    /// Number of the use, over all blocks.
    pub number: usize,
    /// The first layer (global) that uses the block, which holds it.
    pub holder: usize,
    /// True if no later layer uses any shared block.
    pub is_last: bool,
}

config_table! {
    /// Transformer blocks that layers share, with branches of each layer's own.
    #[derive(Copy)]
    pub struct SharedConfig {
        /// Number of blocks.
        num_blocks: usize = 1 => setting!(shared_num_blocks);
        /// Size between the two matrices of a branch.
        adapter_rank: usize = 128 => setting!(shared_adapter_rank);
        /// Branches beside queries, keys and values too.
        attention_adapters: bool = false => setting!(shared_attention_adapters);
    }
}

config_table! {
    /// Sizes of a short convolution between two gates.
    #[derive(Copy)]
    pub struct ShortConvConfig {
        /// Taps of the convolution.
        kernel: usize = 3 => setting!(short_conv_kernel);
        /// Biases of the convolution and of the projections.
        bias: bool = false => setting!(short_conv_bias);
    }
}

/// Parts of a Mamba-2 block's projection: gate, values, inputs and outputs of the states, time
/// steps.
pub(crate) const MAMBA_PARTS: usize = 5;

config_table! {
    /// Factors on inputs and outputs of blocks.
    #[derive(Copy)]
    pub struct BlockFactors {
        /// Factor on attention's input.
        attention_input: f64 = 1.0 => setting!(attention_input_multiplier);
        /// Factor on attention's output.
        attention_output: f64 = 1.0 => setting!(attention_output_multiplier);
        /// Factor on the input of a Mamba-2 block.
        mamba_input: f64 = 1.0 => setting!(mamba_input_multiplier);
        /// Factor on the output of a Mamba-2 block.
        mamba_output: f64 = 1.0 => setting!(mamba_output_multiplier);
        /// Factors on the parts of a Mamba-2 block's projection.
        mamba_parts: [f64; MAMBA_PARTS] = [1.0; MAMBA_PARTS] => SettingCodec {
            read: |section, _| Ok(section.mamba_projection_multipliers.unwrap_or([1.0; MAMBA_PARTS])),
            write: |factors, _, section| {
                section.mamba_projection_multipliers = Some(*factors).filter(|all| *all != [1.0; MAMBA_PARTS]);
            },
        };
        /// Factor on the gate of a feed-forward block, before the activation.
        mlp_gate: f64 = 1.0 => setting!(mlp_gate_multiplier);
        /// Factor on the output of a feed-forward block.
        mlp_output: f64 = 1.0 => setting!(mlp_output_multiplier);
    }
}

impl BlockFactors {
    fn validate(&self) -> Result<(), ModelBuildError> {
        check_above_zero(&[
            ("model.attention_input_multiplier", self.attention_input),
            ("model.attention_output_multiplier", self.attention_output),
            ("model.mamba_input_multiplier", self.mamba_input),
            ("model.mamba_output_multiplier", self.mamba_output),
            ("model.mlp_gate_multiplier", self.mlp_gate),
            ("model.mlp_output_multiplier", self.mlp_output),
        ])?;
        check_above_zero(&self.mamba_parts.map(|factor| ("model.mamba_projection_multipliers", factor)))
    }
}

config_table! {
    /// Sizes of the blocks of Mamba-2 and of the first Mamba, each of whose channels is a head.
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
        /// Bias of the projection into the block.
        proj_bias: bool = false => setting!(mamba_proj_bias);
        /// Bias of the projection out of the block.
        #[serde(default)]
        out_bias: Option<bool> = None => setting!(mamba_out_proj_bias);
        /// A norm of the scan's output.
        #[serde(default = "is_on")]
        has_norm: bool = true => setting!(mamba_rms_norm);
        /// The norm is taken before its output is gated.
        #[serde(default)]
        norm_before_gate: bool = false => setting!(mamba_norm_before_gate);
        /// Epsilon of the norm; `None` is that of the other norms.
        #[serde(default)]
        norm_epsilon: Option<f64> = None => setting!(mamba_norm_epsilon);
        /// Size of the vector that makes the time steps of the first Mamba's block; `None` is a
        /// sixteenth of the hidden size.
        #[serde(default)]
        dt_rank: Option<usize> = None => setting!(mamba_dt_rank);
        /// Tokens that the scan works on at once.
        chunk_size: usize = 128 => setting!(mamba_chunk_size);
        /// Least time step.
        least_time_step: f64 = 0.0 => setting!(mamba_time_step_min);
        /// Largest time step; `None` is unlimited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        largest_time_step: Option<f64> = None => setting!(mamba_time_step_max);
    }
}

/// The default of [`MambaConfig::has_norm`] in files.
fn is_on() -> bool {
    true
}

impl MambaConfig {
    /// True if the projection out of the block has a bias.
    pub fn has_out_bias(&self) -> bool {
        self.out_bias.unwrap_or(self.proj_bias)
    }

    /// Size of the vector that makes the time steps of the first Mamba's block.
    pub fn time_step_rank(&self, hidden_size: usize) -> usize {
        self.dt_rank.unwrap_or(hidden_size.div_ceil(16))
    }

    /// Channels of the block.
    pub fn inner_size(&self) -> usize {
        self.num_heads.saturating_mul(self.head_size)
    }

    /// Inputs, or outputs, of the states of all groups.
    pub fn group_size(&self) -> usize {
        self.num_groups.saturating_mul(self.state_size)
    }

    fn validate(&self) -> Result<(), ModelBuildError> {
        check_sizes(&[
            ("model.mamba_state_dim", self.state_size),
            ("model.mamba_head_dim", self.head_size),
            ("model.mamba_num_heads", self.num_heads),
            ("model.mamba_num_groups", self.num_groups),
            ("model.mamba_conv_kernel", self.conv_kernel),
            ("model.mamba_chunk_size", self.chunk_size),
            ("model.mamba_dt_rank", self.dt_rank.unwrap_or(1)),
        ])?;
        let message = format!("expected a divisor of the {} heads, found {}", self.num_heads, self.num_groups);
        refuse(!self.num_heads.is_multiple_of(self.num_groups), "model.mamba_num_groups", message)?;
        let message = "needs mamba_rms_norm = true";
        refuse(self.norm_before_gate && !self.has_norm, "model.mamba_norm_before_gate", message)?;
        let (least, largest) = (self.least_time_step, self.largest_time_step.unwrap_or(f64::INFINITY));
        let message = format!("expected a number above mamba_time_step_min ({least}), found {largest}");
        refuse(!(least >= 0.0 && least.is_finite() && largest > least), "model.mamba_time_step_max", message)
    }
}

/// The blocks that a section's pattern means; `None` without one.
fn pattern(section: &TransformerConfig) -> Result<Option<Vec<HybridBlock>>, ModelBuildError> {
    let Some(letters) = &section.hybrid_override_pattern else { return Ok(None) };
    let block = |letter: char| {
        HybridBlock::from_letter(letter).ok_or_else(|| {
            let message = format!(
                "expected M (Mamba-2), S (Mamba), C (short convolution), * (attention), P (Mamba-2 and attention side by \
                 side), Z (Mamba-2 with a shared transformer block), - (MLP) or E (experts) for each layer, found {letter:?}"
            );
            invalid(PATTERN, message)
        })
    };
    let layers = letters.chars().map(block).collect::<Result<Vec<_>, _>>()?;
    let message = format!("expected a letter for each of {} layers, found {}", section.num_layers, layers.len());
    refuse(layers.len() != section.num_layers, PATTERN, message)?;
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
        Some(layers) => Ok(Some(HybridConfig {
            layers,
            mamba: MambaConfig::read(section)?,
            short_conv: ShortConvConfig::read(section)?,
            factors: BlockFactors::read(section)?,
            shared: SharedConfig::read(section)?,
        })),
        None => Ok(None),
    },
    write: |hybrid, decoder, section| {
        if let Some(hybrid) = hybrid {
            section.hybrid_override_pattern = Some(letters(&hybrid.layers));
            if decoder.has_state_space() {
                hybrid.mamba.write(section);
            }
            if decoder.has_block(HybridBlock::ShortConv) {
                hybrid.short_conv.write(section);
            }
            hybrid.factors.write(section);
            hybrid.shared.write(section);
        }
    },
};

impl DecoderConfig {
    /// True if any layer has this block.
    pub fn has_block(&self, block: HybridBlock) -> bool {
        match &self.hybrid {
            Some(hybrid) => hybrid.layers.iter().any(|own| own.has(block)),
            None => match block {
                HybridBlock::Mamba
                | HybridBlock::Selective
                | HybridBlock::ShortConv
                | HybridBlock::MambaAttention
                | HybridBlock::SharedMamba => false,
                HybridBlock::Attention => true,
                HybridBlock::Mlp => self.moe.as_ref().is_none_or(|moe| moe.layers != LayerPattern::All),
                HybridBlock::Moe => self.moe.is_some(),
            },
        }
    }

    /// True if blocks have a norm before and one after them.
    pub(crate) fn has_sandwich_norms(&self) -> bool {
        self.residual.norms == NormPlacement::Sandwich
    }

    /// True if any layer has a state space block, of either Mamba.
    pub(crate) fn has_state_space(&self) -> bool {
        self.has_block(HybridBlock::Mamba) || self.has_block(HybridBlock::Selective)
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
            (self.value_channels, self.value_scale, self.windowed) = (None, 1.0, neutral.windowed);
            (self.output_gate, self.clip_qkv, self.query_scale) = (None, None, None);
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
        let (has_mamba, has_selective) = (self.has_block(HybridBlock::Mamba), self.has_block(HybridBlock::Selective));
        let (has_attention, has_mlp) = (self.has_block(HybridBlock::Attention), self.has_block(HybridBlock::Mlp));
        let (has_short_conv, shares) =
            (self.has_block(HybridBlock::ShortConv), self.has_block(HybridBlock::SharedMamba));
        if let Some(hybrid) = &mut self.hybrid {
            let neutral = BlockFactors::neutral();
            let (mamba, factors) = (&mut hybrid.mamba, &mut hybrid.factors);
            match (has_mamba, has_selective) {
                (false, false) => *mamba = MambaConfig::neutral(),
                (true, false) => mamba.dt_rank = None,
                (false, true) => {
                    let neutral = MambaConfig::neutral();
                    (mamba.num_heads, mamba.head_size, mamba.num_groups) = (mamba.inner_size(), 1, 1);
                    (mamba.chunk_size, mamba.has_norm, mamba.norm_before_gate) = (neutral.chunk_size, true, false);
                    (mamba.least_time_step, mamba.largest_time_step) = (neutral.least_time_step, None);
                    mamba.norm_epsilon = None;
                }
                (true, true) => {}
            }
            let usual = self.hidden_size.div_ceil(16);
            mamba.dt_rank = mamba.dt_rank.filter(|rank| *rank != usual);
            mamba.out_bias = mamba.out_bias.filter(|bias| *bias != mamba.proj_bias);
            if !has_mamba {
                (factors.mamba_input, factors.mamba_output) = (neutral.mamba_input, neutral.mamba_output);
                factors.mamba_parts = neutral.mamba_parts;
            }
            if !has_attention {
                (factors.attention_input, factors.attention_output) =
                    (neutral.attention_input, neutral.attention_output);
            }
            if !has_mlp {
                (factors.mlp_gate, factors.mlp_output) = (neutral.mlp_gate, neutral.mlp_output);
            }
            if !has_short_conv {
                hybrid.short_conv = ShortConvConfig::neutral();
            }
            if !shares {
                hybrid.shared = SharedConfig::neutral();
            }
        }
        self
    }

    /// Checks that the other fields fit blocks that layers share.
    fn validate_shared(&self, hybrid: &HybridConfig) -> Result<(), ModelBuildError> {
        if !self.has_block(HybridBlock::SharedMamba) {
            return Ok(());
        }
        let shared = hybrid.shared;
        check_sizes(&[
            ("model.shared_num_blocks", shared.num_blocks),
            ("model.shared_adapter_rank", shared.adapter_rank),
        ])?;
        let beside = shared.attention_adapters
            && (self.num_query_groups != self.num_attention_heads
                || self.output_gate.is_some()
                || self.has_other_values());
        refuse(self.window_size.is_some(), "model.window_size", "expected null with layers Z")?;
        let is_xielu = self.activation == Activation::Xielu;
        refuse(is_xielu, "model.activation_func", "expected another with layers Z")?;
        let message = "needs as many query groups as heads, values as large as keys, and no output gate";
        refuse(beside, "model.shared_attention_adapters", message)
    }

    /// Checks that the other fields fit the layers' blocks.
    pub(crate) fn validate_hybrid(&self) -> Result<(), ModelBuildError> {
        let Some(hybrid) = &self.hybrid else { return Ok(()) };
        let message =
            format!("expected a letter for each of {} layers, found {}", self.num_layers, hybrid.layers.len());
        refuse(hybrid.layers.len() != self.num_layers, PATTERN, message)?;
        if self.has_state_space() {
            hybrid.mamba.validate()?;
        }
        check_sizes(&[("model.short_conv_kernel", hybrid.short_conv.kernel)])?;
        hybrid.factors.validate()?;
        self.validate_shared(hybrid)?;
        let message = "needs gated_linear_unit = true: there is no gate";
        refuse(hybrid.factors.mlp_gate != 1.0 && !self.gated_linear_unit, "model.mlp_gate_multiplier", message)?;
        let message = "expected layers with experts (E) exactly where there is num_moe_experts";
        refuse(self.has_block(HybridBlock::Moe) != self.moe.is_some(), PATTERN, message)?;
        let is_rotated = matches!(self.position_embedding, PositionEmbedding::Rope(_));
        let message = "expected none or learned_absolute: there is no layer with attention, which rope rotates";
        let has_attention = self.has_block(HybridBlock::Attention);
        refuse(is_rotated && !has_attention, "model.position_embedding_type", message)?;
        let [pair, shared] = [HybridBlock::MambaAttention, HybridBlock::SharedMamba].map(|block| self.has_block(block));
        let has_sandwich = self.has_sandwich_norms() && !pair && !shared;
        let message = "expected norms before blocks, or sandwich norms around single blocks";
        refuse(self.residual.norms != NormPlacement::Before && !has_sandwich, PATTERN, message)
    }
}
