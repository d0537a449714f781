//! Chat templates: conversations as the text and the token ids that a model was tuned on, as
//! Hugging Face's `apply_chat_template` makes them. Reading conversations from files and training
//! on them do not belong here.

pub(crate) mod arguments;
mod jinja;
mod mask;
mod reading;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use std::sync::OnceLock;

use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

use crate::tokenizer::{TOOL_USE_FILE, Tokenizer, TokenizerError};
use crate::untrusted_io;

#[cfg(test)]
pub(crate) use jinja::limits::computed;
pub use mask::EncodedChat;
use reading::Reading;

/// Files with a template and the special tokens that it names, in the order of the search for a
/// template; the last file has special tokens alone.
const FILES: [&str; 4] =
    ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "special_tokens_map.json"];
/// Most bytes of a template.
const LONGEST_TEMPLATE: usize = 1 << 20;

/// Error of rendering or encoding a conversation.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A file of the folder cannot be read.
    #[error("{path}: cannot read: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A malformed file, or a template that does not parse.
    #[error("{path}: {problem}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// The template refuses the conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The assistant's text cannot be separated from the rest.
    #[error("what the assistant says cannot be told from the rest: {0}")]
    NoMask(String),
    /// The tokenizer cannot encode the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Messages in order, with the tools that a model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// JSON objects with `role` and `content`, and any other fields that the template reads.
    pub messages: Vec<Value>,
    /// Descriptions of tools; `None` if the conversation has no such list.
    pub tools: Option<Value>,
    /// Further arguments of the template, such as `enable_thinking` and `documents`.
    pub arguments: Map<String, Value>,
}

impl Conversation {
    /// The conversation of a JSON object with `messages`, and perhaps `tools` and other arguments
    /// of the template.
    ///
    /// # Errors
    /// A missing field or another type, as a sentence.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let messages = value.get("messages").ok_or("expected an object with the key \"messages\"")?;
        let messages = messages.as_array().ok_or("messages: expected a list")?;
        if let Some(at) = messages.iter().position(|message| !message["role"].is_string()) {
            return Err(format!("messages[{at}]: expected an object with a \"role\""));
        }
        let tools = arguments::tools_of("tools", &value["tools"])?;
        let arguments = value.as_object().map_or_else(|| Ok(Map::new()), arguments::arguments_of)?;
        Ok(Self { messages: messages.clone(), tools: Some(tools).filter(|tools| !tools.is_null()), arguments })
    }
}

/// Text that follows the last message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Complete conversation, with nothing after the last message.
    Complete,
    /// Header of the assistant's next message.
    GenerationPrompt,
}

/// The chat template of a tokenizer's folder.
pub struct ChatTemplate {
    default: Variant,
    /// The template named `tool_use`, which conversations with tools take.
    tool_use: Option<Variant>,
    /// `bos_token`, `eos_token` and so on, which templates may write.
    special_tokens: Map<String, Value>,
    /// `None` if the template refuses a plain conversation.
    end_of_turn: OnceLock<Option<String>>,
    writes_calls: OnceLock<bool>,
}

/// A template with its text.
struct Variant {
    source: String,
    template: jinja::Template,
    /// Generation prompt after a user message.
    prompt: OnceLock<String>,
}

impl Variant {
    fn new(source: String) -> Result<Self, String> {
        if source.len() > LONGEST_TEMPLATE {
            return Err(format!("it has {} bytes, more than the {LONGEST_TEMPLATE} of any template", source.len()));
        }
        let template = jinja::Template::parse(&source).map_err(|error| error.to_string())?;
        Ok(Self { source, template, prompt: OnceLock::new() })
    }

    fn has_generation(&self) -> bool {
        self.template.has_generation()
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.default.source).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Loads the template of a folder: `chat_template.jinja` and `additional_chat_templates`, else
    /// `chat_template.json`, else that of `tokenizer_config.json`. `None` without one.
    ///
    /// # Errors
    /// If a file cannot be read or parsed.
    pub fn load(folder: &Path) -> Result<Option<Self>, ChatError> {
        let mut files = Vec::new();
        for name in FILES.into_iter().chain([TOOL_USE_FILE]) {
            files.extend(read(&folder.join(name))?.map(|text| (name, text)));
        }
        Self::from_files(folder, |wanted| files.iter().find(|(name, _)| *name == wanted).map(|(_, text)| text.as_str()))
    }

    /// The template among the files of a tokenizer, as in [`ChatTemplate::load`].
    ///
    /// # Errors
    /// If a file cannot be parsed.
    pub fn from_tokenizer(tokenizer: &dyn Tokenizer) -> Result<Option<Self>, ChatError> {
        Self::from_files(Path::new(""), |name| tokenizer.companion(name))
    }

