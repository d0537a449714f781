//! A GGUF file, mapped into memory: its table of values, and its tensors as they are stored. Every
//! count and size is compared with the file before it is used. The families interpret the names.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use memmap2::Mmap;

use super::blocks::BlockType;
use crate::huggingface::checkpoint::{Resident, io};
use crate::huggingface::error::HfError;

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 4;
/// Multiple of bytes at which tensors begin, where the file says nothing else.
pub(super) const ALIGNMENT: usize = 32;
/// First bytes of a file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// A value of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GgufValue {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Ints(Vec<i64>),
    /// Only written: lists of booleans are read as [`Self::Ints`].
    Bools(Vec<bool>),
    Floats(Vec<f32>),
}

/// A tensor as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct GgufTensor {
    /// The slowest dimension first.
    pub shape: Vec<usize>,
    pub kind: BlockType,
    bytes: Range<usize>,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct GgufFile {
    path: PathBuf,
    map: Mmap,
    resident: Resident,
    pub values: BTreeMap<String, GgufValue>,
    pub tensors: BTreeMap<String, GgufTensor>,
}

impl GgufFile {
    /// Maps a file and reads its tables. Fails if the file cannot be opened, is not a GGUF file of
    /// version 2 or 3, or its tables or tensors exceed the file.
    pub fn open(path: &Path) -> Result<Self, HfError> {
        let map = untrusted_io::map(path).map_err(|source| io(path, source))?;
        let mut cursor = Cursor { path, bytes: &map, at: 0 };
        if cursor.take(4)? != MAGIC {
            return Err(cursor.wrong("the first four bytes", "GGUF", "others"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(cursor.wrong("version", "2 or 3, little-endian", &version.to_string()));
        }
        let (num_tensors, num_values) = (cursor.u64()?, cursor.u64()?);
        // Each entry has at least a length and a number.
        for (count, what) in [(num_tensors, "number of tensors"), (num_values, "number of values")] {
            if count > (map.len() / 12) as u64 {
                return Err(cursor.wrong(what, "no more than the file has room for", &count.to_string()));
            }
        }
        let mut values = BTreeMap::new();
        for _ in 0..num_values {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind, &key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(cursor.wrong(&key, "it once", "it twice"));
            }
        }
        let headers = (0..num_tensors).map(|_| cursor.tensor()).collect::<Result<Vec<_>, _>>()?;
        let alignment = match values.get("general.alignment") {
            None => ALIGNMENT,
            Some(GgufValue::Int(size @ 1..=65_536)) if size.count_ones() == 1 => *size as usize,
            Some(other) => {
                return Err(cursor.wrong("general.alignment", "a power of 2 up to 65536", &format!("{other:?}")));
            }
        };
        let start = cursor.at.next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for header in headers {
            let (name, tensor) = header.within(&cursor, start, alignment)?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(cursor.wrong(&name, "it once", "it twice"));
            }
        }
        Ok(Self { path: path.to_owned(), map, resident: Resident::default(), values, tensors })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads elements of a tensor from number `start` on until `target` is full.
    pub fn read(&self, tensor: &GgufTensor, start: usize, target: &mut [f32]) {
        let (elements, size) = (tensor.kind.elements(), tensor.kind.bytes());
        let bytes = &self.map[tensor.bytes.clone()];
        let end = start + target.len();
        let (first, last) = (start / elements, end.div_ceil(elements));
        let stored = &bytes[first * size..last * size];
        self.resident.read(stored.len(), std::slice::from_ref(&self.map));
        if start.is_multiple_of(elements) && end.is_multiple_of(elements) {
            return tensor.kind.decode(stored, target);
        }
        let mut whole = vec![0.0; (last - first) * elements];
        tensor.kind.decode(stored, &mut whole);
        target.copy_from_slice(&whole[start - first * elements..][..target.len()]);
    }

    /// The error about a value of the table or a tensor.
    pub fn wrong(&self, name: &str, expected: impl Into<String>, found: impl Into<String>) -> HfError {
        HfError::Gguf { path: self.path.clone(), name: name.to_owned(), expected: expected.into(), found: found.into() }
    }

    /// A text of the table.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key) {
            Some(GgufValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An integer of the table.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.values.get(key) {
            Some(GgufValue::Int(number)) => i64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// Entry of the table of tensors.
struct TensorHeader {
    name: String,
    shape: Vec<usize>,
    kind: BlockType,
    offset: u64,
}

impl TensorHeader {
    /// The tensor, if it lies within the file, whose tensors begin at `start`.
    fn within(self, cursor: &Cursor, start: usize, alignment: usize) -> Result<(String, GgufTensor), HfError> {
        let Self { name, shape, kind, offset } = self;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.elements()) {
            let expected = format!("rows of a multiple of {} elements, for they are {}", kind.elements(), kind.name());
            return Err(cursor.wrong(&name, &expected, &format!("shape {shape:?}")));
        }
        let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        let size = count.and_then(|count| (count / kind.elements()).checked_mul(kind.bytes()));
        let begin = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(start));
        let end = begin.zip(size).and_then(|(begin, size)| begin.checked_add(size));
        match (begin, end) {
            (Some(begin), Some(end)) if end <= cursor.bytes.len() && offset.is_multiple_of(alignment as u64) => {
                Ok((name, GgufTensor { shape, kind, bytes: begin..end }))
            }
            _ => {
                let found = format!(
                    "{} {shape:?} at byte {offset} of the tensors, of a file of {}",
                    kind.name(),
                    cursor.bytes.len()
                );
                Err(cursor.wrong(&name, "a tensor that lies in the file", &found))
            }
        }
    }
}

/// Reads the tables from front to back.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn wrong(&self, name: &str, expected: &str, found: &str) -> HfError {
        let (name, expected, found) = (name.chars().take(200).collect(), expected.to_owned(), found.to_owned());
        HfError::Gguf { path: self.path.to_owned(), name, expected, found }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], HfError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let found = format!("the end of the file, {} bytes", self.bytes.len());
            return Err(self.wrong(&format!("byte {}", self.at), &format!("{count} more bytes"), &found));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HfError> {
        Ok(self.take(N)?.try_into().expect("as many as were asked for"))
    }

