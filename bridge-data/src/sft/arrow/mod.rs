//! Rows of Arrow files: streams of messages, as `datasets` writes them, and the same in a file with
//! a list of contents (Feather 2). One batch is in memory.
//!
//! | file | what it has |
//! | --- | --- |
//! | `flatbuffer` | the tables that describe messages |
//! | `schema` | names and types of columns |
//! | `columns` | the values of a batch as JSON |
//!
//! The format is Apache Arrow's, columnar format 1.5 ("Serialization and Interprocess
//! Communication"). `arrow-ipc` would change features of Burn's dependencies.

mod columns;
mod flatbuffer;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use serde_json::Value;

use self::columns::{Column, Dictionaries, MOST_BYTES, Reading, object};
use self::flatbuffer::{Broken, Table};
use self::schema::{Field, broken};

/// First and last bytes of a file.
const MAGIC: &[u8; 6] = b"ARROW1";
/// First bytes of a file of the first Feather format.
const FEATHER_1: &[u8; 4] = b"FEA1";
/// First bytes of a message, unless an old program wrote it.
const CONTINUATION: u32 = u32::MAX;
/// Most bytes of the description of a message.
const LONGEST_DESCRIPTION: usize = 64 << 20;
/// Bytes of a row, about: as many as a line of JSON may have.
const LONGEST_ROW: usize = 64 << 20;
/// Largest ratio of a batch's rows to its bytes: a dictionary is written once and used often.
const MOST_TIMES: usize = 4096;

/// The rows of a file.
pub struct Rows {
    reader: BufReader<File>,
    /// Bytes of the file that are not read yet.
    left: u64,
    fields: Vec<Field>,
    /// Types of the values of the columns' dictionaries, by number.
    kinds: BTreeMap<i64, Field>,
    dictionaries: Dictionaries,
    /// Bytes that compressed dictionaries had.
    unpacked: u64,
    batch: Batch,
    number: u64,
}

/// The columns of a batch, and how far it was read.
#[derive(Default)]
struct Batch {
    columns: Vec<(String, Column)>,
    length: usize,
    next: usize,
    /// Bytes that the remaining rows may have.
    room: usize,
}

/// A message of a stream.
struct Message {
    description: Vec<u8>,
    body: Vec<u8>,
}

/// Type of a message.
enum Header {
    Schema,
    Dictionary,
    Rows,
}

