//! Progress bars on a terminal: one line each, which fits it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use anstyle::AnsiColor;
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use super::numbers::{duration, with_prefix};
use super::progress::{ProgressHandle, ProgressSink, ProgressTask};
use super::terminal::{Column, bar_width, colours_bars, in_columns, painted};

/// Refresh rate of bars, in Hz.
const RATE: u8 = 20;

/// A terminal as wide as bars may be, since they are filled with spaces up to its width.
#[derive(Debug)]
struct Fitting(Term);

/// Hands methods of a terminal on.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty)?)),*) => {$(
        fn $name(&self $(, $argument: $type)?) -> io::Result<()> {
            self.0.$name($($argument)?)
        }
    )*};
}

impl TermLike for Fitting {
    fn width(&self) -> u16 {
        u16::try_from(bar_width()).unwrap_or(u16::MAX)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    forward!(move_cursor_up(n: usize), move_cursor_down(n: usize), move_cursor_left(n: usize));
    forward!(move_cursor_right(n: usize), write_line(s: &str), write_str(s: &str), clear_line(), flush());
}

/// Bars with pace and time left, in one line that fits the terminal.
#[derive(Clone, Debug)]
pub(super) struct TerminalProgress {
    bars: MultiProgress,
    /// Cells of a line; it may change while a bar is shown.
    width: fn() -> usize,
    has_colours: bool,
}

impl TerminalProgress {
    /// Bars on standard error.
    pub fn new() -> Self {
        let term = Term::stderr();
        let target = match term.is_term() {
            true => ProgressDrawTarget::term_like_with_hz(Box::new(Fitting(term)), RATE),
            false => ProgressDrawTarget::hidden(),
        };
        let bars = MultiProgress::with_draw_target(target);
        Self { bars, width: bar_width, has_colours: colours_bars() }
    }
}

impl ProgressSink for TerminalProgress {
    fn start(&self, task: ProgressTask) -> Box<dyn ProgressHandle> {
        let bar = task.total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        let message = Arc::new(Mutex::new(String::new()));
        let (shown, width, has_colours) = (Arc::clone(&message), self.width, self.has_colours);
        let done = task.done;
        let line = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let message = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (elapsed, total) = (state.elapsed().as_secs_f64(), state.len());
            let at = Moment { position: state.pos(), total, elapsed, message };
            let line = bar_line(&task, &at, width());
            let line = if has_colours { coloured(&line) } else { line };
            // A line that cannot be drawn is not worth a word.
            let _ = out.write_str(&line);
        };
        // The template is a constant, so it parses; a default bar is still better than none.
        if let Ok(style) = ProgressStyle::with_template("{line}") {
            bar.set_style(style.with_key("line", line));
        }
        let bar = self.bars.add(bar);
        bar.set_position(done);
        bar.reset_elapsed();
        Box::new(TerminalHandle { bar, message })
    }

    fn suspend(&self, print: &mut dyn FnMut()) {
        self.bars.suspend(print);
    }
}

/// Progress of a task.
struct Moment {
    position: u64,
    total: Option<u64>,
    /// Seconds since it was started.
    elapsed: f64,
    message: String,
}

/// Cells of the bar itself.
const BAR: u64 = 20;
const DONE: char = '━';
const TO_DO: char = '─';

/// A task in one line of at most `width` cells.
fn bar_line(task: &ProgressTask, at: &Moment, width: usize) -> String {
    let Moment { position, total, elapsed, message } = at;
    let rate = position.saturating_sub(task.done) as f64 / elapsed.max(1e-9);
    let bar = total.filter(|total| *total > 0).map(|total| {
        let full = (u128::from((*position).min(total)) * u128::from(BAR) / u128::from(total)) as usize;
        [vec![DONE; full], vec![TO_DO; BAR as usize - full]].concat().into_iter().collect::<String>()
    });
    let of = total.map_or(String::new(), |total| format!("/{total}"));
    let left = total
        .filter(|_| rate > 0.0)
        .map(|total| format!("{} left", duration(total.saturating_sub(*position) as f64 / rate)));
    let pace = if rate > 0.0 { format!("{}/s", with_prefix_of_rate(rate)) } else { String::new() };
    let columns = [
        (bar, 20),
        (Some(format!("{position}{of} {}", task.unit)), 90),
        (left.or_else(|| Some(duration(*elapsed))), 80),
        (Some(message.clone()), 50),
        (Some(pace), 10),
    ];
    let columns: Vec<Column> =
        columns.into_iter().filter_map(|(text, weight)| Some(Column { text: text?, weight })).collect();
    in_columns(&task.title, &columns, width)
}

