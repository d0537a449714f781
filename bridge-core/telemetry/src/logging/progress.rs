//! Progress of long work: a bar on a terminal, plain lines elsewhere, or nothing. Log lines pass a
//! bar undisturbed.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bridge_config::Progress;

use super::bars::TerminalProgress;
use super::numbers::duration;

/// The sink of this display, writing to standard error.
pub fn progress_sink(display: Progress) -> Arc<dyn ProgressSink> {
    match display {
        Progress::Auto if io::stderr().is_terminal() => Arc::new(TerminalProgress::new()),
        Progress::Bar => Arc::new(TerminalProgress::new()),
        Progress::Auto | Progress::Plain => Arc::new(PlainProgress::new(io::stderr(), Duration::from_secs(10))),
        Progress::None => Arc::new(NoProgress),
    }
}

/// Work whose progress is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressTask {
    /// Activity, such as `training` or `packing`.
    pub title: String,
    /// Number of steps; `None` if it is unknown.
    pub total: Option<u64>,
    /// Name of a step, in the plural: `iterations`, `documents`.
    pub unit: &'static str,
    /// Steps already done, as in a resumed run; they do not count into the pace.
    pub done: u64,
}

impl ProgressTask {
    /// A task of `total` steps, none done yet.
    pub fn new(title: &str, total: u64, unit: &'static str) -> Self {
        Self { title: title.to_owned(), total: Some(total), unit, done: 0 }
    }
}

/// Display of progress. Passed to everything that may take long.
pub trait ProgressSink: Send + Sync {
    /// Starts showing a task; it ends when the handle is dropped.
    fn start(&self, task: ProgressTask) -> Box<dyn ProgressHandle>;

    /// Runs `print`, which writes to the terminal, with any bars out of the way. `print` runs
    /// exactly once.
    fn suspend(&self, print: &mut dyn FnMut()) {
        print();
    }
}

/// One task being shown. Nothing shows by default.
pub trait ProgressHandle: Send {
    /// Says how many steps are done in all.
    fn set_position(&mut self, _position: u64) {}

    /// Adds to the steps that are done.
    fn advance(&mut self, _steps: u64) {}

    /// Says something about the step, such as the loss.
    fn set_message(&mut self, _message: &str) {}
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl ProgressSink for NoProgress {
    fn start(&self, _task: ProgressTask) -> Box<dyn ProgressHandle> {
        Box::new(Self)
    }
}

impl ProgressHandle for NoProgress {}

/// A line when a task starts, now and then while it runs, and when it ends.
#[derive(Clone)]
pub struct PlainProgress {
    output: Arc<Mutex<dyn Write + Send>>,
    interval: Duration,
}

impl PlainProgress {
    /// Lines to `output`, at most one per `interval` and task.
    pub fn new(output: impl Write + Send + 'static, interval: Duration) -> Self {
        Self { output: Arc::new(Mutex::new(output)), interval }
    }
}

impl ProgressSink for PlainProgress {
    fn start(&self, task: ProgressTask) -> Box<dyn ProgressHandle> {
        let now = Instant::now();
        let handle = PlainHandle {
            sink: self.clone(),
            position: task.done,
            message: String::new(),
            started: now,
            last_line: now,
            task,
        };
        handle.print("");
        Box::new(handle)
    }
}

struct PlainHandle {
    sink: PlainProgress,
    task: ProgressTask,
    position: u64,
    message: String,
    started: Instant,
    last_line: Instant,
}

impl PlainHandle {
    fn print(&self, suffix: &str) {
        let ProgressTask { title, total, unit, .. } = &self.task;
        let of_total = total.map_or(String::new(), |total| format!("/{total}"));
        let mut line = format!("{title}: {}{of_total} {unit}{suffix}", self.position);
        if !self.message.is_empty() {
            line.push_str(", ");
            line.push_str(&self.message);
        }
        line.push('\n');
        let mut output = self.sink.output.lock().unwrap_or_else(PoisonError::into_inner);
        // Progress is a courtesy: a closed standard error must not end a training run.
        let _ = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    }

    fn maybe_print(&mut self) {
        if self.last_line.elapsed() < self.sink.interval {
            return;
        }
        self.last_line = Instant::now();
        let done_here = self.position.saturating_sub(self.task.done);
        let left = self.task.total.filter(|_| done_here > 0).map(|total| {
            let pace = self.started.elapsed().as_secs_f64() / done_here as f64;
            format!(", {} left", duration(pace * total.saturating_sub(self.position) as f64))
        });
        self.print(&left.unwrap_or_default());
    }
}

impl ProgressHandle for PlainHandle {
    fn set_position(&mut self, position: u64) {
        self.position = position;
        self.maybe_print();
    }

    fn advance(&mut self, steps: u64) {
        self.set_position(self.position + steps);
    }

    fn set_message(&mut self, message: &str) {
        message.clone_into(&mut self.message);
    }
}

impl Drop for PlainHandle {
    fn drop(&mut self) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.print(&if seconds < 60.0 { format!(" in {seconds:.1} s") } else { format!(" in {}", duration(seconds)) });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Captured output for tests.
    #[derive(Clone, Default)]
    pub(in crate::logging) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(in crate::logging) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
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
    fn plain_lines() {
        let output = Captured::default();
        let sink = PlainProgress::new(output.clone(), Duration::ZERO);
        let mut handle = sink.start(ProgressTask { done: 2, ..ProgressTask::new("training", 4, "iterations") });
        handle.set_message("loss 5.5");
        handle.advance(1);
        handle.set_position(4);
        drop(handle);
        let text = output.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[2]), ("training: 2/4 iterations", "training: 4/4 iterations, 0 s left, loss 5.5"));
        let left =
            lines[1].strip_prefix("training: 3/4 iterations, ").and_then(|line| line.strip_suffix(" left, loss 5.5"));
        assert!(left.is_some_and(|left| left.ends_with(" s")), "{}", lines[1]);
        assert!(lines[3].starts_with("training: 4/4 iterations in "), "{}", lines[3]);
    }

    #[test]
    fn plain_lines_are_rare() {
        let output = Captured::default();
        let sink = PlainProgress::new(output.clone(), Duration::from_secs(3600));
        let mut handle = sink.start(ProgressTask { total: None, ..ProgressTask::new("packing", 0, "documents") });
        (0..1000).for_each(|_| handle.advance(1));
        drop(handle);
        let text = output.text();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("packing: 0 documents\npacking: 1000 documents in "), "{text}");
    }

    #[test]
    fn modes_choose_sinks() {
        let mut handle = progress_sink(Progress::None).start(ProgressTask::new("x", 1, "steps"));
        handle.advance(1);
        handle.set_position(1);
        handle.set_message("m");
        let mut calls = 0;
        progress_sink(Progress::None).suspend(&mut || calls += 1);
        progress_sink(Progress::Bar).suspend(&mut || calls += 1);
        assert_eq!(calls, 2);
    }
}
