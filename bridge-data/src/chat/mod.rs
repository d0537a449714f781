//! Chat templates: conversations as the text and the token ids that a model was tuned on, as Hugging Face's `apply_chat_template` makes them.
//! Reading conversations from files and training on them do not belong here.

pub(crate) mod arguments;
mod budget;
mod charged;
mod mask;
mod printed;
mod python;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Map, Value};
use twox_hash::XxHash3_64;

use crate::outside;
use crate::tokenizer::{Tokenizer, TokenizerError};

#[cfg(test)]
pub(crate) use budget::computed;
pub use mask::EncodedChat;

/// The template's name within its environment.
const NAME: &str = "chat_template";

/// Files that have templates and what these name, in the order in which a template is looked for; the last has names alone.
const FILES: [&str; 4] =
    ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "special_tokens_map.json"];
/// Most bytes of a template.
const LONGEST_TEMPLATE: usize = 1 << 20;

/// Why a conversation has no text.
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
    /// A file that is not what its name says, or a template that does not parse.
    #[error("{path}: {problem}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The template refuses the conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// What the assistant says cannot be told apart.
    #[error("what the assistant says cannot be told from the rest: {0}")]
    NoMask(String),
    /// The text has no token ids.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Messages in order, with the tools that a model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// JSON objects with `role` and `content`, and whatever else the template reads.
    pub messages: Vec<Value>,
    /// Descriptions of tools; none if the conversation has no such list.
    pub tools: Option<Value>,
    /// Further arguments of the template, such as `enable_thinking` and `documents`.
    pub arguments: Map<String, Value>,
}

impl Conversation {
    /// The conversation of a JSON object with `messages`, and perhaps `tools` and other arguments of the template.
    ///
    /// # Errors
    /// What is missing or of another type, as a sentence.
    pub fn of_json(value: &Value) -> Result<Self, String> {
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

/// What follows the last message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing: the conversation is complete.
    Complete,
    /// What introduces the assistant's next message.
    GenerationPrompt,
}

/// The chat template of a tokenizer's folder.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// As its file has it.
    written: String,
    /// `bos_token`, `eos_token` and so on, which templates may write.
    special_tokens: Map<String, Value>,
    /// Whether the template marks what the assistant says (`{% generation %}`).
    is_marked: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("is_marked", &self.is_marked).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template of a folder: `chat_template.jinja`, else `chat_template.json`, else that of `tokenizer_config.json`. `None` if there is none.
    ///
    /// # Errors
    /// If a file cannot be read or parsed.
    pub fn load(folder: &Path) -> Result<Option<Self>, ChatError> {
        let mut files = Vec::new();
        for name in FILES {
            files.extend(read(&folder.join(name))?.map(|text| (name, text)));
        }
        Self::of_files(folder, |wanted| files.iter().find(|(name, _)| *name == wanted).map(|(_, text)| text.as_str()))
    }

    /// The template among the files of a tokenizer, as in [`ChatTemplate::load`].
    ///
    /// # Errors
    /// If a file cannot be parsed.
    pub fn of_tokenizer(tokenizer: &dyn Tokenizer) -> Result<Option<Self>, ChatError> {
        Self::of_files(Path::new(""), |name| tokenizer.companion(name))
    }

