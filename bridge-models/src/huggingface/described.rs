//! Description of a folder by its `config.json`, before any weight is opened.

use std::path::Path;

use bridge_data::untrusted_io;
use serde_json::{Map, Value};

use super::checkpoint::{Quantization, io};
use super::error::HfError;
use super::family::Family;
use super::fields::{Fields, ReadKeys};
use super::json;
use super::multimodal::Multimodal;
use super::recipe_keys::in_file;
use super::unread::unread;
use crate::decoder::DecoderConfig;
use crate::families::{FAMILIES, has_other_class, with_model_type};

/// Description of a folder by its `config.json`.
pub(super) struct Described {
    /// The settings of the language model.
    pub settings: Map<String, Value>,
    /// The whole file, if the language model is a part of a multimodal model.
    pub multimodal: Option<Multimodal>,
    pub architecture: Architecture,
    /// Keys that have no effect here.
    pub unread: Vec<String>,
}

/// Reads the `config.json` of a folder. `is_tied` says whether the output of a multimodal model is
/// tied to the embedding if the file does not. Fails if the file is missing or damaged, or
/// describes an unknown model.
pub(super) fn read_folder(folder: &Path, is_tied: Option<bool>) -> Result<Described, HfError> {
    let path = folder.join("config.json");
    let read = read_settings(&path)?;
    let multimodal = Multimodal::new(&read).map_err(|error| in_file(&path, &read, error))?;
    let read = match &multimodal {
        Some(whole) => whole.text(whole.is_tied().or(is_tied).unwrap_or(whole.is_tied_by_default())),
        None => read,
    };
    let place = |key: &str| multimodal.as_ref().map_or("", |whole| whole.place_of(key));
    let placed = |settings: &Map<String, Value>, error| match in_file(&path, settings, error) {
        HfError::Setting { path, key, found, expected } => {
            HfError::Setting { path, key: format!("{}{key}", place(&key)), found, expected }
        }
        other => other,
    };
    let own_keys = family(&Fields::new(&read)).and_then(|family| family.with_own_keys(read.clone()));
    let settings = own_keys.map_err(|error| placed(&read, error))?;
    let read_keys = ReadKeys::default();
    let fields = Fields::recording(&settings, &read_keys);
    let architecture = Architecture::new(&fields).and_then(|architecture| {
        multimodal.iter().try_for_each(|whole| whole.check(&fields, &architecture.config))?;
        Ok(architecture)
    });
    let architecture = architecture.map_err(|error| placed(&settings, error))?;
    let unread = unread(&settings, &read_keys.into_inner());
    let place = place("");
    let unread = unread.into_iter().map(|key| key.replacen('`', &format!("`{place}"), 1)).collect();
    Ok(Described { settings, multimodal, architecture, unread })
}

/// [`unread_keys_message`] of a folder whose weights are not opened.
pub(super) fn unread_keys_warning(folder: &Path) -> Option<String> {
    unread_keys_message(folder, &read_folder(folder, None).ok()?.unread)
}

/// Message that lists the unread keys of a folder.
pub(super) fn unread_keys_message(folder: &Path, unread: &[String]) -> Option<String> {
    let path = folder.join("config.json");
    let message = || format!("{}: not read, and without effect here: {}", path.display(), unread.join(", "));
    (!unread.is_empty()).then(message)
}

/// The table of a `config.json`.
fn read_settings(path: &Path) -> Result<Map<String, Value>, HfError> {
    let text = untrusted_io::read_text(path, untrusted_io::SETTINGS_BYTES).map_err(|source| io(path, source))?;
    json::parse_table(&text).map_err(|source| HfError::Json { path: path.to_owned(), source })
}

/// Architecture in a `config.json`.
#[derive(Debug)]
pub(super) struct Architecture {
    pub family: &'static Family,
    pub config: DecoderConfig,
    pub eos_token_ids: Vec<i64>,
    pub quantization: Quantization,
    /// File of the weights, if `transformers_weights` names one.
    pub weights: Option<String>,
}

