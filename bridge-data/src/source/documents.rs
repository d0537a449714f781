//! Reading documents one after the other. Finding files belongs to the parent module, tokenizing to
//! `pack`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::survey::is_compressed;
use crate::{DataError, untrusted_io};

/// A document as it was read, not yet decoded.
#[derive(Debug, Clone)]
pub struct RawDocument {
    /// File of the document.
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
    /// True if the document may begin as its file does: with a byte order mark, or as a compressed
    /// file.
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

/// Description of a document with a byte 0.
const BINARY: &str = "binary: it has a byte 0";
/// Description of a compressed file, whose lines are not read.
const COMPRESSED: &str = "compressed: unpack it first";

/// The decoded content of a raw document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// Text.
    Valid(String),
    /// The document is empty.
    Empty,
    /// The document is not text; the value describes its content.
    NoText(&'static str),
}

impl RawDocument {
    /// Bytes read from the source, markup included.
    pub fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Origin for messages.
    pub fn name(&self) -> String {
        match self.at {
            At::File => self.path.display().to_string(),
            At::Line(line) => format!("{}:{line}", self.path.display()),
            At::Byte(_) => format!("{}, {}", self.path.display(), self.at),
        }
    }

    /// Description of bytes that are not UTF-8.
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
        let Ok(line) = std::str::from_utf8(&self.bytes) else { return Ok(Text::NoText(self.what_it_is())) };
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

/// The text after the byte order mark that some editors begin a file with.
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

/// Layout of a file's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    /// The file is one document.
    Whole,
    /// The file is one document, compressed.
    Unpacked,
    /// Lines with the text under this key, or under the key that the first line shows.
    Lines(Option<Arc<str>>),
    /// Records of a list, a table or compressed lines, with the text under this key, or under the
    /// key that the first record shows.
    Records(Option<Arc<str>>),
}

impl Layout {
    /// True if documents can be read by their place in the file.
    pub(super) fn has_places(&self) -> bool {
        matches!(self, Self::Whole | Self::Lines(_))
    }
}

type Keyed = (Arc<Path>, Layout);
/// A record with its line or row; one that is not JSON is a sentence.
type Record = Result<(u64, Result<Value, String>), DataError>;

/// Names that text has, if it is not called `text`.
const NAMES: [&str; 4] = ["content", "body", "document", "raw_content"];

/// Names of strings that describe a record and are not its text.
const LABELS: [&str; 20] = [
    "_id",
    "category",
    "date",
    "hash",
    "id",
    "label",
    "lang",
    "language",
    "license",
    "link",
    "model",
    "path",
    "role",
    "source",
    "split",
    "timestamp",
    "type",
    "uri",
    "url",
    "uuid",
];

/// The key of a record's text: `text`, another usual name, or that of its only string. The only
/// string is not the text if it describes the record, or if it stands beside a list, such as one of
/// messages. Fails on several strings or none, or one that may not be the text, as a sentence.
fn text_key(record: &Value) -> Result<Arc<str>, String> {
    const TEXT: &str = "text";
    let Some(fields) = record.as_object() else { return Ok(TEXT.into()) };
    let strings: Vec<&str> =
        fields.iter().filter(|(_, value)| value.is_string()).map(|(key, _)| key.as_str()).collect();
    let named: Vec<&str> = NAMES.into_iter().filter(|name| strings.contains(name)).collect();
    let has_list = fields.values().any(|value| value.as_array().is_some_and(|items| !items.is_empty()));
    let is_label = |key: &str| LABELS.contains(&key.to_lowercase().as_str()) || key.ends_with("_id");
    match (fields.contains_key(TEXT), named.as_slice(), strings.as_slice()) {
        (true, ..) => Ok(TEXT.into()),
        (_, [one], _) => Ok((*one).into()),
        (_, [], [one]) if !has_list && !is_label(one) => Ok((*one).into()),
        (_, [], [one]) => Err(format!(
            "there is no key \"text\", and {one:?} may not be the text; the keys are {:?}: name the key of the text \
             (dataset.source_jsonl_key in a recipe, --jsonl-key)",
            fields.keys().collect::<Vec<_>>()
        )),
        (.., []) => Err(format!("there is no key \"text\"; the keys are {:?}", fields.keys().collect::<Vec<_>>())),
        _ => Err(format!(
            "there is no key \"text\", and several others have text: name one of {strings:?} (dataset.source_jsonl_key in a recipe, \
             --jsonl-key)"
        )),
    }
}

/// The documents of a file of records.
struct Rows {
    records: Box<dyn Iterator<Item = Record> + Send>,
    path: Arc<Path>,
    key: Option<Arc<str>>,
}

impl Rows {
    #[cfg(feature = "finetuning")]
    fn open(path: &Arc<Path>, key: Option<Arc<str>>) -> Result<Self, DataError> {
        let records = Box::new(crate::sft::records(path.to_path_buf()));
        Ok(Self { records, path: Arc::clone(path), key })
    }

