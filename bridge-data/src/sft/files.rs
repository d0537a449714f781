//! The files of a split and their records, one after the other: memory does not grow with the
//! files.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use twox_hash::XxHash3_64;

use super::json_values::{self, Items};
use super::{arrow, parquet_rows};
use crate::gpt::Split;
use crate::{DataError, untrusted_io};

/// Most bytes of a line.
const LONGEST_LINE: u64 = json_values::LONGEST as u64;
const BUFFER: usize = 1 << 20;
/// Names of the files of a split, upstream's name first.
const NAMES: [(Split, &[&str]); 3] =
    [(Split::Train, &["training", "train"]), (Split::Valid, &["validation", "valid", "val"]), (Split::Test, &["test"])];

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// JSON Lines.
    Lines(Compression),
    /// A JSON list, or JSON values one after the other.
    Json(Compression),
    Parquet,
    Arrow,
}

/// Compression of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Files that programs write beside their data.
const DESCRIPTIONS: [&str; 3] = ["dataset_info.json", "dataset_infos.json", "state.json"];

impl Format {
    const ALL: [(&'static str, Self); 9] = [
        ("jsonl", Self::Lines(Compression::None)),
        ("jsonl.gz", Self::Lines(Compression::Gzip)),
        ("jsonl.zst", Self::Lines(Compression::Zstd)),
        ("json", Self::Json(Compression::None)),
        ("json.gz", Self::Json(Compression::Gzip)),
        ("json.zst", Self::Json(Compression::Zstd)),
        ("parquet", Self::Parquet),
        ("arrow", Self::Arrow),
        ("feather", Self::Arrow),
    ];

    fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if DESCRIPTIONS.contains(&name) {
            return None;
        }
        let ends = |ending: &str| name.strip_suffix(ending).is_some_and(|stem| stem.ends_with('.'));
        Self::ALL.into_iter().find(|(ending, _)| ends(ending)).map(|(_, format)| format)
    }
}

/// True if a file's name is that of a file of records.
pub(super) fn is_record_file(path: &Path) -> bool {
    Format::from_path(path).is_some()
}

fn names_of(split: Split) -> &'static [&'static str] {
    NAMES.iter().find(|(of, _)| *of == split).map_or(&[], |(_, names)| names)
}

/// Name of a split's file of JSON lines, where Bridge writes it.
pub(super) fn jsonl_name(split: Split) -> String {
    names_of(split).first().map(|name| format!("{name}.jsonl")).unwrap_or_default()
}

/// The files of a split, in the order of their names; none if it has none. Fails on a folder that
/// cannot be listed; several files of which each could be the split.
pub(super) fn split_files(root: &Path, split: Split) -> Result<Vec<PathBuf>, DataError> {
    let endings = Format::ALL.map(|(ending, _)| format!(".{ending}"));
    let mut found: Vec<PathBuf> = Vec::new();
    for name in names_of(split) {
        let candidates =
            endings.iter().map(String::as_str).chain([""]).map(|ending| root.join(format!("{name}{ending}")));
        found.extend(candidates.filter(|path| path.exists()));
    }
    match found.as_slice() {
        [] => Ok(Vec::new()),
        [folder] if folder.is_dir() => folder_files(folder),
        [file] => Ok(vec![file.clone()]),
        [first, second, ..] => Err(DataError::Source(format!(
            "{} and {}: each could be the {} split; keep one of them",
            first.display(),
            second.display(),
            split.name()
        ))),
    }
}

