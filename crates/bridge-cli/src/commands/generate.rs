//! `bridge generate`: continue a text.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use bridge_core::model::ModelChunk;
use bridge_core::tokenizer::Tokenizer;
use bridge_core::train::select_device;
use bridge_models::generate::{GenerateOptions, Sampling, generate};
use burn::tensor::Device;
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::model_source::open;
use crate::output::line;

/// What to continue, and how.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Checkpoint folder, one of its `iter_` folders, or a Hugging Face folder.
    model: PathBuf,
    /// The text to continue.
    #[arg(long, default_value = "")]
    prompt: String,
    /// New tokens at most.
    #[arg(long, default_value_t = 64)]
    max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Only the so many most likely tokens.
    #[arg(long)]
    top_k: Option<usize>,
    /// Only the most likely tokens up to this total probability.
    #[arg(long)]
    top_p: Option<f64>,
    /// Seed of sampling.
    #[arg(long, default_value_t = 1234)]
    seed: u64,
    /// Always the most likely token.
    #[arg(long)]
    greedy: bool,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let model = open(&arguments.model, &device)?;
    let tokenizer = model.tokenizer.as_deref().ok_or_else(|| {
        Failure::input(format!("{}: there is no tokenizer (expected tokenizer.json)", arguments.model.display()))
    })?;
    let sampling = if arguments.greedy || arguments.temperature == 0.0 {
        Sampling::Greedy
    } else {
        Sampling::Random {
            temperature: arguments.temperature,
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            seed: arguments.seed,
        }
    };
    let request = Request {
        prompt: &arguments.prompt,
        options: GenerateOptions {
            max_new_tokens: arguments.max_tokens,
            sampling,
            stop_tokens: model.stop_tokens.clone(),
            vocab_size: model.config.vocab_size.min(tokenizer.vocab_size()),
            max_positions: model.config.max_position_embeddings,
        },
    };
    if arguments.json {
        let text = continue_text(model.chunk.as_ref(), tokenizer, &device, &request, &mut |_| {})?;
        line(&json!({ "prompt": arguments.prompt, "text": text }).to_string());
    } else {
        let mut stdout = std::io::stdout().lock();
        let _ = write!(stdout, "{}", arguments.prompt);
        continue_text(model.chunk.as_ref(), tokenizer, &device, &request, &mut |piece| {
            let _ = write!(stdout, "{piece}").and_then(|()| stdout.flush());
        })?;
        let _ = writeln!(stdout);
    }
    Ok(0)
}

/// A prompt and how to continue it.
pub struct Request<'a> {
    /// The text.
    pub prompt: &'a str,
    /// How.
    pub options: GenerateOptions,
}

/// Continues a text; `on_text` gets each piece as soon as it is whole characters. Returns the continuation.
pub fn continue_text(
    chunk: &dyn ModelChunk,
    tokenizer: &dyn Tokenizer,
    device: &Device,
    request: &Request,
    on_text: &mut dyn FnMut(&str),
) -> Result<String, Failure> {
    let mut prompt = tokenizer.encode(request.prompt).map_err(Failure::input)?;
    if prompt.is_empty() {
        // Documents begin after the token that ends the one before.
        prompt.extend(tokenizer.bos().or_else(|| tokenizer.eod()));
    }
    let (mut ids, mut text) = (Vec::new(), String::new());
    let stop = request.options.stop_tokens.clone();
    generate(chunk, device, &prompt, &request.options, &mut |token| {
        if stop.contains(&token) {
            return ControlFlow::Continue(());
        }
        ids.push(token);
        // A token may end in the middle of a character: wait for the rest of it.
        if let Ok(all) = tokenizer.decode(&ids)
            && !all.ends_with('\u{fffd}')
            && let Some(piece) = all.strip_prefix(text.as_str())
        {
            on_text(piece);
            text = all;
        }
        ControlFlow::Continue(())
    })
    .map_err(Failure::input)?;
    Ok(text)
}
