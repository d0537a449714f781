//! Settings of a folder's `generation_config.json`. Keys that are not supported and would change
//! the text are reported.

use std::path::Path;

use bridge_core::logging::terminal::complain;
use bridge_data::{python_json, untrusted_io};
use bridge_models::generate::TokenRules;
use bridge_models::huggingface::parse_settings;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Settings of the file; defaults for a folder without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationSettings {
    /// True if it asks for the most likely token.
    pub is_greedy: bool,
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub typical_p: Option<f64>,
    pub epsilon_cutoff: Option<f64>,
    pub eta_cutoff: Option<f64>,
    rules: TokenRules,
    max_new_tokens: Option<usize>,
    /// Largest length of the text with its prompt.
    max_length: Option<usize>,
    /// Smallest length of the text with its prompt, before which no token ends it.
    min_length: usize,
    /// Tokens that end a text.
    pub stop_tokens: Vec<i64>,
    /// Texts that end a text.
    pub stop_strings: Vec<String>,
}

/// Keys that change the text and are not supported, with the values at which they do not.
const UNHEEDED: [(&str, &[&str]); 10] = [
    ("num_beams", &["1"]),
    ("num_beam_groups", &["1"]),
    ("penalty_alpha", &["0.0"]),
    ("diversity_penalty", &["0.0"]),
    ("force_words_ids", &[]),
    ("constraints", &[]),
    ("sequence_bias", &[]),
    ("exponential_decay_length_penalty", &[]),
    ("guidance_scale", &["1.0"]),
    ("top_h", &[]),
];

/// Tokens that end a text by a `config.json`, or else by its `text_config`; empty if the value is
/// not a list of tokens.
pub fn eos_tokens(config: &Map<String, Value>) -> Vec<i64> {
    let of = |table: &Map<String, Value>| Keys(table).ids("eos_token_id").unwrap_or_default();
    match (of(config), config.get("text_config").and_then(Value::as_object)) {
        (tokens, Some(text)) if tokens.is_empty() => of(text),
        (tokens, _) => tokens,
    }
}

/// The file `generation_config.json`, made of the one that there is, in which each of `stop_tokens`
/// ends a text as well. `None` if they do already. `before` are those that do if the file names
/// none. Fails if the file cannot be parsed.
pub fn with_stop_tokens(file: Option<&[u8]>, before: &[i64], stop_tokens: &[i64]) -> Result<Option<Vec<u8>>, Failure> {
    let bad = |error: &dyn std::fmt::Display| Failure::input(format!("generation_config.json: {error}"));
    let mut table = match file {
        Some(file) => parse_settings(&String::from_utf8_lossy(file)).map_err(|error| bad(&error))?,
        None => Map::new(),
    };
    let mut all = Keys(&table).ids("eos_token_id").map_err(|error| bad(&error))?;
    if all.is_empty() {
        all = before.to_vec();
    }
    let new: Vec<i64> = stop_tokens.iter().copied().filter(|token| !all.contains(token)).collect();
    if new.is_empty() {
        return Ok(None);
    }
    all.extend(new);
    table.insert("eos_token_id".to_owned(), if let [token] = all[..] { token.into() } else { all.into() });
    let text = python_json::table_to_text(&table).map_err(|error| bad(&error))?;
    Ok(Some(text.into_bytes()))
}

impl GenerationSettings {
    /// Reads the file of a folder, and reports its unsupported keys. Fails if the file cannot be
    /// read, or a key has an invalid value.
    pub fn load(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("generation_config.json");
        if !path.is_file() {
            return Ok(Self::default());
        }
        let bad = |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
        let text = untrusted_io::read_text(&path, untrusted_io::SETTINGS_BYTES).map_err(|error| bad(&error))?;
        let table = parse_settings(&text).map_err(|error| bad(&error))?;
        for note in unheeded(&table) {
            complain(&format!("{}: {note}", path.display()));
        }
        Self::read(&table).map_err(|error| bad(&error))
    }

