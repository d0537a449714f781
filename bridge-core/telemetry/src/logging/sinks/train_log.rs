//! `train.log`: what the console says in full, each line with its time, whatever the terminal
//! shows. Runs in the same folder add to it.

use std::fs::File;

use bridge_data::untrusted_io;

use super::lines::{evaluation, message, pace, step, timestamp};
use super::metrics_jsonl::append_whole;
use crate::logging::record::{LogLevel, Record, RecordKind};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};

const NAME: &str = "train.log";

/// The log of a run.
struct TrainLog {
    file: File,
    train_iters: u64,
    least: u32,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let logger = &context.config.logger;
    let open = || {
        std::fs::create_dir_all(&logger.log_dir)?;
        untrusted_io::append(&logger.log_dir.join(NAME))
    };
    let file = open().map_err(|error| OpenError::log(NAME, error))?;
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
