//! Reuse of earlier results, and the lock against concurrent writers. Callers determine the
//! results.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::indexed::with_suffix;
use crate::{DataError, manifest, untrusted_io};

/// Longest time that a writer waits for readers, which hold the lock only while they open the
/// output.
const WRITER_PATIENCE: Duration = Duration::from_millis(500);
/// Longest time that a reader of a complete output waits for an exclusive holder, which is about to
/// leave.
const READER_PATIENCE: Duration = Duration::from_secs(5);

/// A lock that is held while an output is written, or while an existing one is opened: one writer,
/// or any number of readers. The last holder deletes the file, so that no attempt leaves it behind.
pub struct OutputLock {
    path: PathBuf,
    /// Locked until it is closed.
    file: File,
}

impl OutputLock {
    /// Locks `{output}.lock` for a writer.
    ///
    /// # Errors
    /// [`DataError::Locked`] if other processes hold the lock for longer than [`WRITER_PATIENCE`].
    pub(crate) fn acquire(output: &Path) -> Result<Self, DataError> {
        let begun = Instant::now();
        let lock = Self::retry(output, File::try_lock, || Ok(begun.elapsed() < WRITER_PATIENCE))?;
        lock.ok_or_else(|| DataError::Locked { path: lock_path(output) })
    }

    /// Locks `{output}.lock` for a reader, even if a leaving reader holds it exclusively for a
    /// moment (see [`Drop`]). The output distinguishes a writer from such a reader: `is_complete`
    /// is false as soon as the writer has begun, and the result is `None`. Fails with errors of
    /// `is_complete`; [`DataError::Locked`] if a holder stands still for [`READER_PATIENCE`].
    fn share_complete(
        output: &Path,
        mut is_complete: impl FnMut() -> Result<bool, DataError>,
    ) -> Result<Option<Self>, DataError> {
        let begun = Instant::now();
        Self::retry(output, File::try_lock_shared, || match begun.elapsed() < READER_PATIENCE {
            true => is_complete(),
            false => Err(DataError::Locked { path: lock_path(output) }),
        })
    }

    /// Attempts to lock until it succeeds or `goes_on` is false.
    fn retry(
        output: &Path,
        attempt: impl Fn(&File) -> Result<(), TryLockError>,
        mut goes_on: impl FnMut() -> Result<bool, DataError>,
    ) -> Result<Option<Self>, DataError> {
        let path = lock_path(output);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(DataError::io("create the folder", folder))?;
        }
        let mut pause = Duration::from_micros(100);
        loop {
            let file = untrusted_io::lockable(&path).map_err(DataError::io("open the lock file", &path))?;
            match attempt(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !goes_on()? {
                        return Ok(None);
                    }
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(Duration::from_millis(20));
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(DataError::io("lock", &path)(error)),
            }
            // Between opening and locking, its holder may have deleted the file: then this lock has
            // no effect, and another process may hold the lock on a new file.
            if is_named(&file, &path).map_err(DataError::io("inspect the lock file", &path))? {
                return Ok(Some(Self { path, file }));
            }
        }
    }
}

fn lock_path(output: &Path) -> PathBuf {
    with_suffix(output, ".lock")
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // An exclusive holder may delete the lock file, because no other process deletes or
        // replaces it then. Of several readers, the last one deletes it. A file that cannot be
        // deleted is harmless.
        if self.file.try_lock().is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Files that a writer may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// Files of this writer, or of an earlier call.
    #[default]
    Own,
    /// Any file.
    Any,
}

/// An output that is locked.
pub(crate) enum Claim<R> {
    /// The output is complete and was made from the same key; with its report. The lock is at least
    /// a reader's.
    Whole(R, OutputLock),
    /// The output must be written. The lock is a writer's.
    ToWrite(OutputLock),
}

/// Locks an output; readers share it if an earlier result can be reused. Without a key it is always
/// rewritten.
///
/// # Errors
/// [`DataError::Locked`] if another process is using it; [`DataError::NotMade`] if one of its files
/// is another's.
pub(crate) fn claim<R: DeserializeOwned>(
    output: &Path,
    key: Option<&Value>,
    files: &[&Path],
    overwrite: Overwrite,
) -> Result<Claim<R>, DataError> {
    let find = || key.map_or(Ok(None), |key| load::<R>(output, key, files));
    // First checked without a lock, so that readers do not block a writer.
    if find()?.is_some()
        && let Some(lock) = OutputLock::share_complete(output, || Ok(find()?.is_some()))?
        && let Some(report) = find()?
    {
        return Ok(Claim::Whole(report, lock));
    }
    let lock = OutputLock::acquire(output)?;
    // Another process may have written it since.
    Ok(match find()? {
        Some(report) => Claim::Whole(report, lock),
        None => {
            // Bridge's own files have a record, which is written before the files.
            let foreign = files.iter().find(|file| file.exists()).filter(|_| !manifest::is_recorded(output));
            if let (Some(path), Overwrite::Own) = (foreign, overwrite) {
                return Err(DataError::NotMade { path: path.to_path_buf() });
            }
            if manifest::is_recorded(output) {
                manifest::own(output)?;
            }
            Claim::ToWrite(lock)
        }
    })
}

/// True if an open file still has this name.
fn is_named(file: &File, path: &Path) -> std::io::Result<bool> {
    let open = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn sizes_of(files: &[&Path]) -> Option<Vec<u64>> {
    files.iter().map(|file| std::fs::metadata(file).ok().map(|metadata| metadata.len())).collect()
}

/// The report of an earlier result that was made from the same `key` and whose files are complete.
/// Their bytes are compared where they are opened.
pub(crate) fn load<R: DeserializeOwned>(output: &Path, key: &Value, files: &[&Path]) -> Result<Option<R>, DataError> {
    // A record that does not parse counts as missing.
    let record = manifest::read::<R>(output)?;
    // The record covers the first files; the remaining files may be edited.
    let same = |record: &manifest::Record<R>| {
        let vouched = files.get(..record.sizes.len()).and_then(sizes_of);
        record.made_from == *key && Some(&record.sizes) == vouched.as_ref()
    };
    Ok(record.filter(same).map(|record| record.report))
}
