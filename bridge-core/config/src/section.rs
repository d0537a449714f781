//! Sections: the trait of a table of settings, and the `section!` macro, which declares a struct
//! together with its defaults, reading, writing and field table.

use std::collections::BTreeSet;

use super::error::ConfigErrors;
use super::kinds::Kinds;
use super::node::{Data, Node};
use super::reader::Reader;
use super::spec::{FieldSpec, TypeSpec};

/// A struct whose fields are settings.
pub trait Section: Default + Clone + PartialEq {
    /// Other names of fields, each with the name of its field.
    const ALIASES: &'static [(&'static str, &'static str)];
    /// The field that is read before the others, because it decides which others are valid.
    const FIRST: Option<&'static str> = None;

    /// The field table, in declaration order.
    fn fields() -> Vec<FieldSpec>;

    /// The names a user may write, aliases included.
    fn names() -> Vec<&'static str> {
        let aliases = Self::ALIASES.iter().map(|(alias, _)| *alias);
        Self::fields().into_iter().map(|field| field.name).chain(aliases).collect()
    }

    /// The names a user may write in this particular section, for the nearest one to a wrong name.
    fn known_names(&self, _kinds: &Kinds) -> Vec<String> {
        Self::names().into_iter().map(str::to_owned).collect()
    }

    /// The field that `name` means, for alternative spellings.
    fn canonical(name: &str) -> &str {
        Self::ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, field)| field)
    }

    /// Reads one field; false if there is no field of this name.
    fn assign(&mut self, name: &str, node: &Node, reader: &mut Reader<'_>) -> bool;

    /// The value of one field.
    fn value(&self, name: &str) -> Option<Node> {
        self.to_node().take(name)
    }

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
        let mut entries: Vec<_> = entries.iter().collect();
        entries.sort_by_key(|entry| Some(entry.key.as_str()) != Self::FIRST);
        let mut seen = BTreeSet::new();
        for entry in entries {
            let name = Self::canonical(&entry.key);
            if !seen.insert(name) {
                reader.repeated(entry);
                continue;
            }
            let is_known = reader.field(entry, name, |reader| self.assign(name, &entry.node, reader));
            if !is_known {
                let names = self.known_names(reader.kinds);
                reader.unknown(entry, names.iter().map(String::as_str));
            }
        }
    }
}

/// Declares a section: struct, defaults, [`Section`], [`Field`](super::field::Field) and serde in
/// one table of `/// doc`, `@mark name: type = default, attributes => refusal;` rows; most have
/// neither attributes nor refusal. Attributes are [`Limits`](super::limits::Limits), rules
/// (`super::rule`) and groups (`super::spec::Group`). A row without a mark changes what is computed
/// ([`Concerns`](super::spec::Concerns)).
///
/// A row `refused @mark name = default, "doc", attributes => refusal;` has no field: only values
/// without effect are accepted. [`RefusedValues`](super::refused_values::RefusedValues) of the
/// section keeps them. Such a row follows a row with a field.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $vis:vis struct $Name:ident {
            $(
                $(#[doc = $doc:literal])+ $(@ $mark:ident)? $field:ident : $ty:ty = $default:expr $(, $attribute:expr)* $(=> $refusal:expr)? ;
                $( refused $(@ $refused_mark:ident)? $refused:ident = $refused_default:expr, $refused_doc:literal $(, $refused_attribute:expr)* => $reason:expr ; )*
            )*
            $( alias $alias:literal = $target:ident ; )*
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Debug, Clone, PartialEq)]
        #[allow(non_snake_case, reason = "a few of upstream's names are not snake case")]
        $vis struct $Name {
            $( $(#[doc = $doc])+ pub $field: $ty, )*
            /// Values of settings that are refused unless they have no effect.
            pub refused: $crate::refused_values::RefusedValues,
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $( $field: $default, )* refused: Default::default() }
            }
        }

        #[allow(unreachable_code, unused_variables, reason = "a section may have no rows")]
        impl $crate::section::Section for $Name {
            const ALIASES: &'static [(&'static str, &'static str)] = &[ $( ($alias, stringify!($target)), )* ];

            fn fields() -> Vec<$crate::spec::FieldSpec> {
                let defaults = Self::default();
                vec![ $(
                    section!(@row
                        stringify!($field), concat!($($doc),+).trim(), ($($mark)?),
                        <$ty as $crate::field::Field>::spec, $crate::field::Field::write(&defaults.$field),
                        section!(@refusal $($refusal)?), [$($attribute),*]
                    ),
                    $( section!(@row
                        stringify!($refused), $refused_doc, ($($refused_mark)?),
                        || $crate::refused_values::RefusedDefault::spec(&$refused_default),
                        $crate::refused_values::RefusedDefault::write(&$refused_default),
                        Some($reason), [$($refused_attribute),*]
                    ), )*
                )* ]
            }

            fn assign(
                &mut self,
                name: &str,
                node: &$crate::node::Node,
                reader: &mut $crate::reader::Reader<'_>,
            ) -> bool {
                match name {
                    $(
                        stringify!($field) => {
                            if let Some(value) = $crate::field::Field::read(node, reader) {
                                self.$field = value;
                            }
                        }
                        $( stringify!($refused) => {
                            self.refused.read(stringify!($refused), &$refused_default, node, reader);
                        } )*
                    )*
                    _ => return false,
                }
                true
            }

            fn to_node(&self) -> $crate::node::Node {
                $crate::node::Data::Table(vec![ $(
                    $crate::node::Entry::new(stringify!($field), $crate::field::Field::write(&self.$field)),
                    $( $crate::node::Entry::new(
                        stringify!($refused),
                        self.refused.write(stringify!($refused), &$refused_default),
                    ), )*
                )* ]).into()
            }
        }

        $crate::section::section_field!($Name);
    };
    (@row $name:expr, $doc:expr, ($($mark:ident)?), $spec:expr, $default:expr, $refusal:expr, [$($attribute:expr),*]) => { {
        let row = $crate::spec::FieldSpec {
            name: $name,
            doc: $doc,
            limits: $crate::limits::Limits::NONE,
            rules: Vec::new(),
            spec: $spec,
            default: $default,
            refusal: $refusal,
            concerns: section!(@concerns $($mark)?),
            groups: Vec::new(),
        };
        $( let row = $crate::spec::Attribute::add_to($attribute, row); )*
        row
    } };
    (@concerns) => { $crate::spec::Concerns::Function };
    (@concerns training) => { $crate::spec::Concerns::Training };
    (@concerns execution) => { $crate::spec::Concerns::Execution };
    (@refusal) => { None };
    (@refusal $refusal:expr) => { Some($refusal) };
}

/// Makes a [`Section`] usable as a field of another one, and serde-serialisable on its own.
macro_rules! section_field {
    ($Name:ty) => {
        impl $crate::field::Field for $Name {
            fn read(node: &$crate::node::Node, reader: &mut $crate::reader::Reader<'_>) -> Option<Self> {
                let mut section = Self::default();
                $crate::section::Section::assign_all(&mut section, node, reader);
                Some(section)
            }
            fn write(&self) -> $crate::node::Node {
                $crate::section::Section::to_node(self)
            }
            fn spec() -> $crate::spec::TypeSpec {
                $crate::spec::TypeSpec::Section(<Self as $crate::section::Section>::fields)
            }
        }

        impl serde::Serialize for $Name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::section::Section::to_node(self).serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let node = $crate::node::Node::deserialize(deserializer)?;
                $crate::section::read_alone(&node).map_err(serde::de::Error::custom)
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
