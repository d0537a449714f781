//! muP in the words of the `[model]` section, and what it makes of a decoder (Yang et al., arXiv:2203.03466, table 8): hidden matrices begin
//! smaller by the root of the width multiplier, logits are smaller by itself. Learning rates are the optimizer's.

use super::config::DecoderConfig;
use super::section::Words;

/// The width as a multiple of the base's.
pub(super) const MULTIPLIER: Words<Option<f64>, DecoderConfig> = Words {
    read: |section, _| Ok(section.use_mup.then(|| section.width_multiplier())),
    write: |multiplier, decoder, section| {
        section.use_mup = multiplier.is_some();
        section.mup_base_hidden_size = multiplier.map(|times| (decoder.hidden_size as f64 / times).round() as usize);
    },
};

/// With muP the scale of scores is another one where none is given.
pub(super) const SOFTMAX_SCALE: Words<f64, DecoderConfig> = Words {
    read: |section, decoder| {
        Ok(section.softmax_scale.unwrap_or_else(|| section.usual_softmax_scale(decoder.kv_channels)))
    },
    write: |scale, decoder, section| {
        section.softmax_scale = Some(*scale).filter(|scale| *scale != section.usual_softmax_scale(decoder.kv_channels));
    },
};

impl DecoderConfig {
    /// What initial hidden matrices are divided by.
    pub(crate) fn initial_divisor(&self) -> f64 {
        self.width_multiplier.unwrap_or(1.0).sqrt()
    }

    /// The factor on the logits, that of the width included.
    pub(crate) fn factor_on_logits(&self) -> f64 {
        self.logit_multiplier / self.width_multiplier.unwrap_or(1.0)
    }
}
