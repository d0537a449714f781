//! A family of Hugging Face models as data, and the conversions that its tables define: a decoder
//! from `config.json`, and the other way round.

use std::fmt;

use serde_json::{Map, Value};

use super::error::HfError;
use super::fields::Fields;
use super::settings::Setting;
use super::weight_map::WeightRule;
use crate::decoder::{DecoderConfig, EncoderConfig, MoeConfig, StreamsConfig};

/// Family of Hugging Face models. The list of families is in [`crate::families`].
pub struct Family {
    /// `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// The class in `architectures` of `config.json`.
    pub(crate) architecture: &'static str,
    /// Keys of `config.json` and fields of the decoder.
    pub(crate) settings: &'static [Setting],
    /// Names of the parameters: lists of rules, of which the first that matches a name counts.
    pub(crate) weights: &'static [&'static [WeightRule]],
    /// The prefix of the tensors of the model without its head; files may leave it out.
    pub(crate) prefix: &'static str,
    /// Ends of the names of tensors that files may have and that are not parameters.
    pub(crate) buffers: &'static [&'static str],
    /// Parts of names in files, and the names of the same modules in transformers 5 (its
    /// `conversion_mapping.py`), which the state of a module and `peft` have.
    pub(crate) module_names: &'static [(&'static str, &'static str)],
    /// Prefixes of tensor names that transformers ignores in this family.
    pub(crate) dropped: &'static [&'static str],
    /// Alternative spellings of keys (`attribute_map` of the configuration's class), each with the
    /// family's own key.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// `bos_token_id` of exports without one, if the configuration's class takes no null.
    pub(crate) usual_bos: Option<i64>,
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl Family {
    /// Values that most families share; names, settings and weights are empty.
    pub(crate) const USUAL: Self = Self {
        model_type: "",
        architecture: "",
        settings: &[],
        weights: &[],
        prefix: "model.",
        buffers: &[".rotary_emb.inv_freq"],
        module_names: &[],
        dropped: &[],
        aliases: &[],
        usual_bos: None,
    };

    /// `model_type` in `config.json`.
    pub fn model_type(&self) -> &'static str {
        self.model_type
    }

    /// Replaces alternative spellings of keys in a `config.json` by the family's own. Fails if both
    /// are there with different values.
    pub(crate) fn with_own_keys(&self, mut settings: Map<String, Value>) -> Result<Map<String, Value>, HfError> {
        for (alias, key) in self.aliases {
            let Some(value) = settings.remove(*alias) else { continue };
            match settings.get(*key) {
                Some(known) if *known != value => {
                    let expected = format!("{known}, the value of {key}, for which it stands");
                    return Err(Fields::new(&settings).error(alias, &value.to_string(), &expected));
                }
                Some(_) => {}
                None => drop(settings.insert((*key).into(), value)),
            }
        }
        Ok(settings)
    }

    /// The decoder of a `config.json`.
    pub(crate) fn decoder_config(&self, fields: &Fields) -> Result<DecoderConfig, HfError> {
        let mut config = DecoderConfig::neutral();
        for row in self.settings {
            row.read(fields, &mut config)?;
        }
        // The family determines the precision of scores, which has no key.
        let precision = config.moe.as_ref().map(|moe| moe.router_precision);
        let mut config = as_in_a_file(config);
        if let (Some(moe), Some(precision)) = (&mut config.moe, precision) {
            moe.router_precision = precision;
        }
        Ok(config)
    }

    /// The family's keys of `config.json` for this decoder. Fails if they would not read back as
    /// this decoder, with the first field that the family cannot express.
    pub(crate) fn settings(&self, config: &DecoderConfig) -> Result<Map<String, Value>, HfError> {
        let config = as_in_a_file(config.clone());
        let mut settings = Map::new();
        for row in self.settings {
            row.write(&mut config.clone(), &mut settings);
        }
        let read = self.decoder_config(&Fields::new(&settings)).map_err(|error| match error {
            HfError::Setting { key, found, expected, .. } => self.cannot_hold(key, found, expected),
            other => other,
        })?;
        match config.difference(&as_in_a_file(read)) {
            None => Ok(settings),
            Some(difference) => Err(self.cannot_hold(difference.field, difference.ours, difference.theirs)),
        }
    }

    /// Name in transformers 5 of a tensor that files call `name`.
    pub(crate) fn module_name(&self, name: &str) -> String {
        renamed(name, self.module_names.iter().copied())
    }

    /// The error for a value of a decoder that the family cannot store.
    pub(crate) fn cannot_hold(&self, key: String, found: String, expected: String) -> HfError {
        HfError::NotOfFamily { family: self.model_type, key, found, expected }
    }
}

/// `name` with the second part of each pair in place of the first.
pub(crate) fn renamed<'a>(name: &str, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut name = name.to_owned();
    for (from, to) in pairs {
        if let Some(at) = place(&name, from) {
            name.replace_range(at..at + from.len(), to);
        }
    }
    name
}

/// Position of `part` in a name: between dots if it begins with one, else at the beginning.
pub(crate) fn place(name: &str, part: &str) -> Option<usize> {
    name.find(part).filter(|at| *at == 0 || part.starts_with('.'))
}

/// The decoder without the settings that no `config.json` has: the padding of the vocabulary, how a
/// new model is initialised, and how the use of experts is balanced and computed.
pub(super) fn as_in_a_file(config: DecoderConfig) -> DecoderConfig {
    let neutral = MoeConfig::neutral();
    let moe = config.moe.map(|moe| MoeConfig {
        router_precision: neutral.router_precision,
        input_jitter: neutral.input_jitter,
        force_balancing: neutral.force_balancing,
        sinkhorn: neutral.sinkhorn,
        capacity_factor: neutral.capacity_factor,
        drop_policy: neutral.drop_policy,
        aux_loss_coeff: neutral.aux_loss_coeff,
        seq_aux_loss_coeff: neutral.seq_aux_loss_coeff,
        global_aux_loss_coeff: neutral.global_aux_loss_coeff,
        z_loss_coeff: neutral.z_loss_coeff,
        dispatcher: neutral.dispatcher,
        grouped_gemm: neutral.grouped_gemm,
        freeze_router: neutral.freeze_router,
        identity_weights: neutral.identity_weights,
        ..moe
    });
    let unsaid = EncoderConfig::neutral().target_length;
    DecoderConfig {
        moe,
        encoder: config.encoder.map(|encoder| EncoderConfig { target_length: unsaid, ..encoder }),
        mtp_loss_scaling_factor: DecoderConfig::neutral().mtp_loss_scaling_factor,
        padded_vocab_size: config.vocab_size,
        embedding_init_method_std: config.init_method_std,
        perform_initialization: true,
        recomputed: DecoderConfig::neutral().recomputed,
        fp32_residual: DecoderConfig::neutral().fp32_residual,
        streams: config
            .streams
            .map(|streams| StreamsConfig { initial_scale: StreamsConfig::neutral().initial_scale, ..streams }),
        ..config
    }
    .without_unused()
}
