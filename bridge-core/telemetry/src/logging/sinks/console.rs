//! The console: people read text and a progress bar, programs read one JSON object a line. Lines do
//! not disturb bars.

use std::io::{self, Write};
use std::sync::Arc;

use super::lines::{evaluation, in_order, message, pace, short, short_message, step, timestamp};
use crate::logging::json_value::{MetricValue, fields_to_json};
use crate::logging::numbers::{significant, with_prefix};
use crate::logging::progress::{ProgressHandle, ProgressSink, ProgressTask};
use crate::logging::record::{LogLevel, Record, RecordKind, RunEnd, RunStart};
use crate::logging::sink::{Sink, SinkError};
use crate::logging::terminal::output_width;
use bridge_config::RunConfig;

/// Format of console output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people, with every figure: long lines.
    #[default]
    Human,
    /// Text for people at a terminal: lines that fit its width. The log file has all figures.
    Short,
    /// One JSON object a line.
    Json,
}

/// Amount of a program's console output. Log files have everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Warnings and errors: no notes, no figures, no progress. Programs that read JSON get figures
    /// all the same.
    Quiet,
    /// Also notes, figures and progress; on a terminal in lines that fit it.
    #[default]
    Normal,
    /// All figures of each step that is logged, and the configuration.
    Verbose,
}

/// Prints lines and records, each whole, around a progress bar.
pub struct ConsoleSink {
    format: LogFormat,
    verbosity: Verbosity,
    least: u32,
    train_iters: u64,
    progress: Arc<dyn ProgressSink>,
    bar: Option<Box<dyn ProgressHandle>>,
    output: Box<dyn Write + Send>,
    /// Cells of a line; it may change while the run goes on.
    width: fn() -> usize,
    /// Lines that could not be printed: the reader may be gone. A run that still saves checkpoints
    /// goes on without.
    lost_lines: u64,
}

impl ConsoleSink {
    /// A console that writes to `output`, around the bars of `progress`.
    pub fn new(
        config: &RunConfig,
        format: LogFormat,
        output: Box<dyn Write + Send>,
        progress: Arc<dyn ProgressSink>,
        verbosity: Verbosity,
    ) -> Self {
        let configured = config.logger.logging_level as u32;
        let least = if verbosity == Verbosity::Quiet { configured.max(LogLevel::Warning.number()) } else { configured };
        let train_iters = config.train.train_iters as u64;
        let width = output_width;
        Self { format, verbosity, least, train_iters, progress, bar: None, output, width, lost_lines: 0 }
    }

    /// True if figures are printed: programs that ask for JSON want them at every verbosity.
    fn prints_figures(&self) -> bool {
        self.format == LogFormat::Json || self.verbosity != Verbosity::Quiet
    }

    fn print(&mut self, mut line: String) {
        line.push('\n');
        let mut printed = Ok(());
        let output = &mut self.output;
        self.progress.suspend(&mut || printed = output.write_all(line.as_bytes()).and_then(|()| output.flush()));
        self.lost_lines += u64::from(printed.is_err());
    }

    fn message(&mut self, level: LogLevel, text: &str) {
        if level.number() < self.least {
            return;
        }
        self.print(match self.format {
            LogFormat::Human => message(level, text),
            LogFormat::Short => short_message(level, text, (self.width)()),
            LogFormat::Json => {
                let fields = [
                    ("kind", "message".into()),
                    ("timestamp", timestamp().as_str().into()),
                    ("level", level.to_string().as_str().into()),
                    ("text", text.into()),
                ];
                fields_to_json(&fields.map(|(name, value)| (name.to_owned(), value)))
            }
        });
    }

    /// Moves the bar to a step.
    fn show_position(&mut self, record: &Record) {
        if let Some(bar) = &mut self.bar {
            bar.set_position(record.iteration);
            let loss = record.number("loss").map(|loss| format!("loss {}", significant(loss, 5)));
            let pace = record.number("tokens_per_second").map(|pace| format!("{} tok/s", with_prefix(pace)));
            bar.set_message(&loss.into_iter().chain(pace).collect::<Vec<_>>().join(", "));
        }
    }

