//! Weights & Biases: the run's figures, recipe, loss curve, tokenizer and the places of its
//! checkpoints, in a folder that `wandb sync` sends (`logger.wandb_*`). If a folder cannot be
//! written, the run goes on, and only the folder's content is lost.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use bridge_data::untrusted_io;

use super::tracked::{self, Lazily, now};
use crate::logging::files::replace_with;
use crate::logging::record::{Ending, Record, RunEnd, RunStart, SaveRecord, SaveStage};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use crate::logging::wandb::{
    Checkpoint, DataStore, Earlier, Row, RunHead, exit, files, head, history, json_of_setting, look_at_earlier, run,
    summary,
};

const NAME: &str = "Weights & Biases";

/// Characters of a tag that W&B takes.
const LONGEST_TAG: usize = 64;

struct WandbSink {
    /// Parent of the runs' folders.
    place: PathBuf,
    head: RunHead,
    recipe: String,
    /// Steps between figures.
    interval: u64,
    /// The last step, unless the run ends before it.
    train_iters: u64,
    /// Files that are copied at the end if they exist: names there and here.
    files: Vec<(String, PathBuf)>,
    /// Folder of the checkpoints.
    saved: Option<PathBuf>,
    log: Lazily<Log>,
    /// The figures of the last step, to which an evaluation may add.
    row: Option<Row>,
}

/// The open log of this job.
struct Log {
    folder: PathBuf,
    store: DataStore,
    /// Records so far.
    number: u64,
    earlier: Earlier,
    begun: Instant,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(project) = logger.wandb_project.clone() else { return Ok(None) };
    // Values without a setting in Megatron Bridge come from the environment, as in W&B's own
    // client.
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    let tags: Vec<String> =
        of("WANDB_TAGS").split(',').map(str::trim).map(str::to_owned).filter(|tag| !tag.is_empty()).collect();
    if let Some(tag) = tags.iter().find(|tag| tag.chars().count() > LONGEST_TAG) {
        let message = format!("the tag {tag:?} is too long; W&B takes {LONGEST_TAG} characters");
        return Err(OpenError::Setting { key: "WANDB_TAGS", message });
    }
    let recipe = config.to_toml();
    let sections: toml::Table = recipe.parse().unwrap_or_default();
    let head = RunHead {
        id: context.run.chars().filter(char::is_ascii_alphanumeric).collect(),
        entity: logger.wandb_entity.clone().unwrap_or_default(),
        project,
        name: logger.wandb_exp_name.clone().unwrap_or_else(|| config.name.clone()),
        group: of("WANDB_RUN_GROUP"),
        job_type: of("WANDB_JOB_TYPE"),
        notes: of("WANDB_NOTES"),
        tags,
        config: sections.into_iter().map(|(section, settings)| (section, json_of_setting(&settings))).collect(),
        starting_step: context.iteration,
        ..RunHead::default()
    };
    Ok(Some(Box::new(WandbSink {
        place: logger.wandb_save_dir.clone().unwrap_or_else(|| logger.log_dir.clone()).join("wandb"),
        head,
        recipe,
        interval: logger.tensorboard_log_interval as u64,
        train_iters: config.train.train_iters as u64,
        files: tracked::files(config),
        saved: config.checkpoint.save.clone(),
        log: Lazily::default(),
        row: None,
    })))
}

impl WandbSink {
    /// Log of the run, begun at the first call.
    fn log(&mut self) -> Result<&mut Log, SinkError> {
        let Self { place, head, recipe, log, .. } = self;
        log.get(place, || begin(place, head, recipe))
    }

    /// Writes the figures of the last step.
    fn flush(&mut self) -> Result<(), SinkError> {
        let Some(row) = self.row.take() else { return Ok(()) };
        let log = self.log()?;
        if log.earlier.sent.is_some_and(|sent| row.step <= sent) {
            // W&B has the step of the job that did it first, and takes none twice.
            return Ok(());
        }
        let number = log.number;
        log.add(&[history(number, &row), summary(number + 1, &row)])
    }

    /// Copies files that exist, and records them. All files are tried; the first failure is
    /// reported.
    fn copy(&mut self) -> Result<(), SinkError> {
        let there: Vec<(String, PathBuf)> = self.files.drain(..).filter(|(_, path)| path.is_file()).collect();
        let log = self.log()?;
        let folder = log.folder.join("files");
        let (mut copied, mut failed) = (Vec::new(), Ok(()));
        for (name, path) in &there {
            match copy(path, &folder.join(name)) {
                Ok(()) => copied.push(name.as_str()),
                Err(error) => failed = failed.and(Err(format!("{}: {error}", path.display()).into())),
            }
        }
        if !copied.is_empty() {
            log.add(&[files(log.number, copied)])?;
        }
        failed
    }
}

impl Log {
    fn runtime(&self) -> f64 {
        self.earlier.runtime + self.begun.elapsed().as_secs_f64()
    }

    fn add(&mut self, records: &[Vec<u8>]) -> Result<(), SinkError> {
        self.store.add(records)?;
        self.number += records.len() as u64;
        Ok(())
    }
}

