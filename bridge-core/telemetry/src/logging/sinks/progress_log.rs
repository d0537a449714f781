//! `progress.txt`: when jobs started and checkpoints were saved, and how fast training went in
//! between.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use chrono::NaiveDateTime;

use crate::logging::files::{FileError, append, append_whole};
use crate::logging::numbers::with_exponent;
use crate::logging::record::{RunStart, SaveRecord, SaveStage};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use bridge_config::schedule::tflops_per_device;

const NAME: &str = "progress.txt";

const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";
const STARTING: &str = "Starting job";
const SAVED: &str = "Saved checkpoint";
const SAVING_ASYNC: &str = "Saving async checkpoint";
const SAVED_ASYNC: &str = "Saved async checkpoint";

/// Start of a job, or of the first of several jobs of the same size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct JobStart {
    /// Local time.
    time: NaiveDateTime,
    /// Floating-point operations done before.
    flops: f64,
}

impl JobStart {
    /// Now, with `flops` done before.
    fn now(flops: f64) -> Self {
        Self { time: chrono::Local::now().naive_local(), flops }
    }

    /// Model TFLOP/s per device from this start until `flops` were done at `now`.
    fn throughput(&self, now: NaiveDateTime, flops: f64, world_size: u64) -> f64 {
        let seconds = (now - self.time).as_seconds_f64();
        tflops_per_device(flops - self.flops, seconds, world_size)
    }
}

/// Appends to a progress log.
struct ProgressLog {
    path: PathBuf,
    job_id: String,
    world_size: u64,
    job: JobStart,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let config = context.config;
    let Some(save) = config.checkpoint.save.as_ref().filter(|_| config.logger.log_progress) else { return Ok(None) };
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    std::fs::create_dir_all(save).map_err(|error| OpenError::log(save.display().to_string(), error))?;
    Ok(Some(Box::new(ProgressLog::new(&save.join(NAME), &job, config.parallel.world_size as u64))))
}

impl ProgressLog {
    /// A log at `path`. `job_id` is the scheduler's, empty without one.
    fn new(path: &Path, job_id: &str, world_size: u64) -> Self {
        // Tabs and line breaks separate fields and lines.
        let job_id = job_id.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { path: path.to_owned(), job_id, world_size, job: JobStart::now(0.0) }
    }

    /// Notes that this job starts, with `flops` done by earlier ones, and returns the start its
    /// throughput is counted from.
    fn job_started(&mut self, flops: f64) -> Result<JobStart, FileError> {
        self.job = JobStart::now(flops);
        self.append(self.job.time, STARTING)?;
        Ok(self.job)
    }

    /// Notes how far a checkpoint is, with throughput since `job`'s start and since the first job
    /// of this size.
    fn checkpoint(&self, save: SaveRecord, job: &JobStart) -> Result<(), FileError> {
        let now = chrono::Local::now().naive_local();
        let SaveRecord { iteration, stage, flops, tokens } = save;
        let event = match stage {
            SaveStage::Saved => SAVED,
            SaveStage::Begun => SAVING_ASYNC,
            SaveStage::Ended => return self.append(now, &format!("{SAVED_ASYNC}\tIteration: {iteration}")),
        };
        let first = read_job_start(&self.path, self.world_size)?;
        let text = format!(
            "{event}\tIteration: {iteration}\tJob throughput: {:.1} MODEL_TFLOP/s/GPU\tCumulative throughput: {:.1} \
             MODEL_TFLOP/s/GPU\tFloating-point operations: {}\tTokens (in billions): {:.2}",
            job.throughput(now, flops, self.world_size),
            first.throughput(now, flops, self.world_size),
            with_exponent(flops, 2),
            tokens as f64 / 1e9,
        );
        self.append(now, &text)
    }

    fn append(&self, time: NaiveDateTime, text: &str) -> Result<(), FileError> {
        let line =
            format!("{}\tJob ID: {}\t# GPUs: {}\t{text}\n", time.format(TIME_FORMAT), self.job_id, self.world_size);
        let appended = append(&self.path).and_then(|mut file| append_whole(&mut file, line.as_bytes()));
        appended.map_err(FileError::of(&self.path))
    }
}

/// The first start of a job with `world_size` ranks since jobs last had another size.
fn read_job_start(path: &Path, world_size: u64) -> Result<JobStart, FileError> {
    let text = untrusted_io::read_text(path, untrusted_io::RECORDS_BYTES).map_err(FileError::of(path))?;
    let (mut start, mut saved_flops, mut on_their_way) = (None, 0.0, BTreeMap::new());
    let mut add = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [time, _, ranks, event, rest @ ..] = &fields[..] else {
            return Err(format!("{} tab-separated fields, expected 4 or more", fields.len()));
        };
        let time = NaiveDateTime::parse_from_str(time, TIME_FORMAT)
            .map_err(|_| format!("`{time}` is no time, expected YYYY-MM-DD HH:MM:SS"))?;
        if number::<u64>(ranks)? != world_size {
            start = None;
        } else if *event == STARTING {
            start.get_or_insert(JobStart { time, flops: saved_flops });
        }
        let field = |index: usize| rest.get(index).ok_or_else(|| format!("field {} is missing", index + 4));
        match *event {
            SAVED => saved_flops = number(field(3)?)?,
            SAVING_ASYNC => drop(on_their_way.insert(number::<u64>(field(0)?)?, number(field(3)?)?)),
            SAVED_ASYNC => saved_flops = on_their_way.remove(&number(field(0)?)?).unwrap_or(saved_flops),
            _ => {}
        }
        Ok(())
    };
    for (index, line) in text.lines().enumerate() {
        let damaged = |reason| FileError::Damaged(format!("{}, line {}: {reason}", path.display(), index + 1));
        add(line).map_err(damaged)?;
    }
    start.ok_or_else(|| {
        FileError::Damaged(format!("{} has no line `{STARTING}` with {world_size} ranks", path.display()))
    })
}

