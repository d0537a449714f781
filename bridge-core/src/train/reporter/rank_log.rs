//! The file in which a rank that has no console keeps its warnings and errors.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// The log file of one rank; it appears with the first line.
pub(super) struct RankLog {
    path: PathBuf,
    file: Option<File>,
}

impl RankLog {
    /// A log that will be appended to `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }
}

impl Write for RankLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                if let Some(folder) = self.path.parent() {
                    fs::create_dir_all(folder)?;
                }
                empty.insert(OpenOptions::new().create(true).append(true).open(&self.path)?)
            }
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}