    fn of_files<'t>(folder: &Path, text_of: impl Fn(&str) -> Option<&'t str>) -> Result<Option<Self>, ChatError> {
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
        let (name, source) = match text_of(jinja) {
            Some(source) => (jinja, Some(source.to_owned())),
            None => match named_template(&json(other)?) {
                Some(source) => (other, Some(source)),
                None => (of_config, named_template(&config)),
            },
        };
        let new = |source: String| Self::new(&source, special_tokens);
        source.map(|source| new(source).map_err(|problem| malformed(&folder.join(name), problem))).transpose()
    }

    /// What the template is, for names of what is made with it.
    pub fn identity(&self) -> String {
        let tokens = Value::Object(self.special_tokens.clone()).to_string();
        let source =
            self.environment.get_template(NAME).map(|template| template.source().to_owned()).unwrap_or_default();
        format!("{:016x}", XxHash3_64::oneshot(format!("{source}\0{tokens}").as_bytes()))
    }

    /// Its text.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Whether it writes the calls of tools: it names them, or writes messages whole.
    pub(crate) fn writes_calls(&self) -> bool {
        ["tool_calls", "tojson"].iter().any(|word| self.written.contains(word))
    }

    /// A template from its text, with the special tokens that it may name.
    ///
    /// # Errors
    /// Where it does not parse.
    fn new(source: &str, special_tokens: Map<String, Value>) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        python::add_to(&mut environment);
        mask::add_filter(&mut environment);
        budget::limit(&mut environment);
        if source.len() > LONGEST_TEMPLATE {
            return Err(format!("it has {} bytes, more than the {LONGEST_TEMPLATE} of any template", source.len()));
        }
        let written = source.to_owned();
        let (source, is_marked) = mask::with_marks(source);
        let source = charged::with_charges(&source, NAME).map_err(|error| python::describe(&error))?;
        environment.add_template_owned(NAME, source).map_err(|error| python::describe(&error))?;
        Ok(Self { environment, written, special_tokens, is_marked })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn render(&self, conversation: &Conversation, ending: Ending) -> Result<String, ChatError> {
        let text = self.read(conversation)?.render(conversation.messages.len(), ending)?;
        Ok(mask::without_marks(text).0)
    }

    /// The token ids of a complete conversation, and which of them the assistant says.
    ///
    /// # Errors
    /// If the template refuses the conversation, or the tokenizer has no ids for its text.
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

    /// The token ids of a complete conversation, and the weight of each in the loss: what the assistant says has that of its message in
    /// `weights`, all else 0.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`]; [`ChatError::NoMask`] if what the assistant says cannot be told apart, or not by messages where their weights
    /// differ.
    pub fn encode_weighted(
        &self,
        conversation: &Conversation,
        weights: &[f32],
        tokenizer: &dyn Tokenizer,
    ) -> Result<(Vec<i64>, Vec<f32>), ChatError> {
        mask::encode_weighted(self, conversation, weights, tokenizer)
    }

    /// What the template writes behind a message of the assistant that ends a conversation: how a model says that it has finished.
    /// Empty where the template leaves that to the reader.
    pub fn end_of_turn(&self) -> String {
        const ANSWER: &str = "An answer.";
        let conversation = Conversation {
            messages: vec![
                serde_json::json!({ "role": "user", "content": "A question?" }),
                serde_json::json!({ "role": "assistant", "content": ANSWER }),
            ],
            ..Conversation::default()
        };
        let text = self.render(&conversation, Ending::Complete).unwrap_or_default();
        text.rsplit_once(ANSWER).map_or_else(String::new, |(_, end)| end.to_owned())
    }

    /// A conversation as the template reads it.
    fn read(&self, conversation: &Conversation) -> Result<Reading<'_>, ChatError> {
        mask::refuse_marks(conversation)?;
        let tools = conversation.tools.as_ref().unwrap_or(&Value::Null);
        let given = &conversation.arguments;
        // An argument replaces the special token of its name.
        let others = self.special_tokens.iter().filter(|(name, _)| !given.contains_key(*name)).chain(given);
        let others = others.map(|(name, value)| (name.as_str(), value)).chain([("tools", tools)]);
        let others = others.chain((!given.contains_key("documents")).then_some(("documents", &Value::Null)));
        Ok(Reading {
            template: self,
            messages: conversation.messages.iter().map(python::message_of).collect(),
            sizes: conversation.messages.iter().map(python::size_of).collect(),
            size: others.clone().map(|(_, value)| python::size_of(value)).sum(),
            others: others.map(|(name, value)| (name.to_owned(), python::value_of(value))).collect(),
        })
    }
}

/// A conversation in the template's values, which may be rendered up to any of its messages.
struct Reading<'t> {
    template: &'t ChatTemplate,
    messages: Vec<minijinja::Value>,
    /// Bytes of each message, about.
    sizes: Vec<u64>,
    /// What templates read besides.
    others: Vec<(String, minijinja::Value)>,
    /// Bytes of the others, about.
    size: u64,
}

impl Reading<'_> {
    /// The text of the first `count` messages, with marks.
    fn render(&self, count: usize, ending: Ending) -> Result<String, ChatError> {
        let messages: minijinja::Value = self.messages[..count].iter().cloned().collect();
        let is_prompt = ending == Ending::GenerationPrompt;
        let own = [("messages", messages), ("add_generation_prompt", is_prompt.into())];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        budget::open(self.size + self.sizes[..count].iter().sum::<u64>());
        let context = python::dictionary(self.others.iter().cloned().chain(own).collect());
        let text = self.template.environment.get_template(NAME).and_then(|template| template.render(context));
        text.map_err(|error| ChatError::Refused(python::describe(&error)))
    }
}

fn malformed(path: &Path, problem: String) -> ChatError {
    ChatError::Malformed { path: path.to_owned(), problem }
}

/// The text of a file, if it exists.
fn read(path: &Path) -> Result<Option<String>, ChatError> {
    match outside::read_text(path, outside::SETTINGS_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Io { path: path.to_owned(), source }),
    }
}

/// The text of the template among the files of a tokenizer.
pub fn template_text(tokenizer: &dyn Tokenizer) -> Option<String> {
    let [jinja, other, of_config, _] = FILES;
    let of_json = |name: &str| named_template(&serde_json::from_str(tokenizer.companion(name)?).ok()?);
    tokenizer.companion(jinja).map(str::to_owned).or_else(|| of_json(other)).or_else(|| of_json(of_config))
}

/// The template of a configuration: one text, or several with names, of which `default` counts.
fn named_template(config: &Value) -> Option<String> {
    let template = &config["chat_template"];
    let of_list = || {
        let list = template.as_array()?;
        let named = list.iter().find(|entry| entry["name"] == "default").or_else(|| list.first());
        named.and_then(|entry| entry["template"].as_str())
    };
    template.as_str().or_else(of_list).map(str::to_owned)
}
