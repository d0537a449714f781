//! `metrics.jsonl`: one JSON object a line, each iteration once, also after a crash and a resume.
//! The file belongs to one run, whose name is in every line; another run's file is kept beside it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use serde_json::{Map, Value};

use crate::logging::files::{FileError, append_whole, set_aside};
use crate::logging::json_value::{MetricValue, fields_to_json};
use crate::logging::record::Occasion::AfterTraining;
use crate::logging::record::{Record, RecordKind, Split};
use crate::logging::sink::{MadeAgain, OpenError, Opened, Sink, SinkContext, SinkError};

const NAME: &str = "metrics.jsonl";

pub(super) fn open(context: &SinkContext) -> Opened {
    let logger = &context.config.logger;
    if !logger.metrics_jsonl {
        return Ok(None);
    }
    let file = MetricsFile::resume(&logger.log_dir.join(NAME), context.run, context.iteration, context.again);
    Ok(Some(Box::new(file.map_err(|error| OpenError::file(NAME, error))?)))
}

impl Sink for MetricsFile {
    fn name(&self) -> &str {
        NAME
    }

    fn missing_history(&self) -> Option<String> {
        let done = self.completed_iterations;
        let what = match self.earlier {
            _ if done == 0 => return None,
            None => format!("no record of the {done} iterations before the checkpoint"),
            Some((1, last)) if last == done => return None,
            Some((1, last)) => format!("no record of iterations {} to {done}, which are in the checkpoint", last + 1),
            Some((first, _)) => format!("no record of iterations 1 to {}", first - 1),
        };
        let path = self.path.display();
        Some(format!(
            "{path} has {what}: logs were removed, or logger.log_dir is another; curves begin with what is there"
        ))
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        Ok(record.fields().map_or(Ok(()), |fields| self.write(&fields))?)
    }
}

/// The key of the run's name.
const RUN: &str = "run";

/// Appends records, each flushed, to a metrics file.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    run: String,
    file: File,
    /// Iterations that the run has done before.
    completed_iterations: u64,
    /// The first and the last of them with a record.
    earlier: Option<(u64, u64)>,
}

impl MetricsFile {
    /// Opens the file of `run` to continue after `completed_iterations`, 0 for a new run.
    ///
    /// A file with records of another run is renamed to `metrics-NAME.jsonl`, with that run's name.
    /// Lines without a name, from earlier releases, belong to the resumed run.
    ///
    /// Lines about later iterations are dropped, because those iterations will run again; so is a
    /// last line that an interrupted run left torn. Evaluations after the last iteration that the
    /// run makes `again` are dropped too. The file is replaced in one step, so nothing is lost if
    /// this is interrupted too.
    pub fn resume(
        path: &Path,
        run: &str,
        completed_iterations: u64,
        again: Option<MadeAgain>,
    ) -> Result<Self, FileError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(FileError::of(folder))?;
        }
        // Name of the run that wrote the last record, if there is a record and it says.
        let mut owner = None;
        each_record(path, |record| {
            owner = Some(record.get(RUN).and_then(Value::as_str).map(str::to_owned));
            Ok(())
        })?;
        let is_own = match &owner {
            None => true,
            Some(None) => completed_iterations > 0,
            Some(Some(owner)) => owner == run,
        };
        if !is_own {
            let owner = owner.flatten().unwrap_or_else(|| "earlier".into());
            let pictures = ["loss.svg", "loss.png"].map(|name| path.with_file_name(name));
            let mut files = pictures.iter().filter(|picture| picture.is_file()).map(PathBuf::as_path).chain([path]);
            files.try_for_each(|file| set_aside(file, &owner)).map_err(FileError::of(path))?;
        }
        let mut kept = Kept { completed_iterations, again, earlier: None, validations: 0 };
        let mut counted = kept.clone();
        let (mut bytes, mut size) = (0, 0);
        each_line(path, |line, record| {
            size += line.len();
            if record.is_some_and(|record| counted.keeps(&record)) {
                bytes += whole(line).len() + 1;
            }
            Ok(())
        })?;
        let earlier = counted.earlier;
        if bytes != size {
            let written = untrusted_io::replace_with(path, |file| {
                let mut out = BufWriter::new(file);
                each_line(path, |line, record| {
                    if record.is_some_and(|record| kept.keeps(&record)) {
                        out.write_all(whole(line)).and_then(|()| out.write_all(b"\n")).map_err(FileError::of(path))?;
                    }
                    Ok(())
                })
                .map_err(io::Error::other)?;
                out.flush()
            });
            written.map_err(FileError::of(path))?;
        }
        let file = untrusted_io::append(path).map_err(FileError::of(path))?;
        Ok(Self { path: path.to_owned(), run: run.to_owned(), file, completed_iterations, earlier })
    }

    /// Appends a record. Whole lines reach the operating system, so another process can follow the
    /// file. After an error the file has no part of the record, and further ones can be tried.
    pub fn write(&mut self, fields: &[(String, MetricValue)]) -> Result<(), FileError> {
        let run = (RUN.to_owned(), self.run.as_str().into());
        let mut line = fields_to_json(&[fields, &[run]].concat());
        line.push('\n');
        append_whole(&mut self.file, line.as_bytes()).map_err(FileError::of(&self.path))
    }
}

