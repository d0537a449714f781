//! `train.log`: what the console says in full, each line with its time, whatever the terminal
//! shows. Runs in the same folder add to it. Ranks that have no console keep their warnings and
//! errors in files of their own.

use std::fs::File;
use std::path::PathBuf;

use super::lines::{evaluation, message, pace, step, timestamp};
use crate::logging::files::{append, append_whole};
use crate::logging::record::{LogLevel, Record, RecordKind};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};
use bridge_config::RunConfig;

const NAME: &str = "train.log";

/// The log of a run.
struct TrainLog {
    file: File,
    train_iters: u64,
    least: u32,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let logger = &context.config.logger;
    let file = append(&logger.log_dir.join(NAME)).map_err(|error| OpenError::log(NAME, error))?;
    let (train_iters, least) = (context.config.train.train_iters as u64, logger.logging_level as u32);
    Ok(Some(Box::new(TrainLog { file, train_iters, least })))
}

impl TrainLog {
    fn write(&mut self, text: &str) -> Result<(), SinkError> {
        Ok(append_whole(&mut self.file, format!("{text}\n").as_bytes())?)
    }
}

impl Sink for TrainLog {
    fn name(&self) -> &str {
        NAME
    }

    fn on_line(&mut self, level: LogLevel, text: &str) -> Result<(), SinkError> {
        if level.number() < self.least {
            return Ok(());
        }
        self.write(&format!(" [{}] {}", timestamp(), message(level, text)))
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        match record.kind {
            RecordKind::Evaluation(split, occasion) => self.write(&evaluation(record, split, occasion)),
            RecordKind::Train if record.ends_interval => {
                if let Some(pace) = pace(record) {
                    self.on_line(LogLevel::Info, &pace)?;
                }
                self.write(&step(record, self.train_iters, &timestamp()))
            }
            RecordKind::Train => Ok(()),
        }
    }
}

/// The log file of a rank other than 0; it appears with the first line.
pub struct RankLog {
    path: PathBuf,
    least: u32,
}

impl RankLog {
    /// The log of `rank`.
    pub fn new(config: &RunConfig, rank: usize) -> Self {
        let path = config.logger.log_dir.join("ranks").join(format!("rank_{rank:05}.log"));
        Self { path, least: (config.logger.logging_level as u32).max(LogLevel::Warning.number()) }
    }
}

impl Sink for RankLog {
    fn name(&self) -> &str {
        "the rank's log"
    }

    fn on_line(&mut self, level: LogLevel, text: &str) -> Result<(), SinkError> {
        if level.number() < self.least {
            return Ok(());
        }
        Ok(append_whole(&mut append(&self.path)?, (message(level, text) + "\n").as_bytes())?)
    }
}