    #[cfg(not(feature = "finetuning"))]
    fn open(path: &Arc<Path>, _key: Option<Arc<str>>) -> Result<Self, DataError> {
        Err(not_built(path))
    }

    fn next(&mut self) -> Result<Option<RawDocument>, DataError> {
        let Some(record) = self.records.next() else { return Ok(None) };
        let (number, value) = record?;
        let bad = |problem: String| DataError::malformed(&self.path, format!("record {number}: {problem}"));
        let mut value = value.map_err(bad)?;
        let key = match &self.key {
            Some(key) => Arc::clone(key),
            None => text_key(&value).map_err(bad)?,
        };
        let text = match value.get_mut(&*key).map(Value::take) {
            Some(Value::String(text)) => text,
            // A table has empty cells.
            Some(Value::Null) => String::new(),
            Some(other) => {
                return Err(bad(format!("expected a string under the key {key:?}, found {}", preview(&other))));
            }
            None => {
                let keys: Vec<&String> = value.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
                return Err(bad(format!("there is no key {key:?}; the keys are {keys:?}")));
            }
        };
        self.key = Some(key);
        let at = At::Line(usize::try_from(number).unwrap_or(usize::MAX));
        Ok(Some(RawDocument { path: Arc::clone(&self.path), at, key: None, bytes: text.into_bytes() }))
    }
}

#[cfg(not(feature = "finetuning"))]
fn not_built(path: &Path) -> DataError {
    DataError::malformed(
        path,
        "compressed files and tables are read by the feature `finetuning` of bridge-data, which is off",
    )
}

/// The text of a compressed file, at most `limit` bytes.
#[cfg(feature = "finetuning")]
fn unpacked(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
    let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let mut reader: Box<dyn Read> = match is_gzip {
        true => Box::new(flate2::read::MultiGzDecoder::new(file)),
        false => Box::new(zstd::Decoder::new(file).map_err(DataError::io("open", path))?),
    };
    let mut bytes = Vec::new();
    reader.by_ref().take(limit).read_to_end(&mut bytes).map_err(DataError::io("unpack", path))?;
    if bytes.len() as u64 == limit {
        // The limit may cut the last character.
        let valid = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
        bytes.truncate(if bytes.len() - valid < 4 { valid } else { bytes.len() });
    }
    Ok(bytes)
}

#[cfg(not(feature = "finetuning"))]
fn unpacked(path: &Path, _limit: u64) -> Result<Vec<u8>, DataError> {
    Err(not_built(path))
}

enum Plan {
    /// File after file, document after document.
    Sequential { next: usize, open: Option<Open> },
    /// In the order of the given places. The last file stays open. After them come shares of files
    /// without places.
    Placed { places: std::vec::IntoIter<Place>, open: Option<(usize, File)>, shares: Shares },
    /// Standard input.
    Stdin,
}

/// A file that is being read.
enum Open {
    Lines(Lines),
    Rows(Rows),
}

impl Open {
    fn next(&mut self) -> Result<Option<RawDocument>, DataError> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Rows(rows) => rows.next(),
        }
    }
}

/// Bytes of text that are read from the beginnings of files.
#[derive(Default)]
pub(super) struct Shares {
    /// Numbers of files, and the bytes of each.
    pub(super) files: std::collections::VecDeque<(usize, u64)>,
    open: Option<(Rows, u64)>,
}

impl Shares {
    fn next(&mut self, files: &[Keyed]) -> Result<Option<RawDocument>, DataError> {
        loop {
            if let Some((rows, left)) = &mut self.open {
                let document = if *left > 0 { rows.next()? } else { None };
                if let Some(document) = document {
                    *left = left.saturating_sub(document.num_bytes() as u64);
                    return Ok(Some(document));
                }
                self.open = None;
            }
            let Some((file, bytes)) = self.files.pop_front() else { return Ok(None) };
            let (path, layout) = &files[file];
            match layout {
                Layout::Records(key) => self.open = Some((Rows::open(path, key.clone())?, bytes)),
                _ => {
                    let bytes = unpacked(path, bytes)?;
                    return Ok(Some(RawDocument { path: Arc::clone(path), at: At::File, key: None, bytes }));
                }
            }
        }
    }
}

struct Lines {
    reader: Box<dyn BufRead + Send>,
    path: Arc<Path>,
    key: Option<Arc<str>>,
    /// True if the key was given, or the first line with content has shown it.
    is_found: bool,
    line: usize,
}

/// Yields raw documents; ends after an error.
pub struct Documents {
    files: Vec<Keyed>,
    plan: Plan,
    failed: bool,
}

impl Documents {
    fn new(files: Vec<(PathBuf, Layout)>, plan: Plan) -> Self {
        let files = files.into_iter().map(|(path, layout)| (Arc::from(path), layout)).collect();
        Self { files, plan, failed: false }
    }

