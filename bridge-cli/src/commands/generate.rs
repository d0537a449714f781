//! `bridge generate`: continues a prompt.

use std::ops::ControlFlow;
use std::path::PathBuf;

use bridge_core::model::ModelChunk;
use bridge_core::train::select_device;
use bridge_data::tokenizer::Tokenizer;
use bridge_models::generate::{GenerateOptions, Sampling, generate};
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::failure::Failure;
use crate::model_source::open;
use crate::output::{self, line};

/// The model, the prompt, and how to continue it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Checkpoint folder, one of its `iter_` folders, or a Hugging Face folder.
    model: PathBuf,
    /// The text to continue.
    #[arg(long, default_value = "")]
    prompt: String,
    /// Maximum number of new tokens; 64 by default, or as many as the model has positions for.
    #[arg(long)]
    max_tokens: Option<usize>,
    /// Divides the logits; 0 takes the most likely token.
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    temperature: f64,
    /// Sample only from the K most likely tokens.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    top_k: Option<usize>,
    /// Sample only from the most likely tokens up to this total probability.
    #[arg(long, value_parser = probability)]
    top_p: Option<f64>,
    /// Seed of sampling.
    #[arg(long, default_value_t = 1234)]
    seed: u64,
    /// Always take the most likely token.
    #[arg(long)]
    greedy: bool,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Default number of new tokens.
const DEFAULT_MAX_TOKENS: usize = 64;

fn temperature(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| "expected a number above 0 and of at most 1".to_owned())
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
    let max_positions = model.config.max_position_embeddings;
    let prompt_tokens = encode(tokenizer, &arguments.prompt)?.len();
    // The last new token needs no position. A prompt that leaves no position is refused later.
    let room = (max_positions + 1).saturating_sub(prompt_tokens).max(1);
    let request = Request {
        prompt: &arguments.prompt,
        options: GenerateOptions {
            max_new_tokens: arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.min(room)),
            sampling,
            stop_tokens: model.stop_tokens.clone(),
            vocab_size: model.config.vocab_size.min(tokenizer.vocab_size()),
            max_positions,
        },
    };
    if arguments.json {
        let text = continue_text(model.chunk.as_ref(), tokenizer, &device, &request, &mut |_| {})?;
        line(&json!({ "prompt": arguments.prompt, "text": text }).to_string());
    } else {
        // The prompt is printed with the first piece, so that a refused prompt prints nothing.
        let mut unprinted = Some(arguments.prompt.as_str());
        continue_text(model.chunk.as_ref(), tokenizer, &device, &request, &mut |piece| {
            let prompt = unprinted.take().unwrap_or_default();
            output::piece(&format!("{prompt}{piece}"));
        })?;
        line(unprinted.unwrap_or_default());
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

/// Continues a prompt; `on_text` gets each piece as soon as it consists of whole characters. Returns the continuation.
pub fn continue_text(
    chunk: &dyn ModelChunk,
    tokenizer: &dyn Tokenizer,
    device: &Device,
    request: &Request,
    on_text: &mut dyn FnMut(&str),
) -> Result<String, Failure> {
    let prompt = encode(tokenizer, request.prompt)?;
    let context: &[i64] = if request.prompt.is_empty() { &[] } else { prompt.as_slice() };
    let (mut ids, mut text) = (Vec::new(), String::new());
    let stop = request.options.stop_tokens.clone();
    generate(chunk, device, &prompt, &request.options, &mut |token| {
        if stop.contains(&token) {
            return ControlFlow::Continue(());
        }
        ids.push(token);
        // A token may end in the middle of a character: wait for the rest of it.
        if let Some(all) = continuation(tokenizer, context, &ids)
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

/// The tokens of a prompt. Documents begin after the token that ends the previous one, so an empty prompt is that token.
fn encode(tokenizer: &dyn Tokenizer, prompt: &str) -> Result<Vec<i64>, Failure> {
    let mut tokens = tokenizer.encode(prompt).map_err(Failure::input)?;
    if tokens.is_empty() {
        tokens.extend(tokenizer.bos().or_else(|| tokenizer.eod()));
    }
    Ok(tokens)
}

/// The text that `ids` add to that of `context`, including a separator such as the spaces between the Null tokenizer's
/// numbers. `None` if some ids do not represent text.
fn continuation(tokenizer: &dyn Tokenizer, context: &[i64], ids: &[i64]) -> Option<String> {
    let (before, all) = (tokenizer.decode(context), tokenizer.decode(&[context, ids].concat()));
    match (before, all) {
        (Ok(before), Ok(all)) if all.starts_with(&before) => Some(all[before.len()..].to_owned()),
        // Tokenizers that clean up decoded text can change the end of the context.
        _ => tokenizer.decode(ids).ok(),
    }
}

#[cfg(test)]
mod tests {
    use bridge_data::tokenizer::NullTokenizer;

    use super::*;

    #[test]
    fn numbers_are_set_apart_from_the_prompt() {
        let tokenizer = NullTokenizer::new(100);
        assert_eq!(continuation(&tokenizer, &[1, 2], &[81, 7]).as_deref(), Some(" 81 7"));
        assert_eq!(continuation(&tokenizer, &[], &[81]).as_deref(), Some("81"));
        assert_eq!(continuation(&tokenizer, &[1], &[101]), None);
    }

    #[test]
    fn an_empty_prompt_begins_a_document() {
        let tokenizer = NullTokenizer::new(100);
        assert_eq!(encode(&tokenizer, "").unwrap(), [100]);
        assert_eq!(encode(&tokenizer, "4 5").unwrap(), [4, 5]);
        assert!(encode(&tokenizer, "four").is_err());
    }

    #[test]
    fn ranges_of_sampling_are_checked() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert!(["-1", "nan", "inf", "warm"].iter().all(|text| temperature(text).is_err()));
        assert_eq!(probability("1"), Ok(1.0));
        assert!(["0", "1.1", "-0.5", "NaN"].iter().all(|text| probability(text).is_err()));
    }
}
