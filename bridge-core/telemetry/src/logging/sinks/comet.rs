//! Comet: the run's figures, settings, recipe, loss curve and tokenizer, in an archive that `comet
//! upload` sends (`logger.comet_*`). If an archive cannot be written, the run goes on, and only the
//! archive's content is lost.

use std::path::{Path, PathBuf};
use std::{fs, io};

use bridge_data::untrusted_io;
use serde_json::{Value, json};

use super::tracked::{self, Lazily, now};
use crate::logging::comet::{Archive, Asset, Experiment, Messages, key_of, step_of_line};
use crate::logging::record::{Ending, Record, RunEnd, RunStart, SaveRecord};
use crate::logging::runs::settings;
use crate::logging::sink::{Opened, Sink, SinkContext, SinkError};

const NAME: &str = "Comet";

/// Bytes of a file that goes into the archive.
const LARGEST_FILE: u64 = 64 << 20;

struct CometSink {
    /// Folder of the archives.
    place: PathBuf,
    name: String,
    experiment: Experiment,
    recipe: String,
    /// Iterations done before.
    iteration: u64,
    /// Steps between figures.
    interval: u64,
    /// Files that are added at the end if they exist: names there and here.
    files: Vec<(String, PathBuf)>,
    /// Folder of the checkpoints.
    saved: Option<PathBuf>,
    archive: Lazily<Archive>,
    messages: Messages,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let (config, logger) = (context.config, &context.config.logger);
    let Some(project) = logger.comet_project.clone() else { return Ok(None) };
    let experiment = Experiment {
        key: key_of(context.run),
        project,
        workspace: logger.comet_workspace.clone(),
        tags: logger.comet_tags.clone().unwrap_or_default(),
        start: now(),
        failure: None,
    };
    Ok(Some(Box::new(CometSink {
        place: logger.log_dir.join("comet"),
        name: logger.comet_experiment_name.clone().unwrap_or_else(|| config.name.clone()),
        experiment,
        recipe: config.to_toml(),
        iteration: context.iteration,
        interval: logger.tensorboard_log_interval as u64,
        files: tracked::files(config),
        saved: config.checkpoint.save.clone(),
        archive: Lazily::default(),
        messages: Messages::default(),
    })))
}

impl CometSink {
    /// Begins the archive if there is no archive yet.
    fn begin(&mut self) -> Result<&mut Archive, SinkError> {
        let Self { place, name, experiment, recipe, iteration, archive, messages, .. } = self;
        archive.get(place, || {
            let mut first = begin(name, recipe, experiment);
            let mut archive = new_archive(place, experiment, *iteration, recipe)?;
            archive.add(&std::mem::take(&mut first.lines), &[], &experiment.json(now()))?;
            *messages = first;
            Ok(archive)
        })
    }

    /// Writes the messages since the last write.
    fn write(&mut self, assets: &[Asset]) -> Result<(), SinkError> {
        let experiment = self.experiment.json(now());
        let lines = std::mem::take(&mut self.messages.lines);
        Ok(self.begin()?.add(&lines, assets, &experiment)?)
    }
}

/// The first messages of a job.
fn begin(name: &str, recipe: &str, experiment: &Experiment) -> Messages {
    let mut messages = Messages::default();
    messages.other("offline_experiment", true);
    messages.other("Name", name);
    messages.other("hasNestedParams", true);
    // Comet has nested settings with a bar between the names.
    for (name, value) in settings(recipe, "|") {
        messages.parameter(experiment.start, &name, parameter(value));
    }
    messages.file(experiment.start, 0, &experiment.key, "recipe.toml", "recipe.toml");
    messages
}

/// A setting as Comet takes it: what JSON cannot write is a text.
fn parameter(value: toml::Value) -> Value {
    let is_text = match &value {
        toml::Value::Float(number) => !number.is_finite(),
        value => value.is_array() || value.is_datetime(),
    };
    if is_text { value.to_string().into() } else { json!(value) }
}

/// The archive of a job: the first free name. Steps that the run does again are cut from those of
/// earlier jobs.
fn new_archive(place: &Path, experiment: &Experiment, iteration: u64, recipe: &str) -> io::Result<Archive> {
    fs::create_dir_all(place)?;
    let assets = [Asset { name: "recipe.toml".into(), content: recipe.as_bytes().to_vec() }];
    for number in 1_u64.. {
        let name =
            if number == 1 { format!("{}.zip", experiment.key) } else { format!("{}-{number}.zip", experiment.key) };
        let path = place.join(name);
        if path.exists() {
            let is_kept = |line: &str| step_of_line(line).is_none_or(|step| step <= iteration);
            let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            Archive::cut(&path, is_kept).map_err(at)?;
            continue;
        }
        let created = Archive::create(&path, &assets, &experiment.json(now()));
        return created.inspect_err(|error| {
            // An incomplete file is not a valid archive.
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = fs::remove_file(&path);
            }
        });
    }
    Err(io::Error::other("no name is free"))
}

impl Sink for CometSink {
    fn name(&self) -> &str {
        NAME
    }

    fn on_run_start(&mut self, _start: &RunStart) -> Result<(), SinkError> {
        // A failure is reported with the first record, and ends no run.
        let _ = self.begin();
        Ok(())
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let values = tracked::values(record, self.interval);
        if values.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let time = now();
        for (tag, value) in &values {
            self.messages.metric(time, record.iteration, &tracked::of_validation(record.kind, tag), value);
        }
        self.write(&[])
    }

