//! Batched generation with streamed output: continues prompts that the commands provide.

mod growing;

use bridge_core::model::ModelChunk;
use bridge_data::tokenizer::Tokenizer;
use bridge_models::generate::{
    Draw, GenerateOptions, GenerateRequest, Sampling, StateCache, TokenRules, generate_batch,
};
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use self::growing::Growing;
use crate::failure::Failure;
use crate::generation_settings::GenerationSettings;
use crate::model_source::LoadedModel;

/// Sampling options of the command line.
#[derive(Clone, Debug, Args)]
pub struct SamplingArguments {
    /// Divides the logits; 0 takes the most likely token. By default that of the model's
    /// generation_config.json, else 0.8.
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
    /// Text that ends what is generated, and is not part of it; may be repeated. \n, \t and \r in
    /// it are a line break, a tab and a carriage return, \\ is a backslash.
    #[arg(long, value_name = "TEXT", value_parser = stop_text)]
    stop: Vec<String>,
}

impl SamplingArguments {
    /// Sampling of sample `number` (from 0) of a prompt: with the seed plus its number, so that
    /// each can be drawn alone. Options without a value follow the model's folder.
    fn sampling(&self, number: u64, given: &GenerationSettings) -> Sampling {
        let asks_for_chance =
            [self.temperature, self.top_p, self.min_p].iter().any(Option::is_some) || self.top_k.is_some();
        let temperature = self.temperature.or(given.temperature).unwrap_or(DEFAULT_TEMPERATURE);
        if self.greedy || temperature == 0.0 || (given.is_greedy && !asks_for_chance) {
            return Sampling::Greedy;
        }
        Sampling::Random(Draw {
            top_k: self.top_k.or(given.top_k),
            top_p: self.top_p.or(given.top_p),
            min_p: self.min_p.or(given.min_p),
            typical_p: given.typical_p,
            epsilon_cutoff: given.epsilon_cutoff,
            eta_cutoff: given.eta_cutoff,
            ..Draw::new(temperature, self.seed.wrapping_add(number))
        })
    }

    /// Generation options of sample `number`, with the tokens that end it.
    pub fn options(
        &self,
        model: &LoadedModel,
        tokenizer: &dyn Tokenizer,
        prompt: &Prompt,
        number: u64,
        max_new_tokens: usize,
        stop_tokens: Vec<i64>,
    ) -> GenerateOptions {
        let given = &model.generation;
        let rules = given.rules(prompt.positions(model));
        let penalty = self.repetition_penalty.unwrap_or(rules.repetition_penalty);
        GenerateOptions {
            decoder_start: model.config.encoder.map(|encoder| encoder.start_token as i64),
            max_new_tokens,
            sampling: self.sampling(number, given),
            rules: TokenRules { repetition_penalty: penalty, ..rules },
            stop_tokens,
            vocab_size: model.config.vocab_size.min(tokenizer.vocab_size()),
            max_positions: model.config.longest_sequence(),
            cache: StateCache::On,
        }
    }

    /// Texts that end generation: those of the command line and of the model's folder.
    pub fn stop_texts(&self, given: &GenerationSettings) -> Vec<String> {
        [self.stop.as_slice(), &given.stop_strings].concat()
    }
}

/// Temperature if neither the command line nor the model's folder gives one.
const DEFAULT_TEMPERATURE: f64 = 0.8;

/// A text with the usual escapes, because shells pass them on as they are; other backslashes are
/// kept.
fn stop_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("expected a text that is not empty".to_owned());
    }
    let mut unescaped = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let escaped = match (c, rest.clone().next()) {
            ('\\', Some('n')) => Some('\n'),
            ('\\', Some('t')) => Some('\t'),
            ('\\', Some('r')) => Some('\r'),
            ('\\', Some('\\')) => Some('\\'),
            _ => None,
        };
        if escaped.is_some() {
            rest.next();
        }
        unescaped.push(escaped.unwrap_or(c));
    }
    Ok(unescaped)
}

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

/// Prompt to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Ids of the prompt, at least one unless the tokenizer has no first token.
    pub ids: Vec<i64>,
    /// True if the ids are text, and not only a token that begins a document.
    has_text: bool,
}

impl Prompt {
    /// The tokens of a text. Documents begin after the token that ends the previous one, so an
    /// empty text is that token. Fails if the tokenizer cannot encode the text.
    pub fn new(tokenizer: &dyn Tokenizer, text: &str) -> Result<Self, Failure> {
        let mut ids = tokenizer.encode(text).map_err(Failure::input)?;
        let has_text = !ids.is_empty();
        if !has_text {
            ids.extend(tokenizer.bos().or_else(|| tokenizer.eod()));
        }
        Ok(Self { ids, has_text })
    }

    /// [`Self::new`], after the tokenizer's prefix of a text that stands alone. Fails with errors
    /// of [`Self::new`].
    pub fn alone(tokenizer: &dyn Tokenizer, text: &str) -> Result<Self, Failure> {
        let mut prompt = Self::new(tokenizer, text)?;
        let prefix = tokenizer.prefix();
        if prompt.has_text {
            prompt.ids.splice(..0, prefix.iter().copied());
        } else if !prefix.is_empty() {
            prompt.ids = prefix.to_vec();
        }
        Ok(prompt)
    }

