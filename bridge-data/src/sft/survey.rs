//! Survey of files with examples before a recipe exists, and their division into splits. Conversion
//! of examples does not belong here.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::fields::Fields;
use super::files::{Raw, Records, is_record_file, jsonl_name, split_files};
use super::spellings;
use crate::gpt::Split;
use crate::{DataError, atomic};

/// Records by which a file is judged.
const LOOKED_AT: usize = 50;

/// Kind of the examples of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExampleKind {
    /// Lists of messages.
    Conversation,
    /// Prompts with their answers, under names that people give them.
    Prompt,
    /// Prompts with two answers, of which one is preferred.
    Preference,
}

/// Number of examples of each split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitCounts {
    /// Training examples.
    pub training: u64,
    /// Held-out examples.
    pub validation: u64,
}

/// Kind of the examples of a file; `None` if its first records are not all examples of one kind, or
/// it is not a file of records.
///
/// # Errors
/// If it cannot be read.
pub fn examples_of(path: &Path) -> Result<Option<ExampleKind>, DataError> {
    if !is_record_file(path) {
        return Ok(None);
    }
    let mut found = None;
    for record in Records::new(&[path.to_owned()]).take(LOOKED_AT) {
        let Ok(value) = record?.raw.value() else { return Ok(None) };
        let Ok(mut fields) = Fields::survey(&value) else { return Ok(None) };
        let kind = match () {
            () if spellings::is_preference(&fields) => ExampleKind::Preference,
            () if spellings::is_conversation(&fields) => ExampleKind::Conversation,
            () if spellings::asked(&mut fields, "output").is_ok() => ExampleKind::Prompt,
            () => return Ok(None),
        };
        if found.is_some_and(|other| other != kind) {
            return Ok(None);
        }
        found = Some(kind);
    }
    Ok(found)
}

/// True if a field of this name is a part of prompts with answers.
pub fn is_part_of_example(field: &str) -> bool {
    spellings::is_part(field)
}

/// The numbers of examples of a folder whose files are named after splits; `None` if it has no
/// training split.
///
/// # Errors
/// If the folder or a file cannot be read, or several files could be a split.
pub fn splits_of(root: &Path) -> Result<Option<SplitCounts>, DataError> {
    let count = |split: Split| -> Result<u64, DataError> {
        let files = split_files(root, split)?;
        Records::new(&files).try_fold(0, |count, record| record.map(|_| count + 1))
    };
    if split_files(root, Split::Train)?.is_empty() {
        return Ok(None);
    }
    Ok(Some(SplitCounts { training: count(Split::Train)?, validation: count(Split::Valid)? }))
}

/// Writes the records of `files` to `folder`: every `every`-th record to the validation split, all
/// others to the training split, so that files in any order give similar splits. With fewer records
/// there is no validation split.
///
/// # Errors
/// If a file cannot be read, a record is not JSON, or the folder cannot be written. Then the folder
/// has no new file.
pub fn divide(files: &[PathBuf], every: u64, folder: &Path) -> Result<SplitCounts, DataError> {
    let paths = [Split::Train, Split::Valid].map(|split| folder.join(jsonl_name(split)));
    let [mut training, mut validation] =
        [BufWriter::new(atomic::TempFile::beside(&paths[0])?), BufWriter::new(atomic::TempFile::beside(&paths[1])?)];
    let mut counts = SplitCounts { training: 0, validation: 0 };
    for record in Records::new(files) {
        let record = record?;
        let is_held_out = (counts.training + counts.validation + 1).is_multiple_of(every);
        let (writer, count, path) = match is_held_out {
            true => (&mut validation, &mut counts.validation, &paths[1]),
            false => (&mut training, &mut counts.training, &paths[0]),
        };
        let written = match record.raw {
            Raw::Line(line) if !line.trim_ascii().contains(&b'\n') => writer.write_all(line.trim_ascii()),
            // An item of a list may have line breaks between its fields.
            raw => raw.value().map_err(std::io::Error::other).and_then(|value| write!(writer, "{value}")),
        };
        written.and_then(|()| writer.write_all(b"\n")).map_err(DataError::io("write", path))?;
        *count += 1;
    }
    let kept = [Some((training, &paths[0])), (counts.validation > 0).then_some((validation, &paths[1]))];
    for (writer, path) in kept.into_iter().flatten() {
        let file = writer.into_inner().map_err(|error| DataError::io("write", path)(error.into_error()))?;
        file.publish()?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn examples_are_told_by_their_records() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            examples_of(&path).unwrap()
        };
        let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
        let pair = "{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}\n";
        assert_eq!(kind("a.jsonl", &chat.repeat(3)), Some(ExampleKind::Conversation));
        assert_eq!(kind("b.jsonl", &format!("\n{pair}{pair}")), Some(ExampleKind::Prompt));
        assert_eq!(kind("c.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}"), Some(ExampleKind::Prompt));
        let preference = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
        assert_eq!(kind("p.jsonl", preference), Some(ExampleKind::Preference));
        let as_text = "{\"messages\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"a\\\"}]\"}\n";
        assert_eq!(kind("q.jsonl", as_text), Some(ExampleKind::Conversation), "a list written as text");
        assert_eq!(kind("i.json", &format!("[{}]", chat.trim())), Some(ExampleKind::Conversation), "a JSON list");
        assert_eq!(kind("d.jsonl", &format!("{chat}{pair}")), None, "two kinds");
        assert_eq!(kind("e.jsonl", "{\"text\": \"a\"}\n"), None);
        assert_eq!(kind("f.jsonl", &format!("{chat}{{")), None, "a line that is not JSON");
        assert_eq!(kind("g.txt", chat), None);
        assert_eq!(kind("h.jsonl", ""), None);
    }

    #[test]
    fn each_example_comes_to_one_split() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"));
        let line = |number: usize| format!("{{\"prompt\": \"{number}\", \"answer\": 1}}");
        let lines = |numbers: std::ops::Range<usize>| numbers.map(|number| line(number) + "\r\n").collect::<String>();
        fs::write(&first, format!("\u{feff}{}\n\n", lines(0..7))).unwrap();
        // The last line has no line break.
        fs::write(&second, lines(7..12) + &line(12)).unwrap();
        let output = folder.path().join("out");
        let counts = divide(&[first.clone(), second], 5, &output).unwrap();
        assert_eq!(counts, SplitCounts { training: 11, validation: 2 });
        assert_eq!(splits_of(&output).unwrap(), Some(counts));
        let read = |name: &str| fs::read_to_string(output.join(name)).unwrap();
        assert_eq!(read("validation.jsonl"), format!("{}\n{}\n", line(4), line(9)));
        assert_eq!(read("training.jsonl").lines().count(), 11);
        assert!(
            read("training.jsonl").starts_with(&line(0))
                && read("training.jsonl").ends_with(&format!("{}\n", line(12)))
        );
        let few = folder.path().join("few");
        assert_eq!(divide(&[first], 20, &few).unwrap(), SplitCounts { training: 7, validation: 0 });
        assert_eq!(fs::read_dir(&few).unwrap().count(), 1, "no empty split, and no temporary file");
        assert_eq!(splits_of(folder.path()).unwrap(), None);
    }
}