/// The files of a folder, in the order of their names; of one that `datasets` has saved, those of
/// its list, in that order.
fn folder_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let state = folder.join("state.json");
    if state.exists() {
        let bad = |problem: String| DataError::malformed(&state, problem);
        let text =
            untrusted_io::read_text(&state, untrusted_io::SETTINGS_BYTES).map_err(DataError::io("read", &state))?;
        let json: Value = serde_json::from_str(&text).map_err(|error| bad(format!("not JSON: {error}")))?;
        if let Some(files) = json["_data_files"].as_array() {
            let file = |entry: &Value| {
                let name = entry["filename"].as_str().filter(|name| Path::new(name).file_name() == Some(name.as_ref()));
                let name = name.ok_or_else(|| bad(format!("_data_files: expected names of files, found {entry}")))?;
                let path = folder.join(name);
                if path.is_file() { Ok(path) } else { Err(bad(format!("_data_files: there is no file {name:?}"))) }
            };
            return files.iter().map(file).collect();
        }
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list the folder", folder))? {
        let path = entry.map_err(DataError::io("list the folder", folder))?.path();
        if is_record_file(&path) && !is_cache(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// True if a file is a cache of `datasets`: a second copy of the rows, or their numbers.
fn is_cache(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("cache-") && name.ends_with(".arrow")
}

/// A record as it is in its file.
pub(super) enum Raw {
    /// A line of JSON.
    Line(Vec<u8>),
    /// A row of a table, and its bytes, about.
    Row(Value, usize),
}

impl Raw {
    /// A row, with its number.
    fn row((number, value): (u64, Value)) -> (u64, Self) {
        let bytes = bytes_of(&value);
        (number, Self::Row(value, bytes))
    }

    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Line(line) => line.len(),
            Self::Row(_, bytes) => *bytes,
        }
    }

    /// A checksum of the record.
    pub(super) fn digest(&self) -> u64 {
        match self {
            Self::Line(line) => XxHash3_64::oneshot(line),
            Self::Row(value, _) => XxHash3_64::oneshot(value.to_string().as_bytes()),
        }
    }

    /// The record's value.
    pub(super) fn value(self) -> Result<Value, String> {
        match self {
            Self::Line(line) => serde_json::from_slice(&line).map_err(|error| format!("not JSON: {error}")),
            Self::Row(value, _) => Ok(value),
        }
    }
}

/// A record with its position.
pub(super) struct Record {
    /// Number of the file, in the order of the files.
    pub(super) file: usize,
    /// Line where it begins, or row, from 1.
    pub(super) number: u64,
    pub(super) raw: Raw,
}

impl Record {
    /// Position in its file, for messages.
    pub(super) fn position(&self) -> RecordPosition {
        RecordPosition { is_row: matches!(self.raw, Raw::Row(..)), number: self.number }
    }
}

/// Position of a record in its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordPosition {
    is_row: bool,
    number: u64,
}

impl std::fmt::Display for RecordPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.is_row { "row" } else { "line" }, self.number)
    }
}

/// The records of a file, each with its line or row; a record that is not JSON is a sentence. A
/// file whose name says no format holds JSON Lines.
///
/// # Errors
/// A file that cannot be read.
pub fn records(path: PathBuf) -> impl Iterator<Item = Result<(u64, Result<Value, String>), DataError>> {
    let records = Records { files: Cow::Owned(vec![path]), next: 0, open: None };
    records.map(|record| record.map(|record| (record.number, record.raw.value())))
}

/// The records of all files.
pub(super) struct Records<'a> {
    files: Cow<'a, [PathBuf]>,
    next: usize,
    open: Option<Opened>,
}

/// The records of a file.
enum Opened {
    Lines(Lines),
    Json(Items),
    Parquet(parquet_rows::Rows),
    Arrow(Box<arrow::Rows>),
}

impl Opened {
    fn open(path: &Path) -> Result<Self, DataError> {
        let (file, size) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
        match Format::from_path(path).unwrap_or(Format::Lines(Compression::None)) {
            Format::Lines(compression) => {
                Ok(Self::Lines(Lines { reader: unpacked(file, compression, path)?, number: 0 }))
            }
            Format::Json(compression) => Ok(Self::Json(Items::new(unpacked(file, compression, path)?))),
            Format::Parquet => {
                let rows = parquet_rows::Rows::open(file);
                rows.map(Self::Parquet)
                    .map_err(|error| DataError::malformed(path, format!("not a Parquet file: {error}")))
            }
            Format::Arrow => {
                let rows = untrusted_io::contained(|| arrow::Rows::open(file, size)).and_then(|rows| rows);
                let rows = rows.map_err(|error| DataError::malformed(path, format!("not an Arrow file: {error}")))?;
                Ok(Self::Arrow(Box::new(rows)))
            }
        }
    }

