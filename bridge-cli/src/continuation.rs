//! Continuing tokens with a model, as text, piece by piece. What is continued, the commands know.

use std::ops::ControlFlow;

use bridge_core::model::ModelChunk;
use bridge_data::tokenizer::Tokenizer;
use bridge_models::generate::{GenerateOptions, Sampling, generate};
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::failure::Failure;
use crate::generation_settings::GenerationSettings;

/// How tokens are chosen, on the command line.
#[derive(Clone, Debug, Args)]
pub struct SamplingArguments {
    /// Divides the logits; 0 takes the most likely token. By default that of the model's generation_config.json, else 0.8.
    #[arg(long, value_parser = temperature)]
    temperature: Option<f64>,
    /// Sample only from the K most likely tokens.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    top_k: Option<usize>,
    /// Sample only from the most likely tokens up to this total probability.
    #[arg(long, value_parser = probability)]
    top_p: Option<f64>,
    /// Sample only from tokens with at least this share of the probability of the most likely one.
    #[arg(long, value_parser = probability)]
    min_p: Option<f64>,
    /// Makes tokens that are in the text already less likely (above 1) or more likely (below).
    #[arg(long, value_parser = penalty)]
    repetition_penalty: Option<f64>,
    /// Seed of sampling: the same seed gives the same text.
    #[arg(long, default_value_t = 1234)]
    seed: u64,
    /// Always take the most likely token.
    #[arg(long)]
    greedy: bool,
    /// Text that ends what is generated, and is not part of it; may be repeated.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

impl SamplingArguments {
    /// How sample `number` (from 0) of a prompt is drawn: with the seed plus its number, so that each can be drawn alone. What the command line leaves
    /// out is as the model's folder says.
    pub fn sampling(&self, number: u64, given: &GenerationSettings) -> Sampling {
        let asks_for_chance =
            [self.temperature, self.top_p, self.min_p].iter().any(Option::is_some) || self.top_k.is_some();
        let temperature = self.temperature.or(given.temperature).unwrap_or(DEFAULT_TEMPERATURE);
        if self.greedy || temperature == 0.0 || (given.is_greedy && !asks_for_chance) {
            return Sampling::Greedy;
        }
        Sampling::Random {
            temperature,
            top_k: self.top_k.or(given.top_k),
            top_p: self.top_p.or(given.top_p),
            min_p: self.min_p.or(given.min_p),
            seed: self.seed.wrapping_add(number),
        }
    }

    /// The factor on tokens that are in the text already.
    pub fn repetition_penalty(&self, given: &GenerationSettings) -> f64 {
        self.repetition_penalty.or(given.repetition_penalty).unwrap_or(1.0)
    }
}

/// Where neither the command line nor the model's folder says it.
const DEFAULT_TEMPERATURE: f64 = 0.8;

fn penalty(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

fn temperature(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| "expected a number above 0 and of at most 1".to_owned())
}

/// What is continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its ids, at least one unless the tokenizer has no token to begin with.
    pub ids: Vec<i64>,
    /// Whether they stand for text. A lone token that begins a document does not.
    has_text: bool,
}

impl Prompt {
    /// The tokens of a text. Documents begin after the token that ends the previous one, so an empty text is that token.
    ///
    /// # Errors
    /// If the tokenizer has no ids for the text.
    pub fn new(tokenizer: &dyn Tokenizer, text: &str) -> Result<Self, Failure> {
        let mut ids = tokenizer.encode(text).map_err(Failure::input)?;
        let has_text = !ids.is_empty();
        if !has_text {
            ids.extend(tokenizer.bos().or_else(|| tokenizer.eod()));
        }
        Ok(Self { ids, has_text })
    }

    /// How many tokens a model with `positions` can add, at least one: a prompt that leaves no position is refused later.
    pub fn room(&self, positions: usize) -> usize {
        // The last new token needs no position.
        (positions + 1).saturating_sub(self.ids.len()).max(1)
    }
}