    fn step(&mut self, record: &Record) {
        let timestamp = timestamp();
        match self.format {
            LogFormat::Human => {
                if let Some(pace) = pace(record) {
                    self.message(LogLevel::Info, &pace);
                }
                self.print(step(record, self.train_iters, &timestamp));
            }
            LogFormat::Short => self.print(short(record, self.train_iters, (self.width)())),
            LogFormat::Json => self.print(fields_to_json(&self.json_of_step(record, &timestamp))),
        }
    }

    fn json_of_step(&self, record: &Record, timestamp: &str) -> Vec<(String, MetricValue)> {
        let head = [
            ("kind", "train_log".into()),
            ("timestamp", timestamp.into()),
            ("iteration", record.iteration.into()),
            ("train_iters", self.train_iters.into()),
            ("consumed_samples", record.consumed_samples.into()),
        ];
        let rest = in_order(&record.figures, |figure| figure.json.as_ref());
        let json = head.map(|(key, value)| (key.to_owned(), value)).into_iter();
        json.chain(rest.into_iter().map(|(figure, key)| (key.to_string(), figure.value.clone()))).collect()
    }
}

impl Sink for ConsoleSink {
    fn name(&self) -> &str {
        "the console"
    }

    fn on_run_start(&mut self, start: &RunStart) -> Result<(), SinkError> {
        // The console is there before the data says how long a run of epochs is.
        self.train_iters = start.train_iters.unwrap_or(self.train_iters);
        self.bar = start.train_iters.map(|train_iters| {
            let mut task = ProgressTask::new("training", train_iters, "it");
            task.done = start.iteration;
            self.progress.start(task)
        });
        Ok(())
    }

    fn on_line(&mut self, level: LogLevel, text: &str) -> Result<(), SinkError> {
        self.message(level, text);
        Ok(())
    }

    fn on_details(&mut self, text: &str) -> Result<(), SinkError> {
        match self.format {
            LogFormat::Human | LogFormat::Json => self.on_line(LogLevel::Info, text),
            LogFormat::Short => Ok(()),
        }
    }

    fn on_configuration(&mut self, text: &str) -> Result<(), SinkError> {
        // `train.log` and `run.json` have it.
        if self.verbosity == Verbosity::Verbose { self.on_details(text) } else { Ok(()) }
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        match record.kind {
            RecordKind::Evaluation(split, occasion) if self.prints_figures() => {
                self.print(match self.format {
                    LogFormat::Human => evaluation(record, split, occasion),
                    LogFormat::Short => short(record, self.train_iters, (self.width)()),
                    LogFormat::Json => fields_to_json(&record.fields().unwrap_or_default()),
                });
                if let Some(bar) = &mut self.bar {
                    bar.set_message("");
                }
            }
            RecordKind::Evaluation(..) => {}
            RecordKind::Train => {
                self.show_position(record);
                if record.ends_interval && self.prints_figures() {
                    self.step(record);
                }
            }
        }
        Ok(())
    }

    fn on_evaluating(&mut self, text: &str) {
        if let Some(bar) = &mut self.bar {
            bar.set_message(text);
        }
    }

    fn on_train_end(&mut self) {
        self.bar = None;
    }

