//! A ZIP file (PKWARE's APPNOTE.TXT) that is complete after every write: new content and the
//! following directory are written together.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bridge_data::untrusted_io;
use crc32fast::Hasher;

/// The file of messages, and that about the run.
const MESSAGES: &str = "messages.json";
const EXPERIMENT: &str = "experiment.json";

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
const END_BYTES: u64 = 22;
const LOCAL_BYTES: u64 = 30;
const DESCRIPTOR_BYTES: i64 = 16;

/// Names are UTF-8; sizes follow the data.
const UTF8: u16 = 1 << 11;
const SIZES_FOLLOW: u16 = 1 << 3;
/// 1 January 1980: when is in the messages.
const DATE: u16 = 1 << 5 | 1;

/// The largest file about the run that is read.
const LARGEST_EXPERIMENT: u64 = 1 << 20;

/// A file in the archive.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    flags: u16,
    checksum: u32,
    size: u64,
    offset: u64,
}

/// A file to be added.
#[derive(Clone, Debug)]
pub(in crate::logging) struct Asset {
    pub name: String,
    pub content: Vec<u8>,
}

/// An archive that grows by messages.
#[derive(Debug)]
pub(in crate::logging) struct Archive {
    pub(super) file: File,
    /// Files before the messages.
    entries: Vec<Entry>,
    /// Start and end of the messages.
    messages: u64,
    end: u64,
    /// Checksum of the messages.
    checksum: Hasher,
    /// Bytes after the messages.
    tail: Vec<u8>,
}

impl Archive {
    /// Begins the file `path`, which has to be new, with files and `experiment`.
    pub fn create(path: &Path, assets: &[Asset], experiment: &str) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        for asset in assets {
            entries.push(put(&mut bytes, 0, &asset.name, &asset.content)?);
        }
        let messages = bytes.len() as u64;
        let header =
            Entry { name: MESSAGES.into(), flags: UTF8 | SIZES_FOLLOW, checksum: 0, size: 0, offset: messages };
        put_local(&mut bytes, &header);
        let (end, checksum) = (bytes.len() as u64, Hasher::new());
        let mut archive = Self { file, entries, messages, end: 0, checksum, tail: Vec::new() };
        // A write that fails leaves an empty file, which is not an archive.
        let tail = archive.tail_of(end, &archive.checksum, &[], experiment)?;
        bytes.extend_from_slice(&tail);
        archive.file.write_all_at(&bytes, 0)?;
        (archive.end, archive.tail) = (end, tail);
        Ok(archive)
    }

    /// Adds whole lines of messages, and files, which only the last messages may have: all or
    /// nothing.
    pub fn add(&mut self, lines: &[u8], assets: &[Asset], experiment: &str) -> io::Result<()> {
        let mut checksum = self.checksum.clone();
        checksum.update(lines);
        let end = self.end + lines.len() as u64;
        let tail = self.tail_of(end, &checksum, assets, experiment)?;
        let bytes = [lines, &tail].concat();
        match self.file.write_all_at(&bytes, self.end) {
            Ok(()) => {
                (self.end, self.checksum, self.tail) = (end, checksum, tail);
                Ok(())
            }
            Err(error) => {
                // The disk may have had room for a part only. The old directory still has its room.
                let _ = self.file.write_all_at(&self.tail, self.end);
                let _ = self.file.set_len(self.end + self.tail.len() as u64);
                Err(error)
            }
        }
    }

    /// Bytes after messages that end at `end`.
    fn tail_of(&self, end: u64, checksum: &Hasher, assets: &[Asset], experiment: &str) -> io::Result<Vec<u8>> {
        let (mut tail, mut entries) = (Vec::new(), self.entries.clone());
        let size = end - self.messages - LOCAL_BYTES - MESSAGES.len() as u64;
        let checksum = checksum.clone().finalize();
        let flags = UTF8 | SIZES_FOLLOW;
        entries.push(Entry { name: MESSAGES.into(), flags, checksum, size, offset: self.messages });
        put_u32(&mut tail, [DESCRIPTOR, checksum, small(size)?, small(size)?]);
        for asset in assets {
            entries.push(put(&mut tail, end, &asset.name, &asset.content)?);
        }
        entries.push(put(&mut tail, end, EXPERIMENT, experiment.as_bytes())?);
        let directory = end + tail.len() as u64;
        for entry in &entries {
            put_central(&mut tail, entry)?;
        }
        let length = end + tail.len() as u64 - directory;
        put_u32(&mut tail, [END, 0]);
        put_u16(&mut tail, [entries.len() as u16; 2]);
        put_u32(&mut tail, [small(length)?, small(directory)?]);
        put_u16(&mut tail, [0]);
        Ok(tail)
    }

    /// Cuts the messages of an earlier job's archive from the first line on that is not to be kept,
    /// with the files after them.
    pub fn cut(path: &Path, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
        let (found, length) = untrusted_io::open(path)?;
        let mut last = [0; END_BYTES as usize];
        found.read_exact_at(&mut last, length.checked_sub(END_BYTES).ok_or_else(|| damaged("end"))?)?;
        if u32_at(&last, 0) != END {
            return Err(damaged("end"));
        }
        let (mut input, mut experiment, mut is_cut) = (BufReader::new(found.try_clone()?), None, false);
        let mut archive =
            Self { file: found, entries: Vec::new(), messages: 0, end: 0, checksum: Hasher::new(), tail: Vec::new() };
        while let Some(entry) = next_entry(&mut input)? {
            match entry.name.as_str() {
                MESSAGES => {
                    (archive.messages, archive.end) = (entry.offset, input.stream_position()?);
                    // Messages are JSON objects: none begins like the sizes behind them.
                    while input.fill_buf()?.first().is_some_and(|byte| *byte != DESCRIPTOR as u8) {
                        let mut line = String::new();
                        input.read_line(&mut line)?;
                        is_cut |= !is_kept(&line);
                        if !is_cut {
                            archive.end += line.len() as u64;
                            archive.checksum.update(line.as_bytes());
                        }
                    }
                    input.seek_relative(DESCRIPTOR_BYTES)?;
                }
                EXPERIMENT if entry.size <= LARGEST_EXPERIMENT => {
                    let mut content = vec![0; entry.size as usize];
                    input.read_exact(&mut content)?;
                    experiment = String::from_utf8(content).ok();
                }
                _ => {
                    input.seek_relative(entry.size as i64)?;
                    // Files before the messages stay.
                    archive.entries.extend((archive.end == 0).then_some(entry));
                }
            }
        }
        let missing = if archive.end == 0 { MESSAGES } else { EXPERIMENT };
        let experiment = experiment.filter(|_| archive.end > 0).ok_or_else(|| damaged(missing))?;
        if !is_cut {
            return Ok(());
        }
        let tail = archive.tail_of(archive.end, &archive.checksum, &[], &experiment)?;
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(&tail, archive.end)?;
        file.set_len(archive.end + tail.len() as u64)
    }
}

