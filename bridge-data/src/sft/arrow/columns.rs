//! The columns of a batch, and their values as JSON. Every offset is checked before it is followed,
//! and the size of a row is limited.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Number as JsonNumber, Value};

use super::flatbuffer::{Broken, Table};
use super::schema::{Field, Kind, Number, Offsets, broken};
use crate::sft::table;

/// Most bytes that the buffers of a batch have when they are no longer compressed.
pub const MOST_BYTES: u64 = 2 << 30;

/// Dictionaries by number. Later parts of one continue it.
pub type Dictionaries = BTreeMap<i64, Vec<Arc<Column>>>;

/// A part of a batch's bytes.
#[derive(Debug, Clone)]
struct Buffer {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    fn array<const N: usize>(&self, index: usize) -> Result<[u8; N], String> {
        let bytes = index.checked_mul(N).and_then(|start| self.bytes().get(start..start.checked_add(N)?));
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| broken(Broken))
    }

    fn bit(&self, index: usize) -> Result<bool, String> {
        let [byte] = self.array::<1>(index / 8)?;
        Ok(byte >> (index % 8) & 1 == 1)
    }

    /// The offset of this number, of a column that may be empty and then has none.
    fn offset(&self, index: usize, width: Offsets) -> Result<usize, String> {
        let offset = match width {
            Offsets::Short => i64::from(i32::from_le_bytes(self.array(index)?)),
            Offsets::Long => i64::from_le_bytes(self.array(index)?),
        };
        usize::try_from(offset).map_err(|_| broken(Broken))
    }

    fn offsets(&self, index: usize, width: Offsets) -> Result<Range<usize>, String> {
        let range = self.offset(index, width)?..self.offset(index + 1, width)?;
        if range.start <= range.end { Ok(range) } else { Err(broken(Broken)) }
    }
}

/// The values of a column.
#[derive(Debug)]
pub struct Column {
    length: usize,
    /// A bit for each value, unless all are there.
    validity: Option<Buffer>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Null,
    Bits(Buffer),
    Numbers(Number, Buffer),
    Text(Offsets, Buffer, Buffer),
    TextView(Buffer, Vec<Buffer>),
    List(Offsets, Buffer, Box<Column>),
    FixedList(usize, Box<Column>),
    Struct(Vec<(String, Column)>),
    /// Keys and values of the pairs.
    Map(Buffer, Box<[Column; 2]>),
    /// Places in a dictionary.
    Places(Number, Buffer, Vec<Arc<Column>>),
}

/// A record batch that is being read: its columns take nodes and buffers in turn.
pub struct Reading<'a> {
    body: Arc<Vec<u8>>,
    nodes: &'a [u8],
    buffers: &'a [u8],
    /// Number of buffers of each view, in turn.
    variadic: &'a [u8],
    compression: Option<u8>,
    dictionaries: &'a Dictionaries,
    unpacked: u64,
}

impl<'a> Reading<'a> {
    /// Columns of a batch with this table and body.
    pub fn new(batch: Table<'a>, body: Vec<u8>, dictionaries: &'a Dictionaries) -> Result<Self, String> {
        let compression = match batch.table(3).map_err(broken)? {
            Some(compression) => Some(compression.byte(0).map_err(broken)?),
            None => None,
        };
        Ok(Self {
            body: Arc::new(body),
            nodes: batch.elements(1, 16).map_err(broken)?,
            buffers: batch.elements(2, 16).map_err(broken)?,
            variadic: batch.elements(4, 8).map_err(broken)?,
            compression,
            dictionaries,
            unpacked: 0,
        })
    }

    fn numbers<const N: usize>(of: &mut &'a [u8]) -> Result<[i64; N], String> {
        let (first, rest) = of.split_at_checked(8 * N).ok_or_else(|| broken(Broken))?;
        *of = rest;
        let number = |index: usize| i64::from_le_bytes(first[8 * index..8 * index + 8].try_into().expect("8 bytes"));
        Ok(std::array::from_fn(number))
    }

    /// The number of values of the next column. Memory is not allocated by this number. Each value
    /// of a row takes from a limit, so a false number ends there.
    fn length(&mut self) -> Result<usize, String> {
        let [length, _nulls] = Self::numbers(&mut self.nodes)?;
        usize::try_from(length).map_err(|_| broken(Broken))
    }

    fn buffer(&mut self) -> Result<Buffer, String> {
        let [start, length] = Self::numbers(&mut self.buffers)?;
        let [Ok(start), Ok(length)] = [start, length].map(usize::try_from) else { return Err(broken(Broken)) };
        let end = start.checked_add(length).filter(|end| *end <= self.body.len()).ok_or_else(|| broken(Broken))?;
        let stored = Buffer { bytes: Arc::clone(&self.body), range: start..end };
        match self.compression {
            Some(codec) if length > 0 => self.unpack(codec, stored),
            Some(_) | None => Ok(stored),
        }
    }

