//! Writing an event file, and cutting what earlier runs wrote beyond the point where this one resumes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use bridge_data::outside;

use super::event::{Event, EventKind};
use super::record::{EventFileError, frame, split};

/// What the twins of curves that count samples instead of iterations end with.
pub const SAMPLES_SUFFIX: &str = " vs samples";

const FILE_PREFIX: &str = "events.out.tfevents.";

/// How far the checkpoint was that a run continues from; zeros for a new run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// Iterations completed.
    pub iteration: u64,
    /// Samples trained on.
    pub consumed_samples: u64,
}

impl ResumePoint {
    /// Whether a run that continues here will not write the event again.
    fn keeps(&self, event: &Event) -> bool {
        match &event.kind {
            EventKind::Scalar { tag, .. } if tag.ends_with(SAMPLES_SUFFIX) => {
                event.step <= to_step(self.consumed_samples)
            }
            EventKind::Scalar { .. } => event.step <= to_step(self.iteration),
            EventKind::FileVersion(_) | EventKind::Other => true,
        }
    }
}

fn to_step(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> EventFileError {
    let path = path.to_owned();
    move |source| EventFileError::Io { path, source }
}

/// Writes scalars to a new event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
    queue_size: usize,
    num_queued: usize,
}

impl EventWriter {
    /// Starts a new file in `folder`, after cutting the files there at `resume`, so that each point of a curve is there
    /// once. Up to `queue_size` events wait in memory.
    ///
    /// # Errors
    /// File errors, or a damaged event file in `folder`.
    pub fn open(folder: &Path, resume: ResumePoint, queue_size: usize) -> Result<Self, EventFileError> {
        fs::create_dir_all(folder).map_err(io_error(folder))?;
        for entry in fs::read_dir(folder).map_err(io_error(folder))? {
            let entry = entry.map_err(io_error(folder))?;
            if entry.file_name().to_string_lossy().starts_with(FILE_PREFIX) {
                cut(&entry.path(), resume)?;
            }
        }
        let (path, file) = create_file(folder)?;
        let mut writer = Self { path, file: BufWriter::new(file), queue_size: queue_size.max(1), num_queued: 0 };
        writer.write(0, EventKind::FileVersion("brain.Event:2".into()))?;
        writer.flush()?;
        Ok(writer)
    }

    /// The file written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a point to the curve `tag`.
    ///
    /// # Errors
    /// File errors.
    pub fn scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<(), EventFileError> {
        self.write(to_step(step), EventKind::Scalar { tag: tag.to_owned(), value: value as f32 })
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    /// File errors.
    pub fn flush(&mut self) -> Result<(), EventFileError> {
        self.num_queued = 0;
        self.file.flush().map_err(io_error(&self.path))
    }

    fn write(&mut self, step: i64, kind: EventKind) -> Result<(), EventFileError> {
        let event = Event { wall_time: seconds_since_1970(), step, kind };
        self.file.write_all(&frame(&event.encode())).map_err(io_error(&self.path))?;
        self.num_queued += 1;
        if self.num_queued >= self.queue_size { self.flush() } else { Ok(()) }
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Creates a file under the first free name; runs that start within a second of each other must not share one.
fn create_file(folder: &Path) -> Result<(PathBuf, File), EventFileError> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
    let mut counter = 0;
    loop {
        let name = format!("{FILE_PREFIX}{:010.0}.{host}.{}.{counter}", seconds_since_1970().floor(), process::id());
        let path = folder.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => counter += 1,
            Err(error) => return Err(io_error(&path)(error)),
        }
    }
}

/// Removes what a run that continues at `resume` will write again, and any torn record at the end.
fn cut(path: &Path, resume: ResumePoint) -> Result<(), EventFileError> {
    let bytes = outside::read(path, outside::RECORDS_BYTES).map_err(io_error(path))?;
    let events = split(path, &bytes)?;
    let kept: Vec<u8> =
        events.iter().filter(|(event, _)| resume.keeps(event)).flat_map(|(_, record)| *record).copied().collect();
    if kept == bytes {
        return Ok(());
    }
    outside::replace(path, &kept).map_err(io_error(path))
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
        let mut writer = EventWriter::open(folder, resume, 1000).unwrap();
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
        run(folder.path(), ResumePoint { iteration: 3, consumed_samples: 24 }, 6);
        let all = points(folder.path());
        let steps = |tag| all.iter().filter(|point| point.0 == tag).map(|point| point.1).collect::<Vec<_>>();
        assert_eq!(steps("lm loss"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(steps("lm loss vs samples"), [8, 16, 24, 32, 40, 48]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn events_wait_until_the_queue_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::open(folder.path(), ResumePoint::default(), 2).unwrap();
        writer.scalar("x", 1.0, 1).unwrap();
        assert_eq!(points(folder.path()).len(), 0);
        writer.scalar("x", f64::NAN, 2).unwrap();
        let points = points(folder.path());
        assert_eq!(points.len(), 2);
        assert!(points[1].2.is_nan());
    }
}
