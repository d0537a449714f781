//! Reading documents one after the other. Finding files belongs to the parent module, tokenizing to `pack`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::survey::is_compressed;
use crate::{DataError, outside};

/// A document as it was read, not yet decoded.
#[derive(Debug, Clone)]
pub struct RawDocument {
    /// Its file.
    pub path: Arc<Path>,
    /// Position in its file.
    pub at: At,
    /// Key of the text in a JSON object; `None` when the bytes are the text.
    key: Option<Arc<str>>,
    bytes: Vec<u8>,
}

/// Position of a document in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The whole file, or a part of its text.
    File,
    /// A line, counted from 1.
    Line(usize),
    /// A line by the byte where it begins: lines before it were not counted.
    Byte(u64),
}

impl At {
    /// True if the document may begin as its file does: with a byte order mark, or as a compressed file.
    fn is_first(self) -> bool {
        matches!(self, Self::File | Self::Line(1) | Self::Byte(0))
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File => f.write_str("the file"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "the line at byte {byte}"),
        }
    }
}

/// What a document with a byte 0 is.
const BINARY: &str = "binary: it has a byte 0";
/// What a compressed file is, whose lines are not read.
const COMPRESSED: &str = "compressed: unpack it first";

/// The decoded content of a raw document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// Text.
    Valid(String),
    /// It has no text.
    Empty,
    /// It is no text, and what it is instead.
    NoText(&'static str),
}

impl RawDocument {
    /// Bytes read from the source, markup included.
    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Where it comes from, for messages.
    pub fn name(&self) -> String {
        match self.at {
            At::File => self.path.display().to_string(),
            At::Line(line) => format!("{}:{line}", self.path.display()),
            At::Byte(_) => format!("{}, {}", self.path.display(), self.at),
        }
    }

    /// What bytes are that are not UTF-8.
    fn what_it_is(&self) -> &'static str {
        if self.at.is_first() && is_compressed(&self.bytes) { COMPRESSED } else { "not UTF-8" }
    }

    /// Decodes it.
    ///
    /// # Errors
    /// If a line is not a JSON object, or has no string under the key.
    pub fn into_text(self) -> Result<Text, DataError> {
        let Some(key) = &self.key else {
            return Ok(match std::str::from_utf8(&self.bytes).map(without_mark) {
                Ok("") => Text::Empty,
                // No text has it, and files of programs do.
                Ok(text) if text.contains('\0') => Text::NoText(BINARY),
                Ok(text) => Text::Valid(text.to_owned()),
                Err(_) => Text::NoText(self.what_it_is()),
            });
        };
        let Ok(line) = std::str::from_utf8(&self.bytes) else {
            return Ok(Text::NoText(self.what_it_is()));
        };
        if line.trim().is_empty() {
            return Ok(Text::Empty);
        }
        let bad = |problem: String| DataError::malformed(&self.path, format!("{}: {problem}", self.at));
        let line = if self.at.is_first() { without_mark(line) } else { line };
        let mut object: serde_json::Value = serde_json::from_str(line).map_err(|error| bad(not_json(&error)))?;
        if !object.is_object() {
            return Err(bad(format!("expected an object with the key {key:?}, found {}", preview(&object))));
        }
        match object.get_mut(&**key).map(serde_json::Value::take) {
            Some(serde_json::Value::String(text)) if text.is_empty() => Ok(Text::Empty),
            Some(serde_json::Value::String(text)) => Ok(Text::Valid(text)),
            Some(other) => Err(bad(format!("expected a string under the key {key:?}, found {}", preview(&other)))),
            None => {
                let keys: Vec<&String> = object.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
                Err(bad(format!("there is no key {key:?}; the keys are {keys:?}")))
            }
        }
    }
}

/// The text behind the byte order mark that some editors begin a file with.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The problem of a line and its column; the parser does not know the line number.
fn not_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("not JSON: {} at column {}", text.strip_suffix(&place).unwrap_or(&text), error.column())
}

/// The beginning of a value, for a message.
fn preview(value: &serde_json::Value) -> String {
    const LENGTH: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// A document's place in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) at: At,
    pub(crate) start: u64,
    pub(crate) length: usize,
}

type Keyed = (Arc<Path>, Option<Arc<str>>);

