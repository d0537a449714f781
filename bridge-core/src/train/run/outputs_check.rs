//! Folders that a run writes to, checked before it trains: each exists and can be written, or can
//! be created. Nothing is created here.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::config::RunConfig;
use crate::train::resume::error::ResumeError;
use crate::train::resume::lock::cannot_use;

/// Refuses folders that cannot be written: those of checkpoints, logs and temporary files.
///
/// # Errors
/// The first such folder, under the setting or the environment variable that names it.
pub(in crate::train) fn check_outputs(config: &RunConfig) -> Result<(), ResumeError> {
    let (checkpoint, logger) = (&config.checkpoint, &config.logger);
    // A manager of the program's own decides on the place of checkpoints.
    let save = checkpoint.save.clone().filter(|_| checkpoint.custom_manager_class.is_none());
    let folders = [
        ("checkpoint.save", save),
        ("logger.log_dir", Some(logger.log_dir.clone())),
        ("logger.tensorboard_dir", logger.tensorboard_dir.clone()),
        ("logger.wandb_save_dir", logger.wandb_save_dir.clone()),
        ("tensor_inspect.log_dir", config.tensor_inspect.as_ref().map(|settings| settings.log_dir.clone())),
    ];
    for (key, folder) in folders {
        let Some(folder) = folder else { continue };
        check_folder(&folder).map_err(|error| cannot_use(key, &folder, &error))?;
    }
    let Some(temporary) = std::env::var_os("TMPDIR").map(PathBuf::from) else { return Ok(()) };
    // `TMPDIR` must exist: no code creates it.
    let exists = std::fs::metadata(&temporary).map(drop);
    exists.and_then(|()| check_folder(&temporary)).map_err(|error| cannot_use("TMPDIR", &temporary, &error))
}

/// Checks the folder, or the nearest one above it that exists.
fn check_folder(folder: &Path) -> Result<(), Error> {
    for place in folder.ancestors() {
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        let found = match std::fs::metadata(place) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if std::fs::symlink_metadata(place).is_ok() {
                    let text = format!("{} is a symbolic link to nothing", place.display());
                    return Err(Error::new(ErrorKind::NotADirectory, text));
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        if !found.is_dir() {
            let text = format!("{} is not a folder", place.display());
            return Err(Error::new(ErrorKind::NotADirectory, text));
        }
        return access(place, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| {
            Error::new(Error::from(errno).kind(), format!("{} cannot be written: {errno}", place.display()))
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_or_can_be_made() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        std::os::unix::fs::symlink(root.path(), at("link")).unwrap();
        for good in ["", "new", "new/and/deep", "link", "link/new"] {
            check_folder(&at(good)).unwrap();
        }
        for (bad, why) in [
            ("file", "is not a folder"),
            ("file/below", "Not a directory"),
            ("dangling", "symbolic link to nothing"),
            ("dangling/below", "symbolic link to nothing"),
        ] {
            let message = check_folder(&at(bad)).unwrap_err().to_string();
            assert!(message.contains(why), "{bad}: {message}");
        }
        assert!(!at("new").exists(), "nothing is created");
    }
}
