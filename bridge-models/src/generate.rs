//! Sampling from a model, token by token, with what layers remember of earlier tokens.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bridge_core::model::ModelChunk;
use bridge_kernels::Philox;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::decoder::DecoderConfig;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; of several, the one with the lowest id.
    Greedy,
    /// A random draw.
    Random {
        /// Divides the logits: below 1 sharpens, above 1 flattens.
        temperature: f64,
        /// Only the `k` most likely tokens.
        top_k: Option<usize>,
        /// Only the most likely tokens whose probabilities add up to `p`, at least one (nucleus sampling,
        /// arXiv:1904.09751). Applied after `top_k`.
        top_p: Option<f64>,
        /// Only tokens with at least this share of the probability of the most likely one (arXiv:2407.01082).
        min_p: Option<f64>,
        /// Seed of the draws: the same seed gives the same text.
        seed: u64,
    },
}

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// At most so many new tokens.
    pub max_new_tokens: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Divides the positive logits of tokens that are in the text already, and multiplies their negative ones (arXiv:1909.05858, section 4.1): above
    /// 1 they become less likely; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Tokens that end the text; one that was drawn is returned as the last token.
    pub stop_tokens: Vec<i64>,
    /// Size of the vocabulary without padding: padding is never drawn.
    pub vocab_size: usize,
    /// Longest text, prompt included, that the model's positions cover.
    pub max_positions: usize,
    /// Of a model with an encoder, the token that its decoder begins with: the prompt is what the encoder reads, once.
    pub decoder_start: Option<i64>,
}

impl GenerateOptions {
    /// Greedy generation of up to `max_new_tokens` tokens from a model of this configuration.
    pub fn greedy(config: &DecoderConfig, max_new_tokens: usize) -> Self {
        Self {
            max_new_tokens,
            sampling: Sampling::Greedy,
            repetition_penalty: 1.0,
            stop_tokens: Vec::new(),
            vocab_size: config.vocab_size,
            max_positions: config.longest_sequence(),
            decoder_start: config.encoder.map(|encoder| encoder.start_token as i64),
        }
    }
}

/// Why nothing could be generated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// There is no token to start from.
    #[error("prompt: expected at least one token, found none")]
    EmptyPrompt,
    /// A prompt token is not in the vocabulary.
    #[error("prompt: expected token ids in 0..{vocab_size}, found {token} at position {position}")]
    TokenOutOfRange {
        /// Its place in the prompt.
        position: usize,
        /// Its id.
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
        /// Its range.
        expected: &'static str,
        /// Its value.
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

/// Continues `prompt`. `on_token` sees each new token at once and may stop the generation.
///
/// Returns the new tokens.
///
/// # Errors
/// If the prompt is empty or too long for the model, a setting is out of range, or the model has no logits.
pub fn generate(
    model: &dyn ModelChunk,
    device: &Device,
    prompt: &[i64],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(i64) -> ControlFlow<()>,
) -> Result<Vec<i64>, GenerateError> {
    check(prompt, options)?;
    let model = model.inference();
    let device = device.clone().without_autodiff();
    let mut state = model.new_state();
    let mut new_tokens = Vec::new();
    let mut input = prompt.to_vec();
    if let Some(start) = options.decoder_start {
        let shape = [1, input.len()];
        let source_bs = Tensor::<2, Int>::from_data(TensorData::new(input, shape), &device);
        model.read_source(source_bs, &mut state).ok_or(GenerateError::NoLogits)?;
        input = vec![start];
    }
    while new_tokens.len() < options.max_new_tokens {
        let shape = [1, input.len()];
        let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(input, shape), &device);
        let logits_btv = model.logits(tokens_bt, &mut state).ok_or(GenerateError::NoLogits)?;
        let mut logits_v = last_logits(logits_btv, options.vocab_size);
        penalize(&mut logits_v, prompt.iter().chain(&new_tokens), options.repetition_penalty);
        let token = choose(&logits_v, options.sampling, new_tokens.len())
            .ok_or(GenerateError::NotFinite { position: state.length })?;
        new_tokens.push(token);
        if on_token(token).is_break() || options.stop_tokens.contains(&token) {
            break;
        }
        input = vec![token];
    }
    Ok(new_tokens)
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
    let penalty = options.repetition_penalty;
    if !(penalty > 0.0 && penalty.is_finite()) {
        return out_of_range("repetition_penalty", "a number above 0", penalty.to_string());
    }
    let Sampling::Random { temperature, top_k, top_p, min_p, .. } = options.sampling else {
        return Ok(());
    };
    if !(temperature > 0.0 && temperature.is_finite()) {
        return out_of_range("temperature", "a number above 0 (or greedy sampling)", temperature.to_string());
    }
    if top_k == Some(0) {
        return out_of_range("top_k", "at least 1", "0".to_owned());
    }
    if let Some(p) = min_p.filter(|p| !(0.0..=1.0).contains(p)) {
        return out_of_range("min_p", "a number in [0, 1]", p.to_string());
    }
    match top_p {
        Some(p) if !(p > 0.0 && p <= 1.0) => out_of_range("top_p", "a number in (0, 1]", p.to_string()),
        _ => Ok(()),
    }
}

