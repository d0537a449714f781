//! Survey of the text in a file or folder: patterns that name it and its format. Reading it belongs
//! to the parent module.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{DataError, untrusted_io};

/// The kind of a file, by its content more than by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// Plain text.
    Text,
    /// One JSON object a line.
    JsonLines,
    /// A `.bin` or `.idx` of a Megatron dataset.
    Tokens,
    /// Compressed.
    Compressed,
    /// Binary, or text that is not UTF-8.
    Binary,
    /// Empty.
    Empty,
    /// Part of a model: its settings, tokenizer or weights.
    Model,
    /// A JSON document.
    Json,
    /// Values separated by commas or tabs.
    Table,
    /// A link that leads nowhere, a pipe, a device.
    Special,
}

impl FileKind {
    /// Description for several files.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Text => "plain text",
            Self::JsonLines => "JSON Lines",
            Self::Tokens => "token files",
            Self::Compressed => "compressed (unpack them)",
            Self::Binary => "binary or not UTF-8",
            Self::Empty => "empty",
            Self::Model => "files of a model",
            Self::Json => "JSON documents (JSON Lines could be read)",
            Self::Table => "tables (write them as JSON Lines)",
            Self::Special => "no regular files",
        }
    }
}

/// Content of the lines of a JSON Lines file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lines {
    /// Text under this key.
    Text(String),
    /// Conversations: lists of messages under this key.
    Chat(String),
    /// Neither: the keys that there are.
    Unknown(Vec<String>),
}

/// A file with its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// Path of the file, as it was reached from the input.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Kind of the file.
    pub kind: FileKind,
}

/// Largest number of files that are examined.
const MOST_FILES: usize = 200_000;
/// Number of bytes from which the kind is determined.
const LOOKED_AT: usize = 16 << 10;
/// Number of lines from which the key is determined.
const LINES: usize = 200;
/// Bytes of these lines.
const LINE_BYTES: u64 = 8 << 20;
/// Folders that hold no text of their user's.
const LEFT_OUT: [&str; 5] = ["target", "node_modules", "__pycache__", "venv", "site-packages"];
const MODEL_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "preprocessor_config.json",
];

/// True if a folder is left out of a survey: hidden folders, and those of tools.
pub fn is_left_out(folder: &str) -> bool {
    folder.starts_with('.') || LEFT_OUT.contains(&folder)
}

