//! Text to tokenize: files by glob pattern, JSON Lines, standard input. Tokenizing belongs to
//! `pack`.

mod documents;
mod expand;
mod sample;
pub mod survey;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

pub use documents::{At, Documents, RawDocument, Text};

use super::random::RandomState;
use super::{DataError, untrusted_io};
use documents::Layout;
use expand::expand;

/// The format of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TextFormat {
    /// Records in files ending in `.jsonl`, `.ndjson`, `.parquet`, `.arrow` or `.feather`, and in
    /// lists in `.json`, also of `.gz` and `.zst`; otherwise one document. The text is under the
    /// key `text`, another usual name, or the only key with text.
    #[default]
    Auto,
    /// One document.
    Document,
    /// Records: one JSON object per line, items of a list in a `.json` file, rows of a table. The
    /// document is the string under this key.
    JsonLines {
        /// The key.
        key: String,
    },
}

/// Text to read, and its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceParams {
    /// Paths and glob patterns (`~`, `$VAR` and `${VAR}` are expanded), read in the order given and
    /// sorted within a pattern; `-` is standard input.
    pub inputs: Vec<String>,
    /// Glob patterns of files to leave out.
    pub exclude: Vec<String>,
    /// The format of files.
    pub format: TextFormat,
    /// Whole files are used as long as their total size is at most this many bytes.
    pub max_bytes: Option<u64>,
    /// Shuffles the documents with this seed, 0..=4294967295.
    pub shuffle_seed: Option<u32>,
}

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SourceFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub modified: u128,
}

/// Source of documents, after patterns are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Files(Vec<SourceFile>),
    Stdin,
}

/// The resolved text: a list of files, or standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSource {
    origin: Origin,
    format: TextFormat,
    shuffle_seed: Option<u32>,
    /// Size of the pieces that documents are cut into, if they are.
    piece_bytes: Option<usize>,
    /// Bytes of the windows that are read instead of whole files, if they are.
    sample_bytes: Option<u64>,
}

impl TextSource {
    /// Finds the files.
    ///
    /// # Errors
    /// If a pattern is malformed or matches nothing, a variable is not set, an input is a folder,
    /// standard input is combined with files or with shuffling, or `max_bytes` is below the size of
    /// the first file.
    pub fn resolve(params: &SourceParams) -> Result<Self, DataError> {
        let bad = |text: String| Err(DataError::Source(text));
        let build = |origin| Self {
            origin,
            format: params.format.clone(),
            shuffle_seed: params.shuffle_seed,
            piece_bytes: None,
            sample_bytes: None,
        };
        if params.inputs.is_empty() {
            return bad("no input: give files, glob patterns, or - for standard input".into());
        }
        if params.inputs.iter().any(|input| input == "-") {
            if params.inputs.len() > 1 {
                return bad("standard input (-) cannot be combined with other inputs".into());
            }
            if params.shuffle_seed.is_some() || params.max_bytes.is_some() {
                return bad("standard input (-) is a stream: it cannot have shuffle_seed or max_bytes".into());
            }
            return Ok(build(Origin::Stdin));
        }
        let mut files = find_files(params)?;
        if let Some(max_bytes) = params.max_bytes {
            let mut total = 0u64;
            let first = files.first().map_or(0, |file| file.size);
            files.truncate(
                files
                    .iter()
                    .take_while(|file| {
                        total = total.saturating_add(file.size);
                        total <= max_bytes
                    })
                    .count(),
            );
            if files.is_empty() {
                return bad(format!("max_bytes = {max_bytes}: the first file alone has {first} bytes"));
            }
        }
        Ok(build(Origin::Files(files)))
    }

    /// The files, in reading order; empty for standard input.
    pub fn files(&self) -> &[SourceFile] {
        files_of(&self.origin)
    }

    /// Name of the source for messages: its first files.
    pub fn name(&self) -> String {
        const SHOWN: usize = 3;
        let Origin::Files(files) = &self.origin else { return "standard input".to_owned() };
        let mut names: Vec<String> = files.iter().take(SHOWN).map(|file| file.path.display().to_string()).collect();
        if files.len() > SHOWN {
            names.push(format!("{} other files", files.len() - SHOWN));
        }
        names.join(", ")
    }

