//! `bridge generate`: continues prompts.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use bridge_core::train::select_device;
use bridge_data::chat::{Conversation, Ending};
use bridge_data::tokenizer::Tokenizer;
use bridge_models::generate::{GenerateOptions, StateCache};
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use super::chat::stop_tokens;
use crate::chosen_models::{Chosen, ModelArguments, Models};
use crate::continuation::{Continued, Prompt, Request, SamplingArguments, continue_text, continue_texts};
use crate::failure::Failure;
use crate::output::{self, line};

/// The model, the prompts, and how to continue them.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Adapter that continues the prompts, among several, or `base` for none: once, or for each
    /// prompt.
    #[arg(long = "use", value_name = "NAME")]
    chosen: Vec<String>,
    /// The text to continue, behind what the tokenizer puts before a text; may be repeated. `-`
    /// stands for the lines of standard input, which is also read if it is a file or a pipe and
    /// there is no --prompt.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Standard input is one prompt, not one a line.
    #[arg(long)]
    whole_input: bool,
    /// Continuations of each prompt. Number N, counted from 0, is drawn with the seed plus N.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    num_samples: u64,
    /// Maximum number of new tokens; by default that of the model's generation_config.json, else
    /// 64, or as many as the model has positions for.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new())]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Each prompt is a message to the model, which answers it as its chat template says.
    #[arg(long)]
    chat: bool,
    /// Continuations that are made at once. Each has the tokens that it has alone.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    batch_size: usize,
    /// Run the whole text through the model for each token, instead of what layers do not remember
    /// of it: slow, to check that they do.
    #[arg(long)]
    no_state: bool,
    /// Print one JSON object for each continuation.
    #[arg(long)]
    json: bool,
}

/// Default number of new tokens.
const DEFAULT_MAX_TOKENS: usize = 64;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let texts = prompts(arguments)?;
    let models = Models::open(&arguments.model, &device)?;
    let chosen = models.choose(&arguments.chosen, texts.len())?;
    let speakers = chosen.into_iter().map(|chosen| {
        let tokenizer = chosen.model.tokenizer_of(&arguments.model.model)?;
        Ok(Speaker { arguments, chosen, tokenizer, device: &device })
    });
    let speakers = speakers.collect::<Result<Vec<_>, Failure>>()?;
    let prompts = texts.iter().zip(&speakers).enumerate().map(|(number, (text, speaker))| {
        let prompt = speaker.prompt(text);
        prompt.map_err(|failure| named(failure, number, texts.len()))
    });
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let stops = speakers.iter().map(|speaker| arguments.sampling.stop_texts(&speaker.chosen.model.generation));
    let stops: Vec<Vec<String>> = stops.collect();
    let total = texts.len() as u64 * arguments.num_samples;
    let each = arguments.num_samples;
    let jobs = (0..total).map(|number| Job { number, text: (number / each) as usize, sample: number % each });
    let jobs: Vec<Job> = jobs.collect();
    let chosen_of = |job: &Job| speakers[job.text].chosen.name;
    // One model continues those of a batch.
    for of_model in jobs.chunk_by(|a, b| chosen_of(a) == chosen_of(b)) {
        for jobs in of_model.chunks(arguments.batch_size) {
            let request = |job: &Job| Request {
                prompt: &prompts[job.text],
                options: speakers[job.text].options(&prompts[job.text], job.sample),
                stop: &stops[job.text],
            };
            let requests: Vec<Request> = jobs.iter().map(request).collect();
            let printed = speakers[jobs[0].text].answer(&texts, total, jobs, &requests);
            printed.map_err(|(place, failure)| named(failure, jobs[place].text, texts.len()))?;
        }
    }
    Ok(0)
}

/// A failure about one of several prompts.
fn named(failure: Failure, number: usize, count: usize) -> Failure {
    if count == 1 { failure } else { failure.about(format!("prompt {}", number + 1)) }
}

/// A continuation of a prompt.
struct Job {
    /// Among all.
    number: u64,
    /// The number of the prompt.
    text: usize,
    sample: u64,
}

/// The model, and how it continues texts.
struct Speaker<'a> {
    arguments: &'a Arguments,
    chosen: Chosen<'a>,
    tokenizer: &'a dyn Tokenizer,
    device: &'a Device,
}

