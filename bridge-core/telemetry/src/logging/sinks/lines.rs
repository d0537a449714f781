//! The words of log lines: records and messages in full, as log files and pipes have them, and
//! short, as they fit a terminal.

use anstyle::{AnsiColor, Style};

use crate::logging::record::{Figure, LogLevel, Occasion, Record, RecordKind, Split};
use crate::logging::terminal::{Column, folded, highlighted, in_columns, painted};

/// Figures of an interval that the line before the log line repeats.
const TFLOPS: &str = "interval_tflops_per_device";
const MILLISECONDS: &str = "elapsed_ms_per_iteration";

/// Local time as `YYYY-MM-DD HH:MM:SS`.
pub fn timestamp() -> String {
    chrono::Local::now().format("%Y-%m-%d %H:%M:%S").to_string()
}

/// A message of some level.
pub(super) fn message(level: LogLevel, text: &str) -> String {
    match level {
        LogLevel::Debug | LogLevel::Info => text.to_owned(),
        LogLevel::Warning | LogLevel::Error => format!("{level}: {text}"),
    }
}

/// A warning or an error in a log file of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEvent<'a> {
    /// Local time; `None` in the logs of ranks other than 0.
    pub time: Option<&'a str>,
    /// [`LogLevel::Warning`] or [`LogLevel::Error`].
    pub level: LogLevel,
    /// The message, its first line if it has several.
    pub text: &'a str,
}

impl<'a> LogEvent<'a> {
    /// Reads a line of `train.log` or of a rank's log; `None` if it is neither a warning nor an
    /// error. Only the level counts, not words within a message.
    pub fn read(line: &'a str) -> Option<Self> {
        let timed = line.strip_prefix(" [").and_then(|rest| rest.split_once("] "));
        let (time, message) = timed.map_or((None, line), |(time, message)| (Some(time), message));
        let of = |level: LogLevel| {
            let text = message.strip_prefix(&format!("{level}: "))?;
            Some(Self { time, level, text })
        };
        of(LogLevel::Warning).or_else(|| of(LogLevel::Error))
    }
}

/// A message in lines of at most `width` cells, its level in colour.
pub(super) fn short_message(level: LogLevel, text: &str, width: usize) -> String {
    let lines = folded(&message(level, text), width);
    if level >= LogLevel::Warning { highlighted(&lines) } else { lines }
}

/// The figures that have a part of the line, in the order of these parts.
pub(super) fn in_order<'a, T>(
    figures: &'a [Figure],
    part: impl Fn(&'a Figure) -> Option<&'a (u8, T)>,
) -> Vec<(&'a Figure, &'a T)> {
    let mut parts: Vec<_> = figures.iter().filter_map(|figure| Some((figure, part(figure)?))).collect();
    parts.sort_by_key(|(_, (place, _))| *place);
    parts.into_iter().map(|(figure, (_, content))| (figure, content)).collect()
}

/// Speed of the steps of an interval, if it is known; it precedes [`step`], as a message.
pub(super) fn pace(record: &Record) -> Option<String> {
    let (tflops, milliseconds) = record.number(TFLOPS).zip(record.number(MILLISECONDS))?;
    let seconds = milliseconds / 1000.0;
    Some(format!("Step Time : {seconds:.2}s GPU utilization: {tflops:.1}MODEL_TFLOP/s/GPU"))
}

/// The line of a step that ends an interval.
pub(super) fn step(record: &Record, train_iters: u64, timestamp: &str) -> String {
    let Record { iteration, consumed_samples, .. } = record;
    let mut line =
        format!(" [{timestamp}] iteration {iteration:8}/{train_iters:8} | consumed samples: {consumed_samples:12} |");
    for (_, text) in in_order(&record.figures, |figure| figure.line.as_ref()) {
        line += &format!(" {text} |");
    }
    line
}

/// The lines of an evaluation.
pub(super) fn evaluation(record: &Record, split: Split, occasion: Occasion) -> String {
    let set = match (split, occasion) {
        (Split::Valid, Occasion::DuringTraining) => "",
        (Split::Valid, Occasion::AfterTraining) => " on validation set",
        (Split::Test, _) => " on test set",
    };
    let mut line = format!(" validation loss at iteration {}{set} | ", record.iteration);
    for (_, text) in in_order(&record.figures, |figure| figure.line.as_ref()) {
        line += &format!("{text} | ");
    }
    let dashes = "-".repeat(line.chars().count() + 1);
    format!("{dashes}\n{line}\n{dashes}")
}