/// Begins the folder of a job.
fn begin(place: &Path, run_head: &mut RunHead, recipe: &str) -> io::Result<Log> {
    fs::create_dir_all(place)?;
    let earlier = look_at_earlier(place, &run_head.id, run_head.starting_step)?;
    let folder = new_folder(place, &run_head.id)?;
    run_head.is_resumed = earlier.jobs > 0 || run_head.starting_step > 0;
    (run_head.time, run_head.runtime) = (now(), earlier.runtime);
    let written = || -> io::Result<DataStore> {
        fs::create_dir(folder.join("files"))?;
        fs::write(folder.join("files").join("recipe.toml"), recipe)?;
        let mut store = DataStore::create(&folder.join(format!("run-{}.wandb", run_head.id)))?;
        store.add(&[head(1), run(2, run_head), files(3, ["recipe.toml"])])?;
        Ok(store)
    };
    let store = written().inspect_err(|_| {
        // Remove the folder if its log could not be created.
        let _ = fs::remove_dir_all(&folder);
    })?;
    Ok(Log { folder, store, number: 4, earlier, begun: Instant::now() })
}

/// Makes the folder of a job that begins now; jobs of the same second have the next ones.
fn new_folder(place: &Path, id: &str) -> io::Result<PathBuf> {
    let mut time = chrono::Local::now();
    loop {
        let folder = place.join(format!("offline-run-{}-{id}", time.format("%Y%m%d_%H%M%S")));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => time += chrono::Duration::seconds(1),
            Err(error) => return Err(error),
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let (mut input, _) = untrusted_io::open(from)?;
    replace_with(to, |output| io::copy(&mut input, output).map(drop))
}

impl Sink for WandbSink {
    fn name(&self) -> &str {
        NAME
    }

    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        // A failure is reported with the first record, and ends no run.
        let _ = self.log();
        Ok(())
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let values = tracked::values(record, self.interval);
        if values.is_empty() {
            return Ok(());
        }
        let is_next = self.row.as_ref().is_some_and(|row| row.step != record.iteration);
        let flushed = if is_next { self.flush() } else { Ok(()) };
        let runtime = self.log()?.runtime();
        let new = || Row { step: record.iteration, timestamp: 0.0, runtime, values: Vec::new() };
        let row = self.row.get_or_insert_with(new);
        (row.timestamp, row.runtime) = (now() as f64 / 1000.0, runtime);
        row.values.retain(|(name, _)| values.iter().all(|(new, _)| new != name));
        row.values.extend(values);
        flushed
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        // A run that resumes from here does not repeat this step. Evaluations at the end are added
        // to the last step.
        let flushed = if save.iteration < self.train_iters { self.flush() } else { Ok(()) };
        let Some(folder) = self.saved.as_ref().filter(|_| save.stage != SaveStage::Begun) else { return flushed };
        let name = format!("iter_{:07}", save.iteration);
        let uri = format!("file://{}", std::path::absolute(folder)?.join(&name).display());
        let number = self.log()?.number;
        let saved = Checkpoint { run: &self.head, name: &name, uri: &uri, iteration: save.iteration }.record(number);
        self.log()?.add(&[saved])?;
        flushed
    }

    fn on_temporary_save(&mut self) -> Result<(), SinkError> {
        self.flush()
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        // All files are tried; the first failure is reported.
        let written = [self.flush(), self.copy()];
        let code = i64::from(matches!(end.ending, Ending::Failed(_)));
        let log = self.log()?;
        let over = log.add(&[exit(log.number, code, log.runtime())]);
        written.into_iter().chain([over]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::MetricValue;
    use crate::logging::record::{Figure, Occasion, RecordKind, Split};
    use crate::logging::wandb::tests::{Message, decode, last_log};

    const START: RunStart = RunStart { iteration: 0, flops: 0.0, train_iters: None };

    fn sink(folder: &Path, iteration: u64) -> WandbSink {
        let head = RunHead { id: "r1".into(), project: "p".into(), starting_step: iteration, ..RunHead::default() };
        WandbSink {
            place: folder.join("wandb"),
            head,
            recipe: "name = 1".into(),
            interval: 1,
            train_iters: 4,
            files: vec![("loss.png".into(), folder.join("loss.png")), ("tokenizer/t.json".into(), folder.join("none"))],
            saved: Some(folder.join("ckpt")),
            log: Lazily::default(),
            row: None,
        }
    }

    fn record(kind: RecordKind, iteration: u64, tag: &str, value: impl Into<MetricValue>) -> Record {
        let figures = vec![Figure::new("f", "", "", value).board(tag), Figure::new("hidden", "", "", 1_u64)];
        Record { kind, iteration, consumed_samples: 8 * iteration, ends_interval: true, figures }
    }

    fn train(sink: &mut WandbSink, steps: std::ops::RangeInclusive<u64>) {
        for step in steps {
            sink.on_record(&record(RecordKind::Train, step, "lm loss", 1.0_f32 / step as f32)).unwrap();
        }
    }

    fn end(sink: &mut WandbSink, ending: Ending) {
        sink.on_run_end(&mut RunEnd { ending, iteration: 4, missing: None, warnings: Vec::new() }).unwrap();
    }

    /// The rows of the last job: step, and JSON of a figure.
    fn rows(records: &[Message], name: &str) -> Vec<(u64, Option<String>)> {
        let row = |record: &Message| {
            let history = record.message(2)?;
            let items = history.items(1);
            assert_eq!(items["_step"], history.message(2)?.number(1).to_string());
            Some((history.message(2)?.number(1), items.get(name).cloned()))
        };
        records.iter().filter_map(row).collect()
    }

    #[test]
    fn a_run_that_is_killed_and_goes_on_has_each_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let saved = |iteration| SaveRecord { iteration, stage: SaveStage::Saved, flops: 0.0, tokens: 0 };
        let mut first = sink(folder.path(), 0);
        first.on_run_start(&START).unwrap();
        train(&mut first, 1..=2);
        let valid = RecordKind::Evaluation(Split::Valid, Occasion::DuringTraining);
        first.on_record(&record(valid, 2, "lm loss validation", f64::INFINITY)).unwrap();
        first.on_save(&saved(2)).unwrap();
        train(&mut first, 3..=3);
        // Killed here: unwritten records are lost.
        let place = folder.path().join("wandb");
        let records = decode(&last_log(&place, "r1"));
        assert_eq!(rows(&records, "lm loss"), [(1, Some("1.0".into())), (2, Some("0.5".into()))]);
        assert_eq!(rows(&records, "lm loss validation"), [(1, None), (2, Some("Infinity".into()))]);
        assert_eq!(rows(&records, "samples vs steps")[1].1.as_deref(), Some("16"));
        assert!(!records.iter().any(|record| record.message(18).is_some()), "it did not end");
        let numbers: Vec<u64> = records.iter().map(|record| record.number(1)).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        first.flush().unwrap();
        drop(first);

        std::fs::write(folder.path().join("loss.png"), "picture").unwrap();
        let mut second = sink(folder.path(), 2);
        second.on_run_start(&START).unwrap();
        train(&mut second, 3..=4);
        second.on_save(&saved(4)).unwrap();
        let test = RecordKind::Evaluation(Split::Test, Occasion::AfterTraining);
        second.on_record(&record(test, 4, "lm loss test", 2.5_f32)).unwrap();
        end(&mut second, Ending::Finished);
        let jobs = std::fs::read_dir(&place).unwrap().count();
        assert_eq!(jobs, 2);
        let records = decode(&last_log(&place, "r1"));
        let run = records[1].message(17).unwrap();
        assert_eq!((run.text(1), run.number(14), run.number(18)), ("r1".into(), 2, 1));
        assert_eq!(rows(&records, "lm loss"), [(3, Some("0.33333334".into())), (4, Some("0.25".into()))]);
        assert_eq!(rows(&records, "lm loss test"), [(3, None), (4, Some("2.5".into()))], "in the row of its step");
        let summary = records.iter().rev().find_map(|record| record.message(3)).unwrap().items(1);
        assert_eq!((summary["lm loss"].as_str(), summary["_step"].as_str()), ("0.25", "4"));
        let files: Vec<String> =
            records.iter().flat_map(|record| record.messages(6)).map(|f| f.message(1).unwrap().text(1)).collect();
        assert_eq!(files, ["recipe.toml", "loss.png"]);
        let exit = records.last().unwrap().message(18).unwrap();
        assert_eq!(exit.number(1), 0);
        let mut logs: Vec<PathBuf> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        logs.sort();
        let earlier = decode(&std::fs::read(logs[0].join("run-r1.wandb")).unwrap());
        assert_eq!(rows(&earlier, "lm loss").len(), 2, "the third step of the first job is gone");
        assert_eq!(std::fs::read_to_string(logs[1].join("files/recipe.toml")).unwrap(), "name = 1");
        assert_eq!(std::fs::read_to_string(logs[1].join("files/loss.png")).unwrap(), "picture");
        let artifact = earlier.iter().find_map(|record| record.message(8)).unwrap();
        assert!(artifact.message(12).unwrap().message(4).unwrap().text(3).ends_with("/ckpt/iter_0000002"));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told_with_each_record_and_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("wandb"), "a file").unwrap();
        let mut sink = sink(folder.path(), 0);
        sink.on_run_start(&START).unwrap();
        for step in 1..=2 {
            let error = sink.on_record(&record(RecordKind::Train, step, "lm loss", 1.0)).unwrap_err();
            assert!(error.to_string().contains("/wandb: "), "{error}");
        }
        std::fs::remove_file(folder.path().join("wandb")).unwrap();
        sink.log = Lazily::default();
        train(&mut sink, 3..=3);
        end(&mut sink, Ending::Failed("why".into()));
        let records = decode(&last_log(&folder.path().join("wandb"), "r1"));
        assert_eq!(rows(&records, "lm loss"), [(3, Some("0.33333334".into()))]);
        assert_eq!(records.last().unwrap().message(18).unwrap().number(1), 1, "the exit code of a failure");
    }
}
