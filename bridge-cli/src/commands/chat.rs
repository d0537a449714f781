//! `bridge chat`: a conversation with a model, through its chat template.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use bridge_core::train::select_device;
use bridge_data::chat::{ChatTemplate, Conversation, Ending};
use bridge_data::tokenizer::Tokenizer;
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};

use crate::chosen_models::{ModelArguments, Models};
use crate::continuation::{Prompt, Request, SamplingArguments, continue_text};
use crate::failure::Failure;
use crate::line_editor::LineEditor;
use crate::model_source::LoadedModel;
use crate::output::{self, line};
use crate::speech::{ErrorForm, Speech};

/// The model, and how it answers.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Adapter that answers first, among several, or `base` for none; `/adapter NAME` switches.
    #[arg(long = "use", value_name = "NAME")]
    chosen: Option<String>,
    /// System message before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens of an answer; as many as the model has positions for, at most 512,
    /// by default.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
}

/// Default number of tokens of an answer.
const DEFAULT_MAX_TOKENS: usize = 512;

const HELP: &str = "/reset          forget the conversation
/system TEXT    tell the model something before it, and forget the conversation
/adapter NAME   go on with another of the adapters, or with `base`
/exit           end; so does the end of the input (Control-D)
Arrow keys edit the line and bring earlier ones back.";

/// Prompt on a terminal.
const PROMPT: &str = "> ";

/// The next line of the input where it cannot be edited; `None` at its end.
fn read_line(is_terminal: bool) -> std::io::Result<Option<String>> {
    if is_terminal {
        eprint!("{PROMPT}");
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().read_line(&mut text)?;
    Ok((read > 0).then_some(text))
}

/// Runs the command.
pub fn run(arguments: &Arguments, speech: &Speech) -> Result<u8, Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let models = Models::open(&arguments.model, &device)?;
    let chosen = models.choose(arguments.chosen.as_slice(), 1)?[0].model;
    let speaker = Speaker::new(chosen, arguments.model.model.as_path(), &device)?;
    if matches!(speaker.script, Script::Plain) && arguments.system.is_some() {
        return Err(Failure::input("--system: only models with a chat template have a place for it"));
    }
    let mut chat = Chat {
        arguments,
        models: &models,
        speaker,
        system: arguments.system.clone(),
        said: Vec::new(),
        answers: 0,
        form: speech.error_form(),
    };
    chat.converse()
}

/// The model's own stop tokens, and the special token, if any, that begins the template's text
/// after an answer.
pub fn stop_tokens(model: &LoadedModel, tokenizer: &dyn Tokenizer) -> Vec<i64> {
    let mut stop = model.stop_tokens.clone();
    stop.extend(tokenizer.eod());
    stop.extend(model.chat_template.as_ref().and_then(|template| end_of_turn(template, tokenizer)));
    stop
}

/// The special token that begins the template's text after an answer, if there is one.
pub fn end_of_turn(template: &ChatTemplate, tokenizer: &dyn Tokenizer) -> Option<i64> {
    let first = tokenizer.encode(template.end_of_turn()).ok().and_then(|ids| ids.first().copied());
    // Special tokens have no bytes of text.
    first.filter(|id| tokenizer.id_to_bytes(*id).is_some_and(|bytes| bytes.is_empty()))
}

/// Conversion of the conversation to text.
enum Script<'a> {
    /// Conversion by the model's template.
    Template(&'a ChatTemplate),
    /// One after the other.
    Plain,
}

/// Model that answers.
struct Speaker<'a> {
    model: &'a LoadedModel,
    tokenizer: &'a dyn Tokenizer,
    device: &'a Device,
    stop_tokens: Vec<i64>,
    script: Script<'a>,
}

impl<'a> Speaker<'a> {
    /// A model that answers. `name` is how the user calls it.
    fn new(model: &'a LoadedModel, name: &Path, device: &'a Device) -> Result<Self, Failure> {
        let tokenizer = model.tokenizer_of(name)?;
        let script = match &model.chat_template {
            Some(template) => Script::Template(template),
            None => {
                eprintln!(
                    "{} has no chat template (chat_template.jinja or tokenizer_config.json): what you write is continued as plain text",
                    name.display()
                );
                Script::Plain
            }
        };
        Ok(Self { model, tokenizer, device, stop_tokens: stop_tokens(model, tokenizer), script })
    }
}

struct Chat<'a> {
    arguments: &'a Arguments,
    models: &'a Models,
    speaker: Speaker<'a>,
    system: Option<String>,
    /// Messages of user and assistant in turn.
    said: Vec<Value>,
    /// Answers so far, of all conversations: each is drawn with another seed.
    answers: u64,
    form: ErrorForm,
}