/// Chooses the records that a resumed run keeps.
#[derive(Clone, Debug)]
struct Kept {
    completed_iterations: u64,
    again: Option<MadeAgain>,
    /// The first and the last iteration with a record of training.
    earlier: Option<(u64, u64)>,
    /// Validations after the last iteration that were kept.
    validations: usize,
}

impl Kept {
    /// True if the run keeps the next record of the file.
    fn keeps(&mut self, record: &Map<String, Value>) -> bool {
        let iteration = record.get("iteration").and_then(Value::as_u64);
        let Some(iteration) = iteration.filter(|iteration| *iteration <= self.completed_iterations) else {
            return false;
        };
        if let Some(again) = self.again.filter(|_| iteration == self.completed_iterations)
            && let Some(split) = split_of(record)
        {
            if !again.keeps(split, self.validations) {
                return false;
            }
            self.validations += 1;
        }
        if record.get("kind").is_some_and(|kind| kind == "train") {
            self.earlier = Some((self.earlier.map_or(iteration, |(first, _)| first), iteration));
        }
        true
    }
}

/// The split that a record is an evaluation of.
fn split_of(record: &Map<String, Value>) -> Option<Split> {
    let kind = record.get("kind")?.as_str()?;
    [Split::Valid, Split::Test].into_iter().find(|split| RecordKind::Evaluation(*split, AfterTraining).name() == kind)
}