/// The header of the next file in an archive; `None` behind the last one.
fn next_entry(input: &mut BufReader<File>) -> io::Result<Option<Entry>> {
    let offset = input.stream_position()?;
    let mut header = [0; LOCAL_BYTES as usize];
    input.read_exact(&mut header)?;
    if u32_at(&header, 0) != LOCAL {
        return Ok(None);
    }
    let mut name = vec![0; usize::from(u16_at(&header, 26))];
    input.read_exact(&mut name)?;
    input.seek_relative(u16_at(&header, 28).into())?;
    let name = String::from_utf8_lossy(&name).into_owned();
    let (flags, checksum, size) = (u16_at(&header, 6), u32_at(&header, 14), u32_at(&header, 22).into());
    Ok(Some(Entry { name, flags, checksum, size, offset }))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive is damaged: its {what} is not there"))
}

/// A size that fits into the format's fields.
fn small(size: u64) -> io::Result<u32> {
    let full = |_| io::Error::new(io::ErrorKind::FileTooLarge, "the archive is full: it can hold 4 GiB");
    u32::try_from(size).map_err(full)
}

/// Appends a file to `out`, which begins at `start` of the archive.
fn put(out: &mut Vec<u8>, start: u64, name: &str, content: &[u8]) -> io::Result<Entry> {
    let (checksum, size, offset) = (crc32fast::hash(content), content.len() as u64, start + out.len() as u64);
    let entry = Entry { name: name.to_owned(), flags: UTF8, checksum, size, offset };
    small(offset + size)?;
    put_local(out, &entry);
    out.extend_from_slice(content);
    Ok(entry)
}

fn put_local(out: &mut Vec<u8>, entry: &Entry) {
    put_u32(out, [LOCAL]);
    put_u16(out, [20, entry.flags, 0, 0, DATE]);
    put_u32(out, [entry.checksum, entry.size as u32, entry.size as u32]);
    put_u16(out, [entry.name.len() as u16, 0]);
    out.extend_from_slice(entry.name.as_bytes());
}

fn put_central(out: &mut Vec<u8>, entry: &Entry) -> io::Result<()> {
    put_u32(out, [CENTRAL]);
    put_u16(out, [3 << 8 | 20, 20, entry.flags, 0, 0, DATE]);
    put_u32(out, [entry.checksum, small(entry.size)?, small(entry.size)?]);
    put_u16(out, [entry.name.len() as u16, 0, 0, 0, 0]);
    put_u32(out, [0o100_644 << 16, small(entry.offset)?]);
    out.extend_from_slice(entry.name.as_bytes());
    Ok(())
}

fn put_u16<const N: usize>(out: &mut Vec<u8>, values: [u16; N]) {
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn put_u32<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}