    /// The next record, with its line or row; an error as a sentence.
    fn next(&mut self) -> Result<Option<(u64, Raw)>, String> {
        match self {
            Self::Lines(lines) => Ok(lines.next_line()?.map(|(number, line)| (number, Raw::Line(line)))),
            Self::Json(items) => Ok(items.next_item()?.map(|(number, item)| (number, Raw::Line(item)))),
            Self::Parquet(rows) => Ok(rows.next_row()?.map(Raw::row)),
            Self::Arrow(rows) => Ok(untrusted_io::contained(|| rows.next_row()).and_then(|row| row)?.map(Raw::row)),
        }
    }
}

/// The text of a file.
fn unpacked(file: std::fs::File, compression: Compression, path: &Path) -> Result<Box<dyn BufRead + Send>, DataError> {
    Ok(match compression {
        Compression::None => Box::new(BufReader::with_capacity(BUFFER, file)),
        Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER, flate2::read::MultiGzDecoder::new(file))),
        Compression::Zstd => {
            let decoder = zstd::Decoder::new(file).map_err(DataError::io("open", path))?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
    })
}

/// Bytes of a value as JSON, about.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(bytes_of).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes_of(value)).sum::<usize>() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
    }
}

impl<'a> Records<'a> {
    pub(super) fn new(files: &'a [PathBuf]) -> Self {
        Self { files: Cow::Borrowed(files), next: 0, open: None }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(records) = &mut self.open {
                let file = self.next - 1;
                match records.next() {
                    Ok(Some((number, raw))) => return Some(Ok(Record { file, number, raw })),
                    Ok(None) => self.open = None,
                    Err(problem) => {
                        self.next = self.files.len();
                        self.open = None;
                        return Some(Err(DataError::malformed(&self.files[file], problem)));
                    }
                }
            }
            let path = self.files.get(self.next)?;
            self.next += 1;
            match Opened::open(path) {
                Ok(records) => self.open = Some(records),
                Err(error) => {
                    self.next = self.files.len();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The lines of a file.
struct Lines {
    reader: Box<dyn BufRead + Send>,
    number: u64,
}

impl Lines {
    /// The next line that is not blank, with its number; an error as a sentence.
    fn next_line(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        loop {
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
            read.map_err(|error| format!("line {}: cannot be read: {error}", self.number + 1))?;
            if line.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            if line.len() as u64 > LONGEST_LINE {
                return Err(format!("line {} has more than {LONGEST_LINE} bytes", self.number));
            }
            if self.number == 1 && line.starts_with("\u{feff}".as_bytes()) {
                line.drain(..3);
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_datasets_saved_has_the_files_of_its_list() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("train");
        std::fs::create_dir(&folder).unwrap();
        for name in ["b.arrow", "a.arrow", "cache-0123.arrow", "more.jsonl", "README.md"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let names = || {
            let files = split_files(root.path(), Split::Train)?;
            let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            Ok::<_, DataError>(files.into_iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(names().unwrap(), ["a.arrow", "b.arrow", "more.jsonl"]);
        let state = |text: &str| std::fs::write(folder.join("state.json"), text).unwrap();
        state(r#"{"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}], "_fingerprint": "x"}"#);
        assert_eq!(names().unwrap(), ["b.arrow", "a.arrow"]);
        state(r#"{"other": 1}"#);
        assert_eq!(names().unwrap().len(), 3);
        for (text, reason) in [
            (r#"{"_data_files": [{"filename": "c.arrow"}]}"#, "there is no file \"c.arrow\""),
            (r#"{"_data_files": [{"filename": "../a.arrow"}]}"#, "expected names of files"),
            ("{", "not JSON"),
        ] {
            state(text);
            let error = names().unwrap_err().to_string();
            assert!(error.contains("state.json") && error.contains(reason), "{error}");
        }
    }
}
