//! Files of tensors in the making: laid out beforehand, filled in any order, published together. What is in them belongs to the callers.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bridge_data::outside;

use super::checkpoint::io;
use super::error::HfError;

/// The layout of a file.
#[derive(Debug)]
pub(super) struct FileLayout {
    /// Its name in the folder.
    pub name: String,
    /// What it begins with.
    pub header: Vec<u8>,
    /// Name and number of bytes of each tensor, in order.
    pub tensors: Vec<(String, usize)>,
    /// Each tensor begins at a multiple of so many bytes.
    pub alignment: usize,
}

/// Files under temporary names. They are removed if they are not published.
#[derive(Debug)]
pub(super) struct Staged {
    folder: PathBuf,
    /// Folders that were made for it, the innermost first.
    created: Vec<PathBuf>,
    /// Names with the open files.
    files: Vec<(String, File)>,
    /// File, first byte and number of bytes of each tensor.
    places: BTreeMap<String, (usize, u64, usize)>,
}

impl Staged {
    /// Creates the files in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn create(folder: &Path, layouts: Vec<FileLayout>) -> Result<Self, HfError> {
        let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let created = missing.map(Path::to_owned).collect();
        std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
        let mut staged = Self { folder: folder.to_owned(), created, files: Vec::new(), places: BTreeMap::new() };
        for layout in layouts {
            let path = staged.temporary(&layout.name);
            let file = outside::create(&path).map_err(|source| io(&path, source))?;
            file.write_all_at(&layout.header, 0).map_err(|source| io(&path, source))?;
            let mut end = layout.header.len();
            for (name, bytes) in layout.tensors {
                let start = end.next_multiple_of(layout.alignment);
                staged.places.insert(name, (staged.files.len(), start as u64, bytes));
                end = start + bytes;
            }
            file.set_len(end.next_multiple_of(layout.alignment) as u64).map_err(|source| io(&path, source))?;
            staged.files.push((layout.name, file));
        }
        Ok(staged)
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

    /// Gives the files their names, after they are on the disk.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn publish(mut self) -> Result<(), HfError> {
        for (name, file) in &self.files {
            let temporary = self.temporary(name);
            file.sync_all()
                .and_then(|()| std::fs::rename(&temporary, self.folder.join(name)))
                .map_err(|e| io(&temporary, e))?;
        }
        self.files.clear();
        self.created.clear();
        Ok(())
    }

    /// Where a file is until it is published.
    pub fn temporary(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".tmp-{name}"))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What could not be made is told by the error that led here.
        for (name, _) in &self.files {
            let _ = std::fs::remove_file(self.temporary(name));
        }
        for folder in &self.created {
            let _ = std::fs::remove_dir(folder);
        }
    }
}
