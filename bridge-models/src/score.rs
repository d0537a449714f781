//! Log-likelihoods of given continuations, by which tasks of multiple choice and of exact match are
//! judged.

use std::ops::Range;

use bridge_core::model::{GenerationState, ModelChunk};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::decoder::{DecoderConfig, PositionEmbedding};

/// A context and what may follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Tokens before the continuation, at least one. For a model with an encoder, the encoder's
    /// input.
    pub context: Vec<i64>,
    /// Tokens of the continuation, at least one.
    pub tokens: Vec<i64>,
}

/// Score of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Sum over its tokens of the natural logarithm of their probability.
    pub log_likelihood: f64,
    /// True if each token is the most likely one, so that greedy generation would have made the
    /// continuation.
    pub is_greedy: bool,
    /// Number of tokens at the beginning of the context that were dropped, because the model has
    /// too few positions.
    pub unseen: usize,
}

/// Judgement of one token of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of the token's probability.
    pub log_probability: f64,
    /// True if the token is the most likely one.
    pub is_greedy: bool,
}

/// Error of scoring a continuation.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    /// The context or the continuation is empty.
    #[error("expected at least one token of context and one that follows, found {context} and {tokens}")]
    Empty {
        /// Tokens of the context.
        context: usize,
        /// Tokens of the continuation.
        tokens: usize,
    },
    /// A token is not in the vocabulary.
    #[error("expected token ids in 0..{vocab_size}, found {token}")]
    TokenOutOfRange {
        /// Id of the token.
        token: i64,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The model has fewer positions than there are tokens.
    #[error("expected a continuation of at most {max_positions} tokens (the model's positions), found {tokens}")]
    TooLong {
        /// Tokens of the continuation, or of the encoder's input.
        tokens: usize,
        /// Positions of the model.
        max_positions: usize,
    },
    /// The model has no logits, for example because it is one stage of several.
    #[error("this model has no next-token logits: expected a whole decoder with embedding and head")]
    NoLogits,
    /// The logits are not numbers.
    #[error("the logits have no finite maximum: the weights are damaged or training diverged")]
    NotFinite,
}

/// Logits that are in memory at once: 128 MiB of them.
const MOST_LOGITS: usize = 1 << 25;

/// Scores continuations with a whole model.
pub struct Scorer<'a> {
    model: Box<dyn ModelChunk>,
    device: Device,
    config: &'a DecoderConfig,
    most_logits: usize,
}

impl<'a> Scorer<'a> {
    /// A scorer with the values that `model` has now.
    pub fn new(model: &dyn ModelChunk, config: &'a DecoderConfig, device: &Device) -> Self {
        Self { model: model.inference(), device: device.clone().without_autodiff(), config, most_logits: MOST_LOGITS }
    }

    /// Limits the logits that are in memory at once.
    #[cfg(test)]
    pub(crate) fn with_most_logits(self, most_logits: usize) -> Self {
        Self { most_logits, ..self }
    }

    /// Scores continuations in one batch. For a model with an encoder, all contexts must have the
    /// same length.
    ///
    /// Padding is at a row's end, where no token attends to it, so a continuation has the same
    /// score as alone.
    ///
    /// # Errors
    /// With the index of the invalid continuation. All continuations are checked before any is
    /// scored.
    pub fn score(&self, continuations: &[Continuation]) -> Result<Vec<Score>, (usize, ScoreError)> {
        let tokens = self.token_scores(continuations)?;
        let score = |(continuation, tokens): (&Continuation, Vec<TokenScore>)| Score {
            log_likelihood: tokens.iter().map(|token| token.log_probability).fold(0.0, |sum, value| sum + value),
            is_greedy: tokens.iter().all(|token| token.is_greedy),
            unseen: self.row(continuation).map_or(0, |row| row.unseen),
        };
        Ok(continuations.iter().zip(tokens).map(score).collect())
    }

    /// The scores of each token of some continuations, in the same way.
    ///
    /// # Errors
    /// As [`Scorer::score`].
    pub fn token_scores(&self, continuations: &[Continuation]) -> Result<Vec<Vec<TokenScore>>, (usize, ScoreError)> {
        let rows = continuations.iter().enumerate();
        let rows = rows.map(|(number, each)| self.row(each).map_err(|error| (number, error)));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        // Where long sequences are rotated otherwise, a short one does not go with them.
        let is_long = |number: &usize| self.turn().is_some_and(|short| rows[*number].inputs.len() > short);
        let (long, short): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(is_long);
        let mut scores = vec![Vec::new(); rows.len()];
        for numbers in [short, long] {
            let alike: Vec<&Row> = numbers.iter().map(|number| &rows[*number]).collect();
            let contexts: Vec<&[i64]> =
                numbers.iter().map(|number| continuations[*number].context.as_slice()).collect();
            let found = self.score_alike(&alike, &contexts).map_err(|(place, error)| (numbers[place], error))?;
            numbers.into_iter().zip(found).for_each(|(number, found)| scores[number] = found);
        }
        Ok(scores)
    }

    /// The length up to which sequences are rotated in one way and above which in another, where
    /// there is one.
    fn turn(&self) -> Option<usize> {
        match &self.config.position_embedding {
            PositionEmbedding::Rope(rope) => rope.short_length(),
            _ => None,
        }
    }