    fn u32(&mut self) -> Result<u32, HfError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, HfError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, HfError> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let at = self.at;
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        text.map_err(|_| self.wrong(&format!("byte {at}"), "a text in UTF-8", "other bytes"))
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<GgufValue, HfError> {
        Ok(match kind {
            7 => GgufValue::Bool(self.array::<1>()?[0] != 0),
            8 => GgufValue::Text(self.text()?),
            9 => self.list(key)?,
            6 => GgufValue::Float(shortest(f32::from_le_bytes(self.array()?))),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            _ => GgufValue::Int(self.int(kind, key)?),
        })
    }

    fn int(&mut self, kind: u32, key: &str) -> Result<i128, HfError> {
        Ok(match kind {
            0 => i128::from(self.array::<1>()?[0]),
            1 => i128::from(i8::from_le_bytes(self.array()?)),
            2 => i128::from(u16::from_le_bytes(self.array()?)),
            3 => i128::from(i16::from_le_bytes(self.array()?)),
            4 => i128::from(self.u32()?),
            5 => i128::from(i32::from_le_bytes(self.array()?)),
            10 => i128::from(self.u64()?),
            11 => i128::from(i64::from_le_bytes(self.array()?)),
            other => return Err(self.wrong(key, "a type of values from 0 to 12", &other.to_string())),
        })
    }

    fn list(&mut self, key: &str) -> Result<GgufValue, HfError> {
        let (kind, count) = (self.u32()?, self.u64()?);
        // An element has at least one byte, a text eight. So the memory of the values is at most a
        // few times the file's size.
        let least = if kind == 8 { 8 } else { 1 };
        if count > ((self.bytes.len() - self.at) / least) as u64 {
            return Err(self.wrong(key, "a list that the file has room for", &format!("{count} elements")));
        }
        Ok(match kind {
            8 => GgufValue::Texts((0..count).map(|_| self.text()).collect::<Result<_, _>>()?),
            6 => GgufValue::Floats(
                (0..count).map(|_| Ok(f32::from_le_bytes(self.array()?))).collect::<Result<_, HfError>>()?,
            ),
            7 => GgufValue::Ints(
                (0..count).map(|_| Ok(i64::from(self.array::<1>()?[0]))).collect::<Result<_, HfError>>()?,
            ),
            9 | 12 => return Err(self.wrong(key, "a list of texts, integers or 32-bit floats", "another list")),
            _ => {
                let number = |cursor: &mut Self| {
                    let number = cursor.int(kind, key)?;
                    i64::try_from(number).map_err(|_| cursor.wrong(key, "integers of 63 bits", &number.to_string()))
                };
                GgufValue::Ints((0..count).map(|_| number(&mut *self)).collect::<Result<_, HfError>>()?)
            }
        })
    }

    fn tensor(&mut self) -> Result<TensorHeader, HfError> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > MOST_DIMENSIONS {
            return Err(self.wrong(&name, "at most 4 dimensions", &dimensions.to_string()));
        }
        let sizes = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let mut shape: Vec<usize> = sizes.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect();
        shape.reverse();
        let number = self.u32()?;
        let kind = BlockType::from_number(number).ok_or_else(|| {
            self.wrong(&name, &format!("one of {}", BlockType::names()), &format!("type number {number}"))
        })?;
        Ok(TensorHeader { name, shape, kind, offset: self.u64()? })
    }
}

/// The double that is written as the float is.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
