//! All records of a split as a store, in constant memory: a thread reads, other threads tokenize,
//! and examples are written in the order of the records. A store that an earlier run made from the
//! same files, tokenizer and options is reused.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher as _;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::json;
use twox_hash::XxHash3_64;

use super::example::{Example, ExampleBuilder, ParsedRecord};
use super::files::{Record, RecordPosition, Records};
use super::params::{BadLine, SftParams};
use super::store::{Store, StoreWriter, paths};
use crate::examples_report::ExamplesReport;
use crate::gpt::Split;
use crate::pack::Overwrite;
use crate::pack::reuse::{Claim, claim};
use crate::{DataError, atomic, manifest, untrusted_io};

/// Bytes of records that are tokenized at once.
const BATCH_BYTES: usize = 4 << 20;
/// Number of wrong lines whose problems a report lists.
const NAMED_LINES: usize = 5;

/// Version of the store and its report; another version rebuilds the stores of earlier releases.
const FORMAT: u32 = 3;

/// Files whose records share one store.
pub(super) struct Part<'a> {
    pub split: Split,
    /// Name of the store.
    pub name: String,
    pub files: &'a [PathBuf],
}

/// The store of a part. Fails on files that cannot be read; a line that is not an example, unless
/// such lines are skipped; no examples at all; a folder that cannot be written.
pub(super) fn prepare(
    params: &SftParams,
    builder: &Arc<ExampleBuilder>,
    part: &Part<'_>,
) -> Result<(Store, ExamplesReport), DataError> {
    let Part { split, files, .. } = *part;
    let prefix = params.cache_folder().join(&part.name);
    let key = json!({
        "files": files.iter().map(|file| fingerprint(file)).collect::<Result<Vec<_>, _>>()?,
        "examples": builder.identity(),
        "bad_line": format!("{:?}", params.bad_line),
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
    });
    let files_of_store = paths(&prefix);
    let files_of_store = files_of_store.each_ref().map(PathBuf::as_path);
    let report = match claim::<ExamplesReport>(&prefix, Some(&key), &files_of_store, Overwrite::Own)? {
        Claim::Whole(report, _lock) => {
            manifest::check(&prefix, manifest::Depth::Sampled)?;
            ExamplesReport { reused: true, ..report }
        }
        Claim::ToWrite(_lock) => {
            files_of_store.into_iter().try_for_each(atomic::remove_stale)?;
            let report = write(params, builder, split, files, StoreWriter::create(&prefix)?)?;
            manifest::own(&prefix)?;
            let (writer, report) = report;
            writer.finish()?;
            manifest::store(&prefix, key, &files_of_store, report.clone())?;
            report
        }
    };
    Ok((Store::open(&prefix, builder.vocab_size())?, report))
}

/// Fingerprint that distinguishes a file from another one.
fn fingerprint(path: &std::path::Path) -> Result<serde_json::Value, DataError> {
    let (file, size) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    let metadata = file.metadata().map_err(DataError::io("inspect", path))?;
    Ok(json!([path.display().to_string(), size, metadata.mtime(), metadata.mtime_nsec()]))
}

/// Reads, tokenizes and writes all records.
fn write(
    params: &SftParams,
    builder: &Arc<ExampleBuilder>,
    split: Split,
    files: &[PathBuf],
    writer: StoreWriter,
) -> Result<(StoreWriter, ExamplesReport), DataError> {
    let started = Instant::now();
    let cannot = |error: &dyn fmt::Display| DataError::Parameter(format!("cannot start threads: {error}"));
    let threads = params.num_threads.unwrap_or(0);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| cannot(&error))?;
    let report = ExamplesReport {
        source: files.first().map(|file| file.display().to_string()).unwrap_or_default(),
        split: split.name().to_owned(),
        examples: 0,
        tokens: 0,
        counted: 0,
        bytes: 0,
        digest: String::new(),
        truncated: 0,
        without_loss: 0,
        blank: 0,
        lost_calls: 0,
        unended: 0,
        ties: 0,
        differing: 0,
        unused: BTreeMap::new(),
        skipped: 0,
        reasons: Vec::new(),
        seconds: 0.0,
        reused: false,
    };
    let digest = XxHash3_64::new();
    let mut store_builder = StoreBuilder { files, bad_line: params.bad_line, builder, writer, report, digest };
    let (sender, receiver) = sync_channel(1);
    std::thread::scope(|scope| {
        let read = move || {
            let mut batches = Batches { records: Records::new(files), failed: false };
            // If the receiver is gone, it has failed; stop reading.
            while batches.next().is_some_and(|batch| sender.send(batch).is_ok()) {}
        };
        std::thread::Builder::new().spawn_scoped(scope, read).map_err(|error| cannot(&error))?;
        store_builder.consume(receiver, &pool)
    })?;
    let StoreBuilder { writer, mut report, digest, .. } = store_builder;
    report.digest = format!("{:016x}", digest.finish());
    report.seconds = started.elapsed().as_secs_f64();
    if report.examples == 0 {
        return Err(DataError::Source(format!("there are no examples to train on: {report}")));
    }
    Ok((writer, report))
}

