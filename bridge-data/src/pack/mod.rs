//! Tokenizing text into an indexed dataset, and training tokenizers on it: in parallel, in order,
//! with bounded memory, reusing earlier results. Finding text belongs to `source`, the file format
//! to `indexed`.

mod pieces;
pub(crate) mod reuse;
mod train;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use reuse::Claim;
pub use reuse::{OutputLock, Overwrite};
pub use train::{TokenizerTraining, train_tokenizer, train_tokenizer_locked};

use super::indexed::{IndexedDatasetBuilder, TokenDtype, bin_path, idx_path};
use super::source::{Documents, RawDocument, Text, TextSource};
use super::{DataError, atomic, manifest};
use crate::tokenizer::{Tokenizer, require_eod};

/// Bytes of text that are tokenized together; the reader is ahead by the same amount.
const BATCH_BYTES: usize = 8 << 20;
/// Longer documents are cut into pieces of about this size where the tokenizer allows it.
const PIECE_BYTES: usize = 256 << 10;
/// Maximum number of names of skipped documents in a report.
const NAMED_DOCUMENTS: usize = 20;

/// End of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DocumentEnd {
    /// The tokenizer's end-of-document token.
    #[default]
    EndOfDocument,
    /// No token.
    Nothing,
}

/// Progress of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkCounts {
    /// Documents done.
    pub documents: u64,
    /// Bytes of the source done.
    pub bytes_done: u64,
    /// Bytes of the source, if known.
    pub bytes_total: Option<u64>,
    /// Tokens written; 0 while training a tokenizer.
    pub tokens: u64,
}

/// An observer of the work that may stop it.
pub trait WorkProgress: Send + Sync {
    /// Called every few megabytes and at the end, from a working thread.
    fn update(&self, counts: &WorkCounts);

    /// True if packing must stop; called between pieces of text, from any thread.
    fn cancelled(&self) -> bool {
        false
    }
}

/// An observer that ignores everything.
impl WorkProgress for super::Silent {
    fn update(&self, _counts: &WorkCounts) {}
}

/// Text to pack and the destination.
pub struct PackParams<'a> {
    /// The text.
    pub source: &'a TextSource,
    /// The tokenizer.
    pub tokenizer: &'a dyn Tokenizer,
    /// Path of the dataset without `.bin` and `.idx`.
    pub output_prefix: &'a Path,
    /// Files that may be replaced.
    pub overwrite: Overwrite,
    /// End of each document.
    pub document_end: DocumentEnd,
    /// Threads; `None` means one per core.
    pub num_threads: Option<usize>,
    /// Receives progress.
    pub progress: &'a dyn WorkProgress,
}

/// Report of a packing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PackReport {
    /// Path of the dataset without `.bin` and `.idx`.
    pub prefix: PathBuf,
    /// Documents written.
    pub documents: u64,
    /// Tokens written, including end-of-document tokens.
    pub tokens: u64,
    /// Bytes of the source.
    pub bytes: u64,
    /// Documents without text, left out.
    pub empty_documents: u64,
    /// Documents that are not UTF-8, left out.
    pub invalid_documents: u64,
    /// The names of the first of those.
    pub invalid_names: Vec<String>,
    /// Sequences that documents were cut into ([`TextSource::in_pieces`]); 0 if none was to be cut.
    #[serde(default)]
    pub pieces: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// True if an earlier result was reused.
    #[serde(skip)]
    pub reused: bool,
}

impl std::fmt::Display for PackReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = if self.reused { "unchanged, reusing" } else { "packed" };
        write!(
            f,
            "{}: {verb} {} documents, {} tokens from {} bytes",
            self.prefix.display(),
            self.documents,
            self.tokens,
            self.bytes
        )?;
        if self.pieces > 0 {
            write!(f, "; cut at blank lines into {} pieces, which the splits divide", self.pieces)?;
        }
        if self.empty_documents > 0 {
            write!(f, "; {} empty documents skipped", self.empty_documents)?;
        }
        if self.invalid_documents > 0 {
            write!(
                f,
                "; {} documents that are no text skipped: {}",
                self.invalid_documents,
                self.invalid_names.join(", ")
            )?;
            if self.invalid_documents > self.invalid_names.len() as u64 {
                f.write_str(", ...")?;
            }
        }
        Ok(())
    }
}

/// Tokenizes the source into `{output_prefix}.bin` and `.idx`. The files appear when they are
/// complete; running it again with the same text, tokenizer and options does nothing.
///
/// # Errors
/// If text is unreadable or malformed, there is no end-of-document token or no text, another
/// process writes the same output, a file in its place may not be replaced, or the work is
/// cancelled.
pub fn pack(params: &PackParams<'_>) -> Result<PackReport, DataError> {
    pack_locked(params).map(|(report, _)| report)
}