/// The last position's logits without the vocabulary's padding.
fn last_logits(logits_btv: Tensor<3>, vocab_size: usize) -> Vec<f32> {
    let [_, t, v] = logits_btv.dims();
    let last = logits_btv.narrow(1, t - 1, 1).narrow(2, 0, vocab_size.min(v));
    last.into_data().convert::<f32>().try_into_vec().expect("the data is float32 now")
}

/// Makes tokens of the text less likely, each once.
fn penalize<'a>(logits_v: &mut [f32], text: impl Iterator<Item = &'a i64>, penalty: f64) {
    if penalty == 1.0 {
        return;
    }
    for token in text.copied().collect::<BTreeSet<i64>>() {
        if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits_v.get_mut(token)) {
            let value = f64::from(*logit);
            *logit = (if value < 0.0 { value * penalty } else { value / penalty }) as f32;
        }
    }
}

/// The token that `sampling` chooses as number `draw`; `None` if the logits have no finite maximum.
fn choose(logits_v: &[f32], sampling: Sampling, draw: usize) -> Option<i64> {
    let mut order: Vec<usize> = (0..logits_v.len()).filter(|id| !logits_v[*id].is_nan()).collect();
    // A stable sort, so that equal logits stay in the order of their ids.
    order.sort_by(|a, b| logits_v[*b].total_cmp(&logits_v[*a]));
    let best = *order.first().filter(|id| logits_v[**id].is_finite())?;
    let Sampling::Random { temperature, top_k, top_p, min_p, seed } = sampling else {
        return i64::try_from(best).ok();
    };
    order.truncate(top_k.unwrap_or(usize::MAX));
    let maximum = f64::from(logits_v[best]);
    let mut weights: Vec<f64> =
        order.iter().map(|id| ((f64::from(logits_v[*id]) - maximum) / temperature).exp()).collect();
    if let Some(p) = top_p {
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let kept = weights.iter().take_while(|weight| {
            let is_needed = sum < p * total;
            sum += **weight;
            is_needed
        });
        let kept = kept.count().max(1);
        weights.truncate(kept);
    }
    if let Some(p) = min_p {
        // The most likely token has weight 1, and they are in order.
        let kept = weights.iter().take_while(|weight| **weight >= p).count().max(1);
        weights.truncate(kept);
    }
    let word = Philox::new(seed).derive(draw as u64).block(0)[0];
    let mut rest = f64::from(word) / 4_294_967_296.0 * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        rest -= weight;
        rest < 0.0
    });
    i64::try_from(order[drawn.unwrap_or(weights.len() - 1)]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];

    fn random(top_k: Option<usize>, top_p: Option<f64>, seed: u64) -> Sampling {
        Sampling::Random { temperature: 1.0, top_k, top_p, min_p: None, seed }
    }

    fn draws(sampling: impl Fn(u64) -> Sampling) -> Vec<i64> {
        (0..2000).map(|seed| choose(&LOGITS, sampling(seed), 0).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(choose(&LOGITS, Sampling::Greedy, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, 1.0], Sampling::Greedy, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, f32::NEG_INFINITY], Sampling::Greedy, 0), None);
    }

    #[test]
    fn random_draws_follow_the_softmax() {
        let drawn = draws(|seed| random(None, None, seed));
        let total: f64 = LOGITS.iter().map(|l| f64::from(*l).exp()).sum();
        for (id, logit) in LOGITS.iter().enumerate() {
            let share = drawn.iter().filter(|token| **token == id as i64).count() as f64 / drawn.len() as f64;
            let expected = f64::from(*logit).exp() / total;
            assert!((share - expected).abs() < 0.04, "token {id}: {share} of the draws, expected {expected}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        assert!(draws(|seed| random(Some(2), None, seed)).iter().all(|token| [1, 4].contains(token)));
        assert!(draws(|seed| random(Some(1), None, seed)).iter().all(|token| *token == 1));
        assert!(draws(|seed| random(None, Some(0.79), seed)).iter().all(|token| [1, 4].contains(token)));
        assert!(draws(|seed| random(None, Some(1e-9), seed)).iter().all(|token| *token == 1));
        assert!(draws(|seed| random(None, Some(0.99), seed)).contains(&0));
    }

    #[test]
    fn min_p_and_penalties_change_what_is_likely() {
        let near = |seed| Sampling::Random { temperature: 1.0, top_k: None, top_p: None, min_p: Some(0.5), seed };
        assert!(draws(near).iter().all(|token| [1, 4].contains(token)));
        let loose = |seed| Sampling::Random { temperature: 1.0, top_k: None, top_p: None, min_p: Some(0.2), seed };
        assert!(draws(loose).contains(&3) && !draws(loose).contains(&0));
        let mut logits = [2.0, -2.0, 3.0];
        penalize(&mut logits, [0, 0, 1, 7].iter(), 2.0);
        assert_eq!(logits, [1.0, -4.0, 3.0]);
    }

    #[test]
    fn a_seed_repeats_and_temperature_sharpens() {
        let cold = |seed| Sampling::Random { temperature: 0.05, top_k: None, top_p: None, min_p: None, seed };
        assert!(draws(cold).iter().all(|token| [1, 4].contains(token)));
        assert_eq!(draws(|seed| random(None, None, seed)), draws(|seed| random(None, None, seed)));
        let steps: Vec<_> = (0..50).map(|draw| choose(&LOGITS, random(None, None, 7), draw)).collect();
        assert!(steps.windows(2).any(|pair| pair[0] != pair[1]), "draws of one seed differ from step to step");
    }
}