/// A record in one line of at most `width` cells.
pub(super) fn short(record: &Record, train_iters: u64, width: usize) -> String {
    let columns: Vec<Column> = in_order(&record.figures, |figure| figure.short.as_ref())
        .into_iter()
        .map(|(_, column)| column.clone())
        .collect();
    let iteration = record.iteration;
    match record.kind {
        RecordKind::Train => {
            let total = train_iters.to_string();
            let head = format!("{iteration:>0$}", total.len());
            let lines = [format!("{head}/{total}"), head].map(|head| in_columns(&head, &columns, width));
            let shown = |line: &String| columns.iter().filter(|column| line.contains(&column.text)).count();
            let [with_total, without] = lines;
            // The header has the total too: it gives way before any figure does.
            if shown(&with_total) < shown(&without) { without } else { with_total }
        }
        RecordKind::Evaluation(..) => {
            let name = record.kind.name();
            let line = in_columns(&format!("{name} at {iteration}"), &columns, width);
            match line.strip_prefix(name) {
                Some(rest) => painted(Style::new().bold().fg_color(Some(AnsiColor::Cyan.into())), name) + rest,
                None => line,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use console::measure_text_width;
    use proptest::prelude::*;

    use super::*;

    fn record(kind: RecordKind, iteration: u64, figures: Vec<Figure>) -> Record {
        Record { kind, iteration, consumed_samples: 16, ends_interval: true, figures }
    }

    #[test]
    fn figures_come_in_the_order_of_their_places() {
        let figures = vec![
            Figure::new("b", "", "B", 1.0).short(20, 50, "lr 1.00e-8".into()),
            Figure::new("a", "", "A", 1.0).short(10, 90, "loss 5.5".into()),
            Figure::new("c", "", "C", 1.0),
        ];
        let line = |width| short(&record(RecordKind::Train, 7, figures.clone()), 420, width);
        assert_eq!(line(79), "  7/420  loss 5.5  lr 1.00e-8");
        assert_eq!(line(24), "  7 loss 5.5 lr 1.00e-8", "the total is the first to go");
        assert_eq!(line(20), "  7/420  loss 5.5");
        let valid = record(RecordKind::Evaluation(Split::Valid, Occasion::DuringTraining), 7, figures.clone());
        assert_eq!(
            anstream::adapter::strip_str(&short(&valid, 420, 79)).to_string(),
            "valid at 7  loss 5.5  lr 1.00e-8"
        );
    }

    #[test]
    fn levels_have_colours_and_texts_stay() {
        let line = short_message(LogLevel::Warning, "a word or two", 12);
        assert_eq!(anstream::adapter::strip_str(&line).to_string(), "warning: a\n  word or\n  two");
        assert_ne!(line, "warning: a\n  word or\n  two");
        assert_eq!(short_message(LogLevel::Info, "error", 80), "error");
    }

    #[test]
    fn events_are_read_by_their_level_and_not_by_words() {
        let time = timestamp();
        let written = |level, text| format!(" [{time}] {}", message(level, text));
        let warning = written(LogLevel::Warning, "iteration 3: the loss is 7");
        let event = LogEvent::read(&warning).unwrap();
        assert_eq!(
            (event.time, event.level, event.text),
            (Some(&*time), LogLevel::Warning, "iteration 3: the loss is 7")
        );
        let of_rank = message(LogLevel::Error, "gone");
        assert_eq!(LogEvent::read(&of_rank).map(|event| (event.time, event.text)), Some((None, "gone")));
        for text in ["seed = 1 # default", "no error: 3 slow ranks, a restart", "time expected: 2 min"] {
            assert_eq!(LogEvent::read(&written(LogLevel::Info, text)), None, "{text}");
        }
        let step = step(&record(RecordKind::Train, 7, Vec::new()), 9, &time);
        assert_eq!(LogEvent::read(&step), None);
    }

    proptest! {
        #[test]
        fn short_lines_fit(
            texts in proptest::collection::vec(("[a-z0-9 .]{0,24}", 0_u8..99, 0_u8..99), 0..16),
            (iteration, total) in (any::<u64>(), any::<u64>()),
            width in 20_usize..200,
            is_train in any::<bool>(),
        ) {
            let figure = |(text, place, weight): &(String, u8, u8)| {
                Figure::new("x", "", "X", 1.0).short(*place, *weight, text.clone())
            };
            let valid = RecordKind::Evaluation(Split::Valid, Occasion::DuringTraining);
            let kind = if is_train { RecordKind::Train } else { valid };
            let line = short(&record(kind, iteration, texts.iter().map(figure).collect()), total, width);
            prop_assert!(measure_text_width(&line) <= width, "{line:?} of {width}");
            prop_assert!(!line.contains('\n'));
        }
    }
}
