//! The files of a split and their records, one after the other: memory does not grow with the files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gpt::Split;
use crate::{DataError, outside};

/// Most bytes of a line.
const LONGEST_LINE: u64 = 64 << 20;
const BUFFER: usize = 1 << 20;
/// What the files of a split are called, upstream's name first.
const NAMES: [(Split, &[&str]); 3] =
    [(Split::Train, &["training", "train"]), (Split::Valid, &["validation", "valid", "val"]), (Split::Test, &["test"])];

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Lines,
    GzipLines,
    ZstdLines,
}

impl Format {
    const ALL: [(&'static str, Self); 3] =
        [("jsonl", Self::Lines), ("jsonl.gz", Self::GzipLines), ("jsonl.zst", Self::ZstdLines)];

    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ends = |ending: &str| name.strip_suffix(ending).is_some_and(|stem| stem.ends_with('.'));
        Self::ALL.into_iter().find(|(ending, _)| ends(ending)).map(|(_, format)| format)
    }
}

/// The files of a split, in the order of their names; none if it has none.
///
/// # Errors
/// A folder that cannot be listed; several files of which each could be the split.
pub(super) fn of_split(root: &Path, split: Split) -> Result<Vec<PathBuf>, DataError> {
    let names = NAMES.iter().find(|(of, _)| *of == split).map_or(&[][..], |(_, names)| names);
    let endings = Format::ALL.map(|(ending, _)| format!(".{ending}"));
    let mut found: Vec<PathBuf> = Vec::new();
    for name in names {
        let candidates =
            endings.iter().map(String::as_str).chain([""]).map(|ending| root.join(format!("{name}{ending}")));
        found.extend(candidates.filter(|path| path.exists()));
    }
    match found.as_slice() {
        [] => Ok(Vec::new()),
        [folder] if folder.is_dir() => {
            let entries = std::fs::read_dir(folder).map_err(DataError::io("list the folder", folder))?;
            let mut files = Vec::new();
            for entry in entries {
                let path = entry.map_err(DataError::io("list the folder", folder))?.path();
                if Format::of(&path).is_some() {
                    files.push(path);
                }
            }
            files.sort();
            Ok(files)
        }
        [file] => Ok(vec![file.clone()]),
        [first, second, ..] => Err(DataError::Source(format!(
            "{} and {}: each could be the {} split; keep one of them",
            first.display(),
            second.display(),
            split.name()
        ))),
    }
}

/// A record as it is in its file.
pub(super) enum Raw {
    /// A line of JSON.
    Line(Vec<u8>),
}

impl Raw {
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Line(line) => line.len(),
        }
    }

    /// The record's value.
    pub(super) fn value(&self) -> Result<Value, String> {
        match self {
            Self::Line(line) => serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}")),
        }
    }
}

/// A record and where it stands.
pub(super) struct Record {
    /// Which of the files.
    pub(super) file: usize,
    /// Line or row, from 1.
    pub(super) number: u64,
    pub(super) raw: Raw,
}

/// The records of all files.
pub(super) struct Records<'a> {
    files: &'a [PathBuf],
    next: usize,
    open: Option<Lines>,
}

impl<'a> Records<'a> {
    pub(super) fn of(files: &'a [PathBuf]) -> Self {
        Self { files, next: 0, open: None }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(lines) = &mut self.open {
                let file = self.next - 1;
                match lines.next_line() {
                    Ok(Some((number, line))) => return Some(Ok(Record { file, number, raw: Raw::Line(line) })),
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
            match Lines::open(path) {
                Ok(lines) => self.open = Some(lines),
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
    fn open(path: &Path) -> Result<Self, DataError> {
        let (file, _) = outside::open(path).map_err(DataError::io("open", path))?;
        let format = Format::of(path).ok_or_else(|| DataError::malformed(path, "is of no kind that is read"))?;
        let reader = reader(file, format).map_err(DataError::io("open", path))?;
        Ok(Self { reader, number: 0 })
    }

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

fn reader(file: File, format: Format) -> std::io::Result<Box<dyn BufRead + Send>> {
    Ok(match format {
        Format::Lines => Box::new(BufReader::with_capacity(BUFFER, file)),
        Format::GzipLines => Box::new(BufReader::with_capacity(BUFFER, flate2::read::MultiGzDecoder::new(file))),
        Format::ZstdLines => Box::new(BufReader::with_capacity(BUFFER, zstd::Decoder::new(file)?)),
    })
}
