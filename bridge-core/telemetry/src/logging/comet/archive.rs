//! A ZIP file (PKWARE's APPNOTE.TXT) that is whole after every write: what grows is followed by the
//! directory, and both are written at once.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
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
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: u64 = 30;

/// Names are UTF-8; sizes follow the data.
const UTF8: u16 = 1 << 11;
const SIZES_FOLLOW: u16 = 1 << 3;
/// 1 January 1980: when is in the messages.
const DATE: u16 = 1 << 5 | 1;

/// The largest directory that is read.
const LARGEST_DIRECTORY: u64 = 1 << 20;

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
    /// Name in the archive.
    pub name: String,
    /// Content of the file.
    pub content: Vec<u8>,
}

/// An archive that grows by messages.
#[derive(Debug)]
pub(in crate::logging) struct Archive {
    file: File,
    /// Files before the messages.
    entries: Vec<Entry>,
    /// Start and end of the messages.
    messages: u64,
    end: u64,
    /// Over the messages.
    checksum: Hasher,
    /// Bytes behind the messages.
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
        let tail = archive.tail_of(end, &archive.checksum.clone(), &[], experiment)?;
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
                // A disk may have room for a part. What was there before has its room.
                let _ = self.file.write_all_at(&self.tail, self.end);
                let _ = self.file.set_len(self.end + self.tail.len() as u64);
                Err(error)
            }
        }
    }

    /// Bytes behind messages that end at `end`.
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
    /// with the files behind them.
    pub fn cut(path: &Path, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
        let (input, length) = untrusted_io::open(path)?;
        let entries = directory(&input, length)?;
        let find = |name: &str| entries.iter().find(|entry| entry.name == name).ok_or_else(|| damaged(name));
        let (messages, experiment) = (find(MESSAGES)?, find(EXPERIMENT)?);
        let content = content(&input, experiment)?;
        let begin = messages.offset + LOCAL_BYTES + MESSAGES.len() as u64;
        let (mut end, mut checksum, mut is_cut) = (begin, Hasher::new(), false);
        let mut reader = BufReader::new(At { file: &input, at: begin }.take(messages.size));
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            if !is_kept(&line) {
                is_cut = true;
                break;
            }
            end += line.len() as u64;
            checksum.update(line.as_bytes());
            line.clear();
        }
        if !is_cut {
            return Ok(());
        }
        let before: Vec<Entry> = entries.iter().filter(|entry| entry.offset < messages.offset).cloned().collect();
        let file = OpenOptions::new().write(true).open(path)?;
        let mut archive = Self {
            file,
            entries: before,
            messages: messages.offset,
            end,
            checksum: checksum.clone(),
            tail: Vec::new(),
        };
        archive.tail = archive.tail_of(end, &checksum, &[], &content)?;
        archive.file.write_all_at(&archive.tail, end)?;
        archive.file.set_len(end + archive.tail.len() as u64)
    }
}

#[cfg(test)]
impl Archive {
    /// The file that is written.
    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// Reads a file from a place on.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The files of an archive.
fn directory(file: &File, length: u64) -> io::Result<Vec<Entry>> {
    let mut last = [0; END_BYTES as usize];
    file.read_exact_at(&mut last, length.checked_sub(END_BYTES).ok_or_else(|| damaged("end"))?)?;
    if u32_at(&last, 0) != END {
        return Err(damaged("end"));
    }
    let (size, offset) = (u64::from(u32_at(&last, 12)), u64::from(u32_at(&last, 16)));
    if size > LARGEST_DIRECTORY {
        return Err(damaged("directory"));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, offset)?;
    let (mut entries, mut rest) = (Vec::new(), bytes.as_slice());
    while rest.len() >= CENTRAL_BYTES && u32_at(rest, 0) == CENTRAL {
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(rest, at)));
        let text = rest.get(CENTRAL_BYTES..CENTRAL_BYTES + name).ok_or_else(|| damaged("directory"))?;
        let (size, offset) = (u32_at(rest, 24).into(), u32_at(rest, 42).into());
        let name_text = String::from_utf8_lossy(text).into_owned();
        entries.push(Entry { name: name_text, flags: u16_at(rest, 8), checksum: u32_at(rest, 16), size, offset });
        rest = rest.get(CENTRAL_BYTES + name + extra + comment..).unwrap_or_default();
    }
    Ok(entries)
}

fn content(file: &File, entry: &Entry) -> io::Result<String> {
    if entry.size > LARGEST_DIRECTORY {
        return Err(damaged(&entry.name));
    }
    let mut bytes = vec![0; entry.size as usize];
    file.read_exact_at(&mut bytes, entry.offset + LOCAL_BYTES + entry.name.len() as u64)?;
    String::from_utf8(bytes).map_err(|_| damaged(&entry.name))
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
