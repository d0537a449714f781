//! Fill-in-the-middle: documents of a sample are cut into three parts and reordered, so that a
//! model learns to infill. Cutting samples from the data belongs to the parent module.
//!
//! Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022).

use std::sync::{Arc, Mutex, PoisonError};

use super::GptDataset;
use crate::DataError;
use crate::dataset::{Dataset, FetchOrder, Sample};
use crate::random::RandomState;
use crate::tokenizer::Tokenizer;

/// Ids of the tokens that mark the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FimTokens {
    /// Before the prefix.
    pub prefix: i64,
    /// Before the middle.
    pub middle: i64,
    /// Before the suffix.
    pub suffix: i64,
    /// Pads samples that became shorter.
    pub pad: i64,
    /// Separates documents.
    pub eod: i64,
}

impl FimTokens {
    /// Looks up `fim_extra_tokens`, a map with the keys prefix, middle, suffix, pad and eod.
    ///
    /// # Errors
    /// If a key has no value, or the tokenizer does not have a token.
    pub fn lookup<'a>(
        tokenizer: &dyn Tokenizer,
        name_of: impl Fn(&'static str) -> Option<&'a str>,
    ) -> Result<Self, DataError> {
        let id = |key: &'static str| {
            let token =
                name_of(key).ok_or_else(|| DataError::Parameter(format!("fim_extra_tokens.{key} is missing")))?;
            tokenizer.token_to_id(token).ok_or_else(|| {
                DataError::Parameter(format!("fim_extra_tokens.{key} = {token:?}: the tokenizer has no such token"))
            })
        };
        Ok(Self {
            prefix: id("prefix")?,
            middle: id("middle")?,
            suffix: id("suffix")?,
            pad: id("pad")?,
            eod: id("eod")?,
        })
    }
}

/// Parameters of the permutation of samples.
#[derive(Debug, Clone, PartialEq)]
pub struct FimParams {
    /// Probability that a document of a sample is permuted, 0..=1.
    pub rate: f64,
    /// Fraction of permuted pieces in suffix-prefix-middle order, 0..=1.
    pub spm_rate: f64,
    /// Ids of the marker tokens.
    pub tokens: FimTokens,
    /// Token at which documents are cut into fragments.
    pub split_sample: Option<i64>,
    /// Probability that a fragment is permuted, 0..=1; used with `split_sample`.
    pub fragment_rate: f64,
    /// Text that starts with this is not permuted.
    pub no_prefix: Option<String>,
}

impl FimParams {
    /// Checks the probabilities.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        let rates =
            [("fim_rate", self.rate), ("fim_spm_rate", self.spm_rate), ("fim_fragment_rate", self.fragment_rate)];
        for (name, rate) in rates {
            if !(0.0..=1.0).contains(&rate) {
                return Err(DataError::Parameter(format!("{name} = {rate}: expected a value from 0 to 1")));
            }
        }
        Ok(())
    }
}

/// A [`GptDataset`] whose samples are permuted.
///
/// Random choices come from one stream, in the order in which samples are fetched, as in Megatron
/// Bridge. Loaders therefore fetch with one worker. A run that resumes or rewinds must restart the
/// stream and fetch the consumed samples again, so that it draws the same choices.
pub struct FimDataset {
    inner: GptDataset,
    params: FimParams,
    tokenizer: Arc<dyn Tokenizer>,
    /// The stream as it begins.
    beginning: RandomState,
    stream: Mutex<RandomState>,
}

impl FimDataset {
    pub(crate) fn new(
        inner: GptDataset,
        params: FimParams,
        tokenizer: Arc<dyn Tokenizer>,
        seed: i64,
    ) -> Result<Self, DataError> {
        params.check()?;
        let beginning = RandomState::new(seed).map_err(|error| DataError::Parameter(error.to_string()))?;
        Ok(Self { inner, params, tokenizer, stream: Mutex::new(beginning.clone()), beginning })
    }

