//! The rows of Arrow tables: streams, as Hugging Face `datasets` keeps them, and files, which have a footer behind the same stream.

use std::path::Path;

use arrow_array::{Array, RecordBatch};
use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_ipc::reader::StreamDecoder;
use arrow_json::LineDelimitedWriter;
use bytes::Bytes;

use crate::outside;

/// What a file, in contrast to a stream, begins and ends with.
const MAGIC: &[u8] = b"ARROW1";
/// What a stream ends with.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Bytes of a file before its stream: the magic, and two to align it.
const HEAD: usize = 8;
/// Rows that become JSON at once.
const ROWS: usize = 64;

/// The rows of a table as lines of JSON, read from a file that is mapped into memory.
pub(super) struct ArrowRows {
    decoder: StreamDecoder,
    /// What is not decoded yet.
    rest: Buffer,
    /// Bytes of the file.
    size: usize,
    batch: Option<RecordBatch>,
    /// Rows of the batch that are lines already.
    made: usize,
    lines: std::vec::IntoIter<Vec<u8>>,
    number: u64,
}

impl ArrowRows {
    /// # Errors
    /// As a sentence: a file that cannot be mapped, or that ends before its stream does.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let map = outside::map(path).map_err(|error| error.to_string())?;
        let whole = Bytes::from_owner(map);
        let size = whole.len();
        let stream =
            stream_of(&whole).ok_or("expected a whole Arrow table, found no end mark: cut off, or not Arrow")?;
        Ok(Self {
            decoder: StreamDecoder::new(),
            rest: Buffer::from(stream),
            size,
            batch: None,
            made: 0,
            lines: Vec::new().into_iter(),
            number: 0,
        })
    }

    /// The next row, with its number from 1; an error as a sentence.
    pub(super) fn next_row(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        loop {
            if let Some(line) = self.lines.next() {
                self.number += 1;
                return Ok(Some((self.number, line)));
            }
            let next = self.number + 1;
            let found = outside::contained(|| self.make_lines()).and_then(|made| made);
            if !found.map_err(|error| format!("row {next}: {error}"))? {
                return Ok(None);
            }
        }
    }

    /// Makes lines of some more rows; false at the end.
    fn make_lines(&mut self) -> Result<bool, String> {
        let is_done = self.batch.as_ref().is_none_or(|batch| self.made == batch.num_rows());
        if is_done {
            let decoded = self.decoder.decode(&mut self.rest).map_err(|error| error.to_string())?;
            let Some(batch) = decoded else {
                self.decoder.finish().map_err(|error| error.to_string())?;
                return Ok(false);
            };
            check(&batch, self.size)?;
            (self.batch, self.made) = (Some(batch), 0);
        }
        let Some(batch) = &self.batch else { return Ok(false) };
        let count = ROWS.min(batch.num_rows() - self.made);
        let mut writer = LineDelimitedWriter::new(Vec::new());
        writer.write(&batch.slice(self.made, count)).map_err(|error| error.to_string())?;
        writer.finish().map_err(|error| error.to_string())?;
        self.made += count;
        let text = writer.into_inner();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec);
        self.lines = lines.collect::<Vec<_>>().into_iter();
        Ok(true)
    }
}

/// The stream inside a file, or the whole of a stream; `None` if the end is missing.
fn stream_of(whole: &Bytes) -> Option<Bytes> {
    if !whole.starts_with(MAGIC) {
        return whole.ends_with(&END).then(|| whole.clone());
    }
    let before = whole.strip_suffix(MAGIC)?;
    let (before, length) = before.split_last_chunk::<4>()?;
    let footer = i32::from_le_bytes(*length).to_usize()?;
    let end = before.len().checked_sub(footer).filter(|end| *end >= HEAD)?;
    Some(whole.slice(HEAD..end))
}

/// A file holds no more values than it has bits: columns of nothing may claim any number of rows.
fn check(batch: &RecordBatch, size: usize) -> Result<(), String> {
    let most = size.saturating_mul(8);
    let mut arrays: Vec<_> = batch.columns().iter().map(|column| column.to_data()).collect();
    if arrays.is_empty() {
        return Err("expected columns, found none".to_owned());
    }
    while let Some(array) = arrays.pop() {
        if array.len() > most {
            return Err(format!("expected at most {most} values in a file of {size} bytes, found {}", array.len()));
        }
        arrays.extend(array.child_data().iter().cloned());
    }
    Ok(())
}
