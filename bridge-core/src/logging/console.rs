//! Where log lines go: people read text, programs read one JSON object a line. Progress bars are not disturbed.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::json_value::MetricValue;
use super::progress::{NoProgress, ProgressSink};

/// What console output looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// How much a message matters, with the numbers of `logger.logging_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// 10.
    Debug,
    /// 20.
    Info,
    /// 30.
    Warning,
    /// 40.
    Error,
}

impl LogLevel {
    /// The number used in configs.
    pub fn number(self) -> u32 {
        match self {
            Self::Debug => 10,
            Self::Info => 20,
            Self::Warning => 30,
            Self::Error => 40,
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something that can be logged for people and for programs.
pub trait LogRecord {
    /// The text, of one or more lines, without a final newline.
    fn human(&self) -> String;

    /// The JSON object's fields, in order.
    fn json_fields(&self) -> Vec<(String, MetricValue)>;

    /// The JSON object, on one line, without a final newline.
    fn json(&self) -> String {
        fields_to_json(&self.json_fields())
    }
}

/// A JSON object of these fields, on one line.
pub(super) fn fields_to_json(fields: &[(String, MetricValue)]) -> String {
    struct Object<'a>(&'a [(String, MetricValue)]);
    impl Serialize for Object<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(self.0.len()))?;
            for (name, value) in self.0 {
                map.serialize_entry(name, value)?;
            }
            map.end()
        }
    }
    serde_json::to_string(&Object(fields)).expect("strings and numbers always serialize")
}

/// Local time as `YYYY-MM-DD HH:MM:SS`.
pub fn timestamp() -> String {
    chrono::Local::now().format("%Y-%m-%d %H:%M:%S").to_string()
}

struct Message<'a> {
    level: LogLevel,
    text: &'a str,
}

impl LogRecord for Message<'_> {
    fn human(&self) -> String {
        match self.level {
            LogLevel::Debug | LogLevel::Info => self.text.to_owned(),
            LogLevel::Warning | LogLevel::Error => format!("{}: {}", self.level, self.text),
        }
    }

    fn json_fields(&self) -> Vec<(String, MetricValue)> {
        vec![
            ("kind".into(), "message".into()),
            ("timestamp".into(), timestamp().as_str().into()),
            ("level".into(), self.level.to_string().as_str().into()),
            ("text".into(), self.text.into()),
        ]
    }
}

/// Prints log records, whole and one at a time, from any thread.
pub struct Console {
    format: LogFormat,
    least: u32,
    progress: Arc<dyn ProgressSink>,
    output: Mutex<Box<dyn Write + Send>>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("format", &self.format).field("least", &self.least).finish_non_exhaustive()
    }
}

impl Console {
    /// A console on standard output, from [`LogLevel::Info`] on, with no progress bars to look out for.
    pub fn stdout(format: LogFormat) -> Self {
        Self::new(format, Box::new(io::stdout()))
    }

    /// A console that writes to `output`.
    pub fn new(format: LogFormat, output: Box<dyn Write + Send>) -> Self {
        Self { format, least: LogLevel::Info.number(), progress: Arc::new(NoProgress), output: Mutex::new(output) }
    }

    /// Steps around the bars of `progress` while printing.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<dyn ProgressSink>) -> Self {
        self.progress = progress;
        self
    }

    /// Drops messages below `logging_level` (10 debug, 20 info, 30 warning, 40 error). Records are always printed.
    #[must_use]
    pub fn with_level(mut self, logging_level: u32) -> Self {
        self.least = logging_level;
        self
    }

    /// What the output looks like.
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// Prints a record.
    ///
    /// # Errors
    /// Whatever writing reports, for instance a closed pipe.
    pub fn record(&self, record: &dyn LogRecord) -> io::Result<()> {
        let mut line = match self.format {
            LogFormat::Human => record.human(),
            LogFormat::Json => record.json(),
        };
        line.push('\n');
        let mut result = Ok(());
        self.progress.suspend(&mut || {
            let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
            result = output.write_all(line.as_bytes()).and_then(|()| output.flush());
        });
        result
    }

    /// Prints a message, if its level is wanted.
    ///
    /// # Errors
    /// Whatever writing reports.
    pub fn message(&self, level: LogLevel, text: &str) -> io::Result<()> {
        if level.number() < self.least {
            return Ok(());
        }
        self.record(&Message { level, text })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Output that a test can look at.
    #[derive(Clone, Default)]
    pub(in super::super) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(in super::super) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_as_text_and_json() {
        let output = Captured::default();
        let console = Console::new(LogFormat::Human, Box::new(output.clone()));
        console.message(LogLevel::Info, "training ...").unwrap();
        console.message(LogLevel::Debug, "dropped").unwrap();
        console.message(LogLevel::Warning, "odd").unwrap();
        assert_eq!(output.text(), "training ...\nwarning: odd\n");

        let output = Captured::default();
        let console = Console::new(LogFormat::Json, Box::new(output.clone())).with_level(40);
        console.message(LogLevel::Warning, "dropped").unwrap();
        console.message(LogLevel::Error, "line\nbreak").unwrap();
        let text = output.text();
        assert_eq!(text.lines().count(), 1, "one record, one line");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((json["level"].as_str(), json["text"].as_str()), (Some("error"), Some("line\nbreak")));
    }

    #[test]
    fn timestamps_have_a_fixed_shape() {
        let shape: String = timestamp().chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00 00:00:00");
    }
}