/// The identifier of the tokenizer that token files were packed with
/// ([`Tokenizer::unique_identifier`]), if Bridge packed them and recorded it.
///
/// # Errors
/// A record that cannot be read.
pub fn packed_with(prefix: &Path) -> Result<Option<serde_json::Value>, DataError> {
    let record = manifest::read::<serde_json::Value>(prefix)?;
    Ok(record.and_then(|mut record| record.made_from.get_mut("tokenizer").map(serde_json::Value::take)))
}

/// As [`pack`]. While the lock is held, no other process replaces the files.
///
/// # Errors
/// As [`pack`].
pub fn pack_locked(params: &PackParams<'_>) -> Result<(PackReport, OutputLock), DataError> {
    let started = Instant::now();
    let eod = match params.document_end {
        DocumentEnd::EndOfDocument => Some(require_eod(params.tokenizer)?),
        DocumentEnd::Nothing => None,
    };
    let dtype = TokenDtype::for_vocab_size(params.tokenizer.vocab_size());
    let (data_path, index_path) = (bin_path(params.output_prefix), idx_path(params.output_prefix));
    let key = params.source.fingerprint().map(|source| {
        serde_json::json!({
            "source": source,
            "tokenizer": params.tokenizer.unique_identifier(),
            "document_end": eod,
            "token_type": dtype.name(),
        })
    });
    let lock = match reuse::claim::<PackReport>(
        params.output_prefix,
        key.as_ref(),
        &[&data_path, &index_path],
        params.overwrite,
    )? {
        Claim::Whole(report, lock) => {
            return Ok((PackReport { prefix: params.output_prefix.to_owned(), reused: true, ..report }, lock));
        }
        Claim::ToWrite(lock) => lock,
    };
    atomic::remove_stale(&data_path)?;
    atomic::remove_stale(&index_path)?;
    let builder = IndexedDatasetBuilder::create(params.output_prefix, dtype)?;
    let mut packer = Packer::new(params, builder, eod);
    packer.run()?;
    manifest::own(params.output_prefix)?;
    let mut report = packer.finish()?;
    report.seconds = started.elapsed().as_secs_f64();
    // A stream cannot be recognized, so the dataset made from it is never reused.
    manifest::store(params.output_prefix, key.unwrap_or_default(), &[&data_path, &index_path], &report)?;
    Ok((report, lock))
}

/// Text that is tokenized at once.
struct Piece<'t> {
    text: &'t str,
    ends: Ends,
}

/// Unit that ends after a piece of text.
#[derive(Clone, Copy)]
enum Ends {
    Nothing,
    Sequence,
    Document,
}

struct Packer<'a> {
    params: &'a PackParams<'a>,
    builder: IndexedDatasetBuilder,
    eod: Option<i64>,
    counts: WorkCounts,
    report: PackReport,
    sequence: Vec<i64>,
}

impl<'a> Packer<'a> {
    fn new(params: &'a PackParams<'a>, builder: IndexedDatasetBuilder, eod: Option<i64>) -> Self {
        let counts = WorkCounts { bytes_total: params.source.total_bytes(), ..WorkCounts::default() };
        let report = PackReport {
            prefix: params.output_prefix.to_owned(),
            documents: 0,
            tokens: 0,
            bytes: 0,
            empty_documents: 0,
            invalid_documents: 0,
            invalid_names: Vec::new(),
            pieces: 0,
            seconds: 0.0,
            reused: false,
        };
        Self { params, builder, eod, counts, report, sequence: Vec::new() }
    }