/// Writes the examples of records to a store, and counts them in a report.
struct StoreBuilder<'a> {
    files: &'a [PathBuf],
    bad_line: BadLine,
    builder: &'a ExampleBuilder,
    writer: StoreWriter,
    report: ExamplesReport,
    /// Digest of the records so far.
    digest: XxHash3_64,
}

impl StoreBuilder<'_> {
    /// Taken by value: a failure drops the receiver, which stops the reader.
    fn consume(
        &mut self,
        batches: Receiver<Result<Vec<Record>, DataError>>,
        pool: &rayon::ThreadPool,
    ) -> Result<(), DataError> {
        for batch in batches {
            let batch = batch?;
            let builder = self.builder;
            let make = |record: Record| {
                let (file, position) = (record.file, record.position());
                let (bytes, digest) = (record.raw.num_bytes(), record.raw.digest());
                let made = untrusted_io::contained(|| record.raw.value().and_then(|value| builder.read(&value)));
                (file, position, (bytes, digest), made.and_then(|made| made))
            };
            let made: Vec<_> = pool.install(|| batch.into_par_iter().map(make).collect());
            for (file, position, (bytes, digest), example) in made {
                self.report.bytes += bytes as u64;
                self.digest.write_u64(digest);
                match example {
                    Ok(ParsedRecord { examples, unused, differs }) => {
                        self.report.differing += u64::from(differs);
                        self.report.note_unused(unused);
                        self.add(&examples)?;
                    }
                    Err(problem) => self.refuse(file, position, &problem)?,
                }
            }
        }
        Ok(())
    }

    /// Adds the examples of a record.
    fn add(&mut self, examples: &[Example]) -> Result<(), DataError> {
        if !examples.iter().all(Example::counts) {
            self.report.without_loss += 1;
            return Ok(());
        }
        self.report.examples += 1;
        // For a preference, the preferred answer is examined.
        self.report.blank += u64::from(examples.first().is_some_and(|example| example.is_blank));
        self.report.lost_calls += u64::from(examples.iter().any(|example| example.loses_calls));
        self.report.unended += u64::from(examples.iter().any(|example| example.is_unended));
        self.report.ties += u64::from(matches!(examples, [chosen, rejected] if chosen.ids == rejected.ids));
        self.writer.add_checksum(example_checksum(examples))?;
        for example in examples {
            self.report.tokens += example.ids.len() as u64;
            self.report.counted += example.weights.iter().skip(1).filter(|weight| **weight > 0.0).count() as u64;
            self.report.truncated += u64::from(example.is_truncated);
            self.writer.add(example)?;
        }
        Ok(())
    }

    fn refuse(&mut self, file: usize, position: RecordPosition, problem: &str) -> Result<(), DataError> {
        let reason = format!("{position}: {problem}");
        match self.bad_line {
            BadLine::Error => Err(DataError::malformed(&self.files[file], reason)),
            BadLine::Skip => {
                self.report.skipped += 1;
                if self.report.reasons.len() < NAMED_LINES {
                    self.report.reasons.push(format!("{}: {reason}", self.files[file].display()));
                }
                Ok(())
            }
        }
    }
}

/// Checksum that finds equal examples.
fn example_checksum(examples: &[Example]) -> u64 {
    let mut hasher = XxHash3_64::new();
    for example in examples {
        hasher.write_u64(example.ids.len() as u64);
        example.ids.iter().for_each(|id| hasher.write_i64(*id));
        example.weights.iter().for_each(|weight| hasher.write_u32(weight.to_bits()));
    }
    hasher.finish()
}

/// Groups records into batches of about [`BATCH_BYTES`].
struct Batches<'a> {
    records: Records<'a>,
    failed: bool,
}

impl Iterator for Batches<'_> {
    type Item = Result<Vec<Record>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES && !self.failed {
            match self.records.next() {
                Some(Ok(record)) => {
                    bytes += record.raw.num_bytes() + 64;
                    batch.push(record);
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
