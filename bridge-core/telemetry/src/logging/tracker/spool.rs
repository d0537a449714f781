//! The spool: a file of unsent items, one per line with a checksum, and a file with the state of
//! the run at the tracker.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bridge_data::untrusted_io;

use super::service::{Item, Known};
use crate::logging::files::{append_whole, entries};

/// Bytes that are read at once.
const AT_ONCE: u64 = 1 << 20;

/// The longest line that is read: a configuration, or a recipe.
const LONGEST: u64 = 64 << 20;

/// An open spool.
#[derive(Debug)]
pub(super) struct Spool {
    place: PathBuf,
    file: Mutex<File>,
}

/// The lines of a part of a spool: an item, or nothing where the line is damaged, and where the
/// spool goes on after it.
pub(super) type Part = Vec<(Option<Item>, u64)>;

/// The folder of a tracker's spool.
pub(super) fn place(log_dir: &Path, tracker: &str) -> PathBuf {
    log_dir.join("unsent").join(tracker)
}

/// The folders of a tracker's spools, those of earlier runs in the same log folder too.
pub(super) fn places(log_dir: &Path, tracker: &str) -> io::Result<Vec<PathBuf>> {
    entries(&log_dir.join("unsent"), |name| name.starts_with(tracker))
}

/// Renames the spool that another run has left, to keep it.
pub(super) fn set_aside(place: &Path) -> io::Result<()> {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = (1..).map(|number| place.with_file_name(format!("{name}-{number}"))).find(|kept| !kept.exists());
    free.map_or(Ok(()), |kept| fs::rename(place, kept))
}

/// State of the run; the default if no file exists.
pub(super) fn read_known(place: &Path) -> io::Result<Known> {
    match untrusted_io::read_text(&place.join("known.json"), untrusted_io::SETTINGS_BYTES) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Known::default()),
        Err(error) => Err(error),
    }
}

impl Spool {
    /// Opens the spool in the folder `place`, which is made.
    pub fn open(place: &Path) -> io::Result<Self> {
        fs::create_dir_all(place)?;
        let path = place.join("items");
        let mut file = untrusted_io::append(&path)?;
        let length = file.metadata()?.len();
        if length > 0 {
            let mut last = [0];
            File::open(&path)?.read_exact_at(&mut last, length - 1)?;
            if last != *b"\n" {
                // After an incomplete line, the next item begins a new line.
                file.write_all(b"\n")?;
            }
        }
        Ok(Self { place: place.to_owned(), file: Mutex::new(file) })
    }

    /// Appends an item, or nothing.
    pub fn append(&self, item: &Item) -> io::Result<()> {
        let json = serde_json::to_string(item)?;
        let line = format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()));
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        append_whole(&mut file, line.as_bytes())
    }

    /// Items from `start` on: some, not all. A last line without an end is not there yet.
    pub fn read(&self, start: u64) -> io::Result<Part> {
        let mut file = File::open(self.place.join("items"))?;
        file.seek(SeekFrom::Start(start))?;
        let (mut input, mut lines, mut end) = (BufReader::new(file), Vec::new(), start);
        while end - start < AT_ONCE {
            let mut line = Vec::new();
            let length = input.by_ref().take(LONGEST).read_until(b'\n', &mut line)? as u64;
            let whole = line.strip_suffix(b"\n");
            if whole.is_none() && length < LONGEST {
                break;
            }
            end += length;
            lines.push((whole.and_then(item), end));
        }
        Ok(lines)
    }

    /// Writes `known.json`.
    pub fn write_known(&self, known: &Known) -> io::Result<()> {
        untrusted_io::replace(&self.place.join("known.json"), &serde_json::to_vec(known)?)
    }

    /// Forgets all items, which are sent.
    pub fn clear(&self, known: &mut Known) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // If this is interrupted, the sent position in `known.json` is beyond the end of the file:
        // see `Spool::start`.
        file.set_len(0)?;
        known.sent = 0;
        self.write_known(known)
    }

    /// Position to continue from: the beginning, if the spool is shorter than the sent part.
    pub fn start(&self, known: &Known) -> io::Result<u64> {
        let length = fs::metadata(self.place.join("items"))?.len();
        Ok(if known.sent > length { 0 } else { known.sent })
    }
}

/// The item of a line, if its checksum is right.
fn item(line: &[u8]) -> Option<Item> {
    let (sum, json) = (line.get(..8)?, line.get(9..)?);
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (crc32c::crc32c(json) == sum).then(|| serde_json::from_slice(json).ok()).flatten()
}