    /// Tokens that a model's decoder has before it adds the first.
    pub fn positions(&self, model: &LoadedModel) -> usize {
        if model.config.encoder.is_some() { 1 } else { self.ids.len() }
    }

    /// Number of tokens that a model with `positions` can add, at least one: a prompt that leaves
    /// no position is refused later.
    pub fn room(&self, positions: usize) -> usize {
        // The last new token needs no position.
        (positions + 1).saturating_sub(self.ids.len()).max(1)
    }
}

/// A prompt and how to continue it.
pub struct Request<'a> {
    /// The prompt.
    pub prompt: &'a Prompt,
    /// Generation options.
    pub options: GenerateOptions,
    /// Texts that end the continuation.
    pub stop: &'a [String],
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended the text, or a stop text was generated.
    Stop,
    /// The text has the requested number of tokens.
    Length,
}

impl End {
    /// Name in JSON.
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
    /// Text of the continuation.
    pub text: String,
    /// Why it ended.
    pub end: End,
}

/// Continues a prompt; `on_text` gets each piece as soon as it consists of whole characters and is
/// not the beginning of a text that ends the continuation. Fails if the model cannot continue the
/// prompt.
pub fn continue_text(
    chunk: &dyn ModelChunk,
    tokenizer: &dyn Tokenizer,
    device: &Device,
    request: &Request,
    on_text: &mut dyn FnMut(&str),
) -> Result<Continued, Failure> {
    let requests = std::slice::from_ref(request);
    let continued = continue_texts(chunk, tokenizer, device, requests, &mut |_, piece| on_text(piece));
    continued.map(|mut texts| texts.remove(0)).map_err(|(_, failure)| failure)
}

/// Continues several prompts at once, as [`continue_text`] does each. Pieces come with the number
/// of their request. Fails if the model cannot continue a prompt, with its number.
pub fn continue_texts(
    chunk: &dyn ModelChunk,
    tokenizer: &dyn Tokenizer,
    device: &Device,
    requests: &[Request],
    on_text: &mut dyn FnMut(usize, &str),
) -> Result<Vec<Continued>, (usize, Failure)> {
    let mut texts: Vec<Growing> = requests.iter().map(|request| Growing::new(request, tokenizer)).collect();
    let prompts =
        requests.iter().map(|Request { prompt, options, .. }| GenerateRequest { prompt: &prompt.ids, options });
    generate_batch(chunk, device, &prompts.collect::<Vec<_>>(), &mut |number, token| {
        texts[number].take(token, &mut |piece| on_text(number, piece))
    })
    .map_err(|(number, error)| (number, Failure::input(error)))?;
    let finish = |(number, text): (usize, Growing)| text.finish(&mut |piece| on_text(number, piece));
    Ok(texts.into_iter().enumerate().map(finish).collect())
}

#[cfg(test)]
mod tests {
    use bridge_data::tokenizer::{HuggingFaceTokenizer, NullTokenizer};

    use super::*;

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
    fn a_prompt_stands_behind_what_the_tokenizer_puts_before_texts() {
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "decoder": null,
            "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null,
            "model": { "type": "WordLevel", "vocab": { "begin": 0, "hello": 1, "end": 2 }, "unk_token": "hello" },
        });
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, value: serde_json::Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        write("tokenizer.json", tokenizer);
        for (adds, prefix) in [(true, &[0][..]), (false, &[])] {
            write(
                "tokenizer_config.json",
                serde_json::json!({ "bos_token": "begin", "eos_token": "end", "add_bos_token": adds }),
            );
            let tokenizer = HuggingFaceTokenizer::load(folder.path()).unwrap();
            assert_eq!(Prompt::new(&tokenizer, "hello").unwrap().ids, [1]);
            assert_eq!(Prompt::alone(&tokenizer, "hello").unwrap().ids, [prefix, &[1]].concat());
            // An empty prompt also has one begin-of-document token.
            assert_eq!(Prompt::alone(&tokenizer, "").unwrap(), Prompt { ids: vec![0], has_text: false });
        }
    }

    #[test]
    fn escapes_in_stop_texts_are_what_they_stand_for() {
        for (written, meant) in [
            (r"\n\n", "\n\n"),
            (r"a\tb\r", "a\tb\r"),
            (r"\\n", r"\n"),
            (r"\d\", r"\d\"),
            ("é\n", "é\n"),
            ("</s>", "</s>"),
        ] {
            assert_eq!(stop_text(written).as_deref(), Ok(meant), "{written}");
        }
        assert!(stop_text("").is_err());
    }

    #[test]
    fn ranges_of_sampling_are_checked() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert!(["-1", "nan", "inf", "warm"].iter().all(|text| temperature(text).is_err()));
        assert_eq!(probability("1"), Ok(1.0));
        assert!(["0", "1.1", "-0.5", "NaN"].iter().all(|text| probability(text).is_err()));
    }
}
