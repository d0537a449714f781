//! `metrics.jsonl`: one JSON object a line, each iteration once, also after a crash and a resume.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bridge_data::outside;
use serde_json::{Map, Value};

use crate::logging::json_value::{MetricValue, fields_to_json};
use crate::logging::record::Record;
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};

const NAME: &str = "metrics.jsonl";

pub(super) fn open(context: &SinkContext) -> Opened {
    let logger = &context.config.logger;
    if !logger.metrics_jsonl {
        return Ok(None);
    }
    let file = MetricsFile::open(&logger.log_dir.join(NAME), context.iteration);
    Ok(Some(Box::new(file.map_err(|error| OpenError::log(NAME, error))?)))
}

impl Sink for MetricsFile {
    fn name(&self) -> &str {
        NAME
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        Ok(record.fields().map_or(Ok(()), |fields| self.write(&fields))?)
    }
}

/// A metrics file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MetricsFileError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line, not the last one, that is no record.
    #[error("{}, line {line}: {reason}; remove the line or move the file away", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> MetricsFileError {
    let path = path.to_owned();
    move |source| MetricsFileError::Io { path, source }
}

/// Appends records, each flushed, to a metrics file.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file to continue after `completed_iterations`, 0 for a new run.
    ///
    /// Lines about later iterations are dropped, because those iterations will run again; so is a last line that an
    /// interrupted run left torn. The file is replaced in one step, so nothing is lost if this is interrupted too.
    ///
    /// # Errors
    /// File errors, or a damaged line before the last.
    pub fn open(path: &Path, completed_iterations: u64) -> Result<Self, MetricsFileError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io_error(folder))?;
        }
        let old = match read_regular(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_error(path)(error)),
        };
        let mut kept = Vec::with_capacity(old.len());
        for (line, record) in records(path, &old)? {
            if record.get("iteration").and_then(Value::as_u64).is_some_and(|i| i <= completed_iterations) {
                kept.extend_from_slice(line);
                kept.push(b'\n');
            }
        }
        if kept != old {
            outside::replace(path, &kept).map_err(io_error(path))?;
        }
        let file = outside::append(path).map_err(io_error(path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a record. Whole lines reach the operating system, so another process can follow the file.
    ///
    /// # Errors
    /// File errors. The file has no part of the record then, and further ones can be tried.
    pub fn write(&mut self, fields: &[(String, MetricValue)]) -> Result<(), MetricsFileError> {
        let mut line = fields_to_json(fields);
        line.push('\n');
        append_whole(&mut self.file, line.as_bytes()).map_err(io_error(&self.path))
    }
}

/// All records of a metrics file; a torn last line is left out.
///
/// # Errors
/// File errors, or a damaged line before the last.
pub fn read_metrics(path: &Path) -> Result<Vec<Map<String, Value>>, MetricsFileError> {
    let bytes = read_regular(path).map_err(io_error(path))?;
    Ok(records(path, &bytes)?.into_iter().map(|(_, record)| record).collect())
}

/// Reads a file, unless it is a device that has no end: nothing that was written there can be read back.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(path)? {
        file if file.file_type().is_char_device() => Ok(Vec::new()),
        _ => outside::read(path, outside::RECORDS_BYTES),
    }
}

/// Appends `bytes` to a file that is open for appending, or nothing: a disk may have room for a part of them.
pub(super) fn append_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let length = file.metadata()?.len();
    let written = file.write_all(bytes).and_then(|()| file.flush());
    if written.is_err() {
        // A device has no length. Where a file keeps the part, a reader finds the line torn.
        let _ = file.set_len(length);
    }
    written
}

type Lines<'a> = Vec<(&'a [u8], Map<String, Value>)>;

fn records<'a>(path: &Path, bytes: &'a [u8]) -> Result<Lines<'a>, MetricsFileError> {
    let mut records = Vec::new();
    let mut lines = bytes.split(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        // What follows the last newline is empty, or torn, or whole but for its newline.
        let is_last = lines.peek().is_none();
        if line.is_empty() && is_last {
            break;
        }
        match serde_json::from_slice(line) {
            Ok(record) => records.push((line, record)),
            Err(_) if is_last => break,
            Err(error) => {
                let (path, reason) = (path.to_owned(), format!("no JSON object: {error}"));
                return Err(MetricsFileError::Line { path, line: index + 1, reason });
            }
        }
    }
    Ok(records)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn train(iteration: u64, loss: f32) -> Vec<(String, MetricValue)> {
        fields("train", iteration, [("loss", loss.into())])
    }

    /// Fields of a line.
    pub(in super::super) fn fields<const N: usize>(
        kind: &str,
        iteration: u64,
        more: [(&str, MetricValue); N],
    ) -> Vec<(String, MetricValue)> {
        let head = [("kind", kind.into()), ("iteration", iteration.into())];
        head.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn run(path: &Path, completed: u64, last: u64) {
        let mut writer = MetricsFile::open(path, completed).unwrap();
        for iteration in completed + 1..=last {
            writer.write(&train(iteration, 1.0 / iteration as f32)).unwrap();
        }
    }

    fn iterations(path: &Path) -> Vec<u64> {
        read_metrics(path).unwrap().iter().map(|record| record["iteration"].as_u64().unwrap()).collect()
    }

    #[test]
    fn lines_read_as_documented() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs/tiny/metrics.jsonl");
        let mut writer = MetricsFile::open(&path, 0).unwrap();
        let record = fields(
            "train",
            1,
            [
                ("loss", 6.240_275_f32.into()),
                ("learning_rate", 1e-4.into()),
                ("grad_norm", f32::NAN.into()),
                ("consumed_samples", 8_u64.into()),
            ],
        );
        writer.write(&record).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"kind\":\"train\",\"iteration\":1,\"loss\":6.240275,\"learning_rate\":0.0001,\"grad_norm\":\"NaN\",\
             \"consumed_samples\":8}\n"
        );
    }

    #[test]
    fn a_resumed_run_has_each_iteration_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 7);
        run(&path, 4, 9);
        assert_eq!(iterations(&path), (1..=9).collect::<Vec<_>>());
        run(&path, 9, 10);
        assert_eq!(iterations(&path), (1..=10).collect::<Vec<_>>());
        run(&path, 0, 2);
        assert_eq!(iterations(&path), [1, 2], "a new run starts over");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_torn_last_line_is_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        run(&path, 0, 5);
        let whole = fs::read(&path).unwrap();
        // Wherever the last line is cut, at most that iteration is lost.
        let last_line = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for length in last_line..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let known = iterations(&path).len() as u64;
            assert_eq!(known, if length == whole.len() - 1 { 5 } else { 4 });
            run(&path, known, 6);
            assert_eq!(iterations(&path), [1, 2, 3, 4, 5, 6], "cut at {length}");
        }
    }

    #[test]
    fn a_file_that_takes_nothing_is_an_error_at_each_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut writer = MetricsFile::open(&path, 0).unwrap();
        for iteration in 1..3 {
            assert!(writer.write(&train(iteration, 1.0)).unwrap_err().to_string().contains("metrics.jsonl"));
        }
        assert!(read_metrics(&path).unwrap().is_empty(), "a device without an end is not read");
    }

    #[test]
    fn damage_elsewhere_is_an_error_with_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, "{\"kind\":\"train\",\"iteration\":1}\n{\"kin\n{\"kind\":\"train\",\"iteration\":3}\n")
            .unwrap();
        let message = MetricsFile::open(&path, 3).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl, line 2: no JSON object"), "{message}");
        assert!(MetricsFile::open(folder.path(), 0).unwrap_err().to_string().contains(": "));
    }
}