    /// The scores of the tokens of rows that go through the model together.
    fn score_alike(&self, rows: &[&Row], contexts: &[&[i64]]) -> Result<Vec<Vec<TokenScore>>, (usize, ScoreError)> {
        let Some(longest) = rows.iter().map(|row| row.inputs.len()).max() else { return Ok(Vec::new()) };
        let mut state = self.begin(contexts).map_err(|error| (0, error))?;
        let width = match self.turn() {
            // The first part must be as long as to be rotated as the whole.
            Some(short) if longest > short => longest,
            _ => (self.most_logits / rows.len() / self.config.padded_vocab_size.max(1)).max(1),
        };
        let mut scores: Vec<Vec<TokenScore>> = vec![Vec::new(); rows.len()];
        for begin in (0..longest).step_by(width) {
            let span = begin..longest.min(begin + width);
            let ids = rows.iter().flat_map(|row| {
                let at = move |position: usize| row.inputs.get(position).or(row.inputs.last()).copied().unwrap_or(0);
                span.clone().map(at)
            });
            let tokens_bt = self.tensor(rows.len(), ids.collect());
            let logits_btv = self.model.logits(tokens_bt, &mut state).ok_or((0, ScoreError::NoLogits))?;
            for (place, (row, score)) in rows.iter().zip(&mut scores).enumerate() {
                self.add(&logits_btv, place, &span, row, score).map_err(|error| (place, error))?;
            }
        }
        Ok(scores)
    }

    /// Adds the scores of a row's tokens by the logits at the positions `span`.
    fn add(
        &self,
        logits_btv: &Tensor<3>,
        place: usize,
        span: &Range<usize>,
        row: &Row,
        scores: &mut Vec<TokenScore>,
    ) -> Result<(), ScoreError> {
        let first = row.inputs.len() - row.targets.len();
        let (begin, end) = (span.start.max(first), span.end.min(row.inputs.len()));
        if begin >= end {
            return Ok(());
        }
        let v = self.config.vocab_size;
        let logits_ntv = logits_btv.clone().slice([place..place + 1, begin - span.start..end - span.start, 0..v]);
        let logits: Vec<f32> = logits_ntv.into_data().iter::<f32>().collect();
        for (logits_v, target) in logits.chunks_exact(v).zip(&row.targets[begin - first..end - first]) {
            let (log_probability, is_greedy) = score_token(logits_v, *target as usize).ok_or(ScoreError::NotFinite)?;
            scores.push(TokenScore { log_probability, is_greedy });
        }
        Ok(())
    }

    fn row(&self, continuation: &Continuation) -> Result<Row, ScoreError> {
        let Continuation { context, tokens } = continuation;
        let (positions, vocab_size) = (self.config.longest_sequence(), self.config.vocab_size);
        if context.is_empty() || tokens.is_empty() {
            return Err(ScoreError::Empty { context: context.len(), tokens: tokens.len() });
        }
        let is_unknown = |token: &&i64| !usize::try_from(**token).is_ok_and(|token| token < vocab_size);
        if let Some(token) = context.iter().chain(tokens).find(is_unknown) {
            return Err(ScoreError::TokenOutOfRange { token: *token, vocab_size });
        }
        let read = if self.config.encoder.is_some() { context.len() } else { 0 };
        if let Some(tokens) = [tokens.len(), read].into_iter().find(|tokens| *tokens > positions) {
            return Err(ScoreError::TooLong { tokens, max_positions: positions });
        }
        let before = match self.config.encoder {
            Some(encoder) => vec![encoder.start_token as i64],
            None => context.clone(),
        };
        // The last token is only predicted.
        let mut inputs = [before.as_slice(), &tokens[..tokens.len() - 1]].concat();
        let unseen = inputs.len().saturating_sub(positions);
        inputs.drain(..unseen);
        Ok(Row { inputs, targets: tokens.clone(), unseen })
    }

    /// Generation state before the first token, with the encoder's input.
    fn begin(&self, contexts: &[&[i64]]) -> Result<GenerationState, ScoreError> {
        let mut state = self.model.new_state();
        if self.config.encoder.is_some() {
            let source_bs = self.tensor(contexts.len(), contexts.concat());
            self.model.read_source(source_bs, &mut state).ok_or(ScoreError::NoLogits)?;
        }
        Ok(state)
    }

    fn tensor(&self, rows: usize, ids: Vec<i64>) -> Tensor<2, Int> {
        let shape = [rows, ids.len() / rows];
        Tensor::from_data(TensorData::new(ids, shape), &self.device)
    }
}

/// A continuation as the decoder reads it.
struct Row {
    /// Input tokens.
    inputs: Vec<i64>,
    /// Target tokens of the last inputs.
    targets: Vec<i64>,
    unseen: usize,
}

/// Log-probability of a token, and true if the token is the first of the most likely ones; `None`
/// if the logits are not finite.
fn score_token(logits_v: &[f32], token: usize) -> Option<(f64, bool)> {
    let (best, highest) = logits_v.iter().enumerate().fold((0, f32::NEG_INFINITY), |(best, highest), (i, logit)| {
        // Not a number stays the highest, once it is there.
        if *logit > highest || logit.is_nan() { (i, *logit) } else { (best, highest) }
    });
    if !highest.is_finite() {
        return None;
    }
    let sum: f64 = logits_v.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    Some((f64::from(logits_v[token]) - f64::from(highest) - sum.ln(), best == token))
}
