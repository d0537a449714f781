//! Metrics files of any size, read as they grow: their figures as columns, curves of them with as
//! many points as are requested, and the content of their last lines. A file is only ever read.

mod buckets;
mod head;
mod line;
mod table;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;

pub use buckets::{Axis, Buckets, buckets};
pub use head::{Head, head};
pub use table::Table;

/// Number of bytes before the read position that must be unchanged when reading goes on. If they
/// differ, another file has taken the name.
const KNOWN: usize = 128;
/// Number of places of a file from which a sample has lines.
const PLACES: u64 = 200;
/// Bytes that are read at each place.
const PIECE: usize = 8192;
/// A longer line is passed over in pieces of this size.
const LONGEST_LINE: usize = 16 << 20;

/// File that was read, and the position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    file: (u64, u64),
    offset: u64,
    before: Vec<u8>,
}

/// A metrics file that is read as it grows.
#[derive(Debug, Default)]
pub struct Follower {
    path: PathBuf,
    known: Known,
    table: Table,
    too_long: usize,
}

/// Result of reading a file further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// True if the table has changed.
    pub is_changed: bool,
    /// True if the file is another one, and all earlier lines were dropped.
    pub is_new: bool,
    /// Bytes read so far.
    pub read: u64,
    /// Bytes of the file.
    pub size: u64,
    /// True if there is more to read now; an incomplete last line does not count.
    pub has_more: bool,
}

impl Follower {
    /// Follows the file of that name, which need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Table of the lines read so far.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Number of lines that are not records, or are too long.
    pub fn damaged(&self) -> usize {
        self.table.damaged() + self.too_long
    }

    /// Drops all read figures.
    pub fn forget(&mut self) {
        (self.known, self.table, self.too_long) = (Known::default(), Table::default(), 0);
    }

    /// Reads on, at most about `most` bytes. A file that was replaced or cut is read from its
    /// beginning. Fails with errors of the system.
    pub fn read_on(&mut self, most: usize) -> io::Result<Progress> {
        let (file, size) = untrusted_io::open(&self.path)?;
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let is_same = identity == self.known.file && size >= self.known.offset && self.is_where_it_was(&file)?;
        let is_new = !is_same && self.known != Known::default();
        if !is_same {
            self.forget();
            self.known.file = identity;
        }
        let left = usize::try_from(size - self.known.offset).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(most.max(PIECE))];
        let mut taken = 0;
        loop {
            read_at(&file, &mut bytes, self.known.offset)?;
            taken += self.table.add(&bytes);
            // A line that is longer than the requested size is read completely, up to a limit.
            if taken > 0 || bytes.len() >= left || bytes.len() >= LONGEST_LINE {
                break;
            }
            bytes = vec![0; left.min(bytes.len() * 4)];
        }
        if taken == 0 && bytes.len() >= LONGEST_LINE {
            (taken, self.too_long) = (bytes.len(), self.too_long + 1);
        }
        let end = &bytes[taken.saturating_sub(KNOWN).min(bytes.len())..taken.min(bytes.len())];
        if !end.is_empty() {
            self.known.before = end.to_vec();
        }
        self.known.offset += taken as u64;
        let read = self.known.offset;
        Ok(Progress { is_changed: taken > 0 || is_new, is_new, read, size, has_more: taken > 0 && bytes.len() < left })
    }

    /// True if the bytes before the read position are unchanged.
    fn is_where_it_was(&self, file: &File) -> io::Result<bool> {
        let mut found = vec![0; self.known.before.len()];
        read_at(file, &mut found, self.known.offset - self.known.before.len() as u64)?;
        Ok(found == self.known.before)
    }
}

/// Fills `bytes` from an offset on. If the file shrinks meanwhile, the rest is zeros, which are not
/// a valid line.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => {
                bytes[done..].fill(0);
                break;
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Samples lines from all over a file, for a first impression before it is read. Includes the last
/// lines, and takes a few milliseconds for any size. Fails with errors of the system.
pub fn sample(path: &Path) -> io::Result<Table> {
    let (file, size) = untrusted_io::open(path)?;
    let mut table = Table::default();
    if size <= PLACES * PIECE as u64 {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        read_at(&file, &mut bytes, 0)?;
        table.add(&bytes);
        return Ok(table);
    }
    let mut bytes = vec![0; PIECE];
    let last = size - PIECE as u64;
    for place in 0..PLACES {
        let offset = u64::try_from(u128::from(last) * u128::from(place) / u128::from(PLACES - 1)).unwrap_or(last);
        read_at(&file, &mut bytes, offset)?;
        let ends: Vec<usize> = (0..PIECE).filter(|at| bytes[*at] == b'\n').collect();
        let start = if place == 0 { 0 } else { ends.first().map_or(PIECE, |end| end + 1) };
        // Two lines: a step, and an evaluation if there is one beside it. At the end all.
        let end = if place + 1 == PLACES { ends.last() } else { ends.iter().filter(|end| **end >= start).nth(1) };
        if let Some(end) = end.filter(|end| **end >= start) {
            table.add(&bytes[start..=*end]);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