    /// The same text with documents cut into pieces of about `bytes` bytes, which splits of the
    /// data can divide.
    #[must_use]
    pub fn in_pieces(self, bytes: usize) -> Self {
        Self { piece_bytes: Some(bytes), ..self }
    }

    /// Size of the pieces that documents are cut into, if they are.
    pub fn piece_bytes(&self) -> Option<usize> {
        self.piece_bytes
    }

    /// Number of documents, if it is known before they are read: if each file is one.
    pub fn num_whole_files(&self) -> Option<usize> {
        let is_whole = |path: &Path| matches!(self.layout_of(path), Layout::Whole | Layout::Unpacked);
        match &self.origin {
            Origin::Files(files) => files.iter().all(|file| is_whole(&file.path)).then_some(files.len()),
            Origin::Stdin => is_whole(Path::new("-")).then_some(1),
        }
    }

    /// Bytes of the text, or of its sample; `None` for standard input, compressed files and tables,
    /// whose text has to be read for that.
    pub fn total_bytes(&self) -> Option<u64> {
        match &self.origin {
            Origin::Files(_) if self.sample_bytes.is_some() => self.sample_bytes,
            Origin::Files(files) => {
                let size = |file: &SourceFile| self.layout_of(&file.path).has_places().then_some(file.size);
                files.iter().map(size).sum()
            }
            Origin::Stdin => None,
        }
    }

    /// This text if it has at most `max_bytes`, or else windows of about that many bytes together,
    /// spread evenly over all files: each file has a share by its size, in any order of the files.
    /// Standard input is read as a whole.
    #[must_use]
    pub fn sampled(&self, max_bytes: u64) -> Self {
        let total = self.files().iter().fold(0_u64, |sum, file| sum.saturating_add(self.text_bytes(file)));
        Self { sample_bytes: (total > max_bytes).then_some(max_bytes), ..self.clone() }
    }

    /// Identifies this text and its version; `None` if that cannot be known before reading it.
    pub fn fingerprint(&self) -> Option<serde_json::Value> {
        let Origin::Files(files) = &self.origin else { return None };
        let files: Vec<_> =
            files.iter().map(|file| (file.path.display().to_string(), file.size, file.modified.to_string())).collect();
        let format = match &self.format {
            TextFormat::Auto => "auto".to_owned(),
            TextFormat::Document => "document".to_owned(),
            TextFormat::JsonLines { key } => format!("json lines, {key}"),
        };
        let mut fingerprint =
            serde_json::json!({ "files": files, "format": format, "shuffle_seed": self.shuffle_seed });
        if let Some(bytes) = self.piece_bytes {
            fingerprint["piece_bytes"] = bytes.into();
        }
        // Earlier releases did not read these files.
        if files_of(&self.origin).iter().any(|file| !self.layout_of(&file.path).has_places()) {
            fingerprint["unpacked"] = true.into();
        }
        if let Some(bytes) = self.sample_bytes {
            fingerprint["sample_bytes"] = bytes.into();
        }
        Some(fingerprint)
    }

    /// Reads the documents in order.
    ///
    /// # Errors
    /// If files cannot be read, when lines have to be found for shuffling.
    pub fn documents(&self) -> Result<Documents, DataError> {
        if let (Origin::Files(files), Some(bytes)) = (&self.origin, self.sample_bytes) {
            return self.windows(files, bytes);
        }
        match (&self.origin, self.shuffle_seed) {
            (Origin::Stdin, _) => Ok(Documents::stdin(self.layout_of(Path::new("-")))),
            (Origin::Files(files), None) => {
                let files = files.iter().map(|file| (file.path.clone(), self.layout_of(&file.path))).collect();
                Ok(Documents::sequential(files))
            }
            (Origin::Files(files), Some(seed)) => self.shuffled(files, seed),
        }
    }

    /// The layout of a file.
    fn layout_of(&self, path: &Path) -> Layout {
        layout_in(&self.format, path)
    }

