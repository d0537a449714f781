//! Sections: the `section!` macro, which declares a struct together with its defaults, reading, writing and field table,
//! and the reader, which collects every problem.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::field::TypeSpec;
use super::kinds::Kinds;
use super::limits::Limits;
use super::node::{Data, Entry, Location, Node};
use super::refusal::Refusal;

/// Which settings were given explicitly, and where: dotted path to location.
pub type Origins = BTreeMap<String, Option<Location>>;

/// Where a setting, or the closest table around it, was given.
pub(crate) fn locate(origins: &Origins, key: &str) -> Option<Location> {
    let mut key = key;
    loop {
        if let Some(location) = origins.get(key) {
            return location.clone();
        }
        key = key.rsplit_once('.')?.0;
    }
}

/// One row of a section's field table.
#[derive(Debug, Clone)]
pub struct FieldSpec {
    /// The name inside its section.
    pub name: &'static str,
    /// One or more sentences about it.
    pub doc: &'static str,
    /// The range of a number, or of each number of a list.
    pub limits: Limits,
    /// The type.
    pub spec: fn() -> TypeSpec,
    /// The default value.
    pub default: Node,
    /// Why values other than those it names are refused; `None` accepts all values.
    pub refusal: Option<Refusal>,
}

/// A struct whose fields are settings.
pub trait Section: Default + Clone + PartialEq {
    /// The field table, in declaration order.
    fn fields() -> Vec<FieldSpec>;

    /// The names a user may write, aliases included.
    fn names() -> Vec<&'static str>;

    /// The names a user may write in this particular section, for the nearest one to a wrong name.
    fn known_names(&self, _kinds: &Kinds) -> Vec<String> {
        Self::names().into_iter().map(str::to_owned).collect()
    }

    /// The field that `name` means, for alternative spellings.
    fn canonical(name: &str) -> &str {
        name
    }

    /// Reads one field; false if there is none of this name.
    fn assign(&mut self, name: &str, node: &Node, reader: &mut Reader<'_>) -> bool;

    /// The value of one field.
    fn value(&self, name: &str) -> Option<Node>;

    /// All fields as a table, in declaration order.
    fn to_node(&self) -> Node;

    /// Reads a table over the current values, reporting unknown and repeated names.
    fn assign_all(&mut self, node: &Node, reader: &mut Reader<'_>) {
        let Data::Table(entries) = &node.data else {
            if !matches!(node.data, Data::Unset) {
                reader.wrong_type::<()>(node, &TypeSpec::Section(Self::fields));
            }
            return;
        };
        assign_entries(self, entries, reader);
    }
}

/// The loop of [`Section::assign_all`].
pub(crate) fn assign_entries<S: Section>(section: &mut S, entries: &[Entry], reader: &mut Reader<'_>) {
    let mut seen = BTreeSet::new();
    for entry in entries {
        let name = S::canonical(&entry.key);
        if !seen.insert(name) {
            reader.repeated(entry);
            continue;
        }
        let is_known = reader.field(entry, name, |reader| section.assign(name, &entry.node, reader));
        if !is_known {
            let names = section.known_names(reader.kinds);
            reader.unknown(entry, names.iter().map(String::as_str));
        }
    }
}

/// Reads settings from a value tree: knows its current path, and collects problems and origins.
#[derive(Debug)]
pub struct Reader<'k> {
    /// The kinds of model and dataset that may be chosen.
    pub(crate) kinds: &'k Kinds,
    path: Vec<String>,
    errors: ConfigErrors,
    origins: Origins,
}

impl<'k> Reader<'k> {
    /// A reader at the root.
    pub fn new(kinds: &'k Kinds) -> Self {
        Self { kinds, path: Vec::new(), errors: ConfigErrors::default(), origins: Origins::new() }
    }

    /// What was collected.
    pub(crate) fn finish(self) -> (Origins, ConfigErrors) {
        (self.origins, self.errors)
    }

    /// Runs `read` one level deeper.
    pub(crate) fn inside<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(key.to_owned());
        let result = read(self);
        self.path.pop();
        result
    }

    /// Runs `read` for one entry of a section and notes where the setting was given.
    pub(crate) fn field(&mut self, entry: &Entry, name: &str, read: impl FnOnce(&mut Self) -> bool) -> bool {
        self.inside(name, |reader| {
            let known = read(reader);
            let is_given = !matches!(entry.node.data, Data::Unset);
            if known && is_given {
                let location = entry.node.location.clone();
                reader.origins.insert(reader.path.join("."), location);
            }
            known
        })
    }

    /// Reports a value of the wrong type. Unsetting on the command line is not a problem.
    pub(crate) fn wrong_type<T>(&mut self, node: &Node, expected: &TypeSpec) -> Option<T> {
        if matches!(node.data, Data::Unset) {
            return None;
        }
        let mut error = self.error(ErrorKind::WrongType, "wrong type", node).with_expected(expected.to_string());
        if let (Data::String(text), TypeSpec::Choice(names)) = (&node.data, expected) {
            error.message = "unknown name".into();
            error = error.with_nearest(text, names.iter().copied());
        }
        self.errors.push(error);
        None
    }

    /// Reports a number that the type cannot hold.
    pub(crate) fn out_of_range<T>(&mut self, node: &Node, expected: &str) -> Option<T> {
        let error = self.error(ErrorKind::OutOfRange, "out of range", node).with_expected(expected);
        self.errors.push(error);
        None
    }

    /// Reports a name that does not exist.
    pub(crate) fn unknown<'a>(&mut self, entry: &Entry, names: impl IntoIterator<Item = &'a str>) {
        let error = self.inside(&entry.key, |reader| {
            let mut error = reader.error(ErrorKind::UnknownKey, "unknown setting", &entry.node);
            error.location = entry.key_location.clone().or(error.location);
            error.found = None;
            error.with_nearest(&entry.key, names)
        });
        let meant = self.meant(&error, entry);
        self.errors.push(ConfigError { meant, ..error });
    }

    /// The settings that an unknown name stands for: its nearest name, or the content of a misspelt table.
    fn meant(&self, error: &ConfigError, entry: &Entry) -> Vec<String> {
        let Some(nearest) = &error.nearest else {
            return Vec::new();
        };
        let path = self.path.iter().chain([nearest]).map(String::as_str).collect::<Vec<_>>().join(".");
        match entry.node.entries() {
            Some(entries) => entries.iter().map(|entry| format!("{path}.{}", entry.key)).collect(),
            None => vec![path],
        }
    }

    fn repeated(&mut self, entry: &Entry) {
        let error =
            self.inside(&entry.key, |reader| reader.error(ErrorKind::Conflict, "given more than once", &entry.node));
        self.errors.push(error);
    }

    /// Adds a problem that the caller described.
    pub(crate) fn push(&mut self, error: ConfigError) {
        self.errors.push(error);
    }

    /// A problem at the current path, not yet added.
    pub(crate) fn error(&self, kind: ErrorKind, message: &str, node: &Node) -> ConfigError {
        ConfigError::new(kind, self.path.join("."), message).with_found_node(node).with_location(node.location.clone())
    }
}

