//! Span corruption: spans of a sample's tokens are masked; an encoder reads the rest, with a
//! sentinel for each span, and a decoder predicts the spans. Cutting samples from the data belongs
//! to the parent module.
//!
//! Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
//! Transformer" (arXiv:1910.10683), section 3.1.4; names and padding are those of Megatron's T5
//! dataset.

use super::GptDataset;
use crate::DataError;
use crate::dataset::{Dataset, Sample};
use crate::extra::{ENCODER_MASK, ENCODER_TOKENS, Extra, Extras};
use crate::random::RandomState;
use crate::tokenizer::Tokenizer;

/// Ids of tokens that are not text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanTokens {
    /// One a span, in their order. A sample has no more spans.
    pub sentinels: Vec<i64>,
    /// The decoder's first input.
    pub start: i64,
    /// The decoder's last target.
    pub end: i64,
    /// Token after the end of a sequence; it is not part of the loss.
    pub pad: i64,
}

impl SpanTokens {
    /// Ids of a tokenizer: sentinels are `<extra_id_0>`, `<extra_id_1>` and so on; with `count`,
    /// that many ids from the top of the vocabulary down, which must not occur in texts.
    ///
    /// # Errors
    /// If the tokenizer has no end-of-document id, or no such sentinels.
    pub fn from_tokenizer(tokenizer: &dyn Tokenizer, count: Option<usize>, start: i64) -> Result<Self, DataError> {
        let missing = |what: &str| DataError::NoTokenizer(format!("span corruption needs {what}"));
        let end = tokenizer.eod().ok_or_else(|| missing("a tokenizer with an end-of-document token"))?;
        let pad = tokenizer.pad().unwrap_or(start);
        let sentinels: Vec<i64> = match count {
            None => (0..).map_while(|number| tokenizer.token_to_id(&format!("<extra_id_{number}>"))).collect(),
            Some(count) => {
                let ids = (0..tokenizer.vocab_size() as i64).rev().filter(|id| ![end, pad, start].contains(id));
                ids.take(count).collect()
            }
        };
        if sentinels.is_empty() || count.is_some_and(|count| sentinels.len() < count) {
            let what = match count {
                None => "a tokenizer with the tokens <extra_id_0> and so on, or dataset.num_sentinels".to_owned(),
                Some(count) => format!("a vocabulary with more than {count} ids (dataset.num_sentinels)"),
            };
            return Err(missing(&what));
        }
        Ok(Self { sentinels, start, end, pad })
    }
}

/// Parameters of the masking.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanParams {
    /// Share of a sample's tokens that are masked, in (0, 1).
    pub masked_lm_prob: f64,
    /// Share of samples that are made of fewer tokens, in [0, 1].
    pub short_seq_prob: f64,
    /// Mean number of tokens of a span, at least 1.
    pub mean_span_length: f64,
    /// Tokens of the decoder's sequence. Less is masked where the spans would not fit.
    pub target_length: usize,
    /// Ids of sentinels and marks.
    pub tokens: SpanTokens,
}

impl SpanParams {
    /// Checks the shares, and that a span fits both sequences.
    pub(crate) fn check(&self, source_length: usize) -> Result<(), DataError> {
        let bad = |text: String| Err(DataError::Parameter(text));
        let Self { masked_lm_prob, short_seq_prob, mean_span_length, target_length, .. } = *self;
        if !(masked_lm_prob > 0.0 && masked_lm_prob < 1.0) {
            return bad(format!("masked_lm_prob = {masked_lm_prob}: expected a number above 0 and below 1"));
        }
        if !(0.0..=1.0).contains(&short_seq_prob) {
            return bad(format!("short_seq_prob = {short_seq_prob}: expected a number from 0 to 1"));
        }
        if !(mean_span_length >= 1.0 && mean_span_length.is_finite()) {
            return bad(format!("mean_span_length = {mean_span_length}: expected a number of at least 1"));
        }
        // A sentinel, a token and the end; and for the encoder a token beside the sentinel.
        if target_length < 3 || source_length < 2 {
            return bad(format!(
                "seq_length_dec = {target_length}, seq_length = {source_length}: expected at least 3 and 2, for one masked token"
            ));
        }
        Ok(())
    }
}

/// A [`GptDataset`] whose samples are masked. The mask of a sample depends only on the seed and the
/// sample's number.
pub struct SpanDataset {
    inner: GptDataset,
    params: SpanParams,
    seed: i64,
}

