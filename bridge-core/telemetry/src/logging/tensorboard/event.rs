//! The `Event` message of TensorFlow's `event.proto`, as far as scalars need it.
//!
//! Fields: `wall_time` 1 double, `step` 2 int64, `file_version` 3 string, `summary` 5 message with
//! repeated `value` 1: `tag` 1 string, `simple_value` 2 float.

use crate::logging::protobuf::{Field, Fields, Message};

/// Content of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The first event of a file.
    FileVersion(String),
    /// One point of a curve.
    Scalar {
        /// Name of the curve.
        tag: String,
        /// Value of the scalar.
        value: f32,
    },
    /// Anything else, which other programs may have written.
    Other,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// Iteration, or samples for curves against samples.
    pub step: i64,
    /// Content of the event.
    pub kind: EventKind,
}

impl Event {
    /// The message's bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let event = Message::default().double(1, self.wall_time).int(2, self.step);
        let event = match &self.kind {
            EventKind::FileVersion(version) => event.bytes(3, version.as_bytes()),
            EventKind::Scalar { tag, value } => {
                let scalar = Message::default().bytes(1, tag.as_bytes()).float(2, *value);
                event.message(5, Message::default().message(1, scalar))
            }
            EventKind::Other => event,
        };
        event.0
    }

    /// Decodes a message; `None` if the bytes are not a message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut event = Self { wall_time: 0.0, step: 0, kind: EventKind::Other };
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            match fields.next()? {
                (1, Field::Fixed64(bits)) => event.wall_time = f64::from_bits(bits),
                (2, Field::Varint(step)) => event.step = step as i64,
                (3, Field::Bytes(version)) => {
                    event.kind = EventKind::FileVersion(String::from_utf8(version.to_vec()).ok()?);
                }
                (5, Field::Bytes(summary)) => event.kind = decode_summary(summary)?,
                _ => {}
            }
        }
        Some(event)
    }
}

/// Decodes a summary of exactly one simple value as a scalar; ignores all others.
fn decode_summary(bytes: &[u8]) -> Option<EventKind> {
    let mut summary = Fields(bytes);
    let Some((1, Field::Bytes(value))) = summary.next() else { return Some(EventKind::Other) };
    let (mut tag, mut simple_value) = (None, None);
    let mut fields = Fields(value);
    while !fields.0.is_empty() {
        match fields.next()? {
            (1, Field::Bytes(name)) => tag = Some(String::from_utf8(name.to_vec()).ok()?),
            (2, Field::Fixed32(bits)) => simple_value = Some(f32::from_bits(bits)),
            _ => {}
        }
    }
    Some(match (tag, simple_value, summary.0.is_empty()) {
        (Some(tag), Some(value), true) => EventKind::Scalar { tag, value },
        _ => EventKind::Other,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_bytes() {
        let event = Event { wall_time: 1.0, step: 300, kind: EventKind::Scalar { tag: "a".into(), value: 0.5 } };
        let mut expected = vec![0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02];
        expected.extend([0x2a, 0x0a, 0x0a, 0x08, 0x0a, 0x01, b'a', 0x15, 0, 0, 0, 0x3f]);
        assert_eq!(event.encode(), expected);
        assert_eq!(Event::decode(&expected), Some(event));
        assert_eq!(Event::decode(&expected[..expected.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn events_round_trip(wall_time in 0.0..4e9f64, step: i64, tag in ".{0,300}", value in -1e30..1e30f32) {
            for kind in [EventKind::Scalar { tag: tag.clone(), value }, EventKind::FileVersion(tag), EventKind::Other] {
                let event = Event { wall_time, step, kind };
                prop_assert_eq!(Event::decode(&event.encode()), Some(event));
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(event) = Event::decode(&bytes) {
                prop_assert!(event.encode().len() >= 9);
            }
        }
    }
}