/// The files of `input`, a file or a folder with all below it, sorted by path. Links to folders are
/// not followed, hidden folders are left out.
///
/// # Errors
/// If a folder cannot be read, or has more files than anyone would survey.
pub fn survey(input: &Path) -> Result<Vec<Surveyed>, DataError> {
    let mut found = Vec::new();
    let is_folder = std::fs::metadata(input).map_err(DataError::io("look into", input))?.is_dir();
    if !is_folder {
        return Ok(vec![look_at(input.to_owned())?]);
    }
    let mut folders = vec![input.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(DataError::io("look into", &folder))? {
            let entry = entry.map_err(DataError::io("look into", &folder))?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let kind = entry.file_type().map_err(DataError::io("look at", &path))?;
            if kind.is_dir() {
                folders.extend((!is_left_out(&name)).then_some(path));
            } else if !path.is_dir() && !name.starts_with('.') {
                found.push(look_at(path)?);
            }
            if found.len() > MOST_FILES {
                return Err(DataError::Source(format!(
                    "{}: more than {MOST_FILES} files: name a folder with fewer, or pack them as JSON Lines",
                    input.display()
                )));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn look_at(path: PathBuf) -> Result<Surveyed, DataError> {
    let Ok(metadata) = std::fs::metadata(&path) else {
        return Ok(Surveyed { path, size: 0, kind: FileKind::Special });
    };
    let kind = if metadata.is_file() { kind_of(&path)? } else { FileKind::Special };
    Ok(Surveyed { path, size: metadata.len(), kind })
}

fn kind_of(path: &Path) -> Result<FileKind, DataError> {
    let mut start = Vec::new();
    let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    file.take(LOOKED_AT as u64).read_to_end(&mut start).map_err(DataError::io("read", path))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = extension(path);
    Ok(if start.is_empty() {
        FileKind::Empty
    } else if start.starts_with(b"MMIDIDX") || (extension == "bin" && path.with_extension("idx").is_file()) {
        FileKind::Tokens
    } else if is_table_or_packed(path) {
        if lines_of(path)?.is_some() { FileKind::JsonLines } else { FileKind::Binary }
    } else if is_compressed(&start) {
        let inner = path.file_stem().map(|stem| self::extension(Path::new(stem))).unwrap_or_default();
        let is_text = cfg!(feature = "finetuning")
            && matches!(extension.as_str(), "gz" | "zst")
            && matches!(inner.as_str(), "txt" | "text" | "md");
        if is_text { FileKind::Text } else { FileKind::Compressed }
    } else if MODEL_FILES.contains(&name.as_str()) || extension == "safetensors" {
        FileKind::Model
    } else if start.contains(&0) || !is_utf8(&start) {
        FileKind::Binary
    } else if matches!(extension.as_str(), "jsonl" | "ndjson") {
        FileKind::JsonLines
    } else if extension == "json" {
        if lines_of(path)?.is_some() { FileKind::JsonLines } else { FileKind::Json }
    } else if matches!(extension.as_str(), "csv" | "tsv") {
        FileKind::Table
    } else {
        FileKind::Text
    })
}

/// True if a file with these first bytes is compressed: by gzip, Zstandard, zip, bzip2 or xz.
pub(super) fn is_compressed(start: &[u8]) -> bool {
    let magic = [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd], b"PK\x03\x04", b"BZh", &[0xfd, b'7', b'z', b'X', b'Z']];
    magic.iter().any(|magic| start.starts_with(magic))
}

/// True if bytes are UTF-8, except for a character that the end cuts.
fn is_utf8(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && bytes.len() == LOOKED_AT,
    }
}

/// The extension in lower case; empty without one.
pub fn extension(path: &Path) -> String {
    path.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// True if a file has records that only the readers of fine-tuning data read: compressed JSON, and
/// tables.
fn is_table_or_packed(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_packed_json = [".gz", ".zst"].iter().any(|packed| {
        let inner = name.strip_suffix(packed).unwrap_or_default();
        [".json", ".jsonl", ".ndjson"].iter().any(|ending| inner.ends_with(ending))
    });
    let is_table = [".parquet", ".arrow", ".feather"].iter().any(|ending| name.ends_with(ending));
    cfg!(feature = "finetuning") && (is_packed_json || is_table)
}

/// The first records of a file.
fn first_records(path: &Path) -> Result<Vec<Value>, DataError> {
    #[cfg(feature = "finetuning")]
    if is_table_or_packed(path) || (extension(path) == "json" && begins_list(path)) {
        let mut records = Vec::new();
        for record in crate::sft::records(path.to_owned()).take(LINES) {
            records.extend(record?.1.ok());
        }
        return Ok(records);
    }
    let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    let mut records = Vec::new();
    for line in BufReader::new(file.take(LINE_BYTES)).lines().take(LINES) {
        let Ok(line) = line else { break };
        let line = line.trim_start_matches('\u{feff}').trim();
        if line.is_empty() {
            continue;
        }
        // The last line that was read may be cut.
        let Ok(record) = serde_json::from_str::<Value>(line) else { break };
        records.push(record);
    }
    Ok(records)
}

/// True if a file begins with a list of objects.
fn begins_list(path: &Path) -> bool {
    let mut start = Vec::new();
    let Ok((file, _)) = untrusted_io::open(path) else { return false };
    if file.take(LOOKED_AT as u64).read_to_end(&mut start).is_err() {
        return false;
    }
    let start = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&start).trim_ascii_start();
    start.strip_prefix(b"[").is_some_and(|items| items.trim_ascii_start().starts_with(b"{"))
}

/// Fields of the records of a file; `None` if its first record is not a JSON object.
///
/// # Errors
/// If it cannot be read.
pub fn lines_of(path: &Path) -> Result<Option<Lines>, DataError> {
    let (mut seen, mut lengths, mut is_chat) = (0_usize, BTreeMap::<String, (usize, usize)>::new(), None);
    for record in first_records(path)? {
        let Value::Object(fields) = record else { break };
        seen += 1;
        for (key, value) in fields {
            let is_messages = matches!(key.as_str(), "messages" | "conversations") && value.is_array();
            if is_messages {
                is_chat = Some(key.clone());
            }
            let entry = lengths.entry(key).or_default();
            if let Value::String(text) = value {
                *entry = (entry.0 + 1, entry.1 + text.len());
            }
        }
    }
    if seen == 0 {
        return Ok(None);
    }
    let keys = lengths.keys().cloned().collect();
    if let Some(key) = is_chat {
        return Ok(Some(Lines::Chat(key)));
    }
    let always = || lengths.iter().filter(|(_, (count, length))| *count == seen && *length > 0);
    // The longest of several texts, unless one is called `text`.
    let named = always().find(|(key, _)| *key == "text");
    let text = named.or_else(|| always().max_by_key(|(_, (_, length))| *length));
    Ok(Some(text.map_or(Lines::Unknown(keys), |(key, _)| Lines::Text(key.clone()))))
}

/// True if a `.json` file has a list of objects, or an object with text on each of several lines:
/// other JSON is a document.
pub(super) fn has_records(path: &Path) -> bool {
    begins_list(path)
        || first_records(path).is_ok_and(|records| records.len() > 1 && records.iter().all(Value::is_object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_content() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
            std::fs::write(path, bytes).expect("written");
        };
        write("a.md", b"text");
        write("b", "é".repeat(LOOKED_AT).as_bytes());
        write("c.txt", b"\xff\xfe");
        write("d.gz", &[0x1f, 0x8b, 8]);
        write("e.jsonl", b"{\"text\": \"x\"}\n");
        write("f.json", b"{\"body\": \"x\"}\n{\"body\": \"y\"}\n");
        write("g.json", b"[\n1]");
        write("h.txt", b"");
        write("i.bin", b"\x01");
        write("i.idx", b"MMIDIDX\0\0");
        write("config.json", b"{}");
        write(".git/x.md", b"text");
        write("target/x.md", b"text");
        std::os::unix::fs::symlink("nowhere", folder.path().join("j.txt")).expect("a link");
        let found = survey(folder.path()).expect("surveyed");
        let kinds: Vec<(String, FileKind)> = found
            .iter()
            .map(|file| (file.path.file_name().expect("a name").to_string_lossy().into_owned(), file.kind))
            .collect();
        let expected = [
            ("a.md", FileKind::Text),
            ("b", FileKind::Text),
            ("c.txt", FileKind::Binary),
            ("config.json", FileKind::Model),
            ("d.gz", FileKind::Compressed),
            ("e.jsonl", FileKind::JsonLines),
            ("f.json", FileKind::JsonLines),
            ("g.json", FileKind::Json),
            ("h.txt", FileKind::Empty),
            ("i.bin", FileKind::Tokens),
            ("i.idx", FileKind::Tokens),
            ("j.txt", FileKind::Special),
        ];
        assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn the_key_of_lines_is_found() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.jsonl");
        let lines = |text: &str| {
            std::fs::write(&path, text).expect("written");
            lines_of(&path).expect("readable")
        };
        assert_eq!(lines("{\"id\": \"1234567\", \"text\": \"a\"}\n"), Some(Lines::Text("text".into())));
        assert_eq!(
            lines("{\"id\": \"1\", \"body\": \"long\"}\n\n{\"id\": \"2\", \"body\": \"x\"}"),
            Some(Lines::Text("body".into()))
        );
        assert_eq!(lines("{\"messages\": []}"), Some(Lines::Chat("messages".into())));
        assert_eq!(lines("{\"a\": 1}"), Some(Lines::Unknown(vec!["a".into()])));
        assert_eq!(lines("plain"), None);
    }
}
