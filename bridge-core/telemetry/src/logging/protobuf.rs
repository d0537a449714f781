//! The wire format of protocol buffers (protobuf.dev/programming-guides/encoding), as far as the
//! messages of logs need it.

pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
const BYTES: u8 = 2;
pub(super) const FIXED32: u8 = 5;

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_key(out: &mut Vec<u8>, field: u32, wire_type: u8) {
    put_varint(out, u64::from(field) << 3 | u64::from(wire_type));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_key(out, field, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A text; an empty one is the default, which is not written.
pub(super) fn put_text(out: &mut Vec<u8>, field: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(out, field, text.as_bytes());
    }
}

/// A whole number; zero is the default, which is not written. Negative ones take ten bytes, as the
/// format has it.
pub(super) fn put_int(out: &mut Vec<u8>, field: u32, value: i64) {
    if value != 0 {
        put_key(out, field, VARINT);
        put_varint(out, value as u64);
    }
}

/// A value of a field.
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields left to read.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field: its number and value; `None` at the end, and where the bytes are no message.
    pub fn next(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.varint()?;
        let field = match (key & 7) as u8 {
            VARINT => Field::Varint(self.varint()?),
            FIXED64 => Field::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            FIXED32 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            BYTES => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            _ => return None,
        };
        Some((key >> 3, field))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
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
        let mut out = Vec::new();
        put_int(&mut out, 1, 300);
        put_int(&mut out, 2, 0);
        put_int(&mut out, 3, -1);
        put_text(&mut out, 200, "ab");
        put_text(&mut out, 4, "");
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
