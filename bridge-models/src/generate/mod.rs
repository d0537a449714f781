//! Sampling from a model, token by token, with a KV cache or SSM state. Several texts go through
//! the model as one batch.
//!
//! | file | content |
//! | --- | --- |
//! | `choose` | sampling of a token from logits |
//! | `rules` | penalties and bans that change the logits by the text so far |

mod choose;
mod rules;

use std::ops::{ControlFlow, Range};

use bridge_core::model::{GenerationState, ModelChunk};
use burn::tensor::{Device, Int, Tensor, TensorData};

use self::choose::choose;
pub use self::choose::{Draw, Sampling};
use self::rules::Text;
pub use self::rules::TokenRules;
use crate::decoder::DecoderConfig;

/// Options of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Largest number of new tokens.
    pub max_new_tokens: usize,
    /// Sampling of the tokens.
    pub sampling: Sampling,
    /// Constraints on the tokens.
    pub rules: TokenRules,
    /// Tokens that end the text; one that was drawn is returned as the last token.
    pub stop_tokens: Vec<i64>,
    /// Size of the vocabulary without padding: padding is never drawn.
    pub vocab_size: usize,
    /// Longest text, prompt included, that the model's positions cover.
    pub max_positions: usize,
    /// First token of the decoder of a model with an encoder: the prompt is the encoder's input,
    /// read once.
    pub decoder_start: Option<i64>,
    /// Caching of the state of layers.
    pub cache: StateCache,
}

/// Caching of the state of layers (KV cache, SSM state) from token to token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateCache {
    /// Only the newest token runs through the model.
    #[default]
    On,
    /// The whole text runs through the model again for each token. Slow; for checks of `On`.
    Off,
}

impl GenerateOptions {
    /// Greedy generation of up to `max_new_tokens` tokens from a model of this configuration.
    pub fn greedy(config: &DecoderConfig, max_new_tokens: usize) -> Self {
        Self {
            max_new_tokens,
            sampling: Sampling::Greedy,
            rules: TokenRules::default(),
            stop_tokens: Vec::new(),
            vocab_size: config.vocab_size,
            max_positions: config.longest_sequence(),
            decoder_start: config.encoder.map(|encoder| encoder.start_token as i64),
            cache: StateCache::On,
        }
    }
}

/// Error of a generation.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// There is no token to start from.
    #[error("prompt: expected at least one token, found none")]
    EmptyPrompt,
    /// A prompt token is not in the vocabulary.
    #[error("prompt: expected token ids in 0..{vocab_size}, found {token} at position {position}")]
    TokenOutOfRange {
        /// Position in the prompt.
        position: usize,
        /// Id of the token.
        token: i64,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Prompt and new tokens do not fit the model's positions.
    #[error(
        "expected at most {max_positions} positions (the model's), found a prompt of {prompt} tokens and {max_new_tokens} \
         new ones: shorten the prompt or ask for at most {} new tokens",
        .max_positions.saturating_sub(*.prompt)
    )]
    ContextTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// New tokens asked for.
        max_new_tokens: usize,
        /// Positions of the model.
        max_positions: usize,
    },
    /// A sampling setting is out of its range.
    #[error("{key}: expected {expected}, found {found}")]
    Sampling {
        /// The setting.
        key: &'static str,
        /// Accepted range.
        expected: &'static str,
        /// Found value.
        found: String,
    },
    /// The model cannot generate, for example because it is one stage of several.
    #[error("this model has no next-token logits: expected a whole decoder with embedding and head")]
    NoLogits,
    /// The logits are not numbers.
    #[error("the logits after {position} tokens have no finite maximum: the weights are damaged or training diverged")]
    NotFinite {
        /// Tokens seen so far.
        position: usize,
    },
}

/// A prompt, and how to continue it.
#[derive(Clone, Copy, Debug)]
pub struct GenerateRequest<'a> {
    /// Text to continue, or the input of an encoder.
    pub prompt: &'a [i64],
    /// Options of the generation.
    pub options: &'a GenerateOptions,
}

/// Continues `prompt`. `on_token` gets each new token at once and may stop the generation.
///
/// Returns the new tokens.
///
/// # Errors
/// If the prompt is empty or too long for the model, a setting is out of range, or the model has no
/// logits.
pub fn generate(
    model: &dyn ModelChunk,
    device: &Device,
    prompt: &[i64],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(i64) -> ControlFlow<()>,
) -> Result<Vec<i64>, GenerateError> {
    let request = GenerateRequest { prompt, options };
    let texts = generate_batch(model, device, &[request], &mut |_, token| on_token(token));
    texts.map(|texts| texts.into_iter().flatten().collect()).map_err(|(_, error)| error)
}