    pub(crate) fn inner(&self) -> &GptDataset {
        &self.inner
    }
}

impl Dataset for FimDataset {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let tokens = self.inner.raw_tokens(index)?;
        let permuter = Permuter { params: &self.params, tokenizer: self.tokenizer.as_ref() };
        // A panic elsewhere leaves the generator itself in a valid state.
        let mut rng = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let permuted = permuter.sample(&tokens, &mut rng)?;
        drop(rng);
        self.inner.finish(permuted)
    }

    fn fetch_order(&self) -> FetchOrder {
        FetchOrder::Matters
    }

    fn restart(&self) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = self.beginning.clone();
    }
}

struct Permuter<'a> {
    params: &'a FimParams,
    tokenizer: &'a dyn Tokenizer,
}

impl Permuter<'_> {
    /// Permutes the documents of a sample and restores its length.
    fn sample(&self, tokens: &[i64], rng: &mut RandomState) -> Result<Vec<i64>, DataError> {
        let eod = self.params.tokens.eod;
        let mut out = self.pieces(tokens, eod, |piece| self.document(piece, rng))?;
        out.resize(tokens.len(), self.params.tokens.pad);
        Ok(out)
    }

    /// A document, or each of its fragments, permuted.
    fn document(&self, document: &[i64], rng: &mut RandomState) -> Result<Vec<i64>, DataError> {
        match self.params.split_sample {
            Some(mark) if document.contains(&mark) => {
                if !rng.bernoulli(self.params.rate) {
                    return Ok(document.to_vec());
                }
                self.pieces(document, mark, |piece| self.permute(piece, self.params.fragment_rate, rng))
            }
            _ => self.permute(document, self.params.rate, rng),
        }
    }

    /// Maps the pieces between separators. An empty piece disappears together with its separator;
    /// the tail is always mapped.
    fn pieces(
        &self,
        tokens: &[i64],
        mark: i64,
        mut map: impl FnMut(&[i64]) -> Result<Vec<i64>, DataError>,
    ) -> Result<Vec<i64>, DataError> {
        let mut out = Vec::with_capacity(tokens.len() + 8);
        let mut pieces = tokens.split(|&token| token == mark).peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                out.extend(map(piece)?);
            } else if !piece.is_empty() {
                out.extend(map(piece)?);
                out.push(mark);
            }
        }
        Ok(out)
    }

    /// Cuts the text of `piece` at two random characters and reorders the three parts.
    fn permute(&self, piece: &[i64], rate: f64, rng: &mut RandomState) -> Result<Vec<i64>, DataError> {
        if !rng.bernoulli(rate) {
            return Ok(piece.to_vec());
        }
        let text = self.tokenizer.decode(piece)?;
        if self.params.no_prefix.as_ref().is_some_and(|prefix| text.starts_with(prefix.as_str())) {
            return Ok(piece.to_vec());
        }
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain(std::iter::once(text.len())).collect();
        let mut cuts = [(); 2].map(|()| starts[rng.randint(0, starts.len() as i64) as usize]);
        cuts.sort_unstable();
        let prefix = self.tokenizer.encode(&text[..cuts[0]])?;
        let middle = self.tokenizer.encode(&text[cuts[0]..cuts[1]])?;
        let suffix = self.tokenizer.encode(&text[cuts[1]..])?;
        let marks = &self.params.tokens;
        let mut out = Vec::with_capacity(prefix.len() + middle.len() + suffix.len() + 3);
        if rng.bernoulli(self.params.spm_rate) {
            out.extend([marks.prefix, marks.suffix]);
            out.extend(suffix);
            out.push(marks.middle);
            out.extend(prefix);
        } else {
            out.push(marks.prefix);
            out.extend(prefix);
            out.push(marks.suffix);
            out.extend(suffix);
            out.push(marks.middle);
        }
        out.extend(middle);
        Ok(out)
    }
}

#[cfg(test)]
#[path = "fim_tests.rs"]
mod tests;