    fn on_save(&mut self, save: &SaveRecord) -> Result<(), SinkError> {
        let Some((name, value)) = tracked::last_checkpoint(self.saved.as_deref(), save) else { return Ok(()) };
        self.begin()?;
        self.messages.other(name, value);
        self.write(&[])
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        self.begin()?;
        let (state, _) = end.ending.name();
        if let Ending::Failed(why) = &end.ending {
            self.experiment.failure = Some(why.clone());
        }
        self.messages.other("state", state);
        let (mut assets, mut failed) = (Vec::new(), Ok(()));
        for (name, path) in self.files.drain(..).filter(|(_, path)| path.is_file()) {
            match untrusted_io::read(&path, LARGEST_FILE) {
                Ok(content) => {
                    let place = name.replace('/', "-");
                    self.messages.file(now(), end.iteration, &self.experiment.key, &name, &place);
                    assets.push(Asset { name: place, content });
                }
                Err(error) => failed = failed.and(Err(SinkError::from(format!("{}: {error}", path.display())))),
            }
        }
        self.write(&assets).and(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::comet::tests::unpack;
    use crate::logging::record::{Figure, RecordKind};

    const START: RunStart = RunStart { iteration: 0, flops: 0.0, train_iters: None };

    fn sink(folder: &Path, iteration: u64) -> CometSink {
        CometSink {
            place: folder.join("comet"),
            name: "n".into(),
            experiment: Experiment { key: key_of("a"), project: "p".into(), ..Experiment::default() },
            recipe: "[model]\nlayers = 2\nlr = inf\n".into(),
            iteration,
            interval: 1,
            files: vec![("tokenizer/t.json".into(), folder.join("t.json"))],
            saved: None,
            archive: Lazily::default(),
            messages: Messages::default(),
        }
    }

    fn train(sink: &mut CometSink, steps: std::ops::RangeInclusive<u64>) {
        for iteration in steps {
            let figures = vec![Figure::new("loss", "", "", 1.0_f32 / iteration as f32).board("lm loss")];
            let record = Record {
                kind: RecordKind::Train,
                iteration,
                consumed_samples: iteration,
                ends_interval: true,
                figures,
            };
            sink.on_record(&record).unwrap();
        }
    }

    fn messages(path: &Path) -> Vec<Value> {
        let text = String::from_utf8(unpack(path).remove("messages.json").unwrap()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn losses(path: &Path) -> Vec<(u64, f64)> {
        let messages = messages(path);
        let metrics = messages.iter().map(|message| &message["payload"]["metric"]);
        let loss = |metric: &Value| (metric["step"].as_u64().unwrap(), metric["metricValue"].as_f64().unwrap());
        metrics.filter(|metric| metric["metricName"] == "lm loss").map(loss).collect()
    }

    #[test]
    fn a_run_that_is_killed_and_goes_on_has_each_step_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.json"), "{}").unwrap();
        let mut first = sink(folder.path(), 0);
        first.on_run_start(&START).unwrap();
        train(&mut first, 1..=3);
        // Killed here.
        drop(first);
        let path = |name: &str| folder.path().join("comet").join(format!("{}{name}.zip", key_of("a")));
        assert_eq!(losses(&path("")), [(1, 1.0), (2, 0.5), (3, 0.333_333_34)]);
        let mut second = sink(folder.path(), 2);
        second.on_run_start(&START).unwrap();
        train(&mut second, 3..=4);
        let ending = Ending::Failed("why".into());
        second.on_run_end(&mut RunEnd { ending, iteration: 4, missing: None, warnings: Vec::new() }).unwrap();
        assert_eq!(losses(&path("")), [(1, 1.0), (2, 0.5)]);
        assert_eq!(losses(&path("-2")), [(3, 0.333_333_34), (4, 0.25)]);
        let files = unpack(&path("-2"));
        assert_eq!((&files["tokenizer-t.json"][..], files["recipe.toml"].len()), (&b"{}"[..], 28));
        assert!(String::from_utf8_lossy(&files["experiment.json"]).contains("\"customer_error_message\":\"why\""));
        let messages = messages(&path("-2"));
        let of = |kind: &str| {
            messages.iter().filter(|message| message["type"] == kind).map(|m| m["payload"].clone()).collect::<Vec<_>>()
        };
        let params: Vec<Value> =
            of("parameter_msg").iter().map(|payload| payload["param"]["paramValue"].clone()).collect();
        assert_eq!(params, [Value::from(2), Value::from("inf")]);
        assert_eq!(of("file_upload")[1]["file_path"], "tokenizer-t.json");
        let others: Vec<Value> = of("log_other").iter().map(|payload| payload["value"].clone()).collect();
        assert_eq!(others, [Value::from(true), "n".into(), true.into(), "failed".into()]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told_with_each_record_and_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("comet"), "a file").unwrap();
        let mut sink = sink(folder.path(), 0);
        sink.on_run_start(&START).unwrap();
        let figures = vec![Figure::new("loss", "", "", 1.0).board("lm loss")];
        let record =
            Record { kind: RecordKind::Train, iteration: 1, consumed_samples: 1, ends_interval: true, figures };
        assert!(sink.on_record(&record).unwrap_err().to_string().contains("/comet: "));
        std::fs::remove_file(folder.path().join("comet")).unwrap();
        sink.archive = Lazily::default();
        train(&mut sink, 2..=2);
        assert_eq!(losses(&folder.path().join("comet").join(format!("{}.zip", key_of("a")))), [(2, 0.5)]);
    }
}
