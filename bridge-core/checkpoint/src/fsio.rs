//! Crash-safe file operations: everything is synced before it gets its final name. Knows nothing
//! about checkpoints.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;

use super::checksum::{Checksum, ChecksumBuilder};
use super::error::CheckpointError;
use super::names::STAGING_PREFIX;

/// Bytes passed to the checksum and to the disk at a time: large enough for full speed, small
/// enough to stay in cache.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Distinguishes a file or folder from another one that later took its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
    /// Inode numbers are reused, change times are not.
    changed: (i64, i64),
}

impl FileId {
    pub(super) fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), changed: (metadata.ctime(), metadata.ctime_nsec()) }
    }
}

/// Makes the names inside `folder` durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(CheckpointError::io("sync folder", folder))
}

/// The folder that holds `path`; the working directory for a bare name.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Creates `folder` and its missing parents, all of them durable.
pub(super) fn create_folder_durably(folder: &Path) -> Result<(), CheckpointError> {
    if fs::metadata(folder).is_ok_and(|m| m.is_dir()) {
        return Ok(());
    }
    let parent = parent_of(folder);
    if parent != folder {
        create_folder_durably(parent)?;
    }
    match fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        result => result.map_err(CheckpointError::io("create folder", folder)),
    }?;
    sync_folder(parent)
}

/// Replaces `path` atomically: readers see the old or the new content, even after a crash.
pub(super) fn replace_file(path: &Path, content: &[u8]) -> Result<(), CheckpointError> {
    let mut name = OsString::from(STAGING_PREFIX);
    name.push(path.file_name().unwrap_or_default());
    let staged = path.with_file_name(name);
    let mut file = FileWriter::create(&staged)?;
    file.write(content)?;
    file.finish()?;
    fs::rename(&staged, path).map_err(CheckpointError::io("replace", path))?;
    sync_folder(parent_of(path))
}

/// A file being written, with the checksum and size of its content so far.
pub(super) struct FileWriter {
    path: PathBuf,
    file: File,
    checksum: ChecksumBuilder,
    size: u64,
}

impl FileWriter {
    pub(super) fn create(path: &Path) -> Result<Self, CheckpointError> {
        let file = untrusted_io::create(path).map_err(CheckpointError::io("create", path))?;
        Ok(Self { path: path.to_owned(), file, checksum: ChecksumBuilder::new(), size: 0 })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.checksum.update(bytes);
        self.file.write_all(bytes).map_err(CheckpointError::io("write", &self.path))?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file. Its name is durable only once its folder is synced as well.
    pub(super) fn finish(self) -> Result<(u64, Checksum), CheckpointError> {
        self.file.sync_all().map_err(CheckpointError::io("sync", &self.path))?;
        Ok((self.size, self.checksum.finish()))
    }
}

/// Reads `file` from its beginning and returns its size and checksum.
pub(super) fn checksum_file(mut file: &File) -> io::Result<(u64, Checksum)> {
    let mut checksum = ChecksumBuilder::new();
    let mut size = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok((size, checksum.finish())),
            Ok(len) => {
                checksum.update(&chunk[..len]);
                size += len as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Removes a folder, file or link, if it exists.
pub(super) fn remove_all(path: &Path) -> Result<(), CheckpointError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(CheckpointError::io("remove", path)),
    }
}

/// Renames and makes the new name durable. Both names are in the same folder.
pub(super) fn rename_durably(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(CheckpointError::io("rename", from))?;
    sync_folder(parent_of(to))
}

/// True if a file or link has this name, even a dangling link.
pub(super) fn exists(path: &Path) -> Result<bool, CheckpointError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(CheckpointError::io("inspect", path)(e)),
    }
}

/// Swaps two names of one folder atomically.
///
/// # Errors
/// Among others [`io::ErrorKind::Unsupported`] if the system or file system does not support it;
/// then both names are unchanged.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
pub(super) fn swap(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(|errno| match errno {
        Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => io::ErrorKind::Unsupported.into(),
        errno => errno.into(),
    })
}

/// Not supported on this system.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(super) fn swap(_a: &Path, _b: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_leaves_only_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_where_a_folder_should_be_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"x").unwrap();
        let error = create_folder_durably(&file.join("below")).unwrap_err();
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(create_folder_durably(&file).is_err());
        create_folder_durably(&dir.path().join("a/b/c")).unwrap();
        create_folder_durably(&dir.path().join("a/b/c")).unwrap();
        assert!(dir.path().join("a/b/c").is_dir());
    }

    #[test]
    fn writer_and_reader_agree_on_the_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let content: Vec<u8> = (0..CHUNK_BYTES * 2 + 17).map(|i| (i % 253) as u8).collect();
        let mut writer = FileWriter::create(&path).unwrap();
        content.chunks(300_001).for_each(|part| writer.write(part).unwrap());
        let written = writer.finish().unwrap();
        assert_eq!(written, (content.len() as u64, Checksum::compute(&content)));
        assert_eq!(checksum_file(&File::open(&path).unwrap()).unwrap(), written);
    }

    #[test]
    fn removing_a_link_leaves_what_it_points_to() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        remove_all(&link).unwrap();
        remove_all(&link).unwrap();
        assert!(target.is_dir() && !exists(&link).unwrap());
    }
}
