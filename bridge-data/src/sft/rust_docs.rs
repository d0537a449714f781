//! Conversations from documented Rust functions: the signature is the question, the first paragraph
//! of its documentation is the answer.

use std::collections::HashSet;
use std::fmt;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use twox_hash::XxHash3_64;

use super::files;
use crate::gpt::{Split, SplitMatrix};
use crate::pack::reuse::{Claim, claim};
use crate::pack::{OutputLock, Overwrite};
use crate::source::{Text, TextSource};
use crate::{DataError, atomic, manifest};

/// Most bytes of a signature, and of an answer.
const LONGEST: usize = 240;
/// Least bytes of an answer: shorter ones say little.
const SHORTEST: usize = 12;

/// A function and the first paragraph of its documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documented {
    /// Signature in one line, without a `where` clause.
    pub signature: String,
    /// The first paragraph, in one line.
    pub summary: String,
}

/// Report on the functions of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DocsReport {
    /// Folder with `training.jsonl` and the files of the other splits.
    pub folder: PathBuf,
    /// The splits and their numbers of examples.
    pub examples: Vec<(String, u64)>,
    /// Documents that were read.
    pub documents: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// True if an earlier run had made it.
    #[serde(skip)]
    pub reused: bool,
}

impl fmt::Display for DocsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.reused { "reusing" } else { "made" };
        let counts: Vec<String> = self.examples.iter().map(|(split, count)| format!("{count} {split}")).collect();
        let (counts, folder) = (counts.join(", "), self.folder.display());
        write!(f, "{verb} examples of {} Rust files ({counts}) in {folder}", self.documents)
    }
}

/// The documented functions of a Rust source file, in its order. Empty for text that is not Rust.
pub fn documented_functions(text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let Some(first) = doc_line(line) else { continue };
        let mut summary = first.trim().to_owned();
        let mut is_over = summary.is_empty();
        while let Some(next) = lines.peek().and_then(|line| doc_line(line)) {
            is_over |= next.trim().is_empty();
            if !is_over {
                summary.push(' ');
                summary.push_str(next.trim());
            }
            lines.next();
        }
        while lines.next_if(|line| is_attribute(line)).is_some() {}
        if !lines.peek().is_some_and(|line| is_function(line)) {
            continue;
        }
        let (mut signature, mut is_whole) = (String::new(), false);
        while signature.len() <= LONGEST + SHORTEST
            && !is_whole
            && let Some(line) = lines.next()
        {
            is_whole = add_until_body(&mut signature, line);
        }
        let signature = signature.split_whitespace().collect::<Vec<_>>().join(" ");
        let signature = signature.split_once(" where ").map_or(signature.as_str(), |(before, _)| before);
        let signature = signature.replace("( ", "(").replace(", )", ")").replace(" )", ")");
        let is_sized = is_whole && signature.len() <= LONGEST && (SHORTEST..=LONGEST).contains(&summary.len());
        if is_sized && !summary.starts_with(['#', '`', '[', '|']) {
            found.push(Documented { signature, summary });
        }
    }
    found
}

/// Text after `///`.
fn doc_line(line: &str) -> Option<&str> {
    line.strip_prefix("///").filter(|rest| !rest.starts_with('/'))
}

/// True if a line is a whole attribute.
fn is_attribute(line: &str) -> bool {
    line.starts_with("#[") && line.trim_end().ends_with(']')
}

/// True if a function begins here.
fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace().peekable();
    if words.next_if(|word| *word == "pub" || word.starts_with("pub(")).is_some() {
        // `pub(in path)`.
        while words.next_if(|word| word.ends_with(')')).is_some() {}
    }
    while words.next_if(|word| matches!(*word, "const" | "async" | "unsafe")).is_some() {}
    words.next() == Some("fn")
}

/// Adds the part of a line before the function's body or the end of its declaration. Returns true
/// if the line has that end.
fn add_until_body(signature: &mut String, line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    let depth_of = |text: &str| {
        let count = |brackets: [char; 2]| text.matches(brackets).count();
        count(['(', '[']) as i64 - count([')', ']']) as i64
    };
    let mut depth = depth_of(signature);
    for (place, c) in code.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' | ';' if depth <= 0 => {
                signature.push_str(&code[..place]);
                return true;
            }
            _ => {}
        }
    }
    signature.push_str(code);
    signature.push(' ');
    false
}