/// Declares a section: struct, defaults, [`Section`], [`Field`](super::field::Field) and serde in
/// one table of `/// doc`, `name: type = default, limits => refusal;` rows; most have neither limits nor refusal.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $vis:vis struct $Name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident : $ty:ty = $default:expr $(, $limits:expr)? $(=> $refusal:expr)? ; )+
            $( alias $alias:literal = $target:ident ; )*
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Debug, Clone, PartialEq)]
        #[allow(non_snake_case, reason = "a few of upstream's names are not snake case")]
        $vis struct $Name {
            $( $(#[doc = $doc])+ pub $field: $ty, )+
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $crate::config::section::Section for $Name {
            fn fields() -> Vec<$crate::config::section::FieldSpec> {
                let defaults = Self::default();
                vec![ $( $crate::config::section::FieldSpec {
                    name: stringify!($field),
                    doc: concat!($($doc),+).trim(),
                    limits: section!(@limits $($limits)?),
                    spec: <$ty as $crate::config::field::Field>::spec,
                    default: $crate::config::field::Field::write(&defaults.$field),
                    refusal: section!(@refusal stringify!($field) $(, $refusal)?),
                }, )+ ]
            }

            fn names() -> Vec<&'static str> {
                vec![ $( stringify!($field), )+ $( $alias, )* ]
            }

            fn canonical(name: &str) -> &str {
                match name {
                    $( $alias => stringify!($target), )*
                    _ => name,
                }
            }

            fn assign(
                &mut self,
                name: &str,
                node: &$crate::config::node::Node,
                reader: &mut $crate::config::section::Reader<'_>,
            ) -> bool {
                match name {
                    $( stringify!($field) => {
                        if let Some(value) = $crate::config::field::Field::read(node, reader) {
                            self.$field = value;
                        }
                    } )+
                    _ => return false,
                }
                true
            }

            fn value(&self, name: &str) -> Option<$crate::config::node::Node> {
                match name {
                    $( stringify!($field) => Some($crate::config::field::Field::write(&self.$field)), )+
                    _ => None,
                }
            }

            fn to_node(&self) -> $crate::config::node::Node {
                $crate::config::node::Data::Table(vec![ $(
                    $crate::config::node::Entry::new(
                        stringify!($field),
                        $crate::config::field::Field::write(&self.$field),
                    ),
                )+ ]).into()
            }
        }

        $crate::config::section::section_field!($Name);
    };
    (@limits) => { $crate::config::limits::Limits::NONE };
    (@limits $limits:expr) => { $limits };
    (@refusal $name:expr) => { None };
    (@refusal $name:expr, $refusal:expr) => { Some($refusal).filter(|refusal| refusal.holds($name)) };
}

/// Makes a [`Section`] usable as a field of another one, and serde-serialisable on its own.
macro_rules! section_field {
    ($Name:ty) => {
        impl $crate::config::field::Field for $Name {
            fn read(
                node: &$crate::config::node::Node,
                reader: &mut $crate::config::section::Reader<'_>,
            ) -> Option<Self> {
                let mut section = Self::default();
                $crate::config::section::Section::assign_all(&mut section, node, reader);
                Some(section)
            }
            fn write(&self) -> $crate::config::node::Node {
                $crate::config::section::Section::to_node(self)
            }
            fn spec() -> $crate::config::field::TypeSpec {
                $crate::config::field::TypeSpec::Section(<Self as $crate::config::section::Section>::fields)
            }
        }

        impl serde::Serialize for $Name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::config::section::Section::to_node(self).serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let node = $crate::config::node::Node::deserialize(deserializer)?;
                $crate::config::section::read_alone(&node).map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use {section, section_field};

/// Reads one section outside a whole configuration, with the built-in kinds.
pub(crate) fn read_alone<S: Section>(node: &Node) -> Result<S, ConfigErrors> {
    let kinds = Kinds::builtin();
    let mut reader = Reader::new(&kinds);
    let mut section = S::default();
    section.assign_all(node, &mut reader);
    let (_, errors) = reader.finish();
    errors.into_result(section)
}
