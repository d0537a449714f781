//! Choices of the fields of a decoder's configuration. Plain data; `config` has the fields.

use serde::{Deserialize, Serialize};

/// Change of the rotary frequencies for contexts longer than the model was trained at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Positions divided by `factor` (Chen et al., arXiv:2306.15595).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows by `alpha` to the power of `d / (d - 2)`, where `d` elements of a head are
    /// rotated: the lowest frequency is divided by `alpha`, the highest is kept.
    Ntk {
        /// The divisor of the lowest frequency.
        alpha: f64,
    },
    /// The first pairs of a head turn by the frequencies of the whole head, the others do not turn.
    Proportional {
        /// Share of the pairs that turn.
        share: f64,
    },
    /// Llama 3.1's: long wavelengths are divided by `factor`, short ones kept, those between
    /// interpolated.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are low
        /// frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are high
        /// frequencies.
        high_freq_factor: f64,
        /// Context the unscaled model was trained at, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN: frequencies that turn seldom in the original context are divided by `factor`, fast
    /// ones kept, those between interpolated by a ramp over the pairs; queries and keys grow (Peng
    /// et al., arXiv:2309.00071, section 3).
    Yarn(YarnConfig),
    /// LongRoPE: each frequency has divisors of its own, for short and for long sequences (Ding et
    /// al., arXiv:2402.13753).
    LongRope {
        /// Divisors in sequences of up to `original_max_position_embeddings` tokens, one a rotated
        /// pair.
        short_factor: Vec<f64>,
        /// Divisors in longer sequences.
        long_factor: Vec<f64>,
        /// Context the unscaled model was trained at, in tokens.
        original_max_position_embeddings: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
}

/// YaRN's settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YarnConfig {
    /// Divisor of the low frequencies.
    pub factor: f64,
    /// Context the unscaled model was trained at, in tokens.
    pub original_max_position_embeddings: usize,
    /// Frequencies with more turns in the original context are kept.
    pub beta_fast: f64,
    /// Frequencies with fewer turns in the original context are divided.
    pub beta_slow: f64,
    /// Growth of cosines and sines with the factor's logarithm; used only together with
    /// `mscale_all_dim`.
    pub mscale: Option<f64>,
    /// The growth that is divided out again.
    pub mscale_all_dim: Option<f64>,
    /// Factor on cosines and sines; `None` for the factor that the fields above determine.
    pub attention_factor: Option<f64>,
    /// The ends of the ramp are whole pairs.
    pub truncate: bool,
}

/// Keys that the queries of a layer attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// The choice of the last layer before it that chooses.
    Shared,
    /// A choice of the layer's own.
    Chosen,
    /// All keys.
    All,
}

impl KeySource {
    /// Every source, at its number in a list of the setting.
    pub(crate) const ALL: [Self; 3] = [Self::Shared, Self::Chosen, Self::All];

    /// The sources of all layers; `None` if each layer chooses.
    pub(crate) fn from_list(sources: Vec<Self>) -> Option<Vec<Self>> {
        sources.iter().any(|source| *source != Self::Chosen).then_some(sources)
    }
}

/// Layers that a setting applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerPattern {
    /// Every layer.
    All,
    /// No layer.
    None,
    /// The layers marked true, one entry a layer.
    Listed(Vec<bool>),
}

impl LayerPattern {
    /// True if the pattern includes layer `index` (global, from 0).
    pub fn includes(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Listed(layers) => layers.get(index).copied().unwrap_or(false),
        }
    }

    /// The pattern of a list, in its shortest form.
    pub fn from_list(layers: Vec<bool>) -> Self {
        match (layers.iter().all(|on| *on), layers.iter().any(|on| *on)) {
            (_, false) => Self::None,
            (true, true) => Self::All,
            (false, true) => Self::Listed(layers),
        }
    }
}