/// Writes the documented functions of a text as files of examples, each file of the text to one
/// split by its name: equal examples are written once. Files that an earlier run made from the same
/// text are reused. While the lock is held, no other process replaces the files.
///
/// # Errors
/// A text that cannot be read, or has no such functions; a folder that cannot be written, or has
/// files that Bridge did not write.
pub fn make_examples(
    source: &TextSource,
    split: &SplitMatrix,
    folder: &Path,
) -> Result<(DocsReport, OutputLock), DataError> {
    let started = Instant::now();
    let output = folder.join("examples");
    let splits: Vec<Split> = Split::ALL.into_iter().filter(|of| split.fraction(*of).is_some()).collect();
    let files: Vec<PathBuf> = splits.iter().map(|split| folder.join(files::jsonl_name(*split))).collect();
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let key = source.fingerprint().map(|source| {
        json!({ "source": source, "split": format!("{split:?}"), "form": 1, "version": env!("CARGO_PKG_VERSION") })
    });
    let lock = match claim::<DocsReport>(&output, key.as_ref(), &paths, Overwrite::Own)? {
        Claim::Whole(report, lock) => {
            manifest::check(&output, manifest::Depth::Sampled)?;
            return Ok((DocsReport { folder: folder.to_owned(), reused: true, ..report }, lock));
        }
        Claim::ToWrite(lock) => lock,
    };
    paths.iter().try_for_each(|file| atomic::remove_stale(file))?;
    let mut writers = Vec::new();
    for file in &paths {
        writers.push(BufWriter::new(atomic::TempFile::beside(file)?));
    }
    let mut counts = vec![0; splits.len()];
    let (mut documents, mut seen) = (0, HashSet::new());
    for document in source.documents()? {
        let document = document?;
        documents += 1;
        let share = XxHash3_64::oneshot(document.name().as_bytes()) as f64 / u64::MAX as f64;
        let ends = splits.iter().map(|of| split.fraction(*of).map_or(0.0, |(_, end)| end));
        let place = ends.take_while(|end| *end <= share).count().min(splits.len() - 1);
        let Text::Valid(text) = document.into_text()? else { continue };
        for Documented { signature, summary } in documented_functions(&text) {
            if !seen.insert(XxHash3_64::oneshot(format!("{signature}\n{summary}").as_bytes())) {
                continue;
            }
            let messages = json!({ "messages": [
                { "role": "user", "content": signature },
                { "role": "assistant", "content": summary },
            ] });
            writeln!(writers[place], "{messages}").map_err(DataError::io("write", paths[place]))?;
            counts[place] += 1;
        }
    }
    if let Some(empty) = counts.iter().position(|count| *count == 0) {
        let problem = format!("{}: no documented Rust functions for the {} split", source.name(), splits[empty].name());
        return Err(DataError::Source(problem));
    }
    manifest::own(&output)?;
    for (writer, path) in writers.into_iter().zip(&paths) {
        let file = writer.into_inner().map_err(|error| DataError::io("write", path)(error.into_error()))?;
        file.publish()?;
    }
    let examples = splits.iter().map(|split| split.name().to_owned()).zip(counts).collect();
    let seconds = started.elapsed().as_secs_f64();
    let report = DocsReport { folder: folder.to_owned(), examples, documents, seconds, reused: false };
    manifest::store(&output, key.unwrap_or_default(), &paths, report.clone())?;
    Ok((report, lock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceParams;

    fn found(text: &str) -> Vec<(String, String)> {
        documented_functions(text).into_iter().map(|found| (found.signature, found.summary)).collect()
    }

    fn pair(signature: &str, summary: &str) -> (String, String) {
        (signature.to_owned(), summary.to_owned())
    }

    #[test]
    fn functions_are_found_with_their_first_paragraph() {
        let text = r#"
//! A module of no interest whatever.

/// Returns the length, in elements.
pub fn len(&self) -> usize { self.0 }

    /// Copies what is there
    /// to another place.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    #[inline(always)]
    pub(crate) const unsafe fn copy<const N: usize>(
        &self,
        from: [u8; N], // where from
        to: &mut [u8],
    ) -> Result<(), Error>
    where
        Self: Sized,
    {
/// Documents a type, not a function.
pub struct Held;
/// Too short
fn short() {}
//// No documentation at all, this.
fn undocumented() {}
/// Has no body, being declared alone.
async fn declared(x: u8) -> u8;
/// # A heading and nothing else
fn heading() {}
/// Documents a `fn` in words only.
let fn_like = 1;
"#;
        assert_eq!(
            found(text),
            [
                pair("pub fn len(&self) -> usize", "Returns the length, in elements."),
                pair(
                    "pub(crate) const unsafe fn copy<const N: usize>(&self, from: [u8; N], to: &mut [u8]) -> Result<(), Error>",
                    "Copies what is there to another place."
                ),
                pair("async fn declared(x: u8) -> u8", "Has no body, being declared alone."),
            ]
        );
        assert!(found("/// A signature without end is no example.\nfn endless(x: u8").is_empty());
        assert!(found(&format!("/// Longer than anybody reads.\nfn long({})", "x: u8, ".repeat(200))).is_empty());
        assert!(found("\u{0}\u{feff}///").is_empty());
    }

    #[test]
    fn files_are_made_once_split_by_document_and_made_again_when_changed() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |number: usize, text: &str| std::fs::write(folder.path().join(format!("{number}.rs")), text).unwrap();
        for number in 0..60 {
            let own = format!("/// Returns the number {number}, as it is.\npub fn of_{number}() -> u32 {{}}\n");
            write(number, &format!("{own}/// The same in every file.\nfn same() {{}}\n"));
        }
        let resolve = || {
            let inputs = vec![folder.path().join("*.rs").display().to_string()];
            TextSource::resolve(&SourceParams { inputs, ..SourceParams::default() }).unwrap()
        };
        let (split, made) = (SplitMatrix::parse("80,20,0").unwrap(), folder.path().join("made"));
        let (report, lock) = make_examples(&resolve(), &split, &made).unwrap();
        drop(lock);
        let read = |name: &str| std::fs::read_to_string(made.join(name)).unwrap();
        let (training, validation) = (read("training.jsonl"), read("validation.jsonl"));
        let counts: Vec<u64> = report.examples.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [training.lines().count() as u64, validation.lines().count() as u64]);
        assert_eq!(counts.iter().sum::<u64>(), 61, "what is equal is there once");
        assert!(counts[1] >= 3 && counts[0] > counts[1], "{counts:?}");
        assert!(!made.join("test.jsonl").exists(), "a split without a share has no file");
        let first: serde_json::Value = serde_json::from_str(training.lines().next().unwrap()).unwrap();
        assert_eq!(first["messages"][0]["role"], "user");
        assert!(first["messages"][0]["content"].as_str().unwrap().contains("fn "), "{first}");
        assert!(make_examples(&resolve(), &split, &made).unwrap().0.reused);
        write(0, "/// Returns another number now.\npub fn changed() -> u32 {}\n");
        let (again, _lock) = make_examples(&resolve(), &split, &made).unwrap();
        assert!(!again.reused && read("training.jsonl") + &read("validation.jsonl") != training + &validation);
    }

    #[test]
    fn text_without_functions_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.rs"), "fn main() {}").unwrap();
        let params =
            SourceParams { inputs: vec![folder.path().join("a.rs").display().to_string()], ..Default::default() };
        let (source, made) = (TextSource::resolve(&params).unwrap(), folder.path().join("made"));
        let error = make_examples(&source, &SplitMatrix::parse("1").unwrap(), &made).err().expect("no functions");
        assert!(error.to_string().contains("no documented Rust functions for the train split"), "{error}");
        assert_eq!(std::fs::read_dir(&made).unwrap().count(), 0);
    }
}
