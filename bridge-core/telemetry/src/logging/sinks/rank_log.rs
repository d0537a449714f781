//! The file in which a rank that has no console keeps its warnings and errors.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use bridge_data::untrusted_io;

use super::lines::message;
use crate::logging::record::LogLevel;
use crate::logging::sink::{Sink, SinkError};
use bridge_config::RunConfig;

/// The log file of one rank; it appears with the first line.
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
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = untrusted_io::append(&self.path)?;
        Ok(file.write_all((message(level, text) + "\n").as_bytes())?)
    }
}