    /// As [`Self::layout_of`], with the key of lines, which places of lines are read with.
    fn keyed_layout_of(&self, path: &Path) -> Result<Layout, DataError> {
        match self.layout_of(path) {
            Layout::Lines(None) => Ok(Layout::Lines(Some(documents::key_of_lines(path)?))),
            other => Ok(other),
        }
    }

    /// Bytes of a file's text, about: compressed files and tables have several times their size.
    fn text_bytes(&self, file: &SourceFile) -> u64 {
        const TIMES: u64 = 3;
        file.size.saturating_mul(if self.layout_of(&file.path).has_places() { 1 } else { TIMES })
    }

    /// The documents in windows of a sample: lines that begin in one, or the text in it up to the
    /// ends of lines.
    fn windows(&self, files: &[SourceFile], bytes: u64) -> Result<Documents, DataError> {
        let (mut places, mut shares) = (Vec::new(), documents::Shares::default());
        let layouts = files.iter().map(|file| self.keyed_layout_of(&file.path)).collect::<Result<Vec<_>, _>>()?;
        let sizes: Vec<u64> = files.iter().map(|file| self.text_bytes(file)).collect();
        for window in sample::windows(&sizes, bytes) {
            let path = &files[window.file].path;
            match &layouts[window.file] {
                Layout::Lines(_) => sample::lines_from(path, &window, |start, length| {
                    let at = documents::At::Byte(start);
                    places.push(documents::Place { file: window.file, at, start, length });
                })?,
                Layout::Whole => {
                    let (start, length) = sample::text_in(path, &window)?;
                    let at = documents::At::File;
                    places.push(documents::Place { file: window.file, at, start, length });
                }
                Layout::Unpacked | Layout::Records(_) => match shares.files.back_mut() {
                    Some((file, share)) if *file == window.file => *share += window.end - window.start,
                    _ => shares.files.push_back((window.file, window.end - window.start)),
                },
            }
        }
        let files = files.iter().map(|file| file.path.clone()).zip(layouts).collect();
        Ok(Documents::placed(files, places, shares))
    }

    fn shuffled(&self, files: &[SourceFile], seed: u32) -> Result<Documents, DataError> {
        let mut places = Vec::new();
        let mut keyed = Vec::with_capacity(files.len());
        for (number, file) in files.iter().enumerate() {
            let layout = self.keyed_layout_of(&file.path)?;
            match &layout {
                Layout::Lines(_) => find_lines(&file.path, |line, start, length| {
                    places.push(documents::Place { file: number, at: documents::At::Line(line), start, length });
                })?,
                Layout::Whole => {
                    let at = documents::At::File;
                    places.push(documents::Place { file: number, at, start: 0, length: file.size as usize });
                }
                Layout::Unpacked | Layout::Records(_) => {
                    return Err(DataError::Source(format!(
                        "{}: documents of compressed files, lists and tables are read one after the other and cannot be shuffled: remove \
                         dataset.source_shuffle_seed (--shuffle-seed), or unpack the file; the samples of a run are shuffled anyway",
                        file.path.display()
                    )));
                }
            }
            keyed.push((file.path.clone(), layout));
        }
        let mut rng = RandomState::new(i64::from(seed)).map_err(|error| DataError::Parameter(error.to_string()))?;
        rng.shuffle(&mut places);
        Ok(Documents::placed(keyed, places, documents::Shares::default()))
    }
}

fn files_of(origin: &Origin) -> &[SourceFile] {
    match origin {
        Origin::Files(files) => files,
        Origin::Stdin => &[],
    }
}

/// Layout of a file, by its name and the requested format.
fn layout_in(format: &TextFormat, path: &Path) -> Layout {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let is_packed = ends(&[".gz", ".zst"]);
    let is_table = ends(&[".parquet", ".arrow", ".feather"]);
    let is_packed_json = ends(&[".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst", ".ndjson.gz", ".ndjson.zst"]);
    match format {
        TextFormat::Document if is_packed => Layout::Unpacked,
        TextFormat::Document => Layout::Whole,
        TextFormat::JsonLines { key } if is_table || is_packed || name.ends_with(".json") => {
            Layout::Records(Some(key.as_str().into()))
        }
        TextFormat::JsonLines { key } => Layout::Lines(Some(key.as_str().into())),
        TextFormat::Auto if is_table || is_packed_json => Layout::Records(None),
        TextFormat::Auto if is_packed => Layout::Unpacked,
        TextFormat::Auto if ends(&[".jsonl", ".ndjson"]) => Layout::Lines(None),
        TextFormat::Auto if name.ends_with(".json") && survey::has_records(path) => Layout::Records(None),
        TextFormat::Auto => Layout::Whole,
    }
}

