//! Reading and writing the value of one field, for every primitive and container type that sections
//! use. Sections and file formats do not belong here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::node::{Data, Entry, Node};
use super::reader::Reader;
use super::spec::{TypeSpec, is_null_word};

/// A type that a setting can have.
pub trait Field: Sized {
    /// Reads a value; on failure the problem is in `reader` and the setting keeps its default.
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self>;
    /// Writes the value so that [`Field::read`] returns an equal one.
    fn write(&self) -> Node;
    /// The type, for messages and the schema.
    fn spec() -> TypeSpec;
}

macro_rules! plain_field {
    ($ty:ty => $spec:ident, $($pattern:pat => $read:expr),+; $value:ident => $written:expr) => {
        impl Field for $ty {
            fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
                match &node.data {
                    $( $pattern => Some($read), )+
                    _ => reader.wrong_type(node, &Self::spec()),
                }
            }
            fn write(&self) -> Node {
                let $value = self;
                $written
            }
            fn spec() -> TypeSpec {
                TypeSpec::$spec
            }
        }
    };
}
plain_field!(bool => Bool, Data::Bool(value) => *value; value => Data::Bool(*value).into());
// A huge integer is rounded, as if it had been written as a float.
plain_field!(f64 => Float, Data::Float(value) => *value, Data::Int(value) => *value as f64; value => Data::Float(*value).into());
plain_field!(String => String, Data::String(text) => text.clone(); text => Node::string(text));
plain_field!(PathBuf => String, Data::String(text) => text.into(); path => Node::string(path.to_string_lossy()));

macro_rules! integer_field {
    ($($ty:ty => $spec:ident),+) => {$(
        impl Field for $ty {
            fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
                let Data::Int(value) = node.data else { return reader.wrong_type(node, &Self::spec()) };
                match <$ty>::try_from(value) {
                    Ok(value) => Some(value),
                    Err(_) => reader.out_of_range(node, &Self::spec().to_string()),
                }
            }
            fn write(&self) -> Node {
                Data::Int(i128::try_from(*self).unwrap_or(i128::MAX)).into()
            }
            fn spec() -> TypeSpec {
                TypeSpec::$spec
            }
        }
    )+};
}
integer_field!(usize => Count, u64 => Count, i64 => Integer);

impl<T: Field> Field for Option<T> {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        if is_null_word(node) { Some(None) } else { T::read(node, reader).map(Some) }
    }
    fn write(&self) -> Node {
        self.as_ref().map_or_else(Node::null, T::write)
    }
    fn spec() -> TypeSpec {
        TypeSpec::Nullable(Box::new(T::spec()))
    }
}

impl<T: Field> Field for Vec<T> {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        let Data::List(items) = &node.data else { return reader.wrong_type(node, &Self::spec()) };
        // Every item is read, so that every bad item is reported.
        let read: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| reader.inside(&index.to_string(), |reader| T::read(item, reader)))
            .collect();
        read.into_iter().collect()
    }
    fn write(&self) -> Node {
        Data::List(self.iter().map(T::write).collect()).into()
    }
    fn spec() -> TypeSpec {
        TypeSpec::List(Box::new(T::spec()))
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.data {
            Data::List(items) if items.len() == N => Vec::read(node, reader)?.try_into().ok(),
            _ => reader.wrong_type(node, &Self::spec()),
        }
    }
    fn write(&self) -> Node {
        Data::List(self.iter().map(T::write).collect()).into()
    }
    fn spec() -> TypeSpec {
        TypeSpec::Array(Box::new(T::spec()), N)
    }
}

impl<T: Field> Field for BTreeMap<String, T> {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        let Data::Table(entries) = &node.data else { return reader.wrong_type(node, &Self::spec()) };
        let read: Vec<_> = entries
            .iter()
            .map(|entry| {
                let value = reader.inside(&entry.key, |reader| T::read(&entry.node, reader))?;
                Some((entry.key.clone(), value))
            })
            .collect();
        read.into_iter().collect()
    }
    fn write(&self) -> Node {
        let entries = self.iter().map(|(key, value)| Entry::new(key, value.write()));
        Data::Table(entries.collect()).into()
    }
    fn spec() -> TypeSpec {
        TypeSpec::Map(Box::new(T::spec()))
    }
}

/// A setting that takes one value or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub enum OneOrMany<T> {
    /// A single value.
    One(T),
    /// A list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// The values, one or many.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl<T: Field> Field for OneOrMany<T> {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.data {
            Data::List(_) => Vec::read(node, reader).map(Self::Many),
            _ if T::spec().accepts(node) => T::read(node, reader).map(Self::One),
            // A number outside T's range gets T's own message; anything else names both forms.
            Data::Int(_) => T::read(node, reader).map(Self::One),
            _ => reader.wrong_type(node, &Self::spec()),
        }
    }
    fn write(&self) -> Node {
        match self {
            Self::One(value) => value.write(),
            Self::Many(values) => values.write(),
        }
    }
    fn spec() -> TypeSpec {
        TypeSpec::OneOf(vec![T::spec(), TypeSpec::List(Box::new(T::spec()))])
    }
}

/// A value of any type, for tables that are passed through to other code.
#[derive(Debug, Clone, PartialEq)]
pub struct AnyValue(pub toml::Value);

impl Field for AnyValue {
    fn read(node: &Node, _: &mut Reader<'_>) -> Option<Self> {
        Some(Self(node.to_toml_value()))
    }
    fn write(&self) -> Node {
        Node::from_toml_value(&self.0)
    }
    fn spec() -> TypeSpec {
        TypeSpec::Any
    }
}

/// A number of bytes, written as a number or with a unit: `16000000`, `"16MB"`, `"1.5GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads `number [unit]`; decimal units are powers of 1000, binary ones (`KiB`) of 1024.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            _ => return None,
        };
        let bytes = number.trim().parse::<f64>().ok()? * factor as f64;
        // No text source has a size beyond 2^53.
        (bytes.is_finite() && (0.0..9.0e15).contains(&bytes)).then_some(Self(bytes as u64))
    }
}

impl Field for ByteSize {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.data {
            Data::Int(_) => u64::read(node, reader).map(Self),
            Data::String(text) => match Self::parse(text) {
                Some(size) => Some(size),
                None => reader.wrong_type(node, &Self::spec()),
            },
            _ => reader.wrong_type(node, &Self::spec()),
        }
    }
    fn write(&self) -> Node {
        Data::Int(i128::from(self.0)).into()
    }
    fn spec() -> TypeSpec {
        TypeSpec::OneOf(vec![TypeSpec::Count, TypeSpec::String])
    }
}