    /// A thread reads batches ahead while the pool tokenizes the current one.
    fn run(&mut self) -> Result<(), DataError> {
        let documents = self.params.source.documents()?;
        let threads = self.params.num_threads.unwrap_or(0);
        let cannot = |error: &dyn std::fmt::Display| DataError::Parameter(format!("cannot start threads: {error}"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| cannot(&error))?;
        let (sender, receiver) = sync_channel(1);
        std::thread::scope(|scope| {
            let read = move || {
                for batch in (Batches { documents, failed: false }) {
                    // If the receiver is gone, it has failed; stop reading.
                    if sender.send(batch).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, read).map_err(|error| cannot(&error))?;
            // Taken by value: a failure drops the receiver, which stops the reader.
            self.consume(receiver, &pool)
        })
    }

    fn consume(
        &mut self,
        batches: Receiver<Result<Vec<RawDocument>, DataError>>,
        pool: &rayon::ThreadPool,
    ) -> Result<(), DataError> {
        while let Ok(batch) = batches.recv() {
            if self.params.progress.cancelled() {
                return Err(DataError::Interrupted);
            }
            self.write_batch(batch?, pool)?;
            self.params.progress.update(&self.counts);
        }
        Ok(())
    }

    fn write_batch(&mut self, batch: Vec<RawDocument>, pool: &rayon::ThreadPool) -> Result<(), DataError> {
        let tokenizer = self.params.tokenizer;
        let sizes: Vec<usize> = batch.iter().map(RawDocument::num_bytes).collect();
        let decoded: Vec<(String, Result<Text, DataError>)> =
            pool.install(|| batch.into_par_iter().map(|document| (document.name(), document.into_text())).collect());
        let mut texts = Vec::with_capacity(decoded.len());
        for (name, text) in decoded {
            match text? {
                Text::Valid(text) => texts.push(text),
                Text::Empty => self.report.empty_documents += 1,
                Text::NoText(what) => {
                    self.report.invalid_documents += 1;
                    if self.report.invalid_names.len() < NAMED_DOCUMENTS {
                        self.report.invalid_names.push(format!("{name} ({what})"));
                    }
                }
            }
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for text in &texts {
            let sequences = match self.params.source.piece_bytes() {
                Some(size) => pieces::at_blank_lines(text, size),
                None => vec![text.as_str()],
            };
            for sequence in sequences {
                pieces.extend(cut(tokenizer, sequence).into_iter().map(|text| Piece { text, ends: Ends::Nothing }));
                end_last(&mut pieces, Ends::Sequence);
            }
            end_last(&mut pieces, Ends::Document);
        }
        // A document may be as long as the whole text.
        let progress = self.params.progress;
        let encode = |piece: &str| match progress.cancelled() {
            true => Err(DataError::Interrupted),
            false => Ok(tokenizer.encode(piece)?),
        };
        let encoded: Result<Vec<Vec<i64>>, DataError> =
            pool.install(|| pieces.par_iter().map(|piece| encode(piece.text)).collect());
        for (ids, piece) in encoded?.iter().zip(&pieces) {
            self.sequence.extend_from_slice(ids);
            match piece.ends {
                Ends::Nothing => {}
                Ends::Sequence => self.end_sequence()?,
                Ends::Document => self.end_document()?,
            }
        }
        self.counts.bytes_done += sizes.iter().sum::<usize>() as u64;
        Ok(())
    }

    fn end_sequence(&mut self) -> Result<(), DataError> {
        self.builder.add_item(&self.sequence)?;
        self.counts.tokens += self.sequence.len() as u64;
        self.report.pieces += u64::from(self.params.source.piece_bytes().is_some());
        self.sequence.clear();
        Ok(())
    }

    fn end_document(&mut self) -> Result<(), DataError> {
        self.sequence.extend(self.eod);
        self.end_sequence()?;
        self.builder.end_document();
        self.counts.documents += 1;
        Ok(())
    }

    fn finish(self) -> Result<PackReport, DataError> {
        if self.counts.documents == 0 {
            return Err(DataError::Source(format!(
                "there is no text to pack: {}: {} empty documents, {} that are no text{}",
                self.params.source.name(),
                self.report.empty_documents,
                self.report.invalid_documents,
                match self.report.invalid_names.as_slice() {
                    [] => String::new(),
                    names => format!(": {}", names.join(", ")),
                }
            )));
        }
        self.builder.finalize()?;
        Ok(PackReport {
            documents: self.counts.documents,
            tokens: self.counts.tokens,
            bytes: self.counts.bytes_done,
            ..self.report
        })
    }
}

fn end_last(pieces: &mut [Piece], ends: Ends) {
    if let Some(piece) = pieces.last_mut() {
        piece.ends = ends;
    }
}

/// Groups documents into batches of about [`BATCH_BYTES`].
struct Batches {
    documents: Documents,
    failed: bool,
}

impl Iterator for Batches {
    type Item = Result<Vec<RawDocument>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && !self.failed {
            match self.documents.next() {
                Some(Ok(document)) => {
                    // Even an empty document counts.
                    bytes += document.num_bytes() + 64;
                    batch.push(document);
                }
                Some(Err(error)) => {
                    self.failed = true;
                    return Some(Err(error));
                }
                None => break,
            }
        }
        (!batch.is_empty()).then_some(Ok(batch))
    }
}

/// Splits a long text where that does not change its tokens.
fn cut<'t>(tokenizer: &dyn Tokenizer, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::with_capacity(text.len() / PIECE_BYTES + 1);
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let Some(at) = tokenizer.split_point(rest, PIECE_BYTES).filter(|&at| at > 0) else { break };
        let (piece, tail) = rest.split_at(at);
        pieces.push(piece);
        rest = tail;
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
mod tests;