impl Rows {
    /// Opens a file of `size` bytes. Fails on a fault of its begin or, of a file with contents, its
    /// end.
    pub fn open(mut file: File, size: u64) -> Result<Self, String> {
        let mut head = [0; 8];
        let cannot = |error: std::io::Error| format!("cannot be read: {error}");
        let has_head = size >= 8;
        if has_head {
            file.read_exact(&mut head).map_err(cannot)?;
        }
        if head.starts_with(FEATHER_1) {
            return Err(
                "is of the first Feather format, which is not read: write it anew (version 2), or as Parquet".into()
            );
        }
        let mut left = size;
        if head.starts_with(MAGIC) {
            let mut tail = [0; 6];
            let end = size.checked_sub(MAGIC.len() as u64).filter(|end| *end >= 8).ok_or("is cut off")?;
            file.seek(SeekFrom::Start(end)).map_err(cannot)?;
            file.read_exact(&mut tail).map_err(cannot)?;
            if tail != *MAGIC {
                return Err("is cut off: it does not end as an Arrow file does".into());
            }
            file.seek(SeekFrom::Start(8)).map_err(cannot)?;
            left -= 8;
        } else {
            file.seek(SeekFrom::Start(0)).map_err(cannot)?;
        }
        let reader = BufReader::with_capacity(1 << 20, file);
        let mut rows = Self {
            reader,
            left,
            fields: Vec::new(),
            kinds: BTreeMap::new(),
            dictionaries: Dictionaries::new(),
            unpacked: 0,
            batch: Batch::default(),
            number: 0,
        };
        let Some(Message { description, .. }) = rows.message()? else {
            return Err("is empty: expected a schema".into());
        };
        let (header, table) = header(&description)?;
        let Header::Schema = header else { return Err("does not begin with a schema".into()) };
        rows.fields = schema::fields(table)?;
        let mut names: Vec<&str> = rows.fields.iter().map(|field| field.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("has two columns `{}`", pair[0]));
        }
        find_dictionaries(&rows.fields, &mut rows.kinds)?;
        Ok(rows)
    }

    /// The next row, with its number from 1; an error as a sentence.
    pub fn next_row(&mut self) -> Result<Option<(u64, Value)>, String> {
        while self.batch.next == self.batch.length {
            if !self.next_batch().map_err(|problem| format!("behind row {}: {problem}", self.number))? {
                return Ok(None);
            }
        }
        self.number += 1;
        let batch = &mut self.batch;
        let most = LONGEST_ROW.min(batch.room);
        let mut room = most;
        let row = object(&batch.columns, batch.next, &mut room);
        let row = row.map_err(|problem| format!("row {}: {problem}", self.number))?;
        batch.room -= most - room;
        batch.next += 1;
        Ok(Some((self.number, row)))
    }

    /// Reads on up to the next batch of rows; false at the end.
    fn next_batch(&mut self) -> Result<bool, String> {
        // Before the next one is read.
        self.batch = Batch::default();
        let Some(Message { description, body }) = self.message()? else { return Ok(false) };
        let size = body.len();
        match header(&description)? {
            (Header::Schema, _) => return Err("there is a second schema".into()),
            (Header::Dictionary, table) => self.add_dictionary(table, body)?,
            (Header::Rows, table) => {
                let length = table.long(0).map_err(broken)?;
                let length = usize::try_from(length).map_err(|_| broken(Broken))?;
                let mut reading = Reading::new(table, body, &self.dictionaries)?;
                let column = |field: &Field| Ok((field.name.clone(), reading.column(field)?));
                let columns = self.fields.iter().map(column).collect::<Result<Vec<_>, String>>()?;
                let most = columns.iter().map(|(_, column)| column.len()).min().unwrap_or(0);
                if length > most {
                    return Err(format!("a batch has {length} rows, and a column with {most} values"));
                }
                let room = size.saturating_mul(MOST_TIMES).saturating_add(LONGEST_ROW);
                self.batch = Batch { columns, length, next: 0, room };
            }
        }
        Ok(true)
    }

    fn add_dictionary(&mut self, table: Table<'_>, body: Vec<u8>) -> Result<(), String> {
        let id = table.long(0).map_err(broken)?;
        let field = self.kinds.get(&id).ok_or_else(|| format!("dictionary {id} is of no column"))?;
        let data = table.table(1).map_err(broken)?.ok_or_else(|| broken(Broken))?;
        let mut reading = Reading::new(data, body, &self.dictionaries)?;
        let values = Arc::new(reading.column(field)?);
        self.unpacked = self.unpacked.saturating_add(reading.unpacked());
        if self.unpacked > MOST_BYTES {
            return Err(format!("its dictionaries have more than {MOST_BYTES} bytes"));
        }
        let continues = table.byte(2).map_err(broken)? != 0;
        let parts = self.dictionaries.entry(id).or_default();
        if !continues {
            parts.clear();
        }
        parts.push(values);
        Ok(())
    }

    /// The next message: its description and its body. `None` at the end.
    fn message(&mut self) -> Result<Option<Message>, String> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut size = u32::from_le_bytes(self.read(4)?.try_into().expect("4 bytes"));
        if size == CONTINUATION {
            size = u32::from_le_bytes(self.read(4)?.try_into().expect("4 bytes"));
        }
        let size = size as usize;
        if size == 0 {
            return Ok(None);
        }
        if size > LONGEST_DESCRIPTION {
            return Err(format!("expected a message, found one whose description has {size} bytes"));
        }
        let description = self.read(size)?;
        let length = Table::root(&description).and_then(|message| message.long(3)).map_err(broken)?;
        let length = usize::try_from(length).map_err(|_| broken(Broken))?;
        let body = self.read(length)?;
        Ok(Some(Message { description, body }))
    }

    /// The next bytes, of which no more are made room for than the file has.
    fn read(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let left = self.left.checked_sub(count as u64);
        self.left = left.ok_or_else(|| format!("is cut off: expected {count} more bytes, found {}", self.left))?;
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
        Ok(bytes)
    }
}

/// Type of a message, and its table.
fn header(description: &[u8]) -> Result<(Header, Table<'_>), String> {
    let message = Table::root(description).map_err(broken)?;
    let table = message.table(2).map_err(broken)?.ok_or_else(|| broken(Broken))?;
    let header = match message.byte(1).map_err(broken)? {
        1 => Header::Schema,
        2 => Header::Dictionary,
        3 => Header::Rows,
        4 | 5 => return Err("has a tensor, where rows are expected".into()),
        other => return Err(format!("has a message that is not known (number {other})")),
    };
    Ok((header, table))
}

/// Collects the columns with dictionaries, also those inside of other columns.
fn find_dictionaries(fields: &[Field], kinds: &mut BTreeMap<i64, Field>) -> Result<(), String> {
    for field in fields {
        find_dictionaries(&field.children, kinds)?;
        let Some((id, _)) = field.dictionary else { continue };
        let values = Field { dictionary: None, ..field.clone() };
        let known = kinds.insert(id, values.clone());
        let is_same = |known: Field| known.kind == values.kind && known.children == values.children;
        if known.is_some_and(|known| !is_same(known)) {
            return Err(format!("columns of different types share dictionary {id}"));
        }
    }
    Ok(())
}
