//! Files of tensors under construction: laid out beforehand, filled in any order, published
//! together. Callers determine the content.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;

use super::checkpoint::io;
use super::error::HfError;

/// The layout of a file.
#[derive(Debug)]
pub(crate) struct FileLayout {
    /// Name in the folder.
    pub name: String,
    /// First bytes of the file.
    pub header: Vec<u8>,
    /// Name and number of bytes of each tensor, in order.
    pub tensors: Vec<(String, usize)>,
    /// Alignment of each tensor in bytes.
    pub alignment: usize,
}

/// Files under temporary names. They are removed if they are not published.
#[derive(Debug)]
pub(crate) struct Staged {
    folder: PathBuf,
    /// Folders that were made for it, the innermost first.
    created: Vec<PathBuf>,
    /// Names with the open files.
    files: Vec<(String, File)>,
    /// File, first byte and number of bytes of each tensor.
    places: BTreeMap<String, (usize, u64, usize)>,
}

impl Staged {
    /// Creates the files in `folder`, which is created if it does not exist. Fails if the system
    /// does not let it.
    pub fn create(folder: &Path, layouts: Vec<FileLayout>) -> Result<Self, HfError> {
        remove_remains(folder)?;
        let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let created = missing.map(Path::to_owned).collect();
        std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
        let mut staged = Self { folder: folder.to_owned(), created, files: Vec::new(), places: BTreeMap::new() };
        for layout in layouts {
            let path = staged.temporary(&layout.name);
            let file = untrusted_io::create(&path).map_err(|source| io(&path, source))?;
            let mut end = layout.header.len();
            for (name, bytes) in layout.tensors {
                let start = end.next_multiple_of(layout.alignment);
                staged.places.insert(name, (staged.files.len(), start as u64, bytes));
                end = start + bytes;
            }
            let size = end.next_multiple_of(layout.alignment) as u64;
            let laid_out = file.write_all_at(&layout.header, 0).and_then(|()| file.set_len(size));
            staged.files.push((layout.name, file));
            laid_out.map_err(|source| io(&path, source))?;
        }
        Ok(staged)
    }

    /// Adds a file with this content. Fails if the system does not let it.
    pub fn add(&mut self, name: &str, content: &[u8]) -> Result<(), HfError> {
        let path = self.temporary(name);
        let file = untrusted_io::create(&path).map_err(|source| io(&path, source))?;
        let written = file.write_all_at(content, 0);
        self.files.push((name.to_owned(), file));
        written.map_err(|source| io(&path, source))
    }

    /// Writes a tensor, or the part of it that begins at byte `start`, to its place.
    ///
    /// # Errors
    /// If the system does not let it.
    ///
    /// # Panics
    /// If no such tensor was laid out, or one that ends before.
    pub fn fill(&self, name: &str, start: usize, bytes: &[u8]) -> Result<(), HfError> {
        let (file, first, count) = self.places[name];
        assert!(start + bytes.len() <= count, "bytes of `{name}`");
        let (file_name, file) = &self.files[file];
        file.write_all_at(bytes, first + start as u64).map_err(|source| io(&self.temporary(file_name), source))
    }

    /// Gives the files their names, in the order in which they were laid out and added, after all
    /// are on the disk. Fails if the system does not let it.
    pub fn publish(self) -> Result<(), HfError> {
        self.publish_over(&[], &|_| false)
    }

    /// [`Self::publish`] over the files of an earlier writer. Files in `before` are removed before
    /// the first rename. Files for which `is_stale` holds and that have no new content are removed
    /// after the renames. Fails if the system does not let it.
    pub fn publish_over(mut self, before: &[&str], is_stale: &dyn Fn(&Path) -> bool) -> Result<(), HfError> {
        for (name, file) in &self.files {
            file.sync_all().map_err(|source| io(&self.temporary(name), source))?;
        }
        // From here to the end the folder has files of two writers, or some of one.
        let mark = self.folder.join(UNFINISHED);
        untrusted_io::replace(&mark, b"").map_err(|source| io(&mark, source))?;
        for name in before {
            remove(&self.folder.join(name))?;
        }
        for (name, _) in &self.files {
            let path = self.folder.join(name);
            let renamed = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            let renamed = renamed.and_then(|()| std::fs::rename(self.temporary(name), &path));
            renamed.map_err(|source| io(&path, source))?;
        }
        let names = self.files.iter().map(|(name, _)| self.folder.join(name)).collect::<Vec<_>>();
        for path in entries_of(&self.folder)?.iter().filter(|path| is_stale(path) && !names.contains(path)) {
            remove(path)?;
        }
        remove(&mark)?;
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| io(&self.folder, source))?;
        self.files.clear();
        self.created.clear();
        Ok(())
    }

    /// Path of a file until it is published; until then files of inner folders are in the outer
    /// folder.
    pub fn temporary(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{TEMPORARY}{}", name.replace('/', "-")))
    }
}

/// Prefix of the names of files until they are published.
const TEMPORARY: &str = ".tmp-";

/// Name of a file that is in a folder while files get their names there. A writer that was killed
/// leaves it.
const UNFINISHED: &str = ".bridge-unfinished";

/// True if a writer was killed while it gave files their names in `folder`, so that another one may
/// replace them.
pub(crate) fn is_unfinished(folder: &Path) -> bool {
    folder.join(UNFINISHED).exists()
}

/// Removes files of weights that a killed writer has left.
fn remove_remains(folder: &Path) -> Result<(), HfError> {
    if !folder.is_dir() {
        return Ok(());
    }
    let is_left = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(TEMPORARY) && name.ends_with(".safetensors")
    };
    entries_of(folder)?.iter().filter(is_left).try_for_each(|path| remove(path))
}

fn entries_of(folder: &Path) -> Result<Vec<PathBuf>, HfError> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(|source| io(folder, source))
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), HfError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // The error that led here is reported instead.
        for (name, _) in &self.files {
            let _ = std::fs::remove_file(self.temporary(name));
        }
        // A folder that was made for files of which none was published goes with them.
        let mark = self.folder.join(UNFINISHED);
        if !self.created.is_empty() && entries_of(&self.folder).is_ok_and(|left| left == [mark.clone()]) {
            let _ = std::fs::remove_file(&mark);
        }
        for folder in &self.created {
            let _ = std::fs::remove_dir(folder);
        }
    }
}
