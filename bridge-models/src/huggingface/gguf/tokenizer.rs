//! A byte-level tokenizer as GGUF has it, from and to the files of a Hugging Face folder. Other
//! tokenizers are refused.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::error::HfError;
use super::file::{GgufFile, GgufValue};

/// Splitting of text before merges: the name in `tokenizer.ggml.pre`, and the steps.
const PRE: [(&str, &[Step]); 5] = [
    ("gpt-2", &[Step::Bytes { by_word: true }]),
    ("smollm", &[Step::Digits, Step::Bytes { by_word: true }]),
    ("llama-bpe", &[Step::Split(LLAMA3), Step::Bytes { by_word: false }]),
    ("qwen2", &[Step::Split(QWEN2), Step::Bytes { by_word: false }]),
    ("default", &[Step::Bytes { by_word: true }]),
];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A step of cutting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// At the matches of a pattern.
    Split(&'static str),
    /// Each digit separately.
    Digits,
    /// Into bytes, by GPT-2's pattern of words or without one.
    Bytes { by_word: bool },
}

/// Types of tokens.
mod kind {
    pub const NORMAL: i64 = 1;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
}

impl Step {
    fn to_json(self) -> Value {
        match self {
            Self::Split(pattern) => {
                json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
            }
            Self::Digits => json!({ "type": "Digits", "individual_digits": true }),
            Self::Bytes { by_word } => {
                json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": by_word })
            }
        }
    }

    /// True if a step of a `tokenizer.json` does this.
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Split(pattern) => value["type"] == "Split" && value["pattern"]["Regex"] == pattern,
            Self::Digits => value["type"] == "Digits" && value["individual_digits"] == true,
            Self::Bytes { by_word } => {
                let uses = value["use_regex"].as_bool().unwrap_or(true);
                value["type"] == "ByteLevel" && value["add_prefix_space"] == false && uses == by_word
            }
        }
    }
}

/// The tokenizer's files of a folder that has this file's model; none if the file has no tokenizer.
pub(super) fn files(file: &GgufFile) -> Result<BTreeMap<String, Vec<u8>>, HfError> {
    let Some(model) = file.text("tokenizer.ggml.model") else { return Ok(BTreeMap::new()) };
    if model != "gpt2" {
        return Err(file.wrong("tokenizer.ggml.model", "gpt2: others are read from Hugging Face folders only", model));
    }
    let pre = file.text("tokenizer.ggml.pre").unwrap_or("default");
    let Some((_, steps)) = PRE.iter().find(|(name, _)| *name == pre) else {
        return Err(file.wrong("tokenizer.ggml.pre", format!("one of {}", PRE.map(|(name, _)| name).join(", ")), pre));
    };
    let [Some(GgufValue::Texts(tokens)), Some(GgufValue::Texts(merges))] =
        ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"].map(|key| file.values.get(key))
    else {
        return Err(file.wrong("tokenizer.ggml.tokens", "lists of tokens and of merges", "not both"));
    };
    let kinds = match file.values.get("tokenizer.ggml.token_type") {
        Some(GgufValue::Ints(kinds)) if kinds.len() == tokens.len() => kinds.clone(),
        None => vec![kind::NORMAL; tokens.len()],
        Some(_) => return Err(file.wrong("tokenizer.ggml.token_type", "an integer for each token", "another list")),
    };
    let added: Vec<Value> = tokens.iter().zip(&kinds).enumerate().filter(|(_, (_, kind))| [kind::CONTROL, kind::USER_DEFINED].contains(kind))
        .map(|(id, (token, kind))| {
            let is_special = *kind == kind::CONTROL;
            json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": is_special })
        })
        .collect();
    // Rows that fill the vocabulary up stand after its tokens: a tokenizer that knew them would
    // let them be generated.
    let known = kinds.iter().rposition(|kind| *kind != kind::UNUSED).map_or(0, |last| last + 1);
    let vocab: Map<String, Value> =
        tokens[..known].iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let steps: Vec<Value> = steps.iter().map(|step| step.to_json()).collect();
    let pre_tokenizer = match steps.as_slice() {
        [step] => step.clone(),
        steps => json!({ "type": "Sequence", "pretokenizers": steps }),
    };
    let bytes = Step::Bytes { by_word: true }.to_json();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": bytes, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": pre == "llama-bpe", "vocab": vocab, "merges": merges,
        },
    });
    let mut config = Map::from_iter([("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"))]);
    for name in ["bos", "eos", "unknown", "padding"] {
        let id = file.int(&format!("tokenizer.ggml.{name}_token_id")).and_then(|id| usize::try_from(id).ok());
        if let Some(token) = id.and_then(|id| tokens.get(id)) {
            let short = name.replace("unknown", "unk").replace("padding", "pad");
            config.insert(format!("{short}_token"), json!(token));
        }
    }
    if let Some(GgufValue::Bool(adds)) = file.values.get("tokenizer.ggml.add_bos_token") {
        config.insert("add_bos_token".into(), json!(adds));
    }
    if let Some(template) = file.text("tokenizer.chat_template") {
        config.insert("chat_template".into(), json!(template));
    }
    let text = |value: &Value| value.to_string().into_bytes();
    Ok(BTreeMap::from([
        ("tokenizer.json".to_owned(), text(&tokenizer)),
        ("tokenizer_config.json".to_owned(), text(&Value::Object(config))),
    ]))
}

