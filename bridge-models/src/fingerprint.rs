//! Fingerprint of another program's files, which changes with them.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Name, size and time of the last change of each file, in the order of names; `None` without
/// files.
pub fn fingerprint_of(mut files: Vec<PathBuf>) -> Option<String> {
    files.sort();
    let line = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {} {}\n", path.display(), metadata.len(), changed.as_nanos()))
    };
    let lines: String = files.iter().filter_map(line).collect();
    (!lines.is_empty()).then_some(lines)
}
