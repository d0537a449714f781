//! Files that appear under their name only when complete: written to a temporary name, synced,
//! renamed. Dataset formats do not belong here.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::indexed::with_suffix;
use super::{DataError, untrusted_io};

/// Suffix of a temporary name, before the process id and a number.
const MARK: &str = ".partial-";

/// A file being written for `target`. Dropping it without [`TempFile::publish`] deletes it.
pub(crate) struct TempFile {
    file: Option<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl TempFile {
    /// Creates the temporary file in the target's folder, and the folder if necessary.
    pub(crate) fn beside(target: &Path) -> Result<Self, DataError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if let Some(folder) = target.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(DataError::io("create the folder", folder))?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = with_suffix(target, &format!("{MARK}{}-{number}", std::process::id()));
        let file = untrusted_io::create(&temporary).map_err(DataError::io("create", &temporary))?;
        Ok(Self { file: Some(file), temporary, target: target.to_owned() })
    }

    /// Syncs the content and gives the file its name, replacing any file of that name.
    pub(crate) fn publish(mut self) -> Result<(), DataError> {
        if let Some(file) = self.file.take() {
            file.sync_all().map_err(DataError::io("sync", &self.temporary))?;
        }
        std::fs::rename(&self.temporary, &self.target)
            .map_err(DataError::io("rename a finished file to", &self.target))?;
        self.temporary = PathBuf::new();
        Ok(())
    }

    fn handle(&mut self) -> std::io::Result<&mut File> {
        self.file.as_mut().ok_or_else(|| std::io::Error::other("the file is already published"))
    }
}

impl Write for TempFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.handle()?.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.handle()?.flush()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            self.file = None;
            // A failure is harmless; the next writer removes stale files.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a whole small file at once.
pub(crate) fn write(target: &Path, content: &[u8]) -> Result<(), DataError> {
    let mut file = TempFile::beside(target)?;
    file.write_all(content).map_err(DataError::io("write", target))?;
    file.publish()
}

/// Removes temporary files left by interrupted writers of `target`. The caller holds the target's
/// lock.
pub(crate) fn remove_stale(target: &Path) -> Result<(), DataError> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let Some(name) = target.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let start = format!("{name}{MARK}");
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DataError::io("list the folder", folder)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(DataError::io("list the folder", folder))?;
        if entry.file_name().to_string_lossy().starts_with(&start) {
            std::fs::remove_file(entry.path()).map_err(DataError::io("remove the stale", &entry.path()))?;
        }
    }
    Ok(())
}
