//! Training a tokenizer on a text source, once: a second call with the same text and parameters
//! loads the first one's result. The training itself belongs to the tokenizer module.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::reuse::{self, Claim, OutputLock, Overwrite};
use super::{BATCH_BYTES, PIECE_BYTES, WorkCounts, WorkProgress};
use crate::source::{Documents, Text, TextSource};
use crate::tokenizer::{
    BpeTrainParams, HuggingFaceTokenizer, Tokenizer, TokenizerError, safe_cut, train_byte_level_bpe_until,
};
use crate::{DataError, atomic, manifest};

/// A trained tokenizer.
#[derive(Debug)]
pub struct TokenizerTraining {
    /// The tokenizer.
    pub tokenizer: HuggingFaceTokenizer,
    /// True if an earlier result was reused.
    pub reused: bool,
}

/// Trains a byte-level BPE tokenizer on the source and saves it in `folder` (`tokenizer.json` and
/// its companions).
///
/// # Errors
/// If text is unreadable or malformed, there is no text, the vocabulary is too small, another
/// process trains into the same folder, a file there may not be replaced, or the work is cancelled.
pub fn train_tokenizer(
    source: &TextSource,
    params: &BpeTrainParams,
    folder: &Path,
    overwrite: Overwrite,
    progress: &dyn WorkProgress,
) -> Result<TokenizerTraining, DataError> {
    train_tokenizer_locked(source, params, folder, overwrite, progress).map(|(training, _)| training)
}

/// As [`train_tokenizer`]. While the lock is held, no other process replaces the files.
///
/// # Errors
/// As [`train_tokenizer`].
pub fn train_tokenizer_locked(
    source: &TextSource,
    params: &BpeTrainParams,
    folder: &Path,
    overwrite: Overwrite,
    progress: &dyn WorkProgress,
) -> Result<(TokenizerTraining, OutputLock), DataError> {
    let output = folder.join("tokenizer");
    let (file, names) = (folder.join("tokenizer.json"), folder.join("tokenizer_config.json"));
    let key = source.fingerprint().map(|source| {
        serde_json::json!({
            "source": source,
            "vocab_size": params.vocab_size,
            "min_frequency": params.min_frequency,
            "special_tokens": params.special_tokens,
        })
    });
    let lock = match reuse::claim::<()>(&output, key.as_ref(), &[&file, &names], overwrite)? {
        Claim::Whole((), lock) => {
            return Ok((TokenizerTraining { tokenizer: HuggingFaceTokenizer::load(folder)?, reused: true }, lock));
        }
        Claim::ToWrite(lock) => lock,
    };
    atomic::remove_stale(&file)?;
    let feed = Feed::new(source, progress)?;
    let failure = Mutex::new(None);
    let pieces = Pieces { feed, pending: Vec::new(), failure: &failure };
    let tokenizer = train_byte_level_bpe_until(params, pieces, &|| progress.cancelled());
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let tokenizer = match tokenizer {
        Err(TokenizerError::Interrupted) => return Err(DataError::Interrupted),
        tokenizer => tokenizer?,
    };
    manifest::own(&output)?;
    tokenizer.save_assets(folder)?;
    atomic::write(&file, tokenizer.json().as_bytes())?;
    // Names of special tokens are people's to edit.
    manifest::store(&output, key.unwrap_or_default(), &[&file], ())?;
    Ok((TokenizerTraining { tokenizer, reused: false }, lock))
}

/// Decoded documents, counted.
struct Feed<'a> {
    documents: Documents,
    /// The source's, for messages.
    name: String,
    progress: &'a dyn WorkProgress,
    counts: WorkCounts,
    /// Documents that are not UTF-8.
    num_invalid: u64,
    /// Bytes done when progress was last reported.
    reported: u64,
}

impl<'a> Feed<'a> {
    fn new(source: &TextSource, progress: &'a dyn WorkProgress) -> Result<Self, DataError> {
        let counts = WorkCounts { bytes_total: source.total_bytes(), ..WorkCounts::default() };
        Ok(Self { documents: source.documents()?, name: source.name(), progress, counts, num_invalid: 0, reported: 0 })
    }

    fn next(&mut self) -> Result<Option<String>, DataError> {
        while let Some(document) = self.documents.next() {
            let document = document?;
            self.counts.bytes_done += document.num_bytes() as u64;
            let text = document.into_text()?;
            if matches!(text, Text::NoText(_)) {
                self.num_invalid += 1;
            }
            if let Text::Valid(text) = text {
                self.counts.documents += 1;
                if self.counts.bytes_done - self.reported >= BATCH_BYTES as u64 {
                    self.report();
                }
                return Ok(Some(text));
            }
        }
        self.report();
        match self.counts.documents {
            0 => {
                let invalid = match self.num_invalid {
                    0 => String::new(),
                    number => format!(
                        ": {number} documents are not UTF-8 text; convert them, as by `iconv -f LATIN1 -t UTF-8`"
                    ),
                };
                Err(DataError::Source(format!("there is no text to train a tokenizer on in {}{invalid}", self.name)))
            }
            _ => Ok(None),
        }
    }

    fn report(&mut self) {
        self.reported = self.counts.bytes_done;
        self.progress.update(&self.counts);
    }
}

/// Documents joined or split into pieces of a suitable size for parallel training. Ends at the
/// first failure, which it stores in its slot.
struct Pieces<'a> {
    feed: Feed<'a>,
    /// Pieces of the last document, last first.
    pending: Vec<String>,
    failure: &'a Mutex<Option<DataError>>,
}

impl Iterator for Pieces<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        // A document may be long.
        let is_cancelled = self.feed.progress.cancelled();
        if self.pending.is_empty() || is_cancelled {
            let next = if is_cancelled { Err(DataError::Interrupted) } else { self.feed.next() };
            match next {
                Ok(Some(text)) => self.pending = pieces_of(&text),
                Ok(None) => return None,
                Err(error) => {
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return None;
                }
            }
        }
        self.pending.pop()
    }
}

fn pieces_of(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let Some(at) = safe_cut(rest, PIECE_BYTES) else { break };
        pieces.push(rest[..at].to_owned());
        rest = &rest[at..];
    }
    pieces.push(rest.to_owned());
    pieces.reverse();
    pieces
}