impl SpanDataset {
    pub(crate) fn new(inner: GptDataset, params: SpanParams, seed: i64) -> Self {
        Self { inner, params, seed }
    }

    pub(crate) fn inner(&self) -> &GptDataset {
        &self.inner
    }
}

impl Dataset for SpanDataset {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let tokens = self.inner.raw_tokens(index)?;
        // As upstream: a generator of its own for each sample.
        let seed = (i128::from(self.seed) + index as i128).rem_euclid(1 << 32) as i64;
        let mut rng = RandomState::new(seed).map_err(|error| DataError::Parameter(error.to_string()))?;
        Ok(self.params.sample(&tokens, self.inner.sequence_length, &mut rng))
    }
}

/// The two sequences of a sample, without padding.
#[derive(Debug, PartialEq, Eq)]
struct Corrupted {
    source: Vec<i64>,
    target: Vec<i64>,
}

impl SpanParams {
    /// The sample of `tokens`, of which there are at most `source_length`.
    fn sample(&self, tokens: &[i64], source_length: usize, rng: &mut RandomState) -> Sample {
        let is_short = rng.bernoulli(self.short_seq_prob);
        let length = if is_short { rng.randint(2, tokens.len().max(2) as i64 + 1) as usize } else { tokens.len() };
        let tokens = &tokens[..length.min(tokens.len())];
        let spans = self.spans(tokens.len(), rng);
        let Corrupted { mut source, target } = self.corrupt(tokens, &spans);
        let SpanTokens { start, pad, .. } = self.tokens;
        let mut encoder_mask = vec![1.0; source.len()];
        encoder_mask.resize(source_length, 0.0);
        source.resize(source_length, pad);
        let mut labels = target.clone();
        labels.resize(self.target_length, pad);
        let mut loss_mask = vec![1.0; target.len()];
        loss_mask.resize(self.target_length, 0.0);
        let mut inputs: Vec<i64> = [start].into_iter().chain(target).take(self.target_length).collect();
        inputs.resize(self.target_length, pad);
        Sample {
            tokens: inputs,
            labels,
            loss_mask,
            position_ids: (0..self.target_length as i64).collect(),
            document_ids: None,
            extras: Extras::from([
                (ENCODER_TOKENS.to_owned(), Extra::ints(source, &[source_length])),
                (ENCODER_MASK.to_owned(), Extra::floats(encoder_mask, &[source_length])),
            ]),
        }
    }

    /// Alternating lengths of kept and masked spans of a sample of `length` tokens. Each span has
    /// at least one token, except the first kept span.
    fn spans(&self, length: usize, rng: &mut RandomState) -> Vec<[usize; 2]> {
        if length < 2 {
            return Vec::new();
        }
        let wanted = (length as f64 * self.masked_lm_prob).round() as usize;
        let masked = wanted.clamp(1, length - 1);
        let count = (masked as f64 / self.mean_span_length).round() as usize;
        // As many spans as there are sentinels, and targets that fit: a sentinel for each span, its
        // tokens, the end.
        let room = self.target_length - 1;
        let count = count.clamp(1, self.tokens.sentinels.len()).min(masked).min(length - masked).min(room / 2);
        let masked = masked.min(room - count);
        let kept = parts(length - masked, count, rng);
        kept.into_iter().zip(parts(masked, count, rng)).map(|(kept, masked)| [kept, masked]).collect()
    }

    fn corrupt(&self, tokens: &[i64], spans: &[[usize; 2]]) -> Corrupted {
        let (mut source, mut target, mut rest) = (Vec::new(), Vec::new(), tokens);
        for ([kept, masked], sentinel) in spans.iter().zip(&self.tokens.sentinels) {
            let (before, behind) = rest.split_at(*kept);
            let (span, behind) = behind.split_at(*masked);
            source.extend_from_slice(before);
            source.push(*sentinel);
            target.push(*sentinel);
            target.extend_from_slice(span);
            rest = behind;
        }
        source.extend_from_slice(rest);
        target.push(self.tokens.end);
        Corrupted { source, target }
    }
}

/// `total` in `count` parts of at least 1, every way of dividing it equally likely.
fn parts(total: usize, count: usize, rng: &mut RandomState) -> Vec<usize> {
    let mut begins: Vec<bool> = (1..total).map(|place| place < count).collect();
    rng.shuffle(&mut begins);
    let mut parts = vec![1];
    for is_new in begins {
        match (is_new, parts.last_mut()) {
            (false, Some(last)) => *last += 1,
            (true, _) | (false, None) => parts.push(1),
        }
    }
    parts
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