impl Chat<'_> {
    /// Reads and answers until the input ends.
    fn converse(&mut self) -> Result<u8, Failure> {
        let is_terminal = std::io::stdin().is_terminal();
        let mut editor = LineEditor::new();
        if is_terminal {
            eprintln!("/help says what else can be written here");
        }
        loop {
            let read = match &mut editor {
                Some(editor) => editor.read_line(PROMPT),
                None => read_line(is_terminal),
            };
            let read = read.map_err(|error| Failure::input(format!("standard input: expected text, {error}")))?;
            let Some(text) = read else { return Ok(0) };
            match text.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(0),
                "/help" => eprintln!("{HELP}"),
                "/reset" => self.forget("the conversation begins anew"),
                command if command.starts_with('/') => self.obey(command),
                message => match self.answer(message) {
                    // On a terminal, the user can write something else.
                    Err(Failure::Input(problem)) if is_terminal => eprintln!("{problem}"),
                    done => done?,
                },
            }
        }
    }

    /// Runs a command with arguments.
    fn obey(&mut self, command: &str) {
        match command.split_once(' ') {
            Some(("/system", _)) if matches!(self.speaker.script, Script::Plain) => {
                eprintln!("this model has no chat template, so it has no place for it");
            }
            Some(("/system", system)) => {
                self.system = Some(system.trim().to_owned());
                self.forget("noted; the conversation begins anew");
            }
            Some(("/adapter", name)) => {
                let chosen = self.models.choose(&[name.trim().to_owned()], 1);
                match chosen.and_then(|chosen| {
                    Speaker::new(chosen[0].model, self.arguments.model.model.as_path(), self.speaker.device)
                }) {
                    Ok(speaker) => {
                        self.speaker = speaker;
                        eprintln!("`{}` goes on with the conversation", name.trim());
                    }
                    Err(failure) => eprintln!("{}", failure.text()),
                }
            }
            _ => eprintln!("{command}: no such command; expected one of\n{HELP}"),
        }
    }

    fn forget(&mut self, note: &str) {
        self.said.clear();
        eprintln!("{note}");
    }

    /// Answers a message. One that cannot be answered is not kept.
    fn answer(&mut self, message: &str) -> Result<(), Failure> {
        let before = self.said.len();
        self.said.push(json!({ "role": "user", "content": message }));
        let answered = self.speak();
        match &answered {
            Ok(text) => self.said.push(json!({ "role": "assistant", "content": text })),
            Err(_) => self.said.truncate(before),
        }
        answered.map(drop)
    }

    fn speak(&mut self) -> Result<String, Failure> {
        let prompt = self.fitting_prompt()?;
        let Speaker { model, tokenizer, device, stop_tokens, .. } = &self.speaker;
        let max_positions = model.config.max_position_embeddings;
        let wanted = self.arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        let sampling = &self.arguments.sampling;
        let options = sampling.options(
            model,
            *tokenizer,
            &prompt,
            self.answers,
            wanted.min(prompt.room(max_positions)),
            stop_tokens.clone(),
        );
        let request = Request { prompt: &prompt, options, stop: &sampling.stop_texts(&model.generation) };
        self.answers += 1;
        let is_json = self.form == ErrorForm::Json;
        let continued = continue_text(model.chunk.as_ref(), *tokenizer, device, &request, &mut |piece| {
            if !is_json {
                output::piece(piece);
            }
        })?;
        if is_json {
            let (text, end) = (&continued.text, continued.end.name());
            line(&json!({ "role": "assistant", "content": text, "end": end }).to_string());
        } else {
            line("");
        }
        Ok(continued.text)
    }

    /// The conversation as a prompt that leaves room for an answer. If the conversation is too
    /// long, the oldest exchanges are left out, with a note to the user.
    fn fitting_prompt(&mut self) -> Result<Prompt, Failure> {
        let positions = self.speaker.model.config.max_position_embeddings;
        // Room for half the positions, or less if fewer tokens are asked for.
        let answer = self.arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(positions / 2);
        let mut left_out = 0;
        loop {
            let prompt = Prompt::new(self.speaker.tokenizer, &self.text()?)?;
            if prompt.ids.len() + answer <= positions || (self.said.len() == 1 && prompt.ids.len() <= positions) {
                if left_out > 0 {
                    eprintln!("(the first {left_out} messages no longer fit into the model's {positions} positions)");
                }
                return Ok(prompt);
            }
            if self.said.len() == 1 {
                return Err(Failure::input(format!(
                    "the message is too long: it has {} tokens with all that belongs to it, the model has {positions} positions",
                    prompt.ids.len()
                )));
            }
            // A question and its answer.
            self.said.drain(..2);
            left_out += 2;
        }
    }

    fn text(&self) -> Result<String, Failure> {
        match &self.speaker.script {
            Script::Template(template) => {
                let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
                let messages = system.chain(self.said.iter().cloned()).collect();
                let conversation = Conversation { messages, ..Conversation::default() };
                template.render(&conversation, Ending::GenerationPrompt).map_err(Failure::input)
            }
            Script::Plain => {
                let texts: Vec<&str> = self.said.iter().filter_map(|message| message["content"].as_str()).collect();
                Ok(texts.join("\n"))
            }
        }
    }
}