/// Rates below ten keep a decimal.
fn with_prefix_of_rate(rate: f64) -> String {
    if rate < 9.95 { format!("{rate:.1}") } else { with_prefix(rate) }
}

/// A line with its bar in two colours.
fn coloured(line: &str) -> String {
    let is_bar = |c: char| c == DONE || c == TO_DO;
    let Some(begin) = line.find(is_bar) else { return line.to_owned() };
    let (head, rest) = line.split_at(begin);
    let (bar, rest) = rest.split_at(rest.find(|c| !is_bar(c)).unwrap_or(rest.len()));
    let (done, to_do) = bar.split_at(bar.find(TO_DO).unwrap_or(bar.len()));
    format!(
        "{head}{}{}{rest}",
        painted(AnsiColor::Cyan.on_default(), done),
        painted(AnsiColor::Blue.on_default(), to_do)
    )
}

struct TerminalHandle {
    bar: ProgressBar,
    message: Arc<Mutex<String>>,
}

impl ProgressHandle for TerminalHandle {
    fn set_position(&mut self, position: u64) {
        self.bar.set_position(position);
    }

    fn advance(&mut self, steps: u64) {
        self.bar.inc(steps);
    }

    fn set_message(&mut self, message: &str) {
        message.clone_into(&mut self.message.lock().unwrap_or_else(PoisonError::into_inner));
        self.bar.tick();
    }
}

impl Drop for TerminalHandle {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// A terminal in memory. indicatif's own is behind a feature of it: the build of tests would
    /// compile all that depends on it once more.
    #[derive(Clone)]
    struct Screen(Arc<Mutex<vt100::Parser>>);

    impl Screen {
        fn contents(&self) -> String {
            let parser = self.0.lock().unwrap();
            let rows: Vec<String> = parser.screen().rows(0, 100).map(|row| row.trim_end().to_owned()).collect();
            rows.join("\n").trim_end().to_owned()
        }
    }

    impl fmt::Debug for Screen {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.contents())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }

        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            if n == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{n}A")) }
        }

        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            if n == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{n}B")) }
        }

        fn move_cursor_right(&self, n: usize) -> io::Result<()> {
            if n == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{n}C")) }
        }

        fn move_cursor_left(&self, n: usize) -> io::Result<()> {
            if n == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{n}D")) }
        }

        fn write_line(&self, s: &str) -> io::Result<()> {
            self.write_str(&format!("{s}\r\n"))
        }

        fn write_str(&self, s: &str) -> io::Result<()> {
            self.0.lock().unwrap().process(s.as_bytes());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write_str("\r\x1b[2K")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bars_make_room_for_log_lines() {
        let terminal = Screen(Arc::new(Mutex::new(vt100::Parser::new(10, 100, 0))));
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bars = MultiProgress::with_draw_target(target);
        let sink = TerminalProgress { bars, width: || 99, has_colours: false };
        let mut handle = sink.start(ProgressTask::new("training", 4, "iterations"));
        handle.set_message("loss 5.5");
        handle.set_position(3);
        sink.suspend(&mut || terminal.write_line("a log line").unwrap());
        let screen = terminal.contents();
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines[0], "a log line");
        assert!(lines[1].starts_with("training ") && lines[1].contains("3/4 iterations"), "{screen}");
        drop(handle);
        assert_eq!(terminal.contents().trim(), "a log line");
    }

    #[test]
    fn bars_fit_any_width() {
        let task = ProgressTask { done: 100, ..ProgressTask::new("training", 420, "it") };
        let at =
            |position, message: &str| Moment { position, total: Some(420), elapsed: 10.0, message: message.to_owned() };
        let message = "loss 5.5012, 5.48k tok/s";
        assert_eq!(
            bar_line(&task, &at(210, message), 99),
            "training  ━━━━━━━━━━──────────  210/420 it  19 s left  loss 5.5012, 5.48k tok/s  11/s"
        );
        let narrow = bar_line(&task, &at(210, message), 59);
        assert_eq!(narrow, "training  210/420 it  19 s left  loss 5.5012, 5.48k tok/s");
        assert_eq!(bar_line(&task, &at(210, message), 39), "training  210/420 it  19 s left");
        for width in 20..200 {
            for position in [0, 100, 101, 420, u64::MAX] {
                let line = bar_line(&task, &at(position, message), width);
                assert!(console::measure_text_width(&line) <= width, "{line:?} of {width}");
                assert_eq!(console::strip_ansi_codes(&coloured(&line)), line);
            }
        }
    }
}