impl Architecture {
    pub fn new(fields: &Fields) -> Result<Self, HfError> {
        let family = family(fields)?;
        let config = family.decoder_config(fields)?;
        config.validate()?;
        // transformers uses bidirectional attention in any family if this is false or null.
        fields.only("is_causal", &Value::Bool(true))?;
        let eos_token_ids = match fields.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().map(|id| token_id(fields, id)).collect::<Result<Vec<_>, _>>()?,
            Some(id) => vec![token_id(fields, id)?],
            None => Vec::new(),
        };
        let eos_token_ids = eos_token_ids.into_iter().flatten().collect();
        let weights = fields.string("transformers_weights")?.map(str::to_owned);
        Ok(Self { family, config, eos_token_ids, quantization: quantization(fields)?, weights })
    }
}

/// The family of a `config.json`, by `model_type` and `architectures`, which must not contradict
/// each other.
fn family(fields: &Fields) -> Result<&'static Family, HfError> {
    let names = match fields.get("architectures") {
        None => Vec::new(),
        Some(value) => {
            let names: Option<Vec<&str>> = value.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
            names.ok_or_else(|| fields.error("architectures", &value.to_string(), "a list of names"))?
        }
    };
    let of_names = FAMILIES.iter().copied().find(|family| names.contains(&family.architecture));
    let known = || {
        let names = FAMILIES.iter().map(|family| format!("{} ({})", family.architecture, family.model_type()));
        format!("one of those that are known: {}", names.collect::<Vec<_>>().join(", "))
    };
    let quoted = |names: &[&str]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let Some(model_type) = fields.string("model_type")? else {
        let found = if names.is_empty() { "no value".to_owned() } else { quoted(&names) };
        let key = if names.is_empty() { "model_type" } else { "architectures" };
        return of_names.ok_or_else(|| fields.error(key, &found, &known()));
    };
    let family = with_model_type(model_type).ok_or_else(|| {
        let found = match names.as_slice() {
            [] => format!("\"{model_type}\""),
            names => format!("\"{model_type}\", architectures {}", quoted(names)),
        };
        fields.error("model_type", &found, &known())
    })?;
    let is_known = |name: &&str| *name == family.architecture || has_other_class(model_type, name);
    if names.is_empty() || names.iter().any(is_known) {
        return Ok(family);
    }
    let expected = format!("\"{}\", the language model with model_type \"{model_type}\"", family.architecture);
    Err(fields.error("architectures", &quoted(&names), &expected))
}

/// Quantization of the weights from `quantization_config`.
fn quantization(fields: &Fields) -> Result<Quantization, HfError> {
    let Some(table) = fields.table("quantization_config", "quantization_config.")? else {
        return Ok(Quantization::None);
    };
    match table.string("quant_method")? {
        Some("mxfp4") => Ok(Quantization::Mxfp4),
        Some("fp8") => {
            let expected = "two integers of at least 1: rows and columns of a block";
            // Null is one block for a whole matrix.
            let absent = if table.has("weight_block_size") { [usize::MAX; 2] } else { [128, 128] };
            let block = table.get("weight_block_size").map_or_else(
                || Ok(absent),
                |value| {
                    let sizes = value.as_array().map(|sizes| sizes.iter().map(Value::as_u64).collect::<Vec<_>>());
                    match sizes.as_deref() {
                        Some([Some(rows @ 1..), Some(columns @ 1..)]) => Ok([*rows as usize, *columns as usize]),
                        _ => Err(table.error("weight_block_size", &value.to_string(), expected)),
                    }
                },
            )?;
            Ok(Quantization::Fp8 { block })
        }
        other => {
            let found = other.map_or("no value".to_owned(), |name| format!("\"{name}\""));
            Err(table.error("quant_method", &found, "fp8 or mxfp4: other quantized weights cannot be read"))
        }
    }
}

/// Token that ends a text. It may be outside the vocabulary, as that of small models often is: no
/// text ends with it then. A negative number means no token.
fn token_id(fields: &Fields, id: &Value) -> Result<Option<i64>, HfError> {
    let known = id.as_i64().filter(|id| *id <= i64::from(u32::MAX));
    let known = known.ok_or_else(|| fields.error("eos_token_id", &id.to_string(), "a token id, or a list of them"))?;
    Ok(Some(known).filter(|id| *id >= 0))
}