/// Continues several prompts together, each as [`generate`] does. `on_token` gets each new token
/// with the number of its request, and may stop this request.
///
/// All texts of a batch are at the same position, so that none needs padding: after the end of a
/// shorter prompt its new tokens run beside the given tokens of a longer prompt. Prompts that
/// differ too much in length, and prompts of different lengths that an encoder reads, run in
/// separate batches.
///
/// Returns the new tokens of each request.
///
/// # Errors
/// As [`generate`], with the number of the request. All requests are checked before any is run.
pub fn generate_batch(
    model: &dyn ModelChunk,
    device: &Device,
    requests: &[GenerateRequest],
    on_token: &mut dyn FnMut(usize, i64) -> ControlFlow<()>,
) -> Result<Vec<Vec<i64>>, (usize, GenerateError)> {
    for (number, GenerateRequest { prompt, options }) in requests.iter().enumerate() {
        check(prompt, options).map_err(|error| (number, error))?;
    }
    let model = model.inference();
    let device = device.clone().without_autodiff();
    let mut texts = vec![Vec::new(); requests.len()];
    for numbers in batches_of_similar_length(requests) {
        let rows = numbers.iter().map(|number| Row::new(*number, requests[*number])).collect();
        for row in (Batch { model: model.as_ref(), device: &device, rows, num_processed: 0 }).run(on_token)? {
            texts[row.number] = row.tokens[row.num_given..].to_vec();
        }
    }
    Ok(texts)
}

/// Largest difference between the lengths of the longest and the shortest prompt of a batch; the
/// surplus tokens run one by one.
const MAX_LENGTH_DIFFERENCE: usize = 32;

/// Batches of requests by number. Prompts of a batch have similar lengths.
fn batches_of_similar_length(requests: &[GenerateRequest]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|number| requests[*number].prompt.len());
    let fit = |a: &usize, b: &usize| {
        let [a, b] = [a, b].map(|number| requests[*number]);
        let apart = a.prompt.len().abs_diff(b.prompt.len());
        let most = if a.options.decoder_start.is_some() { 0 } else { MAX_LENGTH_DIFFERENCE };
        apart <= most && (a.options.decoder_start, a.options.cache) == (b.options.decoder_start, b.options.cache)
    };
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for number in order {
        match batches.last_mut().filter(|batch| fit(&batch[0], &number)) {
            Some(batch) => batch.push(number),
            None => batches.push(vec![number]),
        }
    }
    batches
}

/// A text being generated.
struct Row<'a> {
    number: usize,
    request: GenerateRequest<'a>,
    /// Input of the decoder: the prompt, or its first token, and then the new tokens.
    tokens: Vec<i64>,
    /// Number of tokens that are not new.
    num_given: usize,
    is_done: bool,
}

impl<'a> Row<'a> {
    fn new(number: usize, request: GenerateRequest<'a>) -> Self {
        let options = request.options;
        let tokens = options.decoder_start.map_or_else(|| request.prompt.to_vec(), |start| vec![start]);
        Self { number, request, num_given: tokens.len(), tokens, is_done: options.max_new_tokens == 0 }
    }

    /// Chooses the next token by these logits, and appends it.
    fn append_next(&mut self, mut logits_v: Vec<f32>) -> Result<i64, GenerateError> {
        let GenerateRequest { prompt, options } = self.request;
        let (new, most) = (self.tokens.len() - self.num_given, options.max_new_tokens);
        let text = Text { prompt, before: &self.tokens, new, ends: &options.stop_tokens, most };
        options.rules.apply(&mut logits_v, &text);
        let token = choose(&logits_v, options.sampling, new);
        let token = token.ok_or(GenerateError::NotFinite { position: self.tokens.len() })?;
        self.tokens.push(token);
        self.is_done = new + 1 == most || options.stop_tokens.contains(&token);
        Ok(token)
    }
}

/// Texts that go through the model as one batch, at the same position.
struct Batch<'a> {
    model: &'a dyn ModelChunk,
    device: &'a Device,
    rows: Vec<Row<'a>>,
    /// Tokens of each text that have gone through the model.
    num_processed: usize,
}