    pub(super) fn sequential(files: Vec<(PathBuf, Layout)>) -> Self {
        Self::new(files, Plan::Sequential { next: 0, open: None })
    }

    pub(super) fn placed(files: Vec<(PathBuf, Layout)>, places: Vec<Place>, shares: Shares) -> Self {
        Self::new(files, Plan::Placed { places: places.into_iter(), open: None, shares })
    }

    pub(super) fn stdin(layout: Layout) -> Self {
        let mut documents = Self::new(vec![(PathBuf::from("standard input"), layout.clone())], Plan::Stdin);
        if let Layout::Lines(key) = layout {
            let reader = Box::new(BufReader::new(std::io::stdin()));
            let (path, is_found) = (Arc::clone(&documents.files[0].0), key.is_some());
            let open = Some(Open::Lines(Lines { reader, path, key, is_found, line: 0 }));
            documents.plan = Plan::Sequential { next: 1, open };
        }
        documents
    }

    fn read_next(&mut self) -> Result<Option<RawDocument>, DataError> {
        match &mut self.plan {
            Plan::Sequential { next, open } => loop {
                if let Some(documents) = open {
                    if let Some(document) = documents.next()? {
                        return Ok(Some(document));
                    }
                    *open = None;
                }
                let Some((path, layout)) = self.files.get(*next) else { return Ok(None) };
                *next += 1;
                let bytes = match layout {
                    Layout::Lines(key) => {
                        let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
                        let reader = Box::new(BufReader::with_capacity(1 << 20, file));
                        let (key, is_found) = (key.clone(), key.is_some());
                        *open = Some(Open::Lines(Lines { reader, path: Arc::clone(path), key, is_found, line: 0 }));
                        continue;
                    }
                    Layout::Records(key) => {
                        *open = Some(Open::Rows(Rows::open(path, key.clone())?));
                        continue;
                    }
                    Layout::Whole => untrusted_io::read(path, u64::MAX).map_err(DataError::io("read", path))?,
                    Layout::Unpacked => unpacked(path, u64::MAX)?,
                };
                return Ok(Some(RawDocument { path: Arc::clone(path), at: At::File, key: None, bytes }));
            },
            Plan::Placed { places, open, shares } => match places.next() {
                Some(place) => read_place(&self.files[place.file], place, open).map(Some),
                None => shares.next(&self.files),
            },
            Plan::Stdin => {
                let path = Arc::clone(&self.files[0].0);
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).map_err(DataError::io("read", &path))?;
                self.plan = Plan::Sequential { next: 1, open: None };
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
        let mut bytes = Vec::new();
        let read = self.reader.read_until(b'\n', &mut bytes).map_err(DataError::io("read", &self.path))?;
        self.line += 1;
        if !self.is_found && !bytes.trim_ascii().is_empty() {
            let key = key_in_line(&bytes);
            let key =
                key.map_err(|problem| DataError::malformed(&self.path, format!("line {}: {problem}", self.line)))?;
            (self.key, self.is_found) = (Some(key), true);
        }
        // A blank line before the first record has no text, so the key does not matter.
        let key = Some(self.key.clone().unwrap_or_else(|| "text".into()));
        let document = RawDocument { path: Arc::clone(&self.path), at: At::Line(self.line), key, bytes };
        Ok((read > 0).then_some(document))
    }
}

/// The key of the text of a line. A line that is not a record gets the default key, and is an error
/// when it is decoded.
fn key_in_line(line: &[u8]) -> Result<Arc<str>, String> {
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    serde_json::from_slice(line).map_or_else(|_| Ok("text".into()), |value| text_key(&value))
}

/// The key of the text of a file of lines by its first record.
pub(super) fn key_of_lines(path: &Path) -> Result<Arc<str>, DataError> {
    let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    let (mut reader, mut line, mut number) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        number += 1;
        if reader.read_until(b'\n', &mut line).map_err(DataError::io("read", path))? == 0 {
            return Ok("text".into());
        }
        if !line.trim_ascii().is_empty() {
            return key_in_line(&line)
                .map_err(|problem| DataError::malformed(path, format!("line {number}: {problem}")));
        }
    }
}

fn read_place(
    (path, layout): &Keyed,
    place: Place,
    open: &mut Option<(usize, File)>,
) -> Result<RawDocument, DataError> {
    let mut file = match open.take() {
        Some((number, file)) if number == place.file => file,
        _ => untrusted_io::open(path).map_err(DataError::io("open", path))?.0,
    };
    let mut bytes = vec![0; place.length];
    file.seek(SeekFrom::Start(place.start))
        .and_then(|_| file.read_exact(&mut bytes))
        .map_err(DataError::io("read", path))?;
    *open = Some((place.file, file));
    let key = if let Layout::Lines(key) = layout { key.clone() } else { None };
    Ok(RawDocument { path: Arc::clone(path), at: place.at, key, bytes })
}