/// Hands over the records of a metrics file one by one; a torn last line is left out. A file that
/// does not exist has none.
pub fn each_record(
    path: &Path,
    mut take: impl FnMut(Map<String, Value>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    each_line(path, |_, record| record.map_or(Ok(()), &mut take))
}

/// Longest line that a record can have.
const LONGEST_LINE: u64 = 16 << 20;

/// Hands over the lines of a metrics file one by one, with their newlines, and their records: none
/// for a torn last line. One line is in memory at a time.
fn each_line(
    path: &Path,
    mut take: impl FnMut(&[u8], Option<Map<String, Value>>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    // Records that were written to an endless device cannot be read back.
    let is_device = |path: &Path| fs::metadata(path).is_ok_and(|file| file.file_type().is_char_device());
    let file = match untrusted_io::open(path) {
        Ok((file, _)) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_device(path) => return Ok(()),
        Err(error) => return Err(FileError::of(path)(error)),
    };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let length = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(FileError::of(path))?;
        if length == 0 {
            break;
        }
        // The text after the last newline is an incomplete line, or lacks only its newline.
        let is_last = !line.ends_with(b"\n") && (length as u64) < LONGEST_LINE;
        match serde_json::from_slice(whole(&line)) {
            Ok(record) => take(&line, Some(record))?,
            Err(_) if is_last => take(&line, None)?,
            Err(error) => {
                let place = format!("{}, line {number}", path.display());
                let message = format!("{place}: no JSON object: {error}; remove the line or move the file away");
                return Err(FileError::Damaged(message));
            }
        }
    }
    Ok(())
}

/// A line without its newline.
fn whole(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    impl MetricsFile {
        /// As `resume`, for a run that makes nothing again.
        pub fn open(path: &Path, run: &str, completed_iterations: u64) -> Result<Self, FileError> {
            Self::resume(path, run, completed_iterations, None)
        }
    }

    /// All records of a metrics file; a torn last line is left out.
    fn read_metrics(path: &Path) -> Result<Vec<Map<String, Value>>, FileError> {
        let mut records = Vec::new();
        each_record(path, |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(records)
    }

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
        run_named("a", path, completed, last);
    }

    fn run_named(name: &str, path: &Path, completed: u64, last: u64) {
        let mut writer = MetricsFile::open(path, name, completed).unwrap();
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
        let mut writer = MetricsFile::open(&path, "a", 0).unwrap();
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
             \"consumed_samples\":8,\"run\":\"a\"}\n"
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
        assert_eq!(iterations(&path), [1, 2], "a run that starts over");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn evaluations_that_are_made_again_are_there_once() {
        for kept_validations in [0, 1] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("metrics.jsonl");
            let again = Some(MadeAgain { kept_validations });
            let mut writer = MetricsFile::open(&path, "a", 0).unwrap();
            let mut write = |kind, iteration| writer.write(&fields(kind, iteration, [("loss", 1.0.into())])).unwrap();
            write("valid", 2);
            (1..=4).for_each(|iteration| write("train", iteration));
            (0..kept_validations).for_each(|_| write("valid", 4));
            let of_training = fs::read(&path).unwrap();
            ["valid", "test"].iter().for_each(|kind| write(kind, 4));
            drop(MetricsFile::open(&path, "a", 4).unwrap());
            assert!(fs::read(&path).unwrap().len() > of_training.len(), "a run that goes on keeps them");
            drop(MetricsFile::resume(&path, "a", 4, again).unwrap());
            assert_eq!(fs::read(&path).unwrap(), of_training);
        }
    }

    #[test]
    fn records_that_a_resumed_run_lacks_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let lacks = |completed| MetricsFile::open(&path, "a", completed).unwrap().missing_history();
        assert_eq!(lacks(0), None, "a new run has nothing to lack");
        assert!(lacks(4).unwrap().contains("metrics.jsonl has no record of the 4 iterations"));
        run(&path, 4, 6);
        assert!(lacks(6).unwrap().contains("no record of iterations 1 to 4:"));
        fs::remove_file(&path).unwrap();
        run(&path, 0, 6);
        assert_eq!(lacks(6), None);
        assert!(lacks(9).unwrap().contains("no record of iterations 7 to 9,"));
    }

    #[test]
    fn the_records_of_another_run_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        for (name, last) in [("a", 3), ("b", 2), ("a", 1), ("c", 4)] {
            run_named(name, &path, 0, last);
            assert_eq!(iterations(&path), (1..=last).collect::<Vec<_>>());
        }
        let kept = |name: &str| iterations(&folder.path().join(name)).len();
        assert_eq!((kept("metrics-a.jsonl"), kept("metrics-b.jsonl"), kept("metrics-a-2.jsonl")), (3, 2, 1));
        assert!(read_metrics(&path).unwrap().iter().all(|record| record["run"] == "c"));
    }

    #[test]
    fn records_without_a_name_are_continued_and_not_started_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let earlier = "{\"kind\":\"train\",\"iteration\":1}\n{\"kind\":\"train\",\"iteration\":2}\n";
        fs::write(&path, earlier).unwrap();
        run_named("b", &path, 2, 3);
        assert_eq!(iterations(&path), [1, 2, 3]);
        fs::write(&path, earlier).unwrap();
        run_named("c", &path, 0, 1);
        assert_eq!(iterations(&path), [1]);
        assert_eq!(iterations(&folder.path().join("metrics-earlier.jsonl")), [1, 2]);
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
        let mut writer = MetricsFile::open(&path, "a", 0).unwrap();
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
        let message = MetricsFile::open(&path, "a", 3).unwrap_err().to_string();
        assert!(message.contains("metrics.jsonl, line 2: no JSON object"), "{message}");
        assert!(MetricsFile::open(folder.path(), "a", 0).unwrap_err().to_string().contains(": "));
    }
}