/// A prompt and how to continue it.
pub struct Request<'a> {
    /// The prompt.
    pub prompt: &'a Prompt,
    /// How.
    pub options: GenerateOptions,
    /// Texts that end the continuation.
    pub stop: &'a [String],
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it, or it came to a text that ends it.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

impl End {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continued {
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub end: End,
}

/// Continues a prompt; `on_text` gets each piece as soon as it consists of whole characters and is not the beginning of a text that ends
/// the continuation.
///
/// # Errors
/// If the model cannot continue the prompt.
pub fn continue_text(
    chunk: &dyn ModelChunk,
    tokenizer: &dyn Tokenizer,
    device: &Device,
    request: &Request,
    on_text: &mut dyn FnMut(&str),
) -> Result<Continued, Failure> {
    let Prompt { ids: prompt, has_text } = request.prompt;
    // What answers an encoder's input does not continue it.
    let is_continued = *has_text && request.options.decoder_start.is_none();
    let context: &[i64] = if is_continued { prompt } else { &[] };
    let (mut ids, mut text, mut shown, mut end) = (Vec::new(), String::new(), 0, End::Length);
    generate(chunk, device, prompt, &request.options, &mut |token| {
        if request.options.stop_tokens.contains(&token) {
            end = End::Stop;
            return ControlFlow::Break(());
        }
        ids.push(token);
        // A token may end in the middle of a character: wait for the rest of it.
        let Some(all) = continuation(tokenizer, context, &ids).filter(|all| !all.ends_with('\u{fffd}')) else {
            return ControlFlow::Continue(());
        };
        if !all.starts_with(&text[..shown]) {
            return ControlFlow::Continue(());
        }
        text = all;
        let found = request.stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
        if let Some(at) = found {
            text.truncate(at);
            end = End::Stop;
        }
        let held = if found.is_some() { 0 } else { held_back(&text, request.stop) };
        let visible = (text.len() - held).max(shown);
        if visible > shown {
            on_text(&text[shown..visible]);
            shown = visible;
        }
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(Failure::input)?;
    if shown < text.len() {
        on_text(&text[shown..]);
    }
    Ok(Continued { text, end })
}

/// Bytes at the end of `text` that may be the beginning of a text that ends it.
fn held_back(text: &str, stop: &[String]) -> usize {
    let longest = |stop: &String| {
        let mut lengths = (1..stop.len()).rev().filter(|length| stop.is_char_boundary(*length));
        lengths.find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
    };
    stop.iter().map(longest).max().unwrap_or(0)
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
        let prompt = Prompt::new(&tokenizer, "").unwrap();
        assert_eq!((prompt.ids.as_slice(), prompt.has_text), (&[100][..], false));
        let prompt = Prompt::new(&tokenizer, "4 5").unwrap();
        assert_eq!((prompt.ids.as_slice(), prompt.has_text), (&[4, 5][..], true));
        assert_eq!((prompt.room(8), prompt.room(1)), (7, 1));
        assert!(Prompt::new(&tokenizer, "four").is_err());
    }

    #[test]
    fn what_may_begin_a_stop_text_is_held_back() {
        let stop = ["\n\n".to_owned(), "<end>".to_owned(), "é!".to_owned()];
        assert_eq!([held_back("a\n", &stop), held_back("a<en", &stop), held_back("aé", &stop)], [1, 3, 2]);
        assert_eq!([held_back("a", &stop), held_back("", &stop), held_back("<end", &[])], [0, 0, 0]);
    }

    #[test]
    fn ranges_of_sampling_are_checked() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert!(["-1", "nan", "inf", "warm"].iter().all(|text| temperature(text).is_err()));
        assert_eq!(probability("1"), Ok(1.0));
        assert!(["0", "1.1", "-0.5", "NaN"].iter().all(|text| probability(text).is_err()));
    }
}
