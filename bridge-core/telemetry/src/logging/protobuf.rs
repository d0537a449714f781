//! The wire format of protocol buffers (protobuf.dev/programming-guides/encoding), as far as the
//! messages of logs need it.

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// A message that is written field by field.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(pub Vec<u8>);

impl Message {
    /// A whole number; zero is the default, which is not written. Negative ones take ten bytes, as
    /// the format has it.
    pub fn int(self, field: u32, value: i64) -> Self {
        if value == 0 { self } else { self.key(field, VARINT).varint(value as u64) }
    }

    pub fn double(self, field: u32, value: f64) -> Self {
        self.key(field, FIXED64).put(&value.to_le_bytes())
    }

    pub fn float(self, field: u32, value: f32) -> Self {
        self.key(field, FIXED32).put(&value.to_le_bytes())
    }

    /// A text; an empty one is the default, which is not written.
    pub fn text(self, field: u32, text: &str) -> Self {
        if text.is_empty() { self } else { self.bytes(field, text.as_bytes()) }
    }

    pub fn texts<T: AsRef<str>>(self, field: u32, texts: impl IntoIterator<Item = T>) -> Self {
        texts.into_iter().fold(self, |message, text| message.text(field, text.as_ref()))
    }

    pub fn bytes(self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, BYTES).varint(bytes.len() as u64).put(bytes)
    }

    pub fn message(self, field: u32, inner: Self) -> Self {
        self.bytes(field, &inner.0)
    }

    fn key(self, field: u32, wire_type: u8) -> Self {
        self.varint(u64::from(field) << 3 | u64::from(wire_type))
    }

    fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.put(&[value as u8])
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A value of a field.
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields left to read: numbers and values, up to the end or to bytes that are no field.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let field = match (key & 7) as u8 {
            VARINT => Field::Varint(self.varint()?),
            FIXED64 => Field::Fixed64(u64::from_le_bytes(self.split_off(8)?.try_into().ok()?)),
            FIXED32 => Field::Fixed32(u32::from_le_bytes(self.split_off(4)?.try_into().ok()?)),
            BYTES => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.split_off(length)?)
            }
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Fields<'a> {
    fn split_off(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.split_off(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes() {
        let Message(out) = Message::default().int(1, 300).int(2, 0).int(3, -1).text(200, "ab").text(4, "");
        let mut expected = vec![0x08, 0xac, 0x02, 0x18];
        expected.extend([0xff; 9]);
        expected.extend([0x01, 0xc2, 0x0c, 2, b'a', b'b']);
        assert_eq!(out, expected);
        let mut fields = Fields(&out);
        assert!(matches!(fields.next(), Some((1, Field::Varint(300)))));
        assert!(matches!(fields.next(), Some((3, Field::Varint(u64::MAX)))));
        assert!(matches!(fields.next(), Some((200, Field::Bytes(b"ab")))));
        assert!(fields.next().is_none());
        assert!(Fields(&out[..2]).next().is_none());
    }
}