    /// Prints what is missing in the logs, on standard error where the console is gone.
    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        self.bar = None;
        for warning in end.warnings.iter().chain(&end.missing) {
            self.message(LogLevel::Warning, warning);
        }
        if self.lost_lines > 0 {
            let logs = end.missing.as_ref().map(|missing| format!("; {missing}")).unwrap_or_default();
            let lost = self.lost_lines;
            // If this write fails, too, it cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "warning: {lost} lines could not be printed on the console{logs}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::progress::NoProgress;
    use crate::logging::progress::tests::Captured;
    use crate::logging::record::{Figure, Occasion, Split};

    fn console(format: LogFormat, least: u32) -> (ConsoleSink, Captured) {
        let captured = Captured::default();
        let output = Box::new(captured.clone());
        let progress = Arc::new(NoProgress);
        let (verbosity, width): (_, fn() -> usize) = (Verbosity::Normal, || 79);
        let sink = ConsoleSink {
            format,
            verbosity,
            least,
            train_iters: 20,
            progress,
            bar: None,
            output,
            width,
            lost_lines: 0,
        };
        (sink, captured)
    }

    fn record(kind: RecordKind, figures: Vec<Figure>) -> Record {
        Record { kind, iteration: 2, consumed_samples: 16, ends_interval: true, figures }
    }

    #[test]
    fn messages_as_text_and_json() {
        let (mut sink, output) = console(LogFormat::Human, 20);
        for (level, text) in
            [(LogLevel::Info, "training ..."), (LogLevel::Debug, "dropped"), (LogLevel::Warning, "odd")]
        {
            sink.on_line(level, text).unwrap();
        }
        assert_eq!(output.text(), "training ...\nwarning: odd\n");

        let (mut sink, output) = console(LogFormat::Json, 40);
        sink.on_line(LogLevel::Warning, "dropped").unwrap();
        sink.on_line(LogLevel::Error, "line\nbreak").unwrap();
        let text = output.text();
        assert_eq!(text.lines().count(), 1, "one record, one line");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((json["level"].as_str(), json["text"].as_str()), (Some("error"), Some("line\nbreak")));
    }

    #[test]
    fn parts_of_a_step_come_in_the_order_of_their_places() {
        let figures = || {
            vec![
                Figure::new("loss_scale", "", "Scale", 1.0).line(9, "loss scale: 1.0".into()).json(3, "loss_scale"),
                Figure::new("loss", "", "Loss", 5.5).of_interval().line(4, "lm loss: 5.5".into()).json(7, "lm loss"),
                Figure::new("interval_tflops_per_device", "TFLOP/s", "Pace", 12.34).of_interval(),
                Figure::new("elapsed_ms_per_iteration", "milliseconds", "Pace", 250.0).of_interval(),
                Figure::new("seconds", "seconds", "Time", 0.5).file(),
            ]
        };
        let (mut sink, output) = console(LogFormat::Human, 20);
        sink.on_record(&record(RecordKind::Train, figures())).unwrap();
        let text = output.text();
        let (pace, line) = text.split_once('\n').unwrap();
        assert_eq!(pace, "Step Time : 0.25s GPU utilization: 12.3MODEL_TFLOP/s/GPU");
        let (_, line) = line.split_once(']').unwrap();
        assert_eq!(
            line,
            " iteration        2/      20 | consumed samples:           16 | lm loss: 5.5 | loss scale: 1.0 |\n"
        );
        let (mut sink, output) = console(LogFormat::Json, 20);
        sink.on_record(&record(RecordKind::Train, figures())).unwrap();
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&output.text()).unwrap();
        let keys: Vec<&str> = json.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["kind", "timestamp", "iteration", "train_iters", "consumed_samples", "loss_scale", "lm loss"]
        );
    }

    #[test]
    fn evaluations_stand_between_dashes() {
        let figures = || vec![Figure::new("loss", "", "Loss", 2.0).file().line(0, "lm loss value: 2".into())];
        for (split, occasion, set) in [
            (Split::Valid, Occasion::DuringTraining, ""),
            (Split::Valid, Occasion::AfterTraining, " on validation set"),
            (Split::Test, Occasion::DuringTraining, " on test set"),
        ] {
            let (mut sink, output) = console(LogFormat::Human, 20);
            sink.on_record(&record(RecordKind::Evaluation(split, occasion), figures())).unwrap();
            let text = output.text();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[1], format!(" validation loss at iteration 2{set} | lm loss value: 2 | "));
            assert_eq!((lines[0].len(), lines[0]), (lines[1].len() + 1, lines[2]));
        }
        let (mut sink, output) = console(LogFormat::Json, 20);
        sink.on_record(&record(RecordKind::Evaluation(Split::Test, Occasion::AfterTraining), figures())).unwrap();
        assert_eq!(output.text(), "{\"kind\":\"test\",\"iteration\":2,\"loss\":2.0}\n");
    }

    #[test]
    fn quiet_leaves_warnings_and_what_programs_asked_for() {
        for (format, lines) in [(LogFormat::Human, 1), (LogFormat::Json, 2)] {
            let (mut sink, output) = console(format, LogLevel::Warning.number());
            sink.verbosity = Verbosity::Quiet;
            sink.on_line(LogLevel::Info, "a note").unwrap();
            sink.on_line(LogLevel::Warning, "odd").unwrap();
            sink.on_record(&record(RecordKind::Train, vec![Figure::new("loss", "", "Loss", 2.0).file()])).unwrap();
            assert_eq!(output.text().lines().count(), lines, "{}", output.text());
        }
    }

    #[test]
    fn timestamps_have_a_fixed_shape() {
        let shape: String = timestamp().chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00 00:00:00");
    }
}