/// True if documents of a file are read one after the other, so that they cannot be shuffled:
/// compressed files, lists and tables.
pub fn is_read_in_order(path: &Path) -> bool {
    !layout_in(&TextFormat::Auto, path).has_places()
}

/// Calls `on` with number (from 1), start and length of each line.
fn find_lines(path: &Path, mut on: impl FnMut(usize, u64, usize)) -> Result<(), DataError> {
    let (file, _) = untrusted_io::open(path).map_err(DataError::io("open", path))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut start, mut number) = (0u64, 1);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line).map_err(DataError::io("read", path))?;
        if length == 0 {
            return Ok(());
        }
        on(number, start, length);
        start += length as u64;
        number += 1;
    }
}

fn find_files(params: &SourceParams) -> Result<Vec<SourceFile>, DataError> {
    let exclude = params
        .exclude
        .iter()
        .map(|pattern| {
            let wrong =
                |reason: String| DataError::Exclude(format!("pattern {pattern:?} of files to leave out: {reason}"));
            let expanded = expand(pattern).map_err(|error| wrong(error.to_string()))?;
            glob::Pattern::new(&expanded).map_err(|error| wrong(error.to_string()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let excluded = |path: &Path| exclude.iter().any(|pattern| pattern.matches_path(path));
    let mut files: Vec<SourceFile> = Vec::new();
    let mut seen = HashSet::new();
    for input in &params.inputs {
        let mut found = matches_of(input)?;
        found.sort();
        if found.is_empty() {
            return Err(DataError::Source(format!("no file matches {input:?}")));
        }
        for path in found {
            // A file may match several patterns; it is read once.
            if !excluded(&path) && seen.insert(path.clone()) {
                files.push(describe(path)?);
            }
        }
    }
    if files.is_empty() {
        return Err(DataError::Exclude(format!(
            "the exclude patterns {:?} leave no file of {:?}",
            params.exclude, params.inputs
        )));
    }
    Ok(files)
}

/// A pattern that matches `text` literally: wildcards and variables in it are escaped.
pub fn literal_pattern(text: &str) -> String {
    let escaped = glob::Pattern::escape(text).replace('$', "${:-$}");
    // A leading `~` would be the home folder.
    if escaped.starts_with('~') { format!("./{escaped}") } else { escaped }
}

/// The files of one input. An existing file is taken literally even if its name has brackets.
fn matches_of(input: &str) -> Result<Vec<PathBuf>, DataError> {
    let expanded = expand(input)?;
    let literal = PathBuf::from(&expanded);
    if literal.is_file() {
        return Ok(vec![literal]);
    }
    if literal.exists() && !literal.is_dir() {
        // The error of this call names the type of file.
        untrusted_io::open(&literal).map_err(DataError::io("read", &literal))?;
    }
    if literal.is_dir() {
        return Err(DataError::Source(format!(
            "{expanded} is a folder: name its files with a pattern such as \"{}\"",
            literal.join("**/*.txt").display()
        )));
    }
    let paths = glob::glob(&expanded).map_err(|error| DataError::Source(format!("pattern {input:?}: {error}")))?;
    let mut found = Vec::new();
    for path in paths {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            DataError::io("look into", &path)(error.into())
        })?;
        if path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

fn describe(path: PathBuf) -> Result<SourceFile, DataError> {
    let metadata = std::fs::metadata(&path).map_err(DataError::io("read the size of", &path))?;
    let modified = metadata.modified().map_err(DataError::io("read the time of", &path))?;
    let modified = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    Ok(SourceFile { size: metadata.len(), path, modified })
}

#[cfg(test)]
mod tests;
