//! `tensor_statistics.csv`: the statistics of tensors (`[tensor_inspect]`), a line for each tensor
//! and step. As in `metrics.jsonl`, rows of an interrupted run for steps that run again are
//! dropped, and the table of another run is kept beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;

use crate::inspect::Statistic;
use crate::logging::files::{append, append_whole, replace, set_aside};
use crate::logging::json_value::MetricValue;
use crate::logging::record::{Figure, Record};
use crate::logging::sink::{OpenError, Opened, Sink, SinkContext, SinkError};

const NAME: &str = "tensor_statistics.csv";

/// Prefix of the names of tensor figures, before the name of the statistic.
const PREFIX: &str = "tensor_";

pub(super) fn open(context: &SinkContext) -> Opened {
    let Some(settings) = &context.config.tensor_inspect else { return Ok(None) };
    let path = settings.log_dir.join(NAME);
    let name = || path.display().to_string();
    let table = Table::open(&path, context.run, context.iteration).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => OpenError::Damaged(name(), error.into()),
        _ => OpenError::log(name(), error),
    });
    Ok(Some(Box::new(table?)))
}

/// Appends the lines of each step.
struct Table {
    path: PathBuf,
    run: String,
    file: File,
}

impl Table {
    fn open(path: &Path, run: &str, completed_iterations: u64) -> io::Result<Self> {
        let old = match untrusted_io::read_text(path, untrusted_io::RECORDS_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let header = header();
        if !old.is_empty() && old.lines().next() != Some(&header) {
            let message = "does not begin with the columns of this table; move the file away";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut kept = header + "\n";
        // The text after the last newline is an incomplete row.
        let rows = old.split_inclusive('\n').skip(1).filter(|row| row.ends_with('\n'));
        let (mut owner, field) = (None, quoted(run));
        let own = format!(",{field}");
        for row in rows {
            let row_of_other = row.trim_end().rsplit_once(',').filter(|_| !row.trim_end().ends_with(&own));
            owner = row_of_other.map(|(_, owner)| owner.to_owned());
            let iteration = row.split(',').next().and_then(|iteration| iteration.parse::<u64>().ok());
            if iteration.is_some_and(|iteration| iteration <= completed_iterations) {
                kept.push_str(row);
            }
        }
        if let Some(owner) = owner {
            set_aside(path, &owner)?;
            kept = self::header() + "\n";
        }
        if kept != old || !path.exists() {
            replace(path, kept.as_bytes())?;
        }
        Ok(Self { path: path.to_owned(), run: field, file: append(path)? })
    }
}

impl Sink for Table {
    fn name(&self) -> &str {
        NAME
    }

    fn on_record(&mut self, record: &Record) -> Result<(), SinkError> {
        let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, &MetricValue>> = BTreeMap::new();
        for figure in &record.figures {
            if let (Some(statistic), Some(tensor)) = (figure.name.strip_prefix(PREFIX), label(figure, "tensor")) {
                rows.entry((tensor, label(figure, "kind").unwrap_or(""))).or_default().insert(statistic, &figure.value);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for ((tensor, kind), values) in rows {
            text += &format!("{},{},{kind}", record.iteration, quoted(tensor));
            for (name, _) in Statistic::NAMES {
                text.push(',');
                text += &values.get(name.trim_end_matches('%')).map_or(String::new(), |value| cell(value));
            }
            text += &format!(",{}\n", self.run);
        }
        let appended = append_whole(&mut self.file, text.as_bytes());
        Ok(appended.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))?)
    }
}

fn header() -> String {
    let names: Vec<&str> = Statistic::NAMES.iter().map(|(name, _)| *name).collect();
    format!("iteration,tensor,kind,{},run", names.join(","))
}

fn label<'f>(figure: &'f Figure, name: &str) -> Option<&'f str> {
    figure.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
}

fn cell(value: &MetricValue) -> String {
    match value {
        MetricValue::Text(text) => quoted(text),
        // The shortest decimal that reads back as the same number.
        value => value.number().map_or(String::new(), |number| number.to_string()),
    }
}

/// A field, in quotes if it contains a separator.
fn quoted(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::logging::record::RecordKind;

    fn record(iteration: u64) -> Record {
        let of = |figure: Figure| figure.label("tensor", "head").label("kind", "activation");
        let figures = vec![
            Figure::new("loss", "", "Loss", 5.5_f32),
            of(Figure::new("tensor_max", "", "Statistic of a tensor", 1.5)),
            of(Figure::new("tensor_zeros", "percent", "Statistic of a tensor", 0.1)),
            of(Figure::new("tensor_histogram", "", "Counts", "-3:7 0:1")),
        ];
        Record { kind: RecordKind::Train, iteration, consumed_samples: 8, ends_interval: false, figures }
    }

    fn write(path: &Path, run: &str, completed: u64, last: u64) {
        let mut table = Table::open(path, run, completed).unwrap();
        (completed + 1..=last).for_each(|iteration| table.on_record(&record(iteration)).unwrap());
    }

    #[test]
    fn lines_have_a_column_for_each_statistic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/tensor_statistics.csv");
        write(&path, "run", 0, 1);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let [head, row] = lines.as_slice() else { panic!("{text}") };
        assert_eq!(head.len(), row.len());
        let of = |name: &str| row[head.iter().position(|column| *column == name).unwrap()];
        assert_eq!((of("iteration"), of("tensor"), of("kind"), of("run")), ("1", "head", "activation", "run"));
        assert_eq!((of("max"), of("zeros%"), of("histogram"), of("min")), ("1.5", "0.1", "-3:7 0:1", ""));
    }

    #[test]
    fn steps_that_run_again_are_in_it_once_and_another_runs_table_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tensor_statistics.csv");
        write(&path, "a,b", 0, 5);
        fs::write(&path, fs::read_to_string(&path).unwrap() + "6,head,act").unwrap();
        write(&path, "a,b", 3, 4);
        let iterations = |path: &Path| -> Vec<u64> {
            let text = fs::read_to_string(path).unwrap();
            text.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(iterations(&path), [1, 2, 3, 4]);
        write(&path, "c", 0, 2);
        assert_eq!(iterations(&path), [1, 2]);
        let kept: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        let kept = kept.iter().find(|other| **other != path).unwrap();
        assert_eq!(iterations(kept), [1, 2, 3, 4]);
        fs::write(&path, "something else\n").unwrap();
        assert!(Table::open(&path, "c", 0).is_err());
    }
}