    fn from_files<'t>(folder: &Path, text_of: impl Fn(&str) -> Option<&'t str>) -> Result<Option<Self>, ChatError> {
        let json = |name: &str| match text_of(name) {
            Some(text) => {
                serde_json::from_str(text).map_err(|error| malformed(&folder.join(name), format!("not JSON: {error}")))
            }
            None => Ok(Value::Null),
        };
        let [jinja, other, of_config, map] = FILES;
        let config = json(of_config)?;
        let special_tokens_map = json(map)?;
        let mut special_tokens = Map::new();
        for (key, value) in [&special_tokens_map, &config].into_iter().flat_map(Value::as_object).flatten() {
            let text = value.as_str().or_else(|| value["content"].as_str());
            if let Some(text) = text.filter(|_| key.ends_with("_token")) {
                special_tokens.insert(key.clone(), text.into());
            }
        }
        let named = |name, config: &Value| named_templates(config).map(|templates| (name, templates));
        let files = (text_of(jinja).map(str::to_owned), text_of(TOOL_USE_FILE).map(str::to_owned));
        let (name, (default, tool_use)) = match files {
            (None, None) => {
                let found = named(other, &json(other)?).or_else(|| named(of_config, &config));
                let Some(found) = found else { return Ok(None) };
                found
            }
            (None, tool_use) => (TOOL_USE_FILE, (None, tool_use)),
            files => (jinja, files),
        };
        let made = Self::new(default, tool_use, special_tokens);
        made.map(Some).map_err(|problem| malformed(&folder.join(name), problem))
    }

    /// Fingerprint of the template, for names of files made with it.
    pub fn identity(&self) -> String {
        let tokens = Value::Object(self.special_tokens.clone()).to_string();
        let tool_use = self.tool_use.as_ref().map_or("", |variant| &variant.source);
        let parts = format!("{}\0{tool_use}\0{tokens}", self.default.source);
        format!("{:016x}", XxHash3_64::oneshot(parts.as_bytes()))
    }

    /// The template's text.
    pub fn written(&self) -> &str {
        &self.default.source
    }

    /// True if the template writes the calls of tools.
    pub(crate) fn writes_calls(&self) -> bool {
        const NAME: &str = "probe_of_calls";
        *self.writes_calls.get_or_init(|| {
            let probe = |arguments: Value, answers: bool| {
                let call = json!({ "id": "call12345", "type": "function", "function": { "name": NAME, "arguments": arguments } });
                let mut messages = vec![
                    json!({ "role": "user", "content": "A question?" }),
                    json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
                ];
                if answers {
                    messages.push(json!({ "role": "tool", "tool_call_id": "call12345", "name": "t", "content": "1" }));
                    messages.push(json!({ "role": "assistant", "content": "An answer." }));
                }
                self.render(&Conversation { messages, ..Conversation::default() }, Ending::Complete)
            };
            let arguments = [json!({ "a": "b" }), json!("{\"a\": \"b\"}")];
            let texts = arguments.iter().flat_map(|arguments| [false, true].map(|answers| probe(arguments.clone(), answers)));
            let texts: Vec<String> = texts.filter_map(Result::ok).collect();
            // A template that refuses every probe reports the problem with calls itself.
            texts.is_empty() || texts.iter().any(|text| text.contains(NAME))
        })
    }

    /// A template from its text, with the special tokens that it may name. Fails on a syntax error.
    fn new(
        default: Option<String>,
        tool_use: Option<String>,
        special_tokens: Map<String, Value>,
    ) -> Result<Self, String> {
        let default = default.ok_or("it has a template for tools alone, and none named `default`")?;
        Ok(Self {
            default: Variant::new(default)?,
            tool_use: tool_use.map(Variant::new).transpose()?,
            special_tokens,
            end_of_turn: OnceLock::new(),
            writes_calls: OnceLock::new(),
        })
    }

    /// The template for a conversation with or without tools.
    fn variant(&self, has_tools: bool) -> &Variant {
        self.tool_use.as_ref().filter(|_| has_tools).unwrap_or(&self.default)
    }

    /// The generation prompt after a user message.
    fn prompt(&self, has_tools: bool) -> &str {
        self.variant(has_tools).prompt.get_or_init(|| {
            let user = json!({ "role": "user", "content": "A question?" });
            let messages = vec![user.clone(), json!({ "role": "assistant", "content": "An answer." }), user];
            let conversation =
                Conversation { messages, tools: has_tools.then(|| json!([])), ..Conversation::default() };
            let reading = self.read(&conversation);
            let Ok(complete) = reading.render(&[0, 1, 2], Ending::Complete) else { return String::new() };
            reading.prompt(3, &complete.text, complete.owned.last()).unwrap_or_default()
        })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn render(&self, conversation: &Conversation, ending: Ending) -> Result<String, ChatError> {
        let reading = self.read(conversation);
        Ok(reading.render(&reading.all(), ending)?.text)
    }

    /// The text of a complete conversation, and the fields of its messages that the template does
    /// not read, such as `messages[].name`. Fails if the template refuses it.
    pub(crate) fn render_with_unread(&self, conversation: &Conversation) -> Result<(String, Vec<String>), ChatError> {
        let reading = self.read(conversation);
        let text = reading.render(&reading.all(), Ending::Complete)?.text;
        Ok((text, reading.unread()))
    }

    /// The token ids of a complete conversation, with a mask of the assistant's tokens.
    ///
    /// # Errors
    /// If the template refuses the conversation, or the tokenizer cannot encode its text.
    pub fn encode(&self, conversation: &Conversation, tokenizer: &dyn Tokenizer) -> Result<EncodedChat, ChatError> {
        mask::encode(self, conversation, tokenizer)
    }

    /// The token ids of a complete conversation.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`].
    pub fn ids(&self, conversation: &Conversation, tokenizer: &dyn Tokenizer) -> Result<Vec<i64>, ChatError> {
        Ok(tokenizer.encode(&self.render(conversation, Ending::Complete)?)?)
    }

    /// Calls `on_token` with the token ids of a complete conversation in order, each with its
    /// weight in the loss: the assistant's tokens have the weight of their message in `weights`,
    /// all other tokens 0.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`]; [`ChatError::NoMask`] if the assistant's tokens cannot be
    /// identified, or cannot be assigned to messages with different weights.
    pub fn encode_weighted(
        &self,
        conversation: &Conversation,
        weights: &[f32],
        tokenizer: &dyn Tokenizer,
        on_token: &mut dyn FnMut(i64, f32),
    ) -> Result<(), ChatError> {
        mask::encode_weighted(self, conversation, weights, tokenizer, on_token)
    }

    /// The text after a message of the assistant that ends a conversation: how a model says that
    /// it has finished. Empty where the template leaves that to the reader.
    pub fn end_of_turn(&self) -> &str {
        self.ending().unwrap_or_default()
    }

    /// False if the template writes nothing after an answer.
    pub(crate) fn ends_turns(&self) -> bool {
        self.ending().is_none_or(|ending| !ending.trim().is_empty())
    }

    fn ending(&self) -> Option<&str> {
        const ANSWER: &str = "An answer.";
        let ending = self.end_of_turn.get_or_init(|| {
            let messages = vec![
                json!({ "role": "user", "content": "A question?" }),
                json!({ "role": "assistant", "content": ANSWER }),
            ];
            let conversation = Conversation { messages, ..Conversation::default() };
            let text = self.render(&conversation, Ending::Complete).ok()?;
            text.rsplit_once(ANSWER).map(|(_, end)| end.to_owned())
        });
        ending.as_deref()
    }

    /// A conversation as the template reads it.
    fn read<'t>(&'t self, conversation: &'t Conversation) -> Reading<'t> {
        Reading::new(self.variant(conversation.tools.is_some()), &self.special_tokens, conversation)
    }
}

