//! Description of a setting without its section: the rows of the sections' field tables, and the
//! types of values.

use std::fmt;

use super::limits::Limits;
use super::node::{Data, Node};
use super::refusal::Refusal;
use super::rule::Rule;

/// One row of a section's field table.
#[derive(Debug, Clone)]
pub struct FieldSpec {
    /// The name inside its section.
    pub name: &'static str,
    /// One or more sentences about it.
    pub doc: &'static str,
    /// The range of a number, or of each number of a list.
    pub limits: Limits,
    /// Other settings that it needs, excludes, or has no effect without.
    pub(super) rules: Vec<Rule>,
    /// The type.
    pub spec: fn() -> TypeSpec,
    /// The default value.
    pub default: Node,
    /// Why values other than those it names are refused; `None` accepts all values.
    pub refusal: Option<Refusal>,
    /// Effect of another value.
    pub concerns: Concerns,
    /// Groups of settings that it belongs to.
    pub(super) groups: Vec<Group>,
}

/// Group of settings of `[model]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Settings that every kind of model has: of the loop and of the pipeline.
    EveryKind,
    /// Parallel sizes, and what goes with one of them.
    Layout,
    /// Other settings about the cooperation of ranks.
    Ranks,
}

/// Part of a row after the default.
pub(super) trait Attribute {
    /// The row with this attribute.
    fn add_to(self, row: FieldSpec) -> FieldSpec;
}

impl Attribute for Limits {
    fn add_to(self, row: FieldSpec) -> FieldSpec {
        FieldSpec { limits: self, ..row }
    }
}

impl Attribute for Rule {
    fn add_to(self, mut row: FieldSpec) -> FieldSpec {
        row.rules.push(self);
        row
    }
}

impl Attribute for Group {
    fn add_to(self, mut row: FieldSpec) -> FieldSpec {
        row.groups.push(self);
        row
    }
}

/// Effect of another value of a setting on a run that resumes from a checkpoint. Unmarked rows
/// change the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerns {
    /// In `[model]` the function of the model; in other sections the course of training.
    Function,
    /// The course of training, but not the function of the trained model: marked `@training`.
    Training,
    /// Neither, but for rounding: layouts, memory, speed, logs. Marked `@execution`.
    Execution,
}

/// The type of a setting, for messages ("expected ...") and for the JSON Schema.
#[derive(Debug, Clone)]
pub enum TypeSpec {
    /// true or false.
    Bool,
    /// A whole number; the field's limits say whether it may be negative.
    Integer,
    /// A whole number that is not negative.
    Count,
    /// A number; whole numbers are accepted.
    Float,
    /// Text.
    String,
    /// Choice of a name.
    Choice(&'static [&'static str]),
    /// A list of any length.
    List(Box<TypeSpec>),
    /// A list of a fixed number of items.
    Array(Box<TypeSpec>, usize),
    /// A table with free keys.
    Map(Box<TypeSpec>),
    /// Any of the alternatives.
    OneOf(Vec<TypeSpec>),
    /// The inner type or null.
    Nullable(Box<TypeSpec>),
    /// A table with fixed keys.
    Section(fn() -> Vec<FieldSpec>),
    /// Anything.
    Any,
}

impl fmt::Display for TypeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Integer => f.write_str("an integer"),
            Self::Count => f.write_str("an integer that is not negative"),
            Self::Float => f.write_str("a number"),
            Self::String => f.write_str("a string"),
            Self::Choice(names) => write!(f, "one of {}", names.join(", ")),
            Self::List(item) => write!(f, "a list, each item {item}"),
            Self::Array(item, length) => write!(f, "a list of {length}, each item {item}"),
            Self::Map(value) => write!(f, "a table, each value {value}"),
            Self::OneOf(options) => {
                let options: Vec<_> = options.iter().map(Self::to_string).collect();
                f.write_str(&options.join(", or "))
            }
            Self::Nullable(inner) => write!(f, "{inner} (or null)"),
            Self::Section(_) => f.write_str("a table"),
            Self::Any => f.write_str("any value"),
        }
    }
}

impl TypeSpec {
    /// The field table, when this is a table with fixed keys, alone or as an alternative.
    pub fn section_fields(&self) -> Option<Vec<FieldSpec>> {
        match self {
            Self::Section(fields) => Some(fields()),
            Self::Nullable(inner) => inner.section_fields(),
            Self::OneOf(options) => options.iter().find_map(Self::section_fields),
            _ => None,
        }
    }

    /// True if a value has this type; used for settings that code registers at run time.
    pub fn accepts(&self, node: &Node) -> bool {
        match (self, &node.data) {
            (Self::Any, _) | (Self::Bool, Data::Bool(_)) | (Self::String, Data::String(_)) => true,
            (Self::Integer, Data::Int(value)) => i64::try_from(*value).is_ok(),
            (Self::Count, Data::Int(value)) => u64::try_from(*value).is_ok(),
            (Self::Float, Data::Int(_)) => true,
            (Self::Float, Data::Float(value)) => value.is_finite(),
            (Self::Choice(names), Data::String(text)) => names.contains(&text.as_str()),
            (Self::List(item), Data::List(items)) => items.iter().all(|node| item.accepts(node)),
            (Self::Array(item, length), Data::List(items)) => {
                items.len() == *length && items.iter().all(|node| item.accepts(node))
            }
            (Self::Map(value), Data::Table(entries)) => entries.iter().all(|entry| value.accepts(&entry.node)),
            (Self::OneOf(options), _) => options.iter().any(|option| option.accepts(node)),
            (Self::Nullable(inner), _) => is_null_word(node) || inner.accepts(node),
            (Self::Section(fields), Data::Table(entries)) => {
                let fields = fields();
                entries.iter().all(|entry| {
                    let field = fields.iter().find(|field| field.name == entry.key);
                    field.is_some_and(|field| (field.spec)().accepts(&entry.node))
                })
            }
            _ => false,
        }
    }
}

/// True for null. TOML has no null, so the string `"null"` means null if a setting may be null.
pub(super) fn is_null_word(node: &Node) -> bool {
    node.is_null() || matches!(&node.data, Data::String(text) if text == "null")
}

impl Refusal {
    /// Status of the setting: `partly` (some values are implemented), `refused`, or `inert` (no
    /// value has an effect).
    pub(super) fn status(&self, field: &FieldSpec) -> &'static str {
        match (self.is_whole(), self.is_inert(field)) {
            (false, _) => "partly",
            (true, false) => "refused",
            (true, true) => "inert",
        }
    }

    /// True if the setting has no effect and all values of its type are accepted.
    pub fn is_inert(&self, field: &FieldSpec) -> bool {
        let has = |node: &Node| self.accepted(&field.default).contains(node);
        let (spec, is_nullable) = match (field.spec)() {
            TypeSpec::Nullable(inner) => (*inner, true),
            spec => (spec, false),
        };
        let has_all = match spec {
            TypeSpec::Bool => [true, false].iter().all(|value| has(&Data::Bool(*value).into())),
            TypeSpec::Choice(names) => names.iter().all(|name| has(&Node::string(*name))),
            _ => false,
        };
        has_all && (!is_nullable || has(&Node::null()))
    }
}
