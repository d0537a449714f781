//! A folder's `generation_config.json`: how its makers want texts to be generated. What is not heeded and would change the text is said.

use std::path::Path;

use bridge_core::logging::terminal::complain;
use bridge_data::outside;
use bridge_models::huggingface::parse_settings;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// What the file says; nothing of a folder without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationSettings {
    /// Whether it asks for the most likely token.
    pub is_greedy: bool,
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub max_new_tokens: Option<usize>,
    /// Tokens that end a text.
    pub stop_tokens: Vec<i64>,
}

/// Keys that change the text, are not heeded, and the values with which they do not.
const UNHEEDED: [(&str, &[&str]); 20] = [
    ("num_beams", &["1"]),
    ("num_beam_groups", &["1"]),
    ("penalty_alpha", &["0.0"]),
    ("typical_p", &["1.0"]),
    ("epsilon_cutoff", &["0.0"]),
    ("eta_cutoff", &["0.0"]),
    ("diversity_penalty", &["0.0"]),
    ("encoder_repetition_penalty", &["1.0"]),
    ("no_repeat_ngram_size", &["0"]),
    ("encoder_no_repeat_ngram_size", &["0"]),
    ("bad_words_ids", &[]),
    ("force_words_ids", &[]),
    ("constraints", &[]),
    ("sequence_bias", &[]),
    ("suppress_tokens", &["[]"]),
    ("begin_suppress_tokens", &["[]"]),
    ("forced_bos_token_id", &[]),
    ("forced_eos_token_id", &[]),
    ("guidance_scale", &["1.0"]),
    ("min_new_tokens", &["0"]),
];

impl GenerationSettings {
    /// Reads the file of a folder, and says what of it is not heeded.
    ///
    /// # Errors
    /// If it cannot be read, or a value is none that its key can have.
    pub fn load(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("generation_config.json");
        if !path.is_file() {
            return Ok(Self::default());
        }
        let bad = |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
        let text = outside::read_text(&path, outside::SETTINGS_BYTES).map_err(|error| bad(&error))?;
        let table = parse_settings(&text).map_err(|error| bad(&error))?;
        for note in unheeded(&table) {
            complain(&format!("{}: {note}", path.display()));
        }
        Self::read(&table).map_err(|error| bad(&error))
    }

    fn read(table: &Map<String, Value>) -> Result<Self, String> {
        let number = |key: &str, expected: &str, fits: fn(f64) -> bool| match table.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|number| fits(*number)) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{key}: expected {expected}, found {value}")),
            },
        };
        let count = |key: &str| match table.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().and_then(|count| usize::try_from(count).ok()) {
                Some(count) => Ok(Some(count).filter(|count| *count > 0)),
                None => Err(format!("{key}: expected an integer of at least 0, found {value}")),
            },
        };
        let share = |p: f64| (0.0..=1.0).contains(&p);
        let stop_tokens = match table.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_i64).collect(),
            Some(id) => id.as_i64().into_iter().collect(),
            None => Vec::new(),
        };
        Ok(Self {
            is_greedy: table.get("do_sample") == Some(&Value::Bool(false)),
            temperature: number("temperature", "a number of at least 0", |t| t >= 0.0 && t.is_finite())?,
            top_k: count("top_k")?,
            top_p: number("top_p", "a number from 0 to 1", share)?.filter(|p| *p > 0.0),
            min_p: number("min_p", "a number from 0 to 1", share)?,
            repetition_penalty: number("repetition_penalty", "a number above 0", |p| p > 0.0 && p.is_finite())?,
            max_new_tokens: count("max_new_tokens")?,
            stop_tokens,
        })
    }
}

/// What is not heeded though it would change the text, a sentence each.
fn unheeded(table: &Map<String, Value>) -> Vec<String> {
    let changes = |key: &str, neutral: &[&str]| {
        let value = table.get(key).filter(|value| !value.is_null())?;
        let is_neutral = neutral.iter().any(|text| {
            let neutral: Option<Value> = serde_json::from_str(text).ok();
            neutral
                .is_some_and(|neutral| neutral == *value || (neutral.is_number() && neutral.as_f64() == value.as_f64()))
        });
        (!is_neutral).then(|| format!("{key} = {value} is not implemented, and the text is made without it"))
    };
    UNHEEDED.iter().filter_map(|(key, neutral)| changes(key, neutral)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn settings_are_read_and_wrong_ones_named() {
        let read = |value: Value| GenerationSettings::read(&table(value));
        let found = read(json!({ "do_sample": true, "temperature": 0.6, "top_k": 0, "top_p": 0.9, "eos_token_id": [1, 2], "repetition_penalty": 1.1 })).unwrap();
        let expected = GenerationSettings {
            temperature: Some(0.6),
            top_p: Some(0.9),
            repetition_penalty: Some(1.1),
            stop_tokens: vec![1, 2],
            ..GenerationSettings::default()
        };
        assert_eq!(found, expected);
        assert!(read(json!({ "do_sample": false })).unwrap().is_greedy);
        for (key, value) in
            [("temperature", json!(-1)), ("top_p", json!(2)), ("top_k", json!(-3)), ("repetition_penalty", json!("x"))]
        {
            assert!(read(json!({ key: value })).unwrap_err().contains(key));
        }
    }

    #[test]
    fn what_is_not_heeded_is_said_where_it_changes_the_text() {
        assert_eq!(
            unheeded(&table(json!({ "num_beams": 1, "typical_p": 1, "suppress_tokens": [], "bad_words_ids": null }))),
            Vec::<String>::new()
        );
        let notes = unheeded(&table(json!({ "num_beams": 4, "no_repeat_ngram_size": 3 })));
        assert!(notes.len() == 2 && notes[0].contains("num_beams = 4"), "{notes:?}");
    }
}
