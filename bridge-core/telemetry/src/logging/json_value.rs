//! Numbers in log files. JSON has no NaN or infinity, so these become the strings `"NaN"`,
//! `"Infinity"` and `"-Infinity"`, which float parsers of most languages accept.

use serde::{Serialize, Serializer};

/// One value of a log record.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// Written as the shortest decimal that reads back as the same float32: losses and norms.
    F32(f32),
    /// Written as the shortest decimal that reads back as the same float64.
    F64(f64),
    /// A count.
    Count(u64),
    /// Text.
    Text(String),
    /// Lists of counts by name.
    Counts(Vec<(String, Vec<u64>)>),
    /// Numbers by name, each written as `F32`.
    Numbers(Vec<(String, f32)>),
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for MetricValue {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from!(f32 => F32, f64 => F64, u64 => Count, String => Text, &str => Text);

/// The string that stands for a number JSON cannot write.
pub(super) fn non_finite(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_nan() => Some("NaN"),
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    }
}

impl MetricValue {
    /// The value as a number, where it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::F32(value) => Some(f64::from(*value)),
            Self::F64(value) => Some(*value),
            Self::Count(value) => Some(*value as f64),
            Self::Text(_) | Self::Counts(_) | Self::Numbers(_) => None,
        }
    }
}

impl Serialize for MetricValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::F32(value) if value.is_finite() => serializer.serialize_f32(*value),
            Self::F64(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::F32(_) | Self::F64(_) => self.number().and_then(non_finite).serialize(serializer),
            Self::Count(value) => serializer.serialize_u64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::Numbers(numbers) => {
                serializer.collect_map(numbers.iter().map(|(name, number)| (name, Self::F32(*number))))
            }
            Self::Counts(lists) => serializer.collect_map(lists.iter().map(|(name, counts)| (name, counts))),
        }
    }
}

/// A JSON object of these fields, on one line.
pub(super) fn fields_to_json(fields: &[(String, MetricValue)]) -> String {
    struct Object<'a>(&'a [(String, MetricValue)]);
    impl Serialize for Object<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
        }
    }
    serde_json::to_string(&Object(fields)).expect("strings and numbers always serialize")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: impl Into<MetricValue>) -> String {
        serde_json::to_string(&value.into()).unwrap()
    }

    #[test]
    fn numbers_are_as_short_as_their_type_allows() {
        assert_eq!(written(6.240_275_f32), "6.240275");
        assert_eq!(written(0.1_f32), "0.1");
        assert_eq!(written(f64::from(0.1_f32)), "0.10000000149011612");
        assert_eq!(written(7_u64), "7");
        let counts = MetricValue::Counts(vec![("1".into(), vec![3, 0]), ("10".into(), vec![])]);
        assert_eq!(written(counts), "{\"1\":[3,0],\"10\":[]}");
        let numbers = MetricValue::Numbers(vec![("a".into(), 0.1), ("b".into(), f32::NAN)]);
        assert_eq!(written(numbers), "{\"a\":0.1,\"b\":\"NaN\"}");
    }

    #[test]
    fn what_json_cannot_write_becomes_text() {
        assert_eq!(written(f32::NAN), "\"NaN\"");
        assert_eq!(written(f64::INFINITY), "\"Infinity\"");
        assert_eq!(written(f32::NEG_INFINITY), "\"-Infinity\"");
    }

    proptest::proptest! {
        #[test]
        fn float32_round_trips(bits in proptest::num::u32::ANY) {
            let value = f32::from_bits(bits);
            if value.is_finite() {
                proptest::prop_assert_eq!(written(value).parse::<f32>().unwrap().to_bits(), bits);
            }
        }
    }
}
