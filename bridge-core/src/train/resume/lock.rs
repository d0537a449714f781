//! Keeps two runs out of each other's checkpoints and logs.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use bridge_data::untrusted_io;

use crate::config::RunConfig;
use crate::train::resume::error::ResumeError;

/// The locked file of a folder. It stays behind; only the lock on it counts, and the system drops
/// that with the process.
const FILE: &str = ".lock";

/// Time limit for a restarted run to wait for the remains of the earlier start.
const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(50);

/// Locks on the folders a run writes to, held until it ends.
#[derive(Debug)]
pub(in crate::train) struct RunLock {
    _files: Vec<File>,
}

impl RunLock {
    /// Locks `checkpoint.save` and `logger.log_dir`, which are made if they do not exist. A run
    /// that is started again after a fault waits for processes of the start before, which may live
    /// on for a moment. Fails if another run holds one of them, or a folder cannot be made.
    pub(in crate::train) fn acquire(config: &RunConfig, faults: u32) -> Result<Self, ResumeError> {
        let patience = if faults > 0 { PATIENCE } else { Duration::ZERO };
        let began = Instant::now();
        loop {
            match Self::try_acquire(config) {
                Err(ResumeError::InUse { .. }) if began.elapsed() < patience => std::thread::sleep(INTERVAL),
                outcome => return outcome,
            }
        }
    }

    fn try_acquire(config: &RunConfig) -> Result<Self, ResumeError> {
        let save = config.checkpoint.save.as_deref().map(|folder| ("checkpoint.save", folder));
        let log = ("logger.log_dir", config.logger.log_dir.as_path());
        let same = save.is_some_and(|(_, folder)| folder == log.1);
        let folders = save.into_iter().chain((!same).then_some(log));
        let files = folders.map(|(key, folder)| lock(key, folder)).collect::<Result<_, _>>()?;
        Ok(Self { _files: files })
    }
}

/// The lock on a folder of checkpoints that a run holds while it saves there, for programs that
/// delete some.
#[derive(Debug)]
pub struct CheckpointsLock {
    _file: File,
}

impl CheckpointsLock {
    /// Locks `root`.
    ///
    /// # Errors
    /// If a run, or another such program, holds it.
    pub fn acquire(root: &Path) -> Result<Self, ResumeError> {
        Ok(Self { _file: lock("checkpoint.save", root)? })
    }
}

fn lock(key: &'static str, folder: &Path) -> Result<File, ResumeError> {
    let cannot = |error: std::io::Error| cannot_use(key, folder, &error);
    std::fs::create_dir_all(folder).map_err(cannot)?;
    let path = folder.join(FILE);
    let mut file = untrusted_io::lockable(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => {
            // The process id is for the message of a run that finds the folder locked.
            file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(cannot)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Without its number the message is only less precise.
            let _ = file.read_to_string(&mut holder);
            Err(ResumeError::InUse { key, path: folder.to_owned(), holder: holder.trim().to_owned() })
        }
        // File systems without locks exist; a run there is no worse off than without this check.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// The error of a folder that cannot be made or written. A full disk is not the recipe's fault.
pub(in crate::train) fn cannot_use(key: &'static str, folder: &Path, error: &std::io::Error) -> ResumeError {
    let (path, message) = (folder.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ResumeError::DiskFull { key, path, message },
        _ => ResumeError::Folder { key, path, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::error::Classified;

    #[test]
    fn a_full_disk_is_not_the_recipes_fault() {
        let error = |kind: ErrorKind| cannot_use("checkpoint.save", Path::new("x"), &kind.into());
        assert!(!error(ErrorKind::StorageFull).is_bad_input() && !error(ErrorKind::QuotaExceeded).is_bad_input());
        assert!(error(ErrorKind::PermissionDenied).is_bad_input());
        assert!(error(ErrorKind::StorageFull).to_string().contains("checkpoint.save: the disk of x is full: "));
    }

    #[test]
    fn a_folder_has_one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock("checkpoint.save", folder.path()).unwrap();
        let error = lock("checkpoint.save", folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(error.is_bad_input(), "{text}");
        assert!(text.contains("checkpoint.save") && text.contains(&std::process::id().to_string()), "{text}");
        drop(held);
        // A process that another test is starting has a copy of the lock until it is another
        // program.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(error) = lock("checkpoint.save", folder.path()) {
            assert!(Instant::now() < end, "{error}");
        }
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_bad_input() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(lock("logger.log_dir", &file).unwrap_err().is_bad_input());
    }
}
