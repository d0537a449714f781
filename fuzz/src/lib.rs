//! Code that fuzz targets share: files in a folder of their own, because parsers of files open them
//! themselves.

use std::path::Path;

/// Calls `parse` with a folder that has these files.
///
/// # Panics
/// If the folder cannot be made.
pub fn with_files(files: &[(&str, &[u8])], parse: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a file of it");
    }
    parse(folder.path());
}

/// The data in two parts; the first two bytes say where.
#[must_use]
pub fn parts(data: &[u8]) -> (&[u8], &[u8]) {
    let Some((head, rest)) = data.split_at_checked(2) else {
        return (data, &[]);
    };
    rest.split_at(usize::from(u16::from_le_bytes([head[0], head[1]])).min(rest.len()))
}