/// Values of a file for the tokenizer of a folder, for a model with `rows` rows of vocabulary.
/// Fails if GGUF cannot store the tokenizer, with the expected and the found value.
pub(super) fn values(
    files: &BTreeMap<String, Vec<u8>>,
    rows: usize,
) -> Result<Vec<(String, GgufValue)>, (String, String)> {
    let Some(text) = files.get("tokenizer.json") else { return Ok(Vec::new()) };
    let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or_default();
    let (tokenizer, config) = (parse(text), files.get("tokenizer_config.json").map_or(Value::Null, |text| parse(text)));
    let refused =
        |found: &str| Err(("a byte-level BPE tokenizer that llama.cpp has a name for".to_owned(), found.to_owned()));
    let model = &tokenizer["model"];
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else {
        return refused("another model than BPE in tokenizer.json");
    };
    let cut = &tokenizer["pre_tokenizer"];
    let steps = match cut["pretokenizers"].as_array() {
        Some(steps) => steps.clone(),
        None => vec![cut.clone()],
    };
    let is_same = |known: &&(&str, &[Step])| {
        known.1.len() == steps.len() && known.1.iter().zip(&steps).all(|(step, value)| step.is(value))
    };
    let Some((pre, _)) = PRE.iter().find(is_same) else {
        return refused(&format!("pre_tokenizer {cut}").chars().take(300).collect::<String>());
    };
    let mut tokens: Vec<(String, i64)> = (0..rows).map(|id| (format!("[PAD{id}]"), kind::UNUSED)).collect();
    let added = tokenizer["added_tokens"].as_array().cloned().unwrap_or_default();
    let normal = vocab.iter().map(|(token, id)| (token.clone(), id.as_u64(), kind::NORMAL));
    let added = added.iter().map(|token| {
        let kind = if token["special"] == true { kind::CONTROL } else { kind::USER_DEFINED };
        (token["content"].as_str().unwrap_or_default().to_owned(), token["id"].as_u64(), kind)
    });
    let mut ids = BTreeMap::new();
    for (token, id, kind) in normal.chain(added) {
        let Some(id) = id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < rows) else {
            return refused(&format!("the token {token:?} with an id beyond the model's {rows} rows"));
        };
        ids.insert(token.clone(), id);
        tokens[id] = (token, kind);
    }
    let merge = |merge: &Value| match merge.as_array().map(Vec::as_slice) {
        Some([first, second]) => {
            format!("{} {}", first.as_str().unwrap_or_default(), second.as_str().unwrap_or_default())
        }
        _ => merge.as_str().unwrap_or_default().to_owned(),
    };
    let (texts, kinds): (Vec<String>, Vec<i64>) = tokens.into_iter().unzip();
    let mut values = vec![
        ("tokenizer.ggml.model".to_owned(), GgufValue::Text("gpt2".to_owned())),
        ("tokenizer.ggml.pre".into(), GgufValue::Text((*pre).to_owned())),
        ("tokenizer.ggml.tokens".into(), GgufValue::Texts(texts)),
        ("tokenizer.ggml.token_type".into(), GgufValue::Ints(kinds)),
        ("tokenizer.ggml.merges".into(), GgufValue::Texts(merges.iter().map(merge).collect())),
    ];
    for (key, name) in [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let token = config[key].as_str().or_else(|| config[key]["content"].as_str());
        if let Some(id) = token.and_then(|token| ids.get(token)) {
            values.push((format!("tokenizer.ggml.{name}_token_id"), GgufValue::Int(*id as i128)));
        }
    }
    if let Some(adds) = config["add_bos_token"].as_bool() {
        values.push(("tokenizer.ggml.add_bos_token".into(), GgufValue::Bool(adds)));
    }
    let apart = files.get("chat_template.jinja").map(|text| String::from_utf8_lossy(text).into_owned());
    if let Some(template) = apart.or_else(|| config["chat_template"].as_str().map(str::to_owned)) {
        values.push(("tokenizer.chat_template".into(), GgufValue::Text(template)));
    }
    Ok(values)
}
