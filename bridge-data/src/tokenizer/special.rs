//! Tokens that end documents, begin sequences and pad, according to the files beside a Hugging Face
//! tokenizer. Loading the tokenizer itself belongs to `huggingface`.

use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use super::TokenizerError;
use super::added::ADDED_FILE;
use crate::{python_json, untrusted_io};

/// Files beside a tokenizer, in the order in which they are read.
pub(crate) const COMPANIONS: [&str; 4] =
    ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"];
/// Chat template of conversations with tools, beside `chat_template.jinja`.
pub(crate) const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
/// Files beside a tokenizer that name no special tokens.
const OTHERS: [&str; 4] = ["chat_template.jinja", TOOL_USE_FILE, "chat_template.json", ADDED_FILE];

/// Name of a special token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Token(String),
    Id(i64),
}

/// The special tokens named in a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpecialNames {
    pub(crate) eos: Option<Named>,
    pub(crate) bos: Option<Named>,
    pub(crate) pad: Option<Named>,
}

/// The companion files of a folder that exist, with their text.
pub(crate) fn read_companions(folder: &Path) -> Result<Vec<(&'static str, String)>, TokenizerError> {
    let mut found = Vec::new();
    for name in COMPANIONS.into_iter().chain(OTHERS) {
        let path = folder.join(name);
        match untrusted_io::read_text(&path, untrusted_io::SETTINGS_BYTES) {
            Ok(text) => found.push((name, text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(TokenizerError::io("read", &path)(error)),
        }
    }
    Ok(found)
}

/// Reads the names from companion files; the first file that names a token decides.
pub(crate) fn names(folder: &Path, companions: &[(&'static str, String)]) -> Result<SpecialNames, TokenizerError> {
    let mut names = SpecialNames::default();
    for (file, text) in companions.iter().filter(|(file, _)| COMPANIONS.contains(file)) {
        let value = python_json::parse(text)
            .map_err(|error| TokenizerError::malformed(&folder.join(file), format!("not JSON: {error}")))?;
        for (slot, kind) in [(&mut names.eos, "eos"), (&mut names.bos, "bos"), (&mut names.pad, "pad")] {
            if slot.is_none() {
                *slot = name_in(&value, kind);
            }
        }
    }
    Ok(names)
}

/// The ids before a text that stands alone: those of the post-processor, unless
/// `tokenizer_config.json` says whether the token that begins a sequence is put there, as in
/// transformers 5.
pub(crate) fn prefix(inner: &Inner, companions: &[(&'static str, String)], bos: Option<i64>) -> Vec<i64> {
    let config = companions.iter().find(|(file, _)| *file == COMPANIONS[0]);
    let config = config.and_then(|(_, text)| python_json::parse(text).ok()).unwrap_or_default();
    if ["add_bos_token", "add_eos_token"].iter().any(|key| config.get(key).is_some()) {
        return bos.filter(|_| config["add_bos_token"] == true).into_iter().collect();
    }
    // Any text with tokens will do, because the prefix does not depend on the text.
    let encode = || inner.encode("a", true).map_err(|error| error.to_string());
    let Ok(Ok(encoding)) = untrusted_io::contained(encode) else { return Vec::new() };
    let is_put = encoding.get_special_tokens_mask().iter().map(|mask| *mask == 1);
    let count = is_put.clone().take_while(|is_put| *is_put).count();
    if count == is_put.len() {
        return Vec::new();
    }
    encoding.get_ids()[..count].iter().map(|id| i64::from(*id)).collect()
}

fn name_in(value: &Value, kind: &str) -> Option<Named> {
    let token = &value[format!("{kind}_token")];
    let text = token.as_str().or_else(|| token["content"].as_str());
    if let Some(text) = text {
        return Some(Named::Token(text.to_owned()));
    }
    let id = &value[format!("{kind}_token_id")];
    id.as_i64().or_else(|| id[0].as_i64()).map(Named::Id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_that_names_a_token_decides() {
        let companions = [
            ("tokenizer_config.json", r#"{"eos_token": {"content": "<e>"}, "pad_token": null}"#.to_owned()),
            ("special_tokens_map.json", r#"{"eos_token": "<x>", "bos_token": "<b>"}"#.to_owned()),
            (
                "config.json",
                r#"{"time_step_limit": [0.0, Infinity], "eos_token_id": [7, 8], "pad_token_id": 3}"#.to_owned(),
            ),
        ];
        let found = names(Path::new("folder"), &companions).expect("valid JSON");
        assert_eq!(
            found,
            SpecialNames {
                eos: Some(Named::Token("<e>".into())),
                bos: Some(Named::Token("<b>".into())),
                pad: Some(Named::Id(3)),
            }
        );
        let only_ids = names(Path::new("folder"), &companions[2..]).expect("valid JSON");
        assert_eq!(only_ids.eos, Some(Named::Id(7)));
    }

    #[test]
    fn broken_json_names_the_file() {
        let error = names(Path::new("folder"), &[("config.json", "{".to_owned())]).expect_err("broken");
        assert!(error.to_string().contains("config.json"), "{error}");
    }
}
