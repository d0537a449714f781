//! `run.json`: identity, state and end of a run, so that other programs need not infer them from
//! its other files.

use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};

use super::lines::timestamp;
use crate::logging::files::replace_json;
use crate::logging::record::{Record, RunEnd, RunStart};
use crate::logging::sink::{Opened, Sink, SinkContext, SinkError};

const NAME: &str = "run.json";

/// Content of `run.json`: recipe, state and progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Name of the recipe.
    pub name: String,
    /// `training`, `finished`, `stopped` or `failed`.
    pub state: String,
    /// Why it stopped or failed.
    pub why: Option<String>,
    /// When this job of it began, local time.
    pub started: String,
    /// When it ended.
    pub ended: Option<String>,
    /// Iterations done when it ended.
    pub iteration: u64,
    /// Iterations in all.
    pub train_iters: u64,
    /// Tokens of a sample.
    pub seq_length: u64,
    /// Ranks.
    pub world_size: u64,
    /// The resolved configuration, as TOML.
    pub config: String,
}

/// Writes it when the run begins and when it ends.
struct Recorder {
    path: PathBuf,
    record: RunRecord,
    /// True if the file says that the run trains.
    is_begun: bool,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let config = context.config;
    let record = RunRecord {
        name: config.name.clone(),
        state: "training".into(),
        why: None,
        started: timestamp(),
        ended: None,
        iteration: context.iteration,
        train_iters: config.train.train_iters as u64,
        seq_length: config.model.seq_length as u64,
        world_size: config.parallel.world_size as u64,
        config: config.to_toml(),
    };
    Ok(Some(Box::new(Recorder { path: config.logger.log_dir.join(NAME), record, is_begun: false })))
}

/// Reads `run.json` in the log folder of a run.
///
/// # Errors
/// If there is no such file, or it cannot be parsed.
pub fn read_record(folder: &Path) -> Result<RunRecord, String> {
    let path = folder.join(NAME);
    let text = untrusted_io::read_text(&path, untrusted_io::SETTINGS_BYTES).map_err(|error| error.to_string());
    let read = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    read.map_err(|problem| format!("{}: {problem}", path.display()))
}

impl Recorder {
    fn write(&self) -> Result<(), SinkError> {
        Ok(replace_json(&self.path, &self.record)?)
    }
}

impl Sink for Recorder {
    fn name(&self) -> &str {
        NAME
    }

    fn on_run_start(&mut self, start: &RunStart) -> Result<(), SinkError> {
        self.record.iteration = start.iteration;
        // A full disk does not end the run: a failed write is retried and reported with the first
        // records.
        self.is_begun = self.write().is_ok();
        Ok(())
    }

    fn on_record(&mut self, _record: &Record) -> Result<(), SinkError> {
        if !self.is_begun {
            self.write()?;
            self.is_begun = true;
        }
        Ok(())
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        let (state, why) = end.ending.name();
        (self.record.state, self.record.why) = (state.to_owned(), why.map(str::to_owned));
        (self.record.iteration, self.record.ended) = (end.iteration, Some(timestamp()));
        self.write()
    }
}
