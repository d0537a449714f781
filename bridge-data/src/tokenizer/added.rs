//! Tokens that stand only in files beside a Hugging Face tokenizer: they are registered as
//! `transformers` 5 does (`TokenizersBackend`). Which of them end, begin and pad, `special` says.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::TokenizerError;
use crate::python_json;

/// The file of older versions with the tokens that were added to a vocabulary, by their ids.
pub(super) const ADDED_FILE: &str = "added_tokens.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
const MAP_FILE: &str = "special_tokens_map.json";
const MODEL_FILE: &str = "config.json";

/// Keys that name one token each, in the order in which new ones get their ids.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys that name several, the one that counts first.
const SEVERAL: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Registers the tokens named in the files beside a tokenizer. A token that the vocabulary lacks
/// gets the next free id, if a file gives this id, or the model's vocabulary includes it. Fails on
/// files that are not JSON objects; tokens without an id, or with an id that differs from the file.
pub(super) fn register(
    inner: &mut Inner,
    folder: &Path,
    companions: &[(&'static str, String)],
) -> Result<(), TokenizerError> {
    let beside = CompanionTables::read(folder, companions)?;
    let tokens = beside.tokens(inner);
    if tokens.is_empty() {
        return Ok(());
    }
    let malformed = |file: &str, problem: String| TokenizerError::malformed(&folder.join(file), problem);
    let is_new: Vec<bool> = tokens.iter().map(|(.., token)| inner.token_to_id(&token.content).is_none()).collect();
    if beside.rows.is_none()
        && let Some(((.., token), _)) = tokens.iter().zip(&is_new).find(|((_, id, _), is_new)| **is_new && id.is_none())
    {
        return Err(unknown_token(inner, &token.content));
    }
    let added: Vec<AddedToken> = tokens.iter().map(|(.., token)| token.clone()).collect();
    inner.add_tokens(&added);
    for ((file, said, AddedToken { content, .. }), is_new) in tokens.iter().zip(is_new) {
        let found = inner.token_to_id(content);
        let (Some(id), true) = (found, said.is_none() || *said == found) else {
            let (said, found) = (said.unwrap_or_default(), found.unwrap_or_default());
            let problem =
                format!("it says that the token {content:?} has the id {said}, the tokenizer has {found} for it");
            return Err(malformed(file, problem));
        };
        if let Some(rows) = beside.rows.filter(|rows| is_new && id as usize >= *rows) {
            let problem = format!(
                "it names the token {content:?}, which is new, and the {rows} tokens of the model's vocabulary ({MODEL_FILE}) leave no room for it"
            );
            return Err(malformed(file, problem));
        }
    }
    Ok(())
}

/// Tables of the files beside a tokenizer.
struct CompanionTables {
    config: Map<String, Value>,
    names: Map<String, Value>,
    added: Map<String, Value>,
    /// The size of the model's vocabulary, if its `config.json` is there.
    rows: Option<usize>,
}

impl CompanionTables {
    fn read(folder: &Path, companions: &[(&'static str, String)]) -> Result<Self, TokenizerError> {
        let table = |name: &str| -> Result<Map<String, Value>, TokenizerError> {
            let Some((file, text)) = companions.iter().find(|(file, _)| *file == name) else { return Ok(Map::new()) };
            let malformed = |problem: String| TokenizerError::malformed(&folder.join(file), problem);
            let value = python_json::parse(text).map_err(|error| malformed(format!("not JSON: {error}")))?;
            match value {
                Value::Object(table) => Ok(table),
                _ => Err(malformed("expected a JSON object".to_owned())),
            }
        };
        let model = table(MODEL_FILE)?;
        let rows = model.get("vocab_size").or_else(|| model.get("text_config")?.get("vocab_size"));
        let rows = rows.and_then(Value::as_u64).and_then(|rows| usize::try_from(rows).ok());
        let mut config = table(CONFIG_FILE)?;
        // If the configuration has `added_tokens_decoder`, the older files are ignored.
        let (mut names, mut added) = (Map::new(), Map::new());
        if !config.contains_key("added_tokens_decoder") {
            (names, added) = (table(MAP_FILE)?, table(ADDED_FILE)?);
        }
        config.retain(|key, value| !(value.is_null() || names.contains_key(key)));
        Ok(Self { config, names, added, rows })
    }

    /// The tokens to register, each with its file, and its id where a file says that.
    fn tokens(&self, inner: &Inner) -> Vec<(&'static str, Option<u32>, AddedToken)> {
        let known = inner.get_added_tokens_decoder();
        let mut tokens: Vec<(&'static str, Option<u32>, AddedToken)> = Vec::new();
        let special: Vec<String> = self.special().into_iter().map(|(_, token)| token.content).collect();
        let mut by_id: BTreeMap<u32, (&'static str, AddedToken)> = BTreeMap::new();
        if let Some(Value::Object(decoder)) = self.config.get("added_tokens_decoder") {
            let tokens = decoder.iter().filter_map(|(id, value)| Some((id.parse().ok()?, token_of(value, false)?)));
            by_id.extend(tokens.map(|(id, token)| (id, (CONFIG_FILE, token))));
        }
        for (content, id) in &self.added {
            if let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                let token = AddedToken::from(content.as_str(), special.contains(content));
                by_id.insert(id, (ADDED_FILE, token));
            }
        }
        for (id, (file, token)) in by_id {
            let is_special = token.special || special.contains(&token.content);
            let is_known =
                known.values().any(|known| *known == token || (file == ADDED_FILE && known.content == token.content));
            if !is_known {
                tokens.push((file, Some(id), AddedToken { special: is_special, ..token }));
            }
        }
        for (file, token) in self.special() {
            let is_there = known
                .values()
                .chain(tokens.iter().map(|(.., token)| token))
                .any(|there| there.content == token.content);
            if !is_there {
                tokens.push((file, None, token));
            }
        }
        tokens
    }

    /// The special tokens that keys name.
    fn special(&self) -> Vec<(&'static str, AddedToken)> {
        let files = [(MAP_FILE, &self.names), (CONFIG_FILE, &self.config)];
        let find = |key: &str| files.into_iter().find_map(|(file, table)| Some((file, table.get(key)?)));
        let named = NAMED.into_iter().filter_map(|key| {
            let (file, value) = find(key)?;
            // A token that a key names is special, even if its table says otherwise.
            let token = token_of(value, file == MAP_FILE)?;
            Some((file, AddedToken { special: true, ..token }))
        });
        let mut tokens: Vec<(&'static str, AddedToken)> = named.collect();
        if let Some((file, several)) = SEVERAL.into_iter().find_map(find) {
            let values: Vec<&Value> = match several {
                Value::Array(values) => values.iter().collect(),
                Value::Object(values) => values.values().collect(),
                _ => Vec::new(),
            };
            tokens.extend(values.into_iter().filter_map(|value| Some((file, token_of(value, true)?))));
        }
        tokens
    }
}

/// A token as a file writes it: its text, or a table with its flags. `is_special` is the default of
/// the flag.
fn token_of(value: &Value, is_special: bool) -> Option<AddedToken> {
    if let Some(content) = value.as_str() {
        // A text alone names a special token.
        return Some(AddedToken::from(content, true)).filter(|token| !token.content.is_empty());
    }
    let flag = |key: &str, usual: bool| value.get(key).and_then(Value::as_bool).unwrap_or(usual);
    let special = flag("special", is_special);
    let token = AddedToken::from(value.get("content")?.as_str()?, special);
    let token = token.single_word(flag("single_word", false)).lstrip(flag("lstrip", false));
    Some(token.rstrip(flag("rstrip", false)).normalized(flag("normalized", !special)))
}

/// An error with the nearest name among the added tokens, which special tokens usually are.
pub(super) fn unknown_token(inner: &Inner, token: &str) -> TokenizerError {
    let names = inner.get_added_tokens_decoder();
    let common = |other: &str| other.chars().zip(token.chars()).take_while(|(a, b)| a == b).count();
    let mut names: Vec<&str> = names.values().map(|token| token.content.as_str()).collect();
    names.sort_unstable();
    let nearest = names.into_iter().max_by_key(|name| common(name));
    let hint = nearest.map_or(String::new(), |name| format!("; did you mean {name:?}?"));
    TokenizerError::UnknownToken { place: String::new(), token: token.to_owned(), hint }
}