    fn read(table: &Map<String, Value>) -> Result<Self, String> {
        let keys = Keys(table);
        let share = |p: f64| (0.0..=1.0).contains(&p);
        let (of_share, above) = ("a number from 0 to 1", |p: f64| p > 0.0 && p.is_finite());
        let factor = |key| Ok::<f64, String>(keys.number(key, "a number above 0", above)?.unwrap_or(1.0));
        let rules = TokenRules {
            repetition_penalty: factor("repetition_penalty")?,
            encoder_repetition_penalty: factor("encoder_repetition_penalty")?,
            no_repeat_ngram_size: keys.count("no_repeat_ngram_size")?.unwrap_or(0),
            encoder_no_repeat_ngram_size: keys.count("encoder_no_repeat_ngram_size")?.unwrap_or(0),
            bad_words: keys.runs("bad_words_ids")?,
            min_new_tokens: keys.count("min_new_tokens")?.unwrap_or(0),
            suppressed: keys.ids("suppress_tokens")?,
            suppressed_first: keys.ids("begin_suppress_tokens")?,
            forced_bos: keys.ids("forced_bos_token_id")?.first().copied(),
            forced_eos: keys.ids("forced_eos_token_id")?,
        };
        Ok(Self {
            is_greedy: table.get("do_sample") == Some(&Value::Bool(false)),
            temperature: keys.number("temperature", "a number of at least 0", |t| t >= 0.0 && t.is_finite())?,
            top_k: keys.count("top_k")?,
            top_p: keys.number("top_p", of_share, share)?.filter(|p| *p > 0.0),
            min_p: keys.number("min_p", of_share, share)?,
            typical_p: keys.number("typical_p", of_share, share)?.filter(|p| *p > 0.0),
            epsilon_cutoff: keys.number("epsilon_cutoff", of_share, share)?.filter(|p| *p > 0.0),
            eta_cutoff: keys.number("eta_cutoff", of_share, share)?.filter(|p| *p > 0.0),
            rules,
            max_new_tokens: keys.count("max_new_tokens")?,
            max_length: keys.count("max_length")?,
            min_length: keys.count("min_length")?.unwrap_or(0),
            stop_tokens: keys.ids("eos_token_id")?,
            stop_strings: keys.texts("stop_strings")?,
        })
    }

    /// Constraints on the tokens after a prompt of `prompt` tokens.
    pub fn rules(&self, prompt: usize) -> TokenRules {
        let min_new_tokens = self.rules.min_new_tokens.max(self.min_length.saturating_sub(prompt));
        TokenRules { min_new_tokens, ..self.rules.clone() }
    }

    /// Largest number of tokens after a prompt of `prompt` tokens.
    pub fn max_new_tokens(&self, prompt: usize) -> Option<usize> {
        self.max_new_tokens.or(self.max_length.map(|length| length.saturating_sub(prompt).max(1)))
    }
}

/// Values of a table, in which null counts as absent.
struct Keys<'a>(&'a Map<String, Value>);

impl Keys<'_> {
    /// Value of a key, parsed by `read`, which must be `expected`.
    fn get<T>(&self, key: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, String> {
        let Some(value) = self.0.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let shown = || value.to_string().chars().take(80).collect::<String>();
        read(value).map(Some).ok_or_else(|| format!("{key}: expected {expected}, found {}", shown()))
    }

    fn number(&self, key: &str, expected: &str, fits: impl Fn(f64) -> bool) -> Result<Option<f64>, String> {
        self.get(key, expected, |value| value.as_f64().filter(|number| fits(*number)))
    }

    /// Number above 0; 0 counts as absent.
    fn count(&self, key: &str) -> Result<Option<usize>, String> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        Ok(self.get(key, "an integer of at least 0", count)?.filter(|count| *count > 0))
    }

    /// Token ids: one, or a list.
    fn ids(&self, key: &str) -> Result<Vec<i64>, String> {
        Ok(self.get(key, "a token id, or a list of them", ids)?.unwrap_or_default())
    }

    fn runs(&self, key: &str) -> Result<Vec<Vec<i64>>, String> {
        let run = |run: &Value| ids(run).filter(|ids| run.is_array() && !ids.is_empty());
        let runs = |value: &Value| value.as_array()?.iter().map(run).collect();
        Ok(self.get(key, "a list of lists of token ids", runs)?.unwrap_or_default())
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let texts = |value: &Value| match value {
            Value::Array(texts) => texts.iter().map(text).collect(),
            one => text(one).map(|text| vec![text]),
        };
        Ok(self.get(key, "a text, or a list of them", texts)?.unwrap_or_default())
    }
}

