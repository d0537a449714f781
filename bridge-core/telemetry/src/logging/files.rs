//! Files of a run: their errors, and the ways in which they are written.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use serde::Serialize;

/// A file of a run that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file system refused.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, #[source] io::Error),
    /// The content is not that of such a file: the file, the place in it and the fault.
    #[error("{0}")]
    Damaged(String),
}

impl FileError {
    /// Adds the path to errors of the system.
    pub(super) fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io(path, error)
    }
}

fn make_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Gives a file this content in one step, because others may read it. The folder is made if need
/// be.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(content))
}

/// As [`replace`], with content that `write` writes in parts.
pub(super) fn replace_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    make_folder_of(path)?;
    untrusted_io::replace_with(path, write)
}

/// As [`replace`], with JSON for people.
pub(super) fn replace_json(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let mut json = serde_json::to_vec_pretty(content)?;
    json.push(b'\n');
    replace(path, &json)
}

/// Opens a file to add to it. The folder is made if need be.
pub(super) fn append(path: &Path) -> io::Result<File> {
    make_folder_of(path)?;
    untrusted_io::append(path)
}

/// Appends `bytes` to a file that is open for appending, or nothing: a disk may have room for a
/// part of them.
pub(super) fn append_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let length = file.metadata()?.len();
    let written = file.write_all(bytes).and_then(|()| file.flush());
    if written.is_err() {
        // A device has no length. Where a file keeps the part, a reader finds the line torn.
        let _ = file.set_len(length);
    }
    written
}

/// Entries of a folder with names that are wanted, in the order of names; none if there is no
/// such folder.
pub(super) fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.file_name().is_some_and(|name| is_wanted(&name.to_string_lossy())));
    paths.sort();
    Ok(paths)
}

/// Renames a file after the run whose records it has, without replacing any file.
pub(super) fn set_aside(path: &Path, owner: &str) -> io::Result<()> {
    // A name that was read from a file must not lead out of the folder.
    let owner: String = owner.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(100).collect();
    let part = |part: Option<&OsStr>| part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default();
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    for number in 1.. {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let kept = path.with_file_name(format!("{stem}-{owner}{suffix}.{extension}"));
        // A link is made only where there is no file of that name.
        match fs::hard_link(path, &kept) {
            Ok(()) => return fs::remove_file(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Not every file system has links.
            Err(_) if !kept.exists() => return fs::rename(path, &kept),
            Err(error) => return Err(error),
        }
    }
    unreachable!("some number is free")
}
