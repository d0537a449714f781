//! Tokenizers from files: the file that each type reads, and the effect of settings.

use std::path::{Path, PathBuf};

use bridge_data::tokenizer::{Case, HuggingFaceTokenizer, TiktokenParams, TiktokenPattern};
use bridge_data::{chat, untrusted_io};
use serde_json::{Map, Value};

use crate::config::{
    self, AnyValue, ConfigError, ErrorKind, NO_TEMPLATE, TokenizerConfig, TokenizerType, has_marks, names_file,
};
use crate::train::data::error::InputError;

/// Tokens that upstream adds to those of `SentencePieceTokenizer`, besides the ones that its model
/// names.
const SENTENCEPIECE_TOKENS: [&str; 4] = ["<CLS>", "<SEP>", "<EOD>", "<MASK>"];

/// Loads the tokenizer of a type that is a file.
pub(in crate::train) fn load(
    section: &TokenizerConfig,
    kind: TokenizerType,
) -> Result<HuggingFaceTokenizer, InputError> {
    let model = || given("tokenizer_model", &section.tokenizer_model);
    let vocab = || given("vocab_file", &section.vocab_file);
    let mut tokenizer = match kind {
        TokenizerType::HuggingFace | TokenizerType::Sft => HuggingFaceTokenizer::load(model()?)?,
        TokenizerType::Gpt2Bpe => {
            HuggingFaceTokenizer::from_vocab_and_merges(vocab()?, given("merge_file", &section.merge_file)?)?
        }
        TokenizerType::BertWordPieceLowerCase => HuggingFaceTokenizer::wordpiece(vocab()?, Case::Lower)?,
        TokenizerType::BertWordPieceCase => HuggingFaceTokenizer::wordpiece(vocab()?, Case::Kept)?,
        TokenizerType::GptSentencePiece | TokenizerType::Llama2 => HuggingFaceTokenizer::sentencepiece(model()?)?,
        TokenizerType::SentencePiece => {
            let tokens = SENTENCEPIECE_TOKENS.map(str::to_owned);
            let ends = Map::from_iter([("eos_token".to_owned(), Value::from("<EOD>"))]);
            HuggingFaceTokenizer::sentencepiece(model()?)?.with_special_tokens(&tokens)?.with_config(&ends)?
        }
        TokenizerType::TikToken => HuggingFaceTokenizer::tiktoken(model()?, &tiktoken_params(section)?)?,
        TokenizerType::Null
        | TokenizerType::ByteLevelBpe
        | TokenizerType::Multimodal
        | TokenizerType::NullMultimodal => {
            return Err(wrong("tokenizer.tokenizer_type", &format!("{kind} is not a file")));
        }
    };
    let kwargs = section.hf_tokenizer_kwargs.iter().map(|kwarg| ("hf_tokenizer_kwargs", kwarg));
    let kwargs = kwargs.chain(section.sp_tokenizer_kwargs.iter().map(|kwarg| ("sp_tokenizer_kwargs", kwarg)));
    let mut template = section.chat_template.clone();
    for (of, (name, AnyValue(value))) in kwargs {
        tokenizer = with_argument(tokenizer, of, name, value, &mut template)?;
    }
    let mut tokens = section.special_tokens.clone().unwrap_or_default();
    tokens.extend((0..section.vocab_extra_ids).map(|number| format!("<extra_id_{number}>")));
    if !tokens.is_empty() {
        tokenizer = tokenizer.with_special_tokens(&tokens)?;
    }
    let format = section.tokenizer_prompt_format.as_deref().and_then(prompt_format);
    match template.as_deref().or(format) {
        Some(template) => with_template(&tokenizer, section, template),
        None if section.force_system_message => {
            let own = chat::template_text(&tokenizer);
            let own = own.ok_or_else(|| {
                wrong("tokenizer.force_system_message", "has no effect: the tokenizer has no chat template")
            })?;
            with_template(&tokenizer, section, &own)
        }
        None => Ok(tokenizer),
    }
}

fn given<'a>(name: &str, path: &'a Option<PathBuf>) -> Result<&'a Path, InputError> {
    let missing = || ConfigError::new(ErrorKind::Missing, format!("tokenizer.{name}"), "must be given").into();
    path.as_deref().ok_or_else(missing)
}

fn wrong(key: &str, message: &str) -> InputError {
    ConfigError::new(ErrorKind::Conflict, key, message).into()
}

fn tiktoken_params(section: &TokenizerConfig) -> Result<TiktokenParams<'_>, InputError> {
    let pattern = match section.tiktoken_pattern {
        Some(config::TiktokenPattern::V1) => TiktokenPattern::V1,
        Some(config::TiktokenPattern::V2) => TiktokenPattern::V2,
        None => return Err(wrong("tokenizer.tiktoken_pattern", "must be given: v1 or v2")),
    };
    Ok(TiktokenParams {
        pattern,
        num_special_tokens: section.tiktoken_num_special_tokens,
        special_tokens: section.tiktoken_special_tokens.as_deref(),
        vocab_size: section.vocab_size,
    })
}

