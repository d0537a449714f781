//! numpy's `.npy` files (version 1.0) for index arrays, read through memory maps; the meaning of
//! the arrays belongs to the callers.

use std::hash::Hasher as _;
use std::io::{BufWriter, Write};
use std::path::Path;

use bytemuck::Pod;
use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::atomic::TempFile;
use super::{DataError, untrusted_io};

const _: () = assert!(cfg!(target_endian = "little"), "index files are little endian and are used in place");

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
const ALIGNMENT: usize = 64;
/// numpy leaves room for the first dimension to grow to this many digits.
const GROWTH_DIGITS: usize = 21;

/// An element type of index arrays.
pub(crate) trait Element: Pod + Send + Sync {
    /// numpy's type string.
    const DESCR: &'static str;
}

impl Element for i16 {
    const DESCR: &'static str = "<i2";
}
impl Element for i32 {
    const DESCR: &'static str = "<i4";
}
impl Element for u32 {
    const DESCR: &'static str = "<u4";
}
impl Element for i64 {
    const DESCR: &'static str = "<i8";
}

/// An index array, in memory or mapped from a cache file.
pub(crate) enum IndexArray<T> {
    Owned(Vec<T>),
    Mapped { map: Mmap, start: usize },
}

impl<T: Element> IndexArray<T> {
    /// The numbers.
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            // `open` checked size and alignment.
            Self::Mapped { map, start } => bytemuck::cast_slice(&map[*start..]),
        }
    }
}

/// The header of an open `.npy`.
pub(crate) struct Npy {
    pub(crate) descr: String,
    pub(crate) shape: Vec<usize>,
    map: Mmap,
    start: usize,
}

impl Npy {
    /// Opens a file and checks that header and size agree.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let map = untrusted_io::map(path).map_err(DataError::io("open", path))?;
        let bad = |problem: &str| DataError::malformed(path, problem);
        if !map.starts_with(MAGIC) || map.len() < 10 {
            return Err(bad("not a version 1.0 .npy file"));
        }
        let start = 10 + usize::from(u16::from_le_bytes([map[8], map[9]]));
        let header = map
            .get(10..start)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .ok_or_else(|| bad("the .npy header is cut short"))?;
        let (descr, shape) = parse_header(header).ok_or_else(|| bad("the .npy header is damaged"))?;
        let item: usize = descr.get(2..).and_then(|size| size.parse().ok()).unwrap_or(0);
        let expected = shape
            .iter()
            .try_fold(item, |bytes, &dim| bytes.checked_mul(dim))
            .and_then(|bytes| bytes.checked_add(start));
        if item == 0 || expected != Some(map.len()) || start % 8 != 0 {
            return Err(DataError::malformed(
                path,
                format!("array of type {descr} and shape {shape:?} does not match {} bytes", map.len()),
            ));
        }
        Ok(Self { descr, shape, map, start })
    }

    /// The bytes of the whole file, for checksums.
    pub(crate) fn file_bytes(&self) -> &[u8] {
        &self.map
    }

    /// The numbers, if they are of type `T`.
    pub(crate) fn into_array<T: Element>(self, path: &Path) -> Result<IndexArray<T>, DataError> {
        if self.descr != T::DESCR {
            return Err(DataError::malformed(
                path,
                format!("expected an array of type {}, found {}", T::DESCR, self.descr),
            ));
        }
        Ok(IndexArray::Mapped { map: self.map, start: self.start })
    }
}

fn parse_header(header: &str) -> Option<(String, Vec<usize>)> {
    let descr = header.split_once("'descr': '")?.1.split_once('\'')?.0.to_owned();
    if !header.contains("'fortran_order': False") {
        return None;
    }
    let shape = header.split_once("'shape': (")?.1.split_once(')')?.0;
    let shape = shape
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().ok())
        .collect::<Option<Vec<usize>>>()?;
    Some((descr, shape))
}

/// Writes an array under `path` (atomically) and returns the checksum of the file.
pub(crate) fn write<T: Element>(path: &Path, values: &[T], shape: &[usize]) -> Result<u64, DataError> {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let tuple = if dims.len() == 1 { format!("{},", dims[0]) } else { dims.join(", ") };
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({tuple}), }}", T::DESCR);
    let growth = GROWTH_DIGITS.saturating_sub(dims.first().map_or(GROWTH_DIGITS, String::len));
    let used = MAGIC.len() + 2 + header.len() + growth + 1;
    header.push_str(&" ".repeat(growth + (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT));
    header.push('\n');

    let mut start = MAGIC.to_vec();
    start.extend((header.len() as u16).to_le_bytes());
    start.extend(header.as_bytes());
    let body: &[u8] = bytemuck::cast_slice(values);
    let mut checksum = XxHash3_64::default();
    checksum.write(&start);
    checksum.write(body);

    let mut out = BufWriter::new(TempFile::beside(path)?);
    out.write_all(&start).and_then(|()| out.write_all(body)).map_err(DataError::io("write", path))?;
    out.into_inner().map_err(|error| DataError::io("write", path)(error.into_error()))?.publish()?;
    Ok(checksum.finish())
}

/// The checksum that [`write`] returns, computed from bytes read back.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_numpys() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.npy");
        let written = write(&path, &[1i32, 2, 3, 4, 5, 6], &[3, 2]).expect("written");
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!((written, checksum(b"")), (checksum(&bytes), 0x2d06_8005_38d3_94c2), "XXH3");
        assert_eq!(bytes.len(), 128 + 24);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert!(bytes[10..].starts_with(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), } "));
        assert_eq!(bytes[127], b'\n');

        let npy = Npy::open(&path).expect("opened");
        assert_eq!((npy.descr.as_str(), npy.shape.as_slice()), ("<i4", [3, 2].as_slice()));
        assert_eq!(npy.into_array::<i32>(&path).expect("typed").as_slice(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn damage_is_an_error() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.npy");
        write(&path, &[1i64; 9], &[9]).expect("written");
        let whole = std::fs::read(&path).expect("read");
        for cut in [0, 5, 9, 60, 127, 130, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            assert!(Npy::open(&path).is_err(), "cut to {cut} bytes");
        }
        std::fs::write(&path, &whole).expect("restored");
        assert!(Npy::open(&path).expect("opened").into_array::<i32>(&path).is_err());
    }
}
