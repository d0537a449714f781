//! `bridge generate`: continues prompts.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use bridge_core::train::select_device;
use bridge_data::tokenizer::Tokenizer;
use bridge_models::generate::GenerateOptions;
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::continuation::{Prompt, Request, SamplingArguments, continue_text};
use crate::failure::Failure;
use crate::model_source::{LoadedModel, open};
use crate::output::{self, line};

/// The model, the prompts, and how to continue them.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A run by its name or folder, a checkpoint folder, one of its `iter_` folders, or a Hugging Face folder.
    model: PathBuf,
    /// The text to continue; may be repeated. `-` stands for the lines of standard input, which is also read if it is a file or a pipe and
    /// there is no --prompt.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Standard input is one prompt, not one a line.
    #[arg(long)]
    whole_input: bool,
    /// Continuations of each prompt. Number N, counted from 0, is drawn with the seed plus N.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    num_samples: u64,
    /// Maximum number of new tokens; by default that of the model's generation_config.json, else 64, or as many as the model has positions for.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new())]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print one JSON object for each continuation.
    #[arg(long)]
    json: bool,
}

/// Default number of new tokens.
const DEFAULT_MAX_TOKENS: usize = 64;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let prompts = prompts(arguments)?;
    let model = open(&arguments.model, &device)?;
    let tokenizer = model.tokenizer_of(&arguments.model)?;
    let total = prompts.len() as u64 * arguments.num_samples;
    let mut done = 0;
    for (number, text) in prompts.iter().enumerate() {
        let named = |failure: Failure| match prompts.len() {
            1 => failure,
            _ => failure.about(format!("prompt {}", number + 1)),
        };
        let mut prompt = Prompt::new(tokenizer, text).map_err(named)?;
        if model.config.encoder.is_some() {
            // What an encoder reads has an end.
            prompt.ids.extend(tokenizer.eod());
        }
        for sample in 0..arguments.num_samples {
            done += 1;
            if total > 1 && !arguments.json {
                line(&format!("--- {done}/{total} ---"));
            }
            let request = arguments.request(&prompt, sample, &model, tokenizer);
            let title = Title { text, sample };
            arguments.print(&title, &request, (&model, tokenizer, &device)).map_err(named)?;
        }
    }
    Ok(0)
}

/// What a continuation is printed with.
struct Title<'a> {
    text: &'a str,
    sample: u64,
}

impl Arguments {
    fn request<'a>(
        &'a self,
        prompt: &'a Prompt,
        sample: u64,
        model: &LoadedModel,
        tokenizer: &dyn Tokenizer,
    ) -> Request<'a> {
        let max_positions = model.config.longest_sequence();
        let wanted = model.generation.max_new_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        let options = GenerateOptions {
            decoder_start: model.config.encoder.map(|encoder| encoder.start_token as i64),
            max_new_tokens: self.max_tokens.unwrap_or(wanted.min(prompt.room(max_positions))),
            sampling: self.sampling.sampling(sample, &model.generation),
            repetition_penalty: self.sampling.repetition_penalty(&model.generation),
            stop_tokens: model.stop_tokens.clone(),
            vocab_size: model.config.vocab_size.min(tokenizer.vocab_size()),
            max_positions,
        };
        Request { prompt, options, stop: &self.sampling.stop }
    }

    /// Continues a prompt and prints it: a JSON object at the end, or text as it comes.
    fn print(
        &self,
        title: &Title,
        request: &Request,
        (model, tokenizer, device): (&LoadedModel, &dyn Tokenizer, &Device),
    ) -> Result<(), Failure> {
        let chunk = model.chunk.as_ref();
        if self.json {
            let continued = continue_text(chunk, tokenizer, device, request, &mut |_| {})?;
            let mut object = json!({ "prompt": title.text, "text": continued.text, "end": continued.end.name() });
            if self.num_samples > 1 {
                object["sample"] = json!(title.sample);
            }
            line(&object.to_string());
            return Ok(());
        }
        // The prompt is printed with the first piece, so that a refused prompt prints nothing; an answer to what an encoder read, alone.
        let mut unprinted = Some(if model.config.encoder.is_some() { "" } else { title.text });
        continue_text(chunk, tokenizer, device, request, &mut |piece| {
            let prompt = unprinted.take().unwrap_or_default();
            output::piece(&format!("{prompt}{piece}"));
        })?;
        line(unprinted.unwrap_or_default());
        Ok(())
    }
}

/// The prompts, in order: those of the command line, and the lines of standard input where they ask for it. One that is empty if there are none.
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

/// Whether standard input is a file or a pipe.
fn input_is_given() -> bool {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    let metadata = stdin.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    metadata.is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_fifo())
}
