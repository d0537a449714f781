//! Writing an event file, and cutting the events of earlier runs beyond the point where this one
//! resumes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bridge_data::untrusted_io;

use super::event::{Event, EventKind};
use super::record::{frame, split};
use crate::logging::files::{FileError, entries};
use crate::logging::host::host_name;
use crate::logging::record::Split;
use crate::logging::sink::MadeAgain;

/// Suffix of the curves that count samples instead of iterations.
pub const SAMPLES_SUFFIX: &str = " vs samples";

/// Suffix of the curves of perplexities.
pub const PERPLEXITY_SUFFIX: &str = " ppl";

/// Longest delay of an event, as `flush_secs` of PyTorch's `SummaryWriter`.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

const FILE_PREFIX: &str = "events.out.tfevents.";

/// Progress of the checkpoint that a run resumes from; zeros for a new run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// Iterations completed.
    pub iteration: u64,
    /// Samples trained on.
    pub consumed_samples: u64,
    /// Part of the last iteration that is repeated.
    pub again: Option<MadeAgain>,
}

impl ResumePoint {
    /// True if a run that resumes here will not write the event again.
    ///
    /// `validations` has how many points of each curve of the validation split have stayed at the
    /// last iteration.
    fn keeps(&self, event: &Event, validations: &mut BTreeMap<String, usize>) -> bool {
        let EventKind::Scalar { tag, .. } = &event.kind else { return true };
        let (name, last) = match tag.strip_suffix(SAMPLES_SUFFIX) {
            Some(name) => (name, to_step(self.consumed_samples)),
            None => (tag.as_str(), to_step(self.iteration)),
        };
        match (self.again, split_of(name)) {
            (Some(again), Some(split)) if event.step == last => {
                let stayed = validations.entry(tag.clone()).or_default();
                let stays = again.keeps(split, *stayed);
                *stayed += usize::from(stays);
                stays
            }
            _ => event.step <= last,
        }
    }
}

/// The split that a curve is an evaluation of.
fn split_of(name: &str) -> Option<Split> {
    let name = name.strip_suffix(PERPLEXITY_SUFFIX).unwrap_or(name);
    [Split::Valid, Split::Test].into_iter().find(|split| name.ends_with(&format!(" {}", split.name())))
}