    /// Decodes a buffer: its uncompressed length, and then the compressed bytes, or plain bytes if
    /// the length is -1.
    fn unpack(&mut self, codec: u8, stored: Buffer) -> Result<Buffer, String> {
        let length = i64::from_le_bytes(stored.array(0)?);
        let packed = &stored.bytes()[8..];
        if length == -1 {
            return Ok(Buffer { range: stored.range.start + 8..stored.range.end, ..stored });
        }
        let length = u64::try_from(length).map_err(|_| broken(Broken))?;
        self.unpacked = self.unpacked.saturating_add(length);
        if self.unpacked > MOST_BYTES {
            return Err(format!("a batch has more than {MOST_BYTES} bytes"));
        }
        let mut bytes = Vec::new();
        let damaged = |error: std::io::Error| format!("compressed data cannot be read: {error}");
        // One byte more, so that data which goes on is found.
        match codec {
            0 => {
                lz4_flex::frame::FrameDecoder::new(packed).take(length + 1).read_to_end(&mut bytes).map_err(damaged)?
            }
            1 => zstd::Decoder::new(packed)
                .map_err(damaged)?
                .take(length + 1)
                .read_to_end(&mut bytes)
                .map_err(damaged)?,
            _ => return Err(format!("is compressed in a way that is not known (number {codec})")),
        };
        if bytes.len() as u64 != length {
            return Err(format!("compressed data has {} bytes, expected {length}", bytes.len()));
        }
        Ok(Buffer { range: 0..bytes.len(), bytes: Arc::new(bytes) })
    }

    /// Bytes that compressed buffers had so far.
    pub fn unpacked(&self) -> u64 {
        self.unpacked
    }

    /// The next column.
    pub fn column(&mut self, field: &Field) -> Result<Column, String> {
        self.values_of(field).map_err(|problem| match problem.starts_with("column `") {
            true => problem,
            false => format!("column `{}`: {problem}", field.name),
        })
    }

    fn values_of(&mut self, field: &Field) -> Result<Column, String> {
        let length = self.length()?;
        if field.kind == Kind::Null && field.dictionary.is_none() {
            return Ok(Column { length, validity: None, values: Values::Null });
        }
        let validity = Some(self.buffer()?).filter(|bits| !bits.range.is_empty());
        let values = match (field.dictionary, field.kind) {
            (Some((id, places)), _) => {
                let places_of = self.buffer()?;
                let missing = || format!("is of dictionary {id}, which does not come before");
                Values::Places(places, places_of, self.dictionaries.get(&id).cloned().ok_or_else(missing)?)
            }
            (None, Kind::Null) => Values::Null,
            (None, Kind::Bool) => Values::Bits(self.buffer()?),
            (None, Kind::Number(number)) => Values::Numbers(number, self.buffer()?),
            (None, Kind::Text(width)) => Values::Text(width, self.buffer()?, self.buffer()?),
            (None, Kind::TextView) => {
                let views = self.buffer()?;
                let [count] = Self::numbers(&mut self.variadic)?;
                let count = usize::try_from(count).map_err(|_| broken(Broken))?.min(self.buffers.len() / 16 + 1);
                Values::TextView(views, (0..count).map(|_| self.buffer()).collect::<Result<_, _>>()?)
            }
            (None, Kind::List(width)) => {
                let offsets = self.buffer()?;
                Values::List(width, offsets, Box::new(self.column(&field.children[0])?))
            }
            (None, Kind::FixedList(size)) => Values::FixedList(size, Box::new(self.column(&field.children[0])?)),
            (None, Kind::Struct) => {
                let column = |child: &Field| Ok((child.name.clone(), self.column(child)?));
                Values::Struct(field.children.iter().map(column).collect::<Result<_, String>>()?)
            }
            (None, Kind::Map) => {
                let offsets = self.buffer()?;
                // The pairs are structures without nulls.
                let pairs = self.column(&field.children[0])?;
                let Values::Struct(columns) = pairs.values else { return Err(broken(Broken)) };
                let columns: Vec<Column> = columns.into_iter().map(|(_, column)| column).collect();
                Values::Map(offsets, Box::new(columns.try_into().map_err(|_| broken(Broken))?))
            }
        };
        Ok(Column { length, validity, values })
    }
}