fn malformed(path: &Path, problem: String) -> ChatError {
    ChatError::Malformed { path: path.to_owned(), problem }
}

/// The text of a file, if it exists.
fn read(path: &Path) -> Result<Option<String>, ChatError> {
    match untrusted_io::read_text(path, untrusted_io::SETTINGS_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Io { path: path.to_owned(), source }),
    }
}

/// The text of the template among the files of a tokenizer.
pub fn template_text(tokenizer: &dyn Tokenizer) -> Option<String> {
    let [jinja, other, of_config, _] = FILES;
    let of_json = |name: &str| named_templates(&serde_json::from_str(tokenizer.companion(name)?).ok()?)?.0;
    tokenizer.companion(jinja).map(str::to_owned).or_else(|| of_json(other)).or_else(|| of_json(of_config))
}

/// The templates of a configuration, as `default` and `tool_use`: one text, or several with names.
fn named_templates(config: &Value) -> Option<(Option<String>, Option<String>)> {
    let template = &config["chat_template"];
    if let Some(text) = template.as_str() {
        return Some((Some(text.to_owned()), None));
    }
    let text_of = |name: &str| match template {
        Value::Array(list) => {
            let entry = list.iter().find(|entry| entry["name"] == name)?;
            entry["template"].as_str().map(str::to_owned)
        }
        Value::Object(fields) => fields.get(name)?.as_str().map(str::to_owned),
        _ => None,
    };
    let found = (text_of("default"), text_of("tool_use"));
    (found.0.is_some() || found.1.is_some()).then_some(found)
}
