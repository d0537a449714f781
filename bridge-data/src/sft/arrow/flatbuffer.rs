//! Tables of FlatBuffers, read in place. Offsets are checked before they are followed. Callers
//! interpret the tables.
//!
//! A table begins with the distance back to its list of places, which has for each field where it
//! lies in the table, or 0 if it has its default.

/// Position outside the data, or invalid text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// Bytes of a buffer with tables.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset and length in bytes of the table's list of fields.
    places: (usize, usize),
}

impl<'a> Table<'a> {
    /// The table that a buffer is about.
    pub fn root(bytes: &'a [u8]) -> Result<Self, Broken> {
        let at = read::<4>(bytes, 0).map(u32::from_le_bytes)?;
        Self::at(bytes, at as usize)
    }

    fn at(bytes: &'a [u8], at: usize) -> Result<Self, Broken> {
        let back = i64::from(read::<4>(bytes, at).map(i32::from_le_bytes)?);
        let list = usize::try_from(i64::try_from(at).map_err(|_| Broken)? - back).map_err(|_| Broken)?;
        let size = usize::from(read::<2>(bytes, list).map(u16::from_le_bytes)?);
        if size < 4 || list.checked_add(size).is_none_or(|end| end > bytes.len()) {
            return Err(Broken);
        }
        Ok(Self { bytes, at, places: (list, size) })
    }

    /// Offset of field number `field`.
    fn place(&self, field: usize) -> Result<Option<usize>, Broken> {
        let (list, size) = self.places;
        let entry = 4 + 2 * field;
        if entry + 2 > size {
            return Ok(None);
        }
        let place = usize::from(read::<2>(self.bytes, list + entry).map(u16::from_le_bytes)?);
        if place == 0 { Ok(None) } else { self.at.checked_add(place).map(Some).ok_or(Broken) }
    }

    fn scalar<const N: usize>(&self, field: usize) -> Result<Option<[u8; N]>, Broken> {
        self.place(field)?.map(|place| read::<N>(self.bytes, place)).transpose()
    }

    /// A number of 8 bits, 0 by default.
    pub fn byte(&self, field: usize) -> Result<u8, Broken> {
        Ok(self.scalar::<1>(field)?.map_or(0, |[byte]| byte))
    }

    /// A number of 16 bits, 0 by default.
    pub fn short(&self, field: usize) -> Result<i16, Broken> {
        Ok(self.scalar(field)?.map_or(0, i16::from_le_bytes))
    }

    /// A number of 16 bits with another default.
    pub fn short_or(&self, field: usize, default: i16) -> Result<i16, Broken> {
        Ok(self.scalar(field)?.map_or(default, i16::from_le_bytes))
    }

    /// A number of 32 bits, 0 by default.
    pub fn int(&self, field: usize) -> Result<i32, Broken> {
        Ok(self.scalar(field)?.map_or(0, i32::from_le_bytes))
    }

    /// A number of 64 bits, 0 by default.
    pub fn long(&self, field: usize) -> Result<i64, Broken> {
        Ok(self.scalar(field)?.map_or(0, i64::from_le_bytes))
    }

    /// Target of a field's offset.
    fn target(&self, field: usize) -> Result<Option<usize>, Broken> {
        let Some(place) = self.place(field)? else { return Ok(None) };
        follow(self.bytes, place).map(Some)
    }

    /// A table that the field points to, if it does.
    pub fn table(&self, field: usize) -> Result<Option<Self>, Broken> {
        self.target(field)?.map(|at| Self::at(self.bytes, at)).transpose()
    }

    /// The bytes of a vector of elements of `size` bytes, empty by default.
    pub fn elements(&self, field: usize, size: usize) -> Result<&'a [u8], Broken> {
        let Some(at) = self.target(field)? else { return Ok(&[]) };
        let count = read::<4>(self.bytes, at).map(u32::from_le_bytes)? as usize;
        let length = count.checked_mul(size).ok_or(Broken)?;
        let end = (at + 4).checked_add(length).ok_or(Broken)?;
        self.bytes.get(at + 4..end).ok_or(Broken)
    }

    /// A text, empty by default.
    pub fn text(&self, field: usize) -> Result<&'a str, Broken> {
        std::str::from_utf8(self.elements(field, 1)?).map_err(|_| Broken)
    }

    /// The tables of a vector, none by default.
    pub fn tables(&self, field: usize) -> Result<Vec<Self>, Broken> {
        let Some(at) = self.target(field)? else { return Ok(Vec::new()) };
        let count = self.elements(field, 4)?.len() / 4;
        (0..count).map(|index| Self::at(self.bytes, follow(self.bytes, at + 4 + 4 * index)?)).collect()
    }
}

fn follow(bytes: &[u8], place: usize) -> Result<usize, Broken> {
    let distance = read::<4>(bytes, place).map(u32::from_le_bytes)?;
    place.checked_add(distance as usize).ok_or(Broken)
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Broken> {
    let end = at.checked_add(N).ok_or(Broken)?;
    bytes.get(at..end).and_then(|bytes| bytes.try_into().ok()).ok_or(Broken)
}