enum Plan {
    /// File after file, line after line.
    Sequential { next: usize, lines: Option<Lines> },
    /// In the order of the given places. The last file stays open.
    Placed { places: std::vec::IntoIter<Place>, open: Option<(usize, File)> },
    /// Standard input.
    Stdin,
}

struct Lines {
    reader: Box<dyn BufRead + Send>,
    file: Keyed,
    line: usize,
}

/// Yields raw documents; ends after an error.
pub struct Documents {
    files: Vec<Keyed>,
    plan: Plan,
    failed: bool,
}

impl Documents {
    fn new(files: Vec<(PathBuf, Option<String>)>, plan: Plan) -> Self {
        let files = files.into_iter().map(|(path, key)| (Arc::from(path), key.map(Arc::from))).collect();
        Self { files, plan, failed: false }
    }

    pub(super) fn sequential(files: Vec<(PathBuf, Option<String>)>) -> Self {
        Self::new(files, Plan::Sequential { next: 0, lines: None })
    }

    pub(super) fn placed(files: Vec<(PathBuf, Option<String>)>, places: Vec<Place>) -> Self {
        Self::new(files, Plan::Placed { places: places.into_iter(), open: None })
    }

    pub(super) fn stdin(key: Option<String>) -> Self {
        match key {
            None => Self::new(vec![(PathBuf::from("standard input"), None)], Plan::Stdin),
            Some(_) => {
                let mut documents = Self::new(vec![(PathBuf::from("standard input"), key)], Plan::Stdin);
                let reader = Box::new(BufReader::new(std::io::stdin()));
                let lines = Some(Lines { reader, file: documents.files[0].clone(), line: 0 });
                documents.plan = Plan::Sequential { next: 1, lines };
                documents
            }
        }
    }

    fn read_next(&mut self) -> Result<Option<RawDocument>, DataError> {
        match &mut self.plan {
            Plan::Sequential { next, lines } => loop {
                if let Some(open) = lines {
                    if let Some(document) = open.next()? {
                        return Ok(Some(document));
                    }
                    *lines = None;
                }
                let Some((path, key)) = self.files.get(*next) else {
                    return Ok(None);
                };
                *next += 1;
                if key.is_some() {
                    let (file, _) = outside::open(path).map_err(DataError::io("open", path))?;
                    let reader = Box::new(BufReader::with_capacity(1 << 20, file));
                    *lines = Some(Lines { reader, file: (Arc::clone(path), key.clone()), line: 0 });
                } else {
                    let bytes = outside::read(path, u64::MAX).map_err(DataError::io("read", path))?;
                    return Ok(Some(RawDocument { path: Arc::clone(path), at: At::File, key: None, bytes }));
                }
            },
            Plan::Placed { places, open } => {
                places.next().map(|place| read_place(&self.files[place.file], place, open)).transpose()
            }
            Plan::Stdin => {
                let path = Arc::clone(&self.files[0].0);
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).map_err(DataError::io("read", &path))?;
                self.plan = Plan::Sequential { next: 1, lines: None };
                Ok(Some(RawDocument { path, at: At::File, key: None, bytes }))
            }
        }
    }
}

impl Iterator for Documents {
    type Item = Result<RawDocument, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.read_next().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}

impl Lines {
    fn next(&mut self) -> Result<Option<RawDocument>, DataError> {
        let (path, key) = &self.file;
        let mut bytes = Vec::new();
        let read = self.reader.read_until(b'\n', &mut bytes).map_err(DataError::io("read", path))?;
        self.line += 1;
        let document = RawDocument { path: Arc::clone(path), at: At::Line(self.line), key: key.clone(), bytes };
        Ok((read > 0).then_some(document))
    }
}

fn read_place((path, key): &Keyed, place: Place, open: &mut Option<(usize, File)>) -> Result<RawDocument, DataError> {
    let mut file = match open.take() {
        Some((number, file)) if number == place.file => file,
        _ => outside::open(path).map_err(DataError::io("open", path))?.0,
    };
    let mut bytes = vec![0; place.length];
    file.seek(SeekFrom::Start(place.start))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(DataError::io("read", path))?;
    *open = Some((place.file, file));
    Ok(RawDocument { path: Arc::clone(path), at: place.at, key: key.clone(), bytes })
}