/// One keyword argument of Python's classes.
fn with_argument(
    tokenizer: HuggingFaceTokenizer,
    of: &str,
    name: &str,
    value: &toml::Value,
    template: &mut Option<String>,
) -> Result<HuggingFaceTokenizer, InputError> {
    let key = format!("tokenizer.{of}.{name}");
    match (name, value) {
        ("bos_token" | "eos_token" | "pad_token", toml::Value::String(token)) => {
            let change = Map::from_iter([(name.to_owned(), Value::from(token.as_str()))]);
            Ok(tokenizer.with_config(&change)?)
        }
        ("additional_special_tokens" | "special_tokens", toml::Value::Array(tokens)) => {
            let tokens: Option<Vec<String>> = tokens.iter().map(|token| token.as_str().map(str::to_owned)).collect();
            Ok(tokenizer.with_special_tokens(&tokens.ok_or_else(|| wrong(&key, "must be a list of texts"))?)?)
        }
        ("chat_template", toml::Value::String(text)) => {
            template.get_or_insert_with(|| text.clone());
            Ok(tokenizer)
        }
        // There is one implementation of each tokenizer, and no code comes with it.
        ("use_fast", toml::Value::Boolean(true)) | ("trust_remote_code", toml::Value::Boolean(false)) => Ok(tokenizer),
        _ => {
            let message = "is no argument that a tokenizer file can be read with: expected bos_token, eos_token, pad_token, \
                           additional_special_tokens, chat_template or use_fast = true";
            Err(wrong(&key, message))
        }
    }
}

/// Writes conversations by a template, which is text or the name of a file.
pub(in crate::train) fn with_template(
    tokenizer: &HuggingFaceTokenizer,
    section: &TokenizerConfig,
    template: &str,
) -> Result<HuggingFaceTokenizer, InputError> {
    let path = Path::new(template);
    let mut text = match names_file(template) {
        true => untrusted_io::read_text(path, untrusted_io::SETTINGS_BYTES)
            .map_err(|error| wrong("tokenizer.chat_template", &format!("{}: cannot read: {error}", path.display())))?,
        false => template.to_owned(),
    };
    if !has_marks(&text) {
        return Err(wrong("tokenizer.chat_template", NO_TEMPLATE));
    }
    if section.force_system_message {
        text.insert_str(0, FORCED_SYSTEM);
    }
    Ok(tokenizer.with_chat_template(text)?)
}

/// Puts upstream's system message before every conversation, in the place of its own.
const FORCED_SYSTEM: &str = "{%- set messages = [{'role': 'system', 'content': 'Answer the questions.'}] + \
    (messages[1:] if messages and messages[0].role == 'system' else messages) -%}";

/// Formats of `SFTTokenizer`, with the assistant's words marked.
pub(in crate::train) const PROMPT_FORMATS: [(&str, Option<&str>); 4] = [
    // The tokenizer's own template.
    ("default", None),
    (
        "identity",
        Some(
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}",
        ),
    ),
    (
        "nemotron-h-aligned",
        Some(
            "{% for m in messages %}{% set text = m.content.strip() %}\
        {% if m.role == 'system' %}{{ '<SPECIAL_10>System\\n' + text + '\\n' }}\
        {% elif m.role == 'user' %}{{ '<SPECIAL_11>User\\n' + text + '\\n<SPECIAL_11>Assistant\\n' }}\
        {% elif m.role == 'assistant' %}{% generation %}{{ text + '\\n' }}{% endgeneration %}{% endif %}{% endfor %}",
        ),
    ),
    (
        "nemotron-nano-v2",
        Some(
            "{% for m in messages %}{% set plain = m.content.replace('/think', '').replace('/no_think', '').strip() %}\
        {% if m.role == 'system' %}{{ '<SPECIAL_10>System\\n' + plain + '\\n' }}\
        {% elif m.role == 'user' %}{{ '<SPECIAL_11>User\\n' + plain + '\\n' }}\
        {% elif m.role == 'assistant' %}{{ '<SPECIAL_11>Assistant\\n' }}{% generation %}{{ m.content.strip() + '\\n<SPECIAL_12>\\n' }}\
        {% endgeneration %}{% endif %}{% endfor %}",
        ),
    ),
];

fn prompt_format(name: &str) -> Option<&'static str> {
    PROMPT_FORMATS.iter().find(|(known, _)| *known == name).and_then(|(_, template)| *template)
}