impl Speaker<'_> {
    fn prompt(&self, text: &str) -> Result<Prompt, Failure> {
        let mut prompt = match (self.arguments.chat, &self.chosen.model.chat_template) {
            (false, _) => Prompt::alone(self.tokenizer, text)?,
            (true, Some(template)) => {
                let messages = vec![json!({ "role": "user", "content": text })];
                let conversation = Conversation { messages, ..Conversation::default() };
                let whole = template.render(&conversation, Ending::GenerationPrompt).map_err(Failure::input)?;
                Prompt::new(self.tokenizer, &whole)?
            }
            (true, None) => return Err(Failure::input("--chat: this model has no chat template")),
        };
        if self.chosen.model.config.encoder.is_some() {
            // The encoder's input ends with the end-of-document token.
            prompt.ids.extend(self.tokenizer.eod());
        }
        Ok(prompt)
    }

    fn options(&self, prompt: &Prompt, sample: u64) -> GenerateOptions {
        let (arguments, model) = (self.arguments, self.chosen.model);
        let wanted = model.generation.max_new_tokens(prompt.positions(model)).unwrap_or(DEFAULT_MAX_TOKENS);
        let max_tokens = arguments.max_tokens.unwrap_or(wanted.min(prompt.room(model.config.longest_sequence())));
        let stop_tokens = if arguments.chat { stop_tokens(model, self.tokenizer) } else { model.stop_tokens.clone() };
        let cache = if arguments.no_state { StateCache::Off } else { StateCache::On };
        let options = arguments.sampling.options(model, self.tokenizer, prompt, sample, max_tokens, stop_tokens);
        GenerateOptions { cache, ..options }
    }

    /// Continues some prompts and prints them: JSON objects, or texts, of which one alone is
    /// printed as it comes.
    fn answer(&self, texts: &[String], total: u64, jobs: &[Job], requests: &[Request]) -> Result<(), (usize, Failure)> {
        let (chunk, is_json) = (self.chosen.model.chunk.as_ref(), self.arguments.json);
        // An answer to an encoder's input or to a message is printed without the prompt.
        let is_answer = self.arguments.chat || self.chosen.model.config.encoder.is_some();
        let shown = |job: &Job| if is_answer { "" } else { texts[job.text].as_str() };
        let title = |job: &Job| {
            if total > 1 {
                line(&format!("--- {}/{total} ---", job.number + 1));
            }
        };
        if let ([job], [request], false) = (jobs, requests, is_json) {
            // Title and prompt are printed with the first piece, so that a refused prompt prints
            // nothing.
            let mut is_begun = false;
            let mut begin = |piece: &str| {
                if !std::mem::replace(&mut is_begun, true) {
                    title(job);
                    output::piece(shown(job));
                }
                output::piece(piece);
            };
            let continued = continue_text(chunk, self.tokenizer, self.device, request, &mut begin);
            continued.map_err(|failure| (0, failure))?;
            begin("");
            line("");
            return Ok(());
        }
        let continued = continue_texts(chunk, self.tokenizer, self.device, requests, &mut |_, _| {})?;
        for (job, Continued { text, end }) in jobs.iter().zip(continued) {
            if is_json {
                let mut object = json!({ "prompt": texts[job.text], "text": text, "end": end.name() });
                if self.arguments.num_samples > 1 {
                    object["sample"] = json!(job.sample);
                }
                if let Some(name) = self.chosen.name {
                    object["adapter"] = json!(name);
                }
                line(&object.to_string());
            } else {
                title(job);
                output::piece(&format!("{}{text}\n", shown(job)));
            }
        }
        Ok(())
    }
}

/// Prompts in order: those of the command line, and the lines of standard input if requested. One
/// empty prompt without any.
fn prompts(arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let is_asked_for = arguments.whole_input || arguments.prompt.iter().any(|prompt| prompt == "-");
    let given: Vec<&String> = arguments.prompt.iter().filter(|prompt| *prompt != "-").collect();
    let mut prompts: Vec<String> = given.into_iter().cloned().collect();
    if is_asked_for || (arguments.prompt.is_empty() && input_is_given()) {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|error| Failure::input(format!("standard input: expected text, {error}")))?;
        if arguments.whole_input {
            prompts.push(text);
        } else {
            prompts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        if prompts.is_empty() && is_asked_for {
            return Err(Failure::input("standard input: expected prompts, one a line, found none"));
        }
    }
    if prompts.is_empty() {
        prompts.push(String::new());
    }
    Ok(prompts)
}

/// True if standard input is a file or a pipe.
fn input_is_given() -> bool {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    let metadata = stdin.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    metadata.is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_fifo())
}