fn to_step(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Writes scalars to a new event file.
#[derive(Debug)]
pub struct EventWriter {
    pub(in crate::logging) path: PathBuf,
    file: BufWriter<File>,
    queue_size: usize,
    num_queued: usize,
    longest_wait: Duration,
    flushed: Instant,
}

impl EventWriter {
    /// Starts a new file of the run named `run` in `folder`, after cutting earlier files of this
    /// run at `resume`, so that each point of a curve is there once. The file's name ends with that
    /// of the run; files of other runs and programs stay as they are. Up to `queue_size` events
    /// wait in memory, for two minutes at most while there are further ones.
    pub fn open(folder: &Path, run: &str, resume: ResumePoint, queue_size: usize) -> Result<Self, FileError> {
        fs::create_dir_all(folder).map_err(FileError::of(folder))?;
        // In the order in which they were begun.
        let suffix = format!(".{run}");
        let is_own = |name: &str| name.starts_with(FILE_PREFIX) && name.ends_with(&suffix);
        let mut validations = BTreeMap::new();
        for path in entries(folder, is_own).map_err(FileError::of(folder))? {
            cut(&path, resume, &mut validations)?;
        }
        let (path, file) = create_file(folder, run)?;
        let mut writer = Self {
            path,
            file: BufWriter::new(file),
            queue_size: queue_size.max(1),
            num_queued: 0,
            longest_wait: LONGEST_WAIT,
            flushed: Instant::now(),
        };
        writer.write(0, EventKind::FileVersion("brain.Event:2".into()))?;
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a point to the curve `tag`.
    pub fn scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<(), FileError> {
        self.write(to_step(step), EventKind::Scalar { tag: tag.to_owned(), value: value as f32 })
    }

    /// Hands everything to the operating system.
    pub fn flush(&mut self) -> Result<(), FileError> {
        (self.num_queued, self.flushed) = (0, Instant::now());
        self.file.flush().map_err(FileError::of(&self.path))
    }

    fn write(&mut self, step: i64, kind: EventKind) -> Result<(), FileError> {
        let event = Event { wall_time: seconds_since_1970(), step, kind };
        self.file.write_all(&frame(&event.encode())).map_err(FileError::of(&self.path))?;
        self.num_queued += 1;
        let is_due = self.num_queued >= self.queue_size || self.flushed.elapsed() >= self.longest_wait;
        if is_due { self.flush() } else { Ok(()) }
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Creates a file under the first free name; runs that start within a second of each other must not
/// share one.
fn create_file(folder: &Path, run: &str) -> Result<(PathBuf, File), FileError> {
    let host = host_name();
    let host = if host.is_empty() { "localhost" } else { &host };
    let mut counter = 0;
    loop {
        let name =
            format!("{FILE_PREFIX}{:010.0}.{host}.{}.{counter}.{run}", seconds_since_1970().floor(), process::id());
        let path = folder.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => counter += 1,
            Err(error) => return Err(FileError::of(&path)(error)),
        }
    }
}

/// Removes what a run that continues at `resume` will write again, and any torn record at the end.
fn cut(path: &Path, resume: ResumePoint, validations: &mut BTreeMap<String, usize>) -> Result<(), FileError> {
    let bytes = untrusted_io::read(path, untrusted_io::RECORDS_BYTES).map_err(FileError::of(path))?;
    let events = split(path, &bytes)?;
    let kept = events.iter().filter(|(event, _)| resume.keeps(event, validations));
    let kept: Vec<u8> = kept.flat_map(|(_, record)| *record).copied().collect();
    if kept == bytes {
        return Ok(());
    }
    untrusted_io::replace(path, &kept).map_err(FileError::of(path))
}

#[cfg(test)]
mod tests {
    use super::super::read_events;
    use super::*;

    /// All points of all files in a folder.
    fn points(folder: &Path) -> Vec<(String, i64, f32)> {
        let mut points = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let events = read_events(&entry.unwrap().path()).unwrap();
            assert_eq!(events[0].kind, EventKind::FileVersion("brain.Event:2".into()));
            points.extend(events.into_iter().filter_map(|event| match event.kind {
                EventKind::Scalar { tag, value } => Some((tag, event.step, value)),
                _ => None,
            }));
        }
        points.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        points
    }

    fn run(folder: &Path, resume: ResumePoint, last: u64) {
        let mut writer = EventWriter::open(folder, "a", resume, 1000).unwrap();
        for iteration in resume.iteration + 1..=last {
            writer.scalar("lm loss", 1.0 / iteration as f64, iteration).unwrap();
            writer.scalar("lm loss vs samples", 1.0 / iteration as f64, iteration * 8).unwrap();
        }
        writer.flush().unwrap();
    }

    #[test]
    fn scalars_read_back() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), ResumePoint::default(), 2);
        let expected = [
            ("lm loss".to_owned(), 1, 1.0),
            ("lm loss".to_owned(), 2, 0.5),
            ("lm loss vs samples".to_owned(), 8, 1.0),
            ("lm loss vs samples".to_owned(), 16, 0.5),
        ];
        assert_eq!(points(folder.path()), expected);
    }

    #[test]
    fn a_resumed_run_has_each_point_once() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), ResumePoint::default(), 5);
        run(folder.path(), ResumePoint { iteration: 3, consumed_samples: 24, again: None }, 6);
        let all = points(folder.path());
        let steps = |tag| all.iter().filter(|point| point.0 == tag).map(|point| point.1).collect::<Vec<_>>();
        assert_eq!(steps("lm loss"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(steps("lm loss vs samples"), [8, 16, 24, 32, 40, 48]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn evaluations_that_are_made_again_have_one_point() {
        let folder = tempfile::tempdir().unwrap();
        let evaluate = |resume, splits: &[&str]| {
            let mut writer = EventWriter::open(folder.path(), "a", resume, 1000).unwrap();
            for split in splits {
                writer.scalar(&format!("lm loss {split}"), 1.0, 4).unwrap();
                writer.scalar(&format!("lm loss {split} vs samples"), 1.0, 32).unwrap();
                writer.scalar(&format!("lm loss {split} ppl"), 1.0, 4).unwrap();
            }
            writer.flush().unwrap();
        };
        run(folder.path(), ResumePoint::default(), 4);
        // The first validation is during training.
        let resume = ResumePoint { iteration: 4, consumed_samples: 32, again: None };
        let (valid, test) = (Split::Valid.name(), Split::Test.name());
        evaluate(resume, &[valid, valid, test]);
        let before = points(folder.path());
        for _ in 0..2 {
            let again = Some(MadeAgain { kept_validations: 1 });
            evaluate(ResumePoint { again, ..resume }, &[valid, test]);
            assert_eq!(points(folder.path()), before);
        }
        evaluate(ResumePoint { again: Some(MadeAgain { kept_validations: 0 }), ..resume }, &[]);
        assert_eq!(points(folder.path()).len(), 8, "only those of training are left");
    }

    #[test]
    fn event_files_of_others_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), ResumePoint::default(), 5);
        let foreign = folder.path().join("events.out.tfevents.1700000000.host.7.0");
        fs::write(&foreign, frame(&[0; 24])).unwrap();
        let bytes = |path: &Path| fs::read(path).unwrap();
        let files =
            || -> Vec<PathBuf> { fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect() };
        let before: Vec<_> = files().into_iter().map(|path| (bytes(&path), path)).collect();
        for resume in [ResumePoint::default(), ResumePoint { iteration: 2, consumed_samples: 16, again: None }] {
            drop(EventWriter::open(folder.path(), "b", resume, 1000).unwrap());
        }
        assert!(before.iter().all(|(content, path)| bytes(path) == *content));
        assert_eq!(files().len(), before.len() + 2);
    }

    #[test]
    fn events_wait_until_the_queue_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::open(folder.path(), "a", ResumePoint::default(), 2).unwrap();
        writer.scalar("x", 1.0, 1).unwrap();
        assert_eq!(points(folder.path()).len(), 0);
        writer.scalar("x", f64::NAN, 2).unwrap();
        let points = points(folder.path());
        assert_eq!(points.len(), 2);
        assert!(points[1].2.is_nan());
    }

    #[test]
    fn events_do_not_wait_longer_than_they_may() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::open(folder.path(), "a", ResumePoint::default(), 1000).unwrap();
        writer.scalar("x", 1.0, 1).unwrap();
        assert_eq!(points(folder.path()).len(), 0);
        writer.longest_wait = Duration::ZERO;
        writer.scalar("x", 2.0, 2).unwrap();
        assert_eq!(points(folder.path()).len(), 2);
    }
}
