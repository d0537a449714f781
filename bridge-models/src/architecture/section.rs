//! [`DecoderConfig`] from and to the config tree's `[model]` section. The row of a field has a
//! [`SettingCodec`], which reads the field from the section and writes it there. A setting that the
//! decoder does not support is refused by its key.

use bridge_core::config::{OneOrMany, TransformerConfig};
use bridge_core::model::ModelBuildError;

use super::choices::LayerPattern;
use super::config::DecoderConfig;
use super::limits::{invalid, refuse};

/// Correspondence between the `[model]` section and a field of type `T` of the table `O`. Rows are
/// read and written in their order.
pub(crate) struct SettingCodec<T, O> {
    /// The field's value, from the section and from the rows before.
    pub read: fn(&TransformerConfig, &O) -> Result<T, ModelBuildError>,
    /// Sets the section to the field's value, with access to the whole table.
    pub write: fn(&T, &O, &mut TransformerConfig),
}

/// Declares a table of a decoder's settings: rows of `/// doc`, `name: type = neutral value =>
/// codec;`. A field without a codec has its neutral value in every `[model]` section.
macro_rules! config_table {
    (
        $(#[$meta:meta])*
        pub struct $Name:ident {
            $( $(#[$field_meta:meta])+ $field:ident : $ty:ty = $neutral:expr $(=> $codec:expr)? ; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Name {
            $( $(#[$field_meta])+ pub $field: $ty, )+
        }

        impl $Name {
            /// Table of neutral values.
            pub(crate) fn neutral() -> Self {
                Self { $( $field: $neutral, )+ }
            }

            /// The table that a section asks for, not yet checked.
            pub(crate) fn read(section: &::bridge_core::config::TransformerConfig) -> Result<Self, ::bridge_core::model::ModelBuildError> {
                let mut table = Self::neutral();
                $( $(
                    let codec: SettingCodec<$ty, Self> = $codec;
                    table.$field = (codec.read)(section, &table)?;
                )? )+
                Ok(table)
            }

            /// Writes the fields that have a codec to a section.
            pub(crate) fn write(&self, section: &mut ::bridge_core::config::TransformerConfig) {
                $( $(
                    let codec: SettingCodec<$ty, Self> = $codec;
                    (codec.write)(&self.$field, self, section);
                )? )+
            }
        }
    };
}

/// Codec of a field that is a setting of the same type and meaning.
macro_rules! setting {
    ($setting:ident) => {
        SettingCodec {
            read: |section, _| Ok(section.$setting.clone()),
            write: |value, _, section| section.$setting = value.clone(),
        }
    };
}

/// Codec of a field that is an optional setting, or `$default` of the table if the setting is
/// absent. The setting is always written.
macro_rules! setting_or {
    ($setting:ident, $default:expr) => {
        SettingCodec {
            read: |section, table| {
                let default: fn(&Self) -> _ = $default;
                Ok(section.$setting.unwrap_or_else(|| default(table)))
            },
            write: |value, _, section| section.$setting = Some(*value),
        }
    };
}

/// [`setting_or!`], but the setting is written only if it differs from `$default`.
macro_rules! setting_or_omitted {
    ($setting:ident, $default:expr) => {
        SettingCodec {
            write: |value, table, section| {
                let default: fn(&Self) -> _ = $default;
                section.$setting = Some(*value).filter(|value| *value != default(table));
            },
            ..setting_or!($setting, $default)
        }
    };
}

/// Codec of a field that is a table of settings.
macro_rules! table {
    ($Table:ident) => {
        SettingCodec { read: |section, _| $Table::read(section), write: |table, _, section| table.write(section) }
    };
}

/// Codec of a field that is a table of settings if the optional setting `$setting` is there.
macro_rules! table_with {
    ($setting:ident, $Table:ident) => {
        SettingCodec {
            read: |section, _| section.$setting.as_ref().map(|_| $Table::read(section)).transpose(),
            write: |table, _, section| table.iter().for_each(|table| table.write(section)),
        }
    };
}

pub(crate) use {config_table, setting, setting_or, setting_or_omitted, table, table_with};

impl DecoderConfig {
    /// Resolves a `[model]` section: fills in the derived sizes and refuses features that this
    /// decoder does not have.
    ///
    /// # Errors
    /// With the first key that cannot be built, its value and the expected one.
    pub fn from_transformer(section: &TransformerConfig, padded_vocab_size: usize) -> Result<Self, ModelBuildError> {
        // A model with an encoder is of another kind. The table refuses that kind's settings for
        // all other kinds, so its check is skipped here.
        let refused = if section.encoder_num_layers.is_some() { None } else { section.not_built() };
        if let Some((key, message)) = refused {
            return Err(invalid(&key, message));
        }
        let vocab_size = section.vocab_size.unwrap_or(padded_vocab_size);
        let decoder = Self { vocab_size, padded_vocab_size, ..Self::read(section)? }.without_unused();
        decoder.validate()?;
        Ok(decoder)
    }

    /// The `[model]` section that resolves to this decoder.
    ///
    /// # Errors
    /// If the section cannot express a field, with the first such field: a factor on the
    /// residual stream.
    pub fn to_transformer(&self) -> Result<TransformerConfig, ModelBuildError> {
        let mut section = TransformerConfig::default();
        self.write(&mut section);
        let read = Self::from_transformer(&section, self.padded_vocab_size)?;
        match self.difference(&read) {
            None => Ok(section),
            Some(difference) => {
                let message = format!(
                    "no settings of the section say that the decoder's `{}` is {}: it would be {}",
                    difference.field, difference.ours, difference.theirs
                );
                Err(invalid("model", message))
            }
        }
    }
}

/// Codecs of fields that are not one setting of the same type.
pub(crate) mod codecs {
    use bridge_core::config::{OutputGateForm, PositionEmbeddingType};

    use super::*;
    use crate::architecture::choices::{KeySource, RopeScaling, YarnConfig};
    use crate::architecture::config::LinearAttentionConfig;
    use crate::architecture::config::{MoeConfig, PositionEmbedding, RelativeConfig, RopeConfig};
    use crate::architecture::recompute::RecomputedParts;

    /// The width as a multiple of muP's base.
    pub const WIDTH_MULTIPLIER: SettingCodec<Option<f64>, DecoderConfig> = SettingCodec {
        read: |section, _| Ok(section.use_mup.then(|| section.width_multiplier())),
        write: |multiplier, decoder, section| {
            section.use_mup = multiplier.is_some();
            section.mup_base_hidden_size =
                multiplier.map(|times| (decoder.hidden_size as f64 / times).round() as usize);
        },
    };

    /// The scale of scores; where none is given, muP has one of its own.
    pub const SOFTMAX_SCALE: SettingCodec<f64, DecoderConfig> = SettingCodec {
        read: |section, decoder| {
            Ok(section.softmax_scale.unwrap_or_else(|| section.usual_softmax_scale(decoder.kv_channels)))
        },
        write: |scale, decoder, section| {
            let usual = section.usual_softmax_scale(decoder.kv_channels);
            section.softmax_scale = Some(*scale).filter(|scale| *scale != usual);
        },
    };

    /// The size of a head; with latent attention that of a key, which other settings say.
    pub const HEAD_SIZE: SettingCodec<usize, DecoderConfig> = SettingCodec {
        read: |section, decoder| {
            if !section.multi_latent_attention {
                let usual = || decoder.hidden_size.checked_div(decoder.num_attention_heads).unwrap_or(0);
                return Ok(section.kv_channels.unwrap_or_else(usual));
            }
            let size = section.qk_head_dim.saturating_add(section.qk_pos_emb_head_dim);
            match section.kv_channels.filter(|channels| *channels != size) {
                None => Ok(size),
                Some(other) => {
                    let message =
                        format!("expected {size}, the sum of qk_head_dim and qk_pos_emb_head_dim, found {other}");
                    Err(invalid("model.kv_channels", message))
                }
            }
        },
        write: |size, _, section| section.kv_channels = Some(*size),
    };

    pub const QK_L2_NORM: SettingCodec<bool, DecoderConfig> = SettingCodec {
        read: |section, table| match section.qk_l2_norm && table.qk_layernorm {
            true => Err(invalid("model.qk_l2_norm", "cannot be combined with qk_layernorm = true".into())),
            false => Ok(section.qk_l2_norm),
        },
        write: |is_on, _, section| section.qk_l2_norm = *is_on,
    };

    pub const OUTPUT_GATE: SettingCodec<Option<OutputGateForm>, DecoderConfig> = SettingCodec {
        read: |section, _| Ok(section.attention_output_gate.then_some(section.attention_output_gate_form)),
        write: |form, _, section| {
            section.attention_output_gate = form.is_some();
            section.attention_output_gate_form = form.unwrap_or(OutputGateForm::Fused);
        },
    };

    pub const RECOMPUTED: SettingCodec<RecomputedParts, DecoderConfig> = SettingCodec {
        read: |section, _| Ok(RecomputedParts::read(section)),
        write: |parts, _, section| parts.write(section),
    };

    pub const POSITIONS: SettingCodec<PositionEmbedding, DecoderConfig> = SettingCodec {
        read: |section, _| match section.position_embedding_type {
            PositionEmbeddingType::LearnedAbsolute => Ok(PositionEmbedding::LearnedAbsolute),
            PositionEmbeddingType::None => Ok(PositionEmbedding::None),
            PositionEmbeddingType::Rope | PositionEmbeddingType::Yarn | PositionEmbeddingType::LongRope => {
                Ok(PositionEmbedding::Rope(RopeConfig::read(section)?))
            }
            PositionEmbeddingType::Relative => Ok(PositionEmbedding::Relative(RelativeConfig::read(section)?)),
            other @ PositionEmbeddingType::Mrope => {
                let message = format!(
                    "expected learned_absolute, rope, yarn, longrope or none, found {other}, which is not implemented"
                );
                Err(invalid("model.position_embedding_type", message))
            }
        },
        write: |positions, _, section| {
            section.position_embedding_type = match positions {
                PositionEmbedding::LearnedAbsolute => PositionEmbeddingType::LearnedAbsolute,
                PositionEmbedding::None => PositionEmbeddingType::None,
                PositionEmbedding::Relative(relative) => {
                    relative.write(section);
                    PositionEmbeddingType::Relative
                }
                PositionEmbedding::Rope(rope) => {
                    rope.write(section);
                    match rope.scaling {
                        None
                        | Some(
                            RopeScaling::Linear { .. }
                            | RopeScaling::Ntk { .. }
                            | RopeScaling::Proportional { .. }
                            | RopeScaling::Llama3 { .. },
                        ) => PositionEmbeddingType::Rope,
                        Some(RopeScaling::Yarn(_)) => PositionEmbeddingType::Yarn,
                        Some(RopeScaling::LongRope { .. }) => PositionEmbeddingType::LongRope,
                    }
                }
            }
        },
    };

    pub const ROPE_SCALING: SettingCodec<Option<RopeScaling>, RopeConfig> = SettingCodec {
        read: |section, _| match section.position_embedding_type {
            PositionEmbeddingType::Yarn => yarn(section).map(Some),
            PositionEmbeddingType::LongRope => longrope(section).map(Some),
            PositionEmbeddingType::Rope
            | PositionEmbeddingType::Mrope
            | PositionEmbeddingType::LearnedAbsolute
            | PositionEmbeddingType::Relative
            | PositionEmbeddingType::None => scaling(section),
        },
        write: |scaling, _, section| match scaling {
            None => {}
            Some(RopeScaling::Linear { factor }) => section.seq_len_interpolation_factor = Some(*factor),
            Some(RopeScaling::Ntk { alpha }) => section.rope_ntk_alpha = Some(*alpha),
            Some(RopeScaling::Proportional { share }) => section.rope_proportional_share = Some(*share),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                section.rope_scaling = true;
                section.rope_scaling_factor = *factor;
                section.rope_scaling_low_freq_factor = *low_freq_factor;
                section.rope_scaling_high_freq_factor = *high_freq_factor;
                section.rope_scaling_original_max_position_embeddings = *original_max_position_embeddings;
            }
            Some(RopeScaling::Yarn(yarn)) => {
                section.yarn_rotary_scaling_factor = Some(yarn.factor);
                section.yarn_original_max_position_embeddings = Some(yarn.original_max_position_embeddings);
                section.yarn_beta_fast = Some(yarn.beta_fast);
                section.yarn_beta_slow = Some(yarn.beta_slow);
                section.yarn_mscale = yarn.mscale;
                section.yarn_mscale_all_dim = yarn.mscale_all_dim;
                section.yarn_correction_range_round_to_int = Some(yarn.truncate);
                section.yarn_attention_factor = yarn.attention_factor;
            }
            Some(RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor,
            }) => {
                section.longrope_short_factor = Some(short_factor.clone());
                section.longrope_long_factor = Some(long_factor.clone());
                section.longrope_original_max_position_embeddings = Some(*original_max_position_embeddings);
                section.longrope_attention_factor = Some(*attention_factor);
            }
        },
    };

    fn scaling(section: &TransformerConfig) -> Result<Option<RopeScaling>, ModelBuildError> {
        let other = section.rope_scaling || section.seq_len_interpolation_factor.is_some();
        let growth = section.rope_ntk_alpha.map(|alpha| ("model.rope_ntk_alpha", RopeScaling::Ntk { alpha }));
        let share = section.rope_proportional_share;
        let share = share.map(|share| ("model.rope_proportional_share", RopeScaling::Proportional { share }));
        let both = growth.is_some() && share.is_some();
        if let Some((key, scaling)) = share.or(growth) {
            let message = "cannot be combined with another change of the rotary frequencies";
            return if other || both { Err(invalid(key, message.into())) } else { Ok(Some(scaling)) };
        }
        match (section.rope_scaling, section.seq_len_interpolation_factor) {
            (true, Some(_)) => Err(invalid(
                "model.seq_len_interpolation_factor",
                "cannot be combined with rope_scaling = true: both scale the rotary frequencies".into(),
            )),
            (false, None) => Ok(None),
            (false, Some(factor)) => Ok(Some(RopeScaling::Linear { factor })),
            (true, None) => Ok(Some(RopeScaling::Llama3 {
                factor: section.rope_scaling_factor,
                low_freq_factor: section.rope_scaling_low_freq_factor,
                high_freq_factor: section.rope_scaling_high_freq_factor,
                original_max_position_embeddings: section.rope_scaling_original_max_position_embeddings,
            })),
        }
    }

    /// A setting that the type of position embedding requires.
    fn needed<T: Clone>(setting: &Option<T>, key: &str, of: PositionEmbeddingType) -> Result<T, ModelBuildError> {
        let message = || format!("required by position_embedding_type = \"{of}\"; it is not set");
        setting.clone().ok_or_else(|| invalid(key, message()))
    }

    fn yarn(section: &TransformerConfig) -> Result<RopeScaling, ModelBuildError> {
        let of = PositionEmbeddingType::Yarn;
        let (factor, length) = ("model.yarn_rotary_scaling_factor", "model.yarn_original_max_position_embeddings");
        Ok(RopeScaling::Yarn(YarnConfig {
            factor: needed(&section.yarn_rotary_scaling_factor, factor, of)?,
            original_max_position_embeddings: needed(&section.yarn_original_max_position_embeddings, length, of)?,
            beta_fast: section.yarn_beta_fast.unwrap_or(YarnConfig::BETA_FAST),
            beta_slow: section.yarn_beta_slow.unwrap_or(YarnConfig::BETA_SLOW),
            mscale: section.yarn_mscale,
            mscale_all_dim: section.yarn_mscale_all_dim,
            attention_factor: section.yarn_attention_factor,
            truncate: section.yarn_correction_range_round_to_int.unwrap_or(true),
        }))
    }

    fn longrope(section: &TransformerConfig) -> Result<RopeScaling, ModelBuildError> {
        let of = PositionEmbeddingType::LongRope;
        let length = "model.longrope_original_max_position_embeddings";
        Ok(RopeScaling::LongRope {
            short_factor: needed(&section.longrope_short_factor, "model.longrope_short_factor", of)?,
            long_factor: needed(&section.longrope_long_factor, "model.longrope_long_factor", of)?,
            original_max_position_embeddings: needed(&section.longrope_original_max_position_embeddings, length, of)?,
            attention_factor: section.longrope_attention_factor.unwrap_or(1.0),
        })
    }

    pub const WINDOW_SIZE: SettingCodec<Option<usize>, DecoderConfig> = SettingCodec {
        read: |section, _| {
            let key = "model.window_size";
            let Some([left, right]) = section.window_size else { return Ok(None) };
            let message =
                format!("expected 0 or -1 to the right, because attention is causal, found [{left}, {right}]");
            refuse(!(-1..=0).contains(&right), key, message)?;
            let message = || format!("expected -1 or more to the left, found {left}");
            match left {
                -1 => Ok(None),
                _ => usize::try_from(left).map(Some).map_err(|_| invalid(key, message())),
            }
        },
        write: |window, _, section| {
            section.window_size = window.map(|left| [i64::try_from(left).unwrap_or(i64::MAX), 0]);
        },
    };

    /// N: every N-th layer attends fully; a list: 1 is windowed; nothing: all layers are.
    pub const WINDOW_LAYERS: SettingCodec<LayerPattern, DecoderConfig> = SettingCodec {
        read: |section, _| match &section.window_attn_skip_freq {
            None => Ok(LayerPattern::All),
            Some(layers) => pattern(section, "model.window_attn_skip_freq", layers, |layer, n| (layer + 1) % n != 0),
        },
        write: |layers, _, section| {
            section.window_attn_skip_freq = marks(layers, section.num_layers, LayerPattern::All);
        },
    };

    /// With a number N, every N-th layer has no rotary embedding. In a list, 1 marks layers
    /// without. If absent, all layers have one.
    pub const NO_ROPE_LAYERS: SettingCodec<LayerPattern, DecoderConfig> = SettingCodec {
        read: |section, _| match &section.no_rope_freq {
            None => Ok(LayerPattern::None),
            Some(layers) => pattern(section, "model.no_rope_freq", layers, |layer, n| (layer + 1) % n == 0),
        },
        write: |layers, _, section| section.no_rope_freq = marks(layers, section.num_layers, LayerPattern::None),
    };

    /// N: every N-th layer has softmax attention; a list: 1 is linear; nothing: all layers are.
    pub const LINEAR_LAYERS: SettingCodec<LayerPattern, LinearAttentionConfig> = SettingCodec {
        read: |section, _| match &section.linear_attention_freq {
            None => Ok(LayerPattern::All),
            Some(layers) => pattern(section, "model.linear_attention_freq", layers, |layer, n| (layer + 1) % n != 0),
        },
        write: |layers, _, section| {
            let listed = (0..section.num_layers).map(|index| usize::from(layers.includes(index))).collect();
            section.linear_attention_freq = Some(OneOrMany::Many(listed));
        },
    };

    /// N: after the first layers every N-th chooses, and layers between share its choice.
    pub const KEY_SOURCES: SettingCodec<Option<Vec<KeySource>>, DecoderConfig> = SettingCodec {
        read: |section, decoder| {
            let first = section.dsa_indexer_skip_topk_offset.max(1);
            let source = |layer: usize, n: usize| {
                let chooses = (layer + 1).saturating_sub(first).is_multiple_of(n);
                if chooses { KeySource::Chosen } else { KeySource::Shared }
            };
            let message = match &section.dsa_indexer_topk_freq {
                _ if decoder.indexer.is_none() => return Ok(None),
                OneOrMany::One(n @ 1..) => {
                    return Ok(KeySource::from_list((0..section.num_layers).map(|layer| source(layer, *n)).collect()));
                }
                OneOrMany::Many(numbers) if numbers.iter().all(|number| *number < KeySource::ALL.len()) => {
                    return Ok(KeySource::from_list(numbers.iter().map(|number| KeySource::ALL[*number]).collect()));
                }
                found => format!("expected a number of at least 1, or one from 0 to 2 for each layer, found {found:?}"),
            };
            Err(invalid("model.dsa_indexer_topk_freq", message))
        },
        write: |sources, _, section| {
            if let Some(sources) = sources {
                let number = |source: &KeySource| *source as usize;
                section.dsa_indexer_topk_freq = OneOrMany::Many(sources.iter().map(number).collect());
            }
        },
    };

    /// N: layers 0, N, 2 N and so on have experts; a list: 1 has.
    pub const MOE_LAYERS: SettingCodec<LayerPattern, MoeConfig> = SettingCodec {
        read: |section, _| match super::super::hybrid::layers_with_experts(section)? {
            Some(layers) => Ok(layers),
            None => pattern(section, "model.moe_layer_freq", &section.moe_layer_freq, |layer, n| layer % n == 0),
        },
        write: |layers, _, section| {
            // The pattern of a hybrid says it.
            if section.hybrid_override_pattern.is_some() {
                return;
            }
            section.moe_layer_freq = marks(layers, section.num_layers, LayerPattern::All).unwrap_or(OneOrMany::One(1));
        },
    };

    /// The layers that a setting means: those that it lists with 1, or those for whose number (from
    /// 0) and N `includes` returns true.
    fn pattern(
        section: &TransformerConfig,
        key: &str,
        setting: &OneOrMany<usize>,
        includes: fn(usize, usize) -> bool,
    ) -> Result<LayerPattern, ModelBuildError> {
        let num_layers = section.num_layers;
        let message = match setting {
            OneOrMany::One(n @ 1..) => {
                return Ok(LayerPattern::from_list((0..num_layers).map(|layer| includes(layer, *n)).collect()));
            }
            OneOrMany::One(_) => "expected at least 1, found 0".to_owned(),
            OneOrMany::Many(marks) if marks.len() != num_layers => {
                format!("expected one entry a layer ({num_layers}), found {}", marks.len())
            }
            OneOrMany::Many(marks) => match marks.iter().find(|mark| **mark > 1) {
                None => return Ok(LayerPattern::from_list(marks.iter().map(|mark| *mark == 1).collect())),
                Some(mark) => format!("expected entries 0 or 1, found {mark}"),
            },
        };
        Err(invalid(key, message))
    }

    /// A pattern as the setting's list; `None` for the pattern of an absent setting.
    fn marks(pattern: &LayerPattern, num_layers: usize, absent: LayerPattern) -> Option<OneOrMany<usize>> {
        let list = || (0..num_layers).map(|index| usize::from(pattern.includes(index))).collect();
        (*pattern != absent).then(|| OneOrMany::Many(list()))
    }
}
