//! Chat templates: conversations as the text and the token ids that a model was tuned on, as Hugging Face's `apply_chat_template` makes them.
//! Reading conversations from files and training on them do not belong here.

mod mask;
mod python;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use minijinja::{Environment, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::outside;
use crate::tokenizer::{HuggingFaceTokenizer, TokenizerError};

pub use mask::EncodedChat;

/// The template's name within its environment.
const NAME: &str = "chat_template";

/// Why a conversation has no text.
#[derive(Debug, thiserror::Error)]
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
}

impl Conversation {
    /// The conversation of a JSON object with `messages` and perhaps `tools`.
    ///
    /// # Errors
    /// What is missing or of another type, as a sentence.
    pub fn of_json(value: &Value) -> Result<Self, String> {
        let messages = value.get("messages").ok_or("expected an object with the key \"messages\"")?;
        let messages = messages.as_array().ok_or("messages: expected a list")?;
        if let Some(at) = messages.iter().position(|message| !message["role"].is_string()) {
            return Err(format!("messages[{at}]: expected an object with a \"role\""));
        }
        Ok(Self { messages: messages.clone(), tools: value.get("tools").filter(|tools| !tools.is_null()).cloned() })
    }

    /// The first `count` messages, with the same tools.
    fn prefix(&self, count: usize) -> Self {
        Self { messages: self.messages[..count].to_vec(), tools: self.tools.clone() }
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
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let special_tokens_map = read_json(&folder.join("special_tokens_map.json"))?;
        let mut special_tokens = Map::new();
        for (key, value) in [&special_tokens_map, &config].into_iter().flat_map(Value::as_object).flatten() {
            let text = value.as_str().or_else(|| value["content"].as_str());
            if let Some(text) = text.filter(|_| key.ends_with("_token")) {
                special_tokens.insert(key.clone(), text.into());
            }
        }
        let jinja = folder.join("chat_template.jinja");
        let (path, source) = match read(&jinja)? {
            Some(source) => (jinja, Some(source)),
            None => {
                let other = folder.join("chat_template.json");
                match named_template(&read_json(&other)?) {
                    Some(source) => (other, Some(source)),
                    None => (folder.join("tokenizer_config.json"), named_template(&config)),
                }
            }
        };
        source.map(|source| Self::new(&source, special_tokens).map_err(|problem| malformed(&path, problem))).transpose()
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
        let (source, is_marked) = mask::with_marks(source);
        environment.add_template_owned(NAME, source).map_err(|error| python::describe(&error))?;
        Ok(Self { environment, special_tokens, is_marked })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn render(&self, conversation: &Conversation, ending: Ending) -> Result<String, ChatError> {
        Ok(mask::without_marks(&self.render_marked(conversation, ending)?).0)
    }

    /// The token ids of a complete conversation, and which of them the assistant says.
    ///
    /// # Errors
    /// If the template refuses the conversation, or the tokenizer has no ids for its text.
    pub fn encode(
        &self,
        conversation: &Conversation,
        tokenizer: &HuggingFaceTokenizer,
    ) -> Result<EncodedChat, ChatError> {
        mask::encode(self, conversation, tokenizer)
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
            tools: None,
        };
        let text = self.render(&conversation, Ending::Complete).unwrap_or_default();
        text.rsplit_once(ANSWER).map_or_else(String::new, |(_, end)| end.to_owned())
    }

    fn render_marked(&self, conversation: &Conversation, ending: Ending) -> Result<String, ChatError> {
        mask::refuse_marks(conversation)?;
        let mut context = self.special_tokens.clone();
        context.insert("messages".into(), Value::Array(conversation.messages.clone()));
        context.insert("tools".into(), conversation.tools.clone().unwrap_or(Value::Null));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), (ending == Ending::GenerationPrompt).into());
        let template = self.environment.get_template(NAME);
        let text = template.and_then(|template| template.render(python::dictionary(&context)));
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

/// The content of a JSON file; null if it does not exist.
fn read_json(path: &Path) -> Result<Value, ChatError> {
    let text = read(path)?.unwrap_or_else(|| "null".to_owned());
    serde_json::from_str(&text).map_err(|error| malformed(path, format!("not JSON: {error}")))
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