fn ids(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Array(ids) => ids.iter().map(Value::as_i64).collect(),
        one => one.as_i64().map(|id| vec![id]),
    }
}

/// Unsupported keys that would change the text, a sentence each.
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
        let found = read(json!({ "do_sample": true, "temperature": 0.6, "top_k": 0, "top_p": 0.9, "eos_token_id": [1, 2], "repetition_penalty": 1.1,
            "typical_p": null, "min_length": 9, "max_length": 20, "bad_words_ids": [[1], [2, 3]], "stop_strings": "###", "forced_eos_token_id": 2 }))
        .unwrap();
        let expected = GenerationSettings {
            temperature: Some(0.6),
            top_p: Some(0.9),
            rules: TokenRules {
                repetition_penalty: 1.1,
                bad_words: vec![vec![1], vec![2, 3]],
                forced_eos: vec![2],
                ..TokenRules::default()
            },
            max_length: Some(20),
            min_length: 9,
            stop_tokens: vec![1, 2],
            stop_strings: vec!["###".to_owned()],
            ..GenerationSettings::default()
        };
        assert_eq!(found, expected);
        assert_eq!((found.rules(5).min_new_tokens, found.rules(10).min_new_tokens), (4, 0));
        assert_eq!((found.max_new_tokens(5), found.max_new_tokens(30)), (Some(15), Some(1)));
        assert!(read(json!({ "do_sample": false })).unwrap().is_greedy);
        for (key, value) in [
            ("temperature", json!(-1)),
            ("top_p", json!(2)),
            ("top_k", json!(-3)),
            ("repetition_penalty", json!("x")),
            ("eta_cutoff", json!(7)),
            ("bad_words_ids", json!([1])),
            ("stop_strings", json!([""])),
            ("suppress_tokens", json!("a")),
        ] {
            assert!(read(json!({ key: value })).unwrap_err().contains(key));
        }
    }

    #[test]
    fn tokens_that_end_a_text_are_added_to_those_that_do() {
        let with = |file: Option<&str>, stop: &[i64]| {
            let written = with_stop_tokens(file.map(str::as_bytes), &[3], stop).unwrap();
            written.map(|bytes| parse_settings(std::str::from_utf8(&bytes).unwrap()).unwrap())
        };
        assert_eq!(with(Some(r#"{"eos_token_id": [2, 7], "top_k": 5}"#), &[7]), None);
        let found = with(Some(r#"{"eos_token_id": 2, "top_k": 5}"#), &[7, 2]).unwrap();
        assert_eq!(Value::Object(found), json!({ "eos_token_id": [2, 7], "top_k": 5 }));
        assert_eq!(Value::Object(with(None, &[7]).unwrap()), json!({ "eos_token_id": [3, 7] }));
        assert_eq!(with(Some("{}"), &[3]), None);
        assert!(with_stop_tokens(Some(b"{"), &[], &[7]).is_err());
    }

    #[test]
    fn what_is_not_heeded_is_said_where_it_changes_the_text() {
        assert_eq!(
            unheeded(&table(json!({ "num_beams": 1, "guidance_scale": 1, "typical_p": 0.9, "force_words_ids": null }))),
            Vec::<String>::new()
        );
        let notes = unheeded(&table(json!({ "num_beams": 4, "penalty_alpha": 0.6 })));
        assert!(notes.len() == 2 && notes[0].contains("num_beams = 4"), "{notes:?}");
    }
}