/// The number after `name: `.
fn number<T: std::str::FromStr>(field: &str) -> Result<T, String> {
    field
        .split_once(": ")
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| format!("`{field}` is no number, expected `name: number`"))
}

impl Sink for ProgressLog {
    fn name(&self) -> &str {
        NAME
    }

    fn on_run_start(&mut self, start: &RunStart) -> Result<(), SinkError> {
        self.job_started(start.flops)?;
        Ok(())
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        Ok(self.checkpoint(*save, &self.job)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(text: &str) -> NaiveDateTime {
        NaiveDateTime::parse_from_str(text, TIME_FORMAT).unwrap()
    }

    fn read(lines: &str, world_size: u64) -> Result<JobStart, FileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress.txt");
        fs::write(&path, lines).unwrap();
        read_job_start(&path, world_size)
    }

    const SAVE: &str = "Iteration: 5\tJob throughput: 1.0 MODEL_TFLOP/s/GPU\tCumulative throughput: 1.0 \
                        MODEL_TFLOP/s/GPU\tFloating-point operations: 2.50e+15\tTokens (in billions): 0.01";

    #[test]
    fn the_first_start_of_this_size_counts() {
        let lines = format!(
            "2026-01-01 00:00:00\tJob ID: 1\t# GPUs: 8\tStarting job\n\
             2026-01-01 01:00:00\tJob ID: 1\t# GPUs: 8\tSaved checkpoint\t{SAVE}\n\
             2026-01-02 00:00:00\tJob ID: 2\t# GPUs: 4\tStarting job\n\
             2026-01-03 00:00:00\tJob ID: 3\t# GPUs: 4\tStarting job\n"
        );
        assert_eq!(read(&lines, 4).unwrap(), JobStart { time: at("2026-01-02 00:00:00"), flops: 2.5e15 });
        let message = read(&lines, 8).unwrap_err().to_string();
        assert!(message.ends_with("progress.txt has no line `Starting job` with 8 ranks"), "{message}");
        let back = format!("{lines}2026-01-04 00:00:00\tJob ID: 4\t# GPUs: 8\tStarting job\n");
        assert_eq!(read(&back, 8).unwrap().time, at("2026-01-04 00:00:00"));
    }

    #[test]
    fn asynchronous_saves_count_once_they_are_on_disk() {
        let saving = format!("2026-01-01 01:00:00\tJob ID: \t# GPUs: 8\tSaving async checkpoint\t{SAVE}\n");
        let saved = "2026-01-01 01:01:00\tJob ID: \t# GPUs: 8\tSaved async checkpoint\tIteration: 5\n";
        let start = "2026-01-02 00:00:00\tJob ID: \t# GPUs: 4\tStarting job\n";
        assert_eq!(read(&format!("{saving}{saved}{start}"), 4).unwrap().flops, 2.5e15);
        assert_eq!(read(&format!("{saving}{start}"), 4).unwrap().flops, 0.0);
    }

    #[test]
    fn throughput_is_that_of_the_interval_it_names() {
        let start = JobStart { time: at("2026-01-01 00:00:00"), flops: 1e15 };
        // 8e15 operations in 1000 seconds on 4 devices.
        assert_eq!(start.throughput(at("2026-01-01 00:16:40"), 9e15, 4), 2.0);
        assert_eq!(start.throughput(start.time, 9e15, 4), 0.0);
    }

    #[test]
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("save/progress.txt");
        let mut log = ProgressLog::new(&path, "12\t3", 2);
        let job = log.job_started(0.0).unwrap();
        let earlier = JobStart { time: job.time - chrono::TimeDelta::seconds(100_000), ..job };
        for stage in [SaveStage::Saved, SaveStage::Begun, SaveStage::Ended] {
            let save = SaveRecord { iteration: 7, stage, flops: 4e17, tokens: 25_000_000 };
            log.checkpoint(save, &earlier).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines[0][1..], ["Job ID: 12 3", "# GPUs: 2", "Starting job"]);
        assert_eq!(lines[1][3..6], ["Saved checkpoint", "Iteration: 7", "Job throughput: 2.0 MODEL_TFLOP/s/GPU"]);
        assert!(lines[1][6].starts_with("Cumulative throughput: "));
        assert_eq!(lines[1][7..], ["Floating-point operations: 4.00e+17", "Tokens (in billions): 0.03"]);
        assert_eq!(lines[2][3], "Saving async checkpoint");
        assert_eq!(lines[3][3..], ["Saved async checkpoint", "Iteration: 7"]);
        let read_back = read_job_start(&path, 2).unwrap();
        assert!((job.time - read_back.time).num_seconds() <= 1 && read_back.flops == 0.0);
    }

    #[test]
    fn damage_is_an_error_with_the_line() {
        let message =
            read("2026-01-01 00:00:00\tJob ID: 1\t# GPUs: 8\tStarting job\nhello\n", 8).unwrap_err().to_string();
        assert!(message.contains("progress.txt, line 2: 1 tab-separated fields"), "{message}");
        let message = read("soon\tJob ID: 1\t# GPUs: 8\tStarting job\n", 8).unwrap_err().to_string();
        assert!(message.contains("line 1: `soon` is no time"), "{message}");
    }
}
