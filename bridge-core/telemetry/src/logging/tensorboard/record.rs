//! The record framing of event files: length, masked CRC-32C of the length, payload, masked CRC-32C
//! of the payload.

use std::path::Path;

use bridge_data::untrusted_io;

use super::event::Event;
use crate::logging::files::FileError;

/// The checksum as event files store it: rotated and offset, so that checksums of checksums stay
/// strong.
pub(super) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Frames a payload.
pub(super) fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked_crc32c(&length).to_le_bytes());
    record.extend_from_slice(payload);
    record.extend_from_slice(&masked_crc32c(payload).to_le_bytes());
    record
}

/// Events of a file with the bytes of their records; an incomplete record at the end is left out.
pub(super) fn split<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vec<(Event, &'a [u8])>, FileError> {
    let mut events = Vec::new();
    let mut offset = 0;
    while let Some(header) = bytes.get(offset..offset + 12) {
        let damaged =
            |reason| FileError::Damaged(format!("{}, byte {offset}: {reason}; move the file away", path.display()));
        let (length, crc) = header.split_at(8);
        if masked_crc32c(length).to_le_bytes() != crc {
            return Err(damaged("the length's checksum does not match"));
        }
        // A length that passed its checksum but exceeds the file belongs to a torn record.
        let length = u64::from_le_bytes(length.try_into().expect("split at 8"));
        let end = usize::try_from(length).ok().and_then(|length| offset.checked_add(16)?.checked_add(length));
        let Some(record) = end.and_then(|end| bytes.get(offset..end)) else { break };
        let (payload, crc) = record[12..].split_at(record.len() - 16);
        if masked_crc32c(payload).to_le_bytes() != crc {
            return Err(damaged("the record's checksum does not match"));
        }
        events.push((Event::decode(payload).ok_or_else(|| damaged("no event"))?, record));
        offset += record.len();
    }
    Ok(events)
}

/// Reads all events of a file, checksums verified; an incomplete record at the end is left out.
///
/// # Errors
/// File errors and damage.
pub fn read_events(path: &Path) -> Result<Vec<Event>, FileError> {
    let bytes = untrusted_io::read(path, untrusted_io::RECORDS_BYTES).map_err(FileError::of(path))?;
    Ok(split(path, &bytes)?.into_iter().map(|(event, _)| event).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_crc32c_masked() {
        // RFC 3720, B.4: 32 zero bytes.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked_crc32c(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        // The header of the version event that every TensorFlow event file starts with, 24 bytes
        // long.
        assert_eq!(frame(&[0; 24])[..12], [0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn damage_is_found_and_a_torn_end_is_not_damage() {
        let event = |step| Event { wall_time: 1.0, step, kind: super::super::EventKind::Other };
        let bytes: Vec<u8> = (1..4).flat_map(|step| frame(&event(step).encode())).collect();
        let path = Path::new("events");
        let record_length = bytes.len() / 3;
        for length in 0..=bytes.len() {
            assert_eq!(split(path, &bytes[..length]).unwrap().len(), length / record_length);
        }
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 0x10;
            let message = split(path, &flipped).unwrap_err().to_string();
            assert!(message.contains("checksum"), "byte {index}: {message}");
        }
    }
}