impl<'a> Batch<'a> {
    /// Generates until all texts are done, and returns them.
    fn run(
        mut self,
        on_token: &mut dyn FnMut(usize, i64) -> ControlFlow<()>,
    ) -> Result<Vec<Row<'a>>, (usize, GenerateError)> {
        let first = self.rows[0].number;
        let mut state = self.initial_state().map_err(|error| (first, error))?;
        let mut end = self.rows.iter().map(|row| row.tokens.len()).min().unwrap_or(0);
        while self.rows.iter().any(|row| !row.is_done) {
            let begin = match self.rows[0].request.options.cache {
                StateCache::On => self.num_processed,
                StateCache::Off => {
                    state = self.initial_state().map_err(|error| (first, error))?;
                    0
                }
            };
            let logits_btv = self.model.logits(self.tokens(begin..end), &mut state);
            let logits_btv = logits_btv.ok_or((first, GenerateError::NoLogits))?;
            self.num_processed = end;
            for (place, row) in self.rows.iter_mut().enumerate() {
                if !row.is_done && row.tokens.len() == end {
                    let logits_v = last_logits(&logits_btv, place, row.request.options.vocab_size);
                    let token = row.append_next(logits_v).map_err(|error| (row.number, error))?;
                    row.is_done |= on_token(row.number, token).is_break();
                }
            }
            end += 1;
        }
        Ok(self.rows)
    }

    /// Generation state before the first token, with the encoder's input.
    fn initial_state(&self) -> Result<GenerationState, GenerateError> {
        let mut state = self.model.new_state();
        if self.rows[0].request.options.decoder_start.is_some() && self.rows.iter().any(|row| !row.is_done) {
            let ids: Vec<i64> = self.rows.iter().flat_map(|row| row.request.prompt).copied().collect();
            let source_bs = self.tensor(ids);
            self.model.read_source(source_bs, &mut state).ok_or(GenerateError::NoLogits)?;
        }
        Ok(state)
    }

    /// Tokens of all rows at these positions. After the end of a text its last token is repeated;
    /// its outputs are not read.
    fn tokens(&self, positions: Range<usize>) -> Tensor<2, Int> {
        let at = |row: &Row, position: usize| row.tokens.get(position).or(row.tokens.last()).copied().unwrap_or(0);
        let ids = self.rows.iter().flat_map(|row| positions.clone().map(move |position| at(row, position)));
        self.tensor(ids.collect())
    }

    fn tensor(&self, ids: Vec<i64>) -> Tensor<2, Int> {
        let shape = [self.rows.len(), ids.len() / self.rows.len()];
        Tensor::from_data(TensorData::new(ids, shape), self.device)
    }
}

fn check(prompt: &[i64], options: &GenerateOptions) -> Result<(), GenerateError> {
    if prompt.is_empty() {
        return Err(GenerateError::EmptyPrompt);
    }
    let vocab_size = options.vocab_size;
    let in_range = |token: &i64| usize::try_from(*token).is_ok_and(|token| token < vocab_size);
    if let Some((position, token)) = prompt.iter().enumerate().find(|(_, token)| !in_range(token)) {
        return Err(GenerateError::TokenOutOfRange { position, token: *token, vocab_size });
    }
    // The last new token is never fed back, so it needs no position.
    let needed = prompt.len().saturating_add(options.max_new_tokens.saturating_sub(1));
    if needed > options.max_positions {
        return Err(GenerateError::ContextTooLong {
            prompt: prompt.len(),
            max_new_tokens: options.max_new_tokens,
            max_positions: options.max_positions,
        });
    }
    let out_of_range = |key, expected, found| Err(GenerateError::Sampling { key, expected, found });
    let TokenRules { repetition_penalty, encoder_repetition_penalty, .. } = options.rules;
    for (key, penalty) in
        [("repetition_penalty", repetition_penalty), ("encoder_repetition_penalty", encoder_repetition_penalty)]
    {
        if !(penalty > 0.0 && penalty.is_finite()) {
            return out_of_range(key, "a number above 0", penalty.to_string());
        }
    }
    match options.sampling {
        Sampling::Greedy => Ok(()),
        Sampling::Random(draw) => {
            draw.problem().map_or(Ok(()), |(key, expected, found)| out_of_range(key, expected, found))
        }
    }
}

/// The last position's logits of a row, without the vocabulary's padding.
fn last_logits(logits_btv: &Tensor<3>, row: usize, vocab_size: usize) -> Vec<f32> {
    let [_, t, v] = logits_btv.dims();
    let last = logits_btv.clone().narrow(0, row, 1).narrow(1, t - 1, 1).narrow(2, 0, vocab_size.min(v));
    last.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_like_lengths_go_in_step() {
        let model = DecoderConfig::neutral();
        let options = GenerateOptions::greedy(&model, 1);
        let reads = GenerateOptions { decoder_start: Some(0), ..options.clone() };
        let ids = [0; 80];
        let groups = |options: &GenerateOptions, lengths: &[usize]| {
            let requests = lengths.iter().map(|length| GenerateRequest { prompt: &ids[..*length], options });
            batches_of_similar_length(&requests.collect::<Vec<_>>())
        };
        assert_eq!(groups(&options, &[40, 3, 80, 35, 7]), [vec![1, 4, 3], vec![0], vec![2]]);
        assert_eq!(groups(&reads, &[5, 3, 5]), [vec![1], vec![0, 2]]);
    }
}