impl Column {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// A value. Its approximate size in bytes is subtracted from `room`. Fails if the data does not
    /// have it, or there is no room.
    pub fn value(&self, row: usize, room: &mut usize) -> Result<Value, String> {
        take(room, 5)?;
        if row >= self.length {
            return Err(broken(Broken));
        }
        if let Some(bits) = &self.validity
            && !bits.bit(row)?
        {
            return Ok(Value::Null);
        }
        match &self.values {
            Values::Null => Ok(Value::Null),
            Values::Bits(bits) => Ok(Value::Bool(bits.bit(row)?)),
            Values::Numbers(number, values) => json(*number, values, row),
            Values::Text(width, offsets, bytes) => {
                let range = offsets.offsets(row, *width)?;
                text(bytes.bytes().get(range).ok_or_else(|| broken(Broken))?, room)
            }
            Values::TextView(views, buffers) => text(viewed(&views.array(row)?, buffers)?, room),
            Values::List(width, offsets, items) => list(items, offsets.offsets(row, *width)?, room),
            Values::FixedList(size, items) => {
                let start = row.checked_mul(*size).ok_or_else(|| broken(Broken))?;
                list(items, start..start.saturating_add(*size), room)
            }
            Values::Struct(columns) => object(columns, row, room),
            Values::Map(offsets, pairs) => {
                let mut map = Map::new();
                for place in offsets.offsets(row, Offsets::Short)? {
                    let key = match pairs[0].value(place, room)? {
                        Value::String(key) => key,
                        other => other.to_string(),
                    };
                    map.insert(key, pairs[1].value(place, room)?);
                }
                Ok(Value::Object(map))
            }
            Values::Places(number, places, parts) => {
                let place = json(*number, places, row)?.as_u64().and_then(|place| usize::try_from(place).ok());
                let mut place = place.ok_or_else(|| broken(Broken))?;
                for part in parts {
                    match place.checked_sub(part.len()) {
                        Some(behind) => place = behind,
                        None => return part.value(place, room),
                    }
                }
                Err("a place is behind the end of its dictionary".into())
            }
        }
    }
}

/// A row, or a structure.
pub fn object(columns: &[(String, Column)], row: usize, room: &mut usize) -> Result<Value, String> {
    let mut map = Map::new();
    for (name, column) in columns {
        take(room, name.len())?;
        let of_column = |problem: String| match problem.starts_with("column `") {
            true => problem,
            false => format!("column `{name}`: {problem}"),
        };
        map.insert(name.clone(), column.value(row, room).map_err(of_column)?);
    }
    Ok(Value::Object(map))
}

fn list(items: &Column, range: Range<usize>, room: &mut usize) -> Result<Value, String> {
    if range.end > items.length {
        return Err(broken(Broken));
    }
    range.map(|item| items.value(item, room)).collect::<Result<_, _>>().map(Value::Array)
}

fn text(bytes: &[u8], room: &mut usize) -> Result<Value, String> {
    take(room, bytes.len())?;
    Ok(Value::String(table::text(bytes)?.to_owned()))
}

/// Content of a view: up to twelve inline bytes, or a part of a buffer.
fn viewed<'a>(view: &'a [u8; 16], buffers: &'a [Buffer]) -> Result<&'a [u8], String> {
    let number = |at: usize| u32::from_le_bytes(view[at..at + 4].try_into().expect("4 bytes")) as usize;
    let length = number(0);
    if length <= 12 {
        return Ok(&view[4..4 + length]);
    }
    let buffer = buffers.get(number(8)).ok_or_else(|| broken(Broken))?;
    let start = number(12);
    buffer.bytes().get(start..start + length).ok_or_else(|| broken(Broken))
}

fn take(room: &mut usize, bytes: usize) -> Result<(), String> {
    *room = room.checked_sub(bytes).ok_or("a row has more bytes than a record may have")?;
    Ok(())
}

/// A number as JSON has it.
///
/// # Errors
/// One that is not finite, and one that the data does not have.
fn json(number: Number, values: &Buffer, row: usize) -> Result<Value, String> {
    let float = |value: f64| JsonNumber::from_f64(value).map(Value::Number).ok_or(table::NOT_FINITE);
    Ok(match number {
        Number::Signed(1) => i8::from_le_bytes(values.array(row)?).into(),
        Number::Signed(2) => i16::from_le_bytes(values.array(row)?).into(),
        Number::Signed(4) => i32::from_le_bytes(values.array(row)?).into(),
        Number::Signed(_) => i64::from_le_bytes(values.array(row)?).into(),
        Number::Unsigned(1) => u8::from_le_bytes(values.array(row)?).into(),
        Number::Unsigned(2) => u16::from_le_bytes(values.array(row)?).into(),
        Number::Unsigned(4) => u32::from_le_bytes(values.array(row)?).into(),
        Number::Unsigned(_) => u64::from_le_bytes(values.array(row)?).into(),
        Number::Float(4) => float(f64::from(f32::from_le_bytes(values.array(row)?)))?,
        Number::Float(_) => float(f64::from_le_bytes(values.array(row)?))?,
    })
}
