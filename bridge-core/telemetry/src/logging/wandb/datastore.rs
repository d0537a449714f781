//! The log of records: a header, and records in blocks of 32 KiB as LevelDB has them
//! (github.com/google/leveldb, doc/log_format.md), but with plain checksums (CRC-32 of the type and
//! the data, not masked).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bridge_data::untrusted_io;

use crate::logging::files::append_whole;

/// Name, magic number and version.
const HEADER: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
const BLOCK: u64 = 32 * 1024;
/// Checksum, length and type.
const FRAME_HEADER: u64 = 7;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// The longest record that is read.
const LONGEST: usize = 64 << 20;

/// A log that is written.
#[derive(Debug)]
pub(in crate::logging) struct DataStore {
    pub(super) file: File,
    pub(super) length: u64,
}

impl DataStore {
    /// Begins the file `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        drop(untrusted_io::create(path)?);
        let mut store = Self { file: untrusted_io::append(path)?, length: 0 };
        store.put(&HEADER)?;
        Ok(store)
    }

    /// Adds records, all or none. When this returns, the operating system has the records, so the
    /// end of the process does not lose them.
    pub fn add(&mut self, records: &[Vec<u8>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for record in records {
            frame(self.length, record, &mut bytes);
        }
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        append_whole(&mut self.file, bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Appends the frames of a record to `out`, which begins at `start` of the file.
fn frame(start: u64, record: &[u8], out: &mut Vec<u8>) {
    let left = |out: &Vec<u8>| BLOCK - (start + out.len() as u64) % BLOCK;
    if left(out) < FRAME_HEADER {
        let padding = left(out) as usize;
        out.resize(out.len() + padding, 0);
    }
    let (mut rest, mut is_first) = (record, true);
    loop {
        let room = (left(out) - FRAME_HEADER) as usize;
        let (part, behind) = rest.split_at(room.min(rest.len()));
        let kind = match (is_first, behind.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        out.extend_from_slice(&checksum(kind, part).to_le_bytes());
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
        out.push(kind);
        out.extend_from_slice(part);
        (rest, is_first) = (behind, false);
        if rest.is_empty() {
            return;
        }
    }
}

fn checksum(kind: u8, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(data);
    hasher.finalize()
}

/// Reads the records of a log up to the first that is not whole.
pub(super) struct Records {
    input: BufReader<File>,
    /// End of the last record that was read.
    pub end: u64,
}

impl Records {
    /// Opens a log; `None` if the file is not a log.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut input = BufReader::with_capacity(BLOCK as usize, untrusted_io::open(path)?.0);
        let mut header = [0; HEADER.len()];
        match input.read_exact(&mut header) {
            Ok(()) if header == HEADER => Ok(Some(Self { input, end: HEADER.len() as u64 })),
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next record.
    pub fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.read() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read,
        }
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (mut record, mut at, mut is_first) = (Vec::new(), self.end, true);
        loop {
            let left = BLOCK - at % BLOCK;
            if left < FRAME_HEADER {
                let mut padding = [0; FRAME_HEADER as usize];
                self.input.read_exact(&mut padding[..left as usize])?;
                at += left;
            }
            let mut header = [0; FRAME_HEADER as usize];
            self.input.read_exact(&mut header)?;
            let [a, b, c, d, low, high, kind] = header;
            let mut data = vec![0; usize::from(u16::from_le_bytes([low, high]))];
            self.input.read_exact(&mut data)?;
            at += FRAME_HEADER + data.len() as u64;
            let is_expected = matches!((is_first, kind), (true, FULL | FIRST) | (false, MIDDLE | LAST));
            let is_right = u32::from_le_bytes([a, b, c, d]) == checksum(kind, &data);
            if !(is_expected && is_right) || record.len() + data.len() > LONGEST {
                return Ok(None);
            }
            record.extend_from_slice(&data);
            is_first = false;
            if matches!(kind, FULL | LAST) {
                self.end = at;
                return Ok(Some(record));
            }
        }
    }
}
